"""What a rank takes into its next iteration: who gives way, chunks of prompts, and whom it admits."""

from __future__ import annotations

import math

from ridgeline.serving.admission import admit, fits
from ridgeline.serving.compiling import clocked
from ridgeline.serving.fairness import head, see
from ridgeline.serving.hooks import victim
from ridgeline.serving.kept import seen_tokens
from ridgeline.serving.looks import late
from ridgeline.serving.queues import drop_end, growth, join_queue, leave_running, resident
from ridgeline.serving.sequences import release, start_decoding, stop_decoding
from ridgeline.serving.state import (
    DECODING,
    NOBODY,
    PREFILL_FIRST,
    PREFILLING,
    STATIC,
    VICTIM,
    WAITING,
    Fleet,
    Lists,
    Record,
    Records,
)


@clocked
def _last_decoding(ranks: Records, requests: Records, rank: int) -> int:
    """Of those who decode, who was admitted last; nobody who is at a prompt in the other lane."""
    request = int(ranks[rank].run_last)
    while request != NOBODY and requests[request].stage != DECODING:
        request = int(requests[request].before)
    return request


@clocked
def _victim(ranks: Records, lists: Lists, requests: Records, rule: Record, rank: int) -> int:
    """Whoever gives way first: by the hook, or who was admitted last, of the least urgent where urgency counts."""
    if lists.hooks[VICTIM] != 0:
        return int(victim(lists.hooks[VICTIM], (ranks, requests, rule, rank)))
    if rule.split:
        return _last_decoding(ranks, requests, rank)
    if not rule.displaces:
        return int(ranks[rank].run_last)
    chosen, request = NOBODY, int(ranks[rank].run_last)
    while request != NOBODY:
        runs = requests[request].stage in (PREFILLING, DECODING)
        if runs and (chosen == NOBODY or requests[request].priority > requests[chosen].priority):
            chosen = request
        request = int(requests[request].before)
    return chosen


@clocked
def preempt(
    ranks: Records, lists: Lists, requests: Records, fleet: Fleet, rule: Record, rank: int, request: int
) -> None:
    """Sends a running request back to the head of the queue, of those as urgent where urgency counts."""
    decoded = requests[request].stage == DECODING
    if decoded:
        drop_end(ranks, lists, rank, request)
        stop_decoding(ranks, lists, requests, rule, rank, request)
    release(ranks, lists, requests, rule, rank, request, decoded)
    leave_running(ranks, requests, rank, request)
    if ranks[rank].partial == request:
        ranks[rank].partial = NOBODY
    made = requests[request].made
    if decoded and rule.swaps:
        requests[request].needed = requests[request].prompt + made - 1
        requests[request].ready = requests[request].needed
        ranks[rank].moved_s += 2.0 * rule.swap_token_s * requests[request].needed  # out now, in again later
    else:
        requests[request].needed = requests[request].prompt + made
        requests[request].ready = 0
    requests[request].stage = WAITING
    requests[request].preempted += 1
    fleet.system[0].preemptions += 1
    join_queue(ranks, lists, requests, rule, rank, request, True, bool(rule.displaces))


@clocked
def ensure_growth(ranks: Records, lists: Lists, requests: Records, fleet: Fleet, rule: Record, rank: int) -> bool:
    """Preempts until the next step's blocks are free; whether it had to."""
    preempted = False
    while ranks[rank].used + growth(ranks, lists, rule, rank, 1) > rule.capacity:
        request = _victim(ranks, lists, requests, rule, rank)
        if request == NOBODY or (ranks[rank].running < 2 and ranks[rank].lent == 0):
            break
        preempt(ranks, lists, requests, fleet, rule, rank, request)
        preempted = True
    return preempted


@clocked
def _make_way(
    ranks: Records, lists: Lists, requests: Records, fleet: Fleet, rule: Record, rank: int, known_s: float
) -> None:
    """Those who run and are less urgent than who is next give way, the least urgent first, until it fits."""
    while ranks[rank].waiting > 0:
        request, yields = head(ranks, lists, requests, rule, rank), _victim(ranks, lists, requests, rule, rank)
        if request == NOBODY or late(requests, request, known_s):
            return
        if yields == NOBODY or requests[yields].priority <= requests[request].priority:
            return
        if fits(ranks, lists, requests, rule, rank, request):
            return
        preempt(ranks, lists, requests, fleet, rule, rank, yields)


@clocked
def _take_chunk(
    ranks: Records, lists: Lists, requests: Records, rule: Record, rank: int, request: int, tokens: int
) -> None:
    place = ranks[rank].chunks
    chunk = lists.chunks[rank, place]
    chunk[0], chunk[1], chunk[2] = request, tokens, seen_tokens(rule, requests[request].ready)
    ranks[rank].chunks = place + 1
    if requests[request].ready + tokens < requests[request].needed:
        ranks[rank].partial = request
    elif ranks[rank].partial == request:
        ranks[rank].partial = NOBODY


@clocked
def form_batch(
    ranks: Records,
    lists: Lists,
    requests: Records,
    fleet: Fleet,
    rule: Record,
    rank: int,
    known_s: float,
    now_s: float,
) -> None:
    """Chooses the chunks of the next iteration: the prompt begun first, then waiting ones in order, within the budget.

    Whoever came after `known_s` [s] was not there when it was prepared, and waits for the one after it. A cache that
    came from another pool brings a first token with it, which is passed on when it is admitted, `now_s` [s].

    Engines that mix count a token (and those drafted) of every decoding sequence against the budget. Without chunking
    a prompt longer than the budget has an iteration of its own.
    """
    ranks[rank].chunks = ranks[rank].stands = 0
    see(ranks, lists, requests, rule, rank)
    if rule.scheduler == STATIC and ranks[rank].running > 0 and ranks[rank].partial == NOBODY:
        return
    mixes = rule.scheduler not in (PREFILL_FIRST, STATIC)
    if mixes and ranks[rank].decoding > 0:
        ensure_growth(ranks, lists, requests, fleet, rule, rank)
    if rule.displaces and rule.scheduler != STATIC:
        _make_way(ranks, lists, requests, fleet, rule, rank, known_s)
    taken = int(ranks[rank].decoding * (1.0 + rule.drafted)) if mixes else 0
    left = rule.token_budget - taken
    partial = ranks[rank].partial
    if partial != NOBODY and left > 0:
        tokens = min(left, requests[partial].needed - requests[partial].ready)
        _take_chunk(ranks, lists, requests, rule, rank, partial, tokens)
        left -= tokens
    while left > 0 and ranks[rank].partial == NOBODY and ranks[rank].waiting > 0:
        if rule.displaces and rule.scheduler != STATIC and ranks[rank].chunks == 0:  # after who came back from the host
            _make_way(ranks, lists, requests, fleet, rule, rank, known_s)
        request = head(ranks, lists, requests, rule, rank)
        if request == NOBODY or late(requests, request, known_s):
            break
        hits = resident(lists, requests, rule, rank, request) * rule.prefix_tokens
        tokens = requests[request].needed - max(hits, requests[request].ready)
        merges = 0 < rule.elastic <= tokens and ranks[rank].helpers > 0
        if merges and ranks[rank].chunks > 0:
            break
        if (
            not rule.chunked
            and not merges
            and tokens > left
            and (ranks[rank].chunks > 0 or (taken > 0 and tokens <= rule.token_budget))
        ):
            break
        if not admit(ranks, lists, requests, fleet, rule, rank, request):
            break
        if requests[request].ready == requests[request].needed:
            start_decoding(ranks, lists, requests, rule, rank, request)
            ranks[rank].stands += rule.stands
            if math.isnan(requests[request].first_s):
                requests[request].first_s = now_s
            if mixes:
                left -= 1
            continue
        tokens = requests[request].needed - requests[request].ready
        if rule.chunked and not merges:
            tokens = min(tokens, left)
        _take_chunk(ranks, lists, requests, rule, rank, request, tokens)
        left -= tokens
