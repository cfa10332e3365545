"""What a rank takes into its next iteration: who gives way, chunks of prompts, and whom it admits."""

from __future__ import annotations

import math

from ridgeline.serving.admission import admit, fits
from ridgeline.serving.compiling import clocked
from ridgeline.serving.fairness import head, see
from ridgeline.serving.hooks import victim
from ridgeline.serving.kv_eviction import seen_tokens
from ridgeline.serving.polling import late
from ridgeline.serving.queues import drop_end, growth, join_queue, leave_running, resident, stop_keeping
from ridgeline.serving.sequences import release, start_decoding, stop_decoding
from ridgeline.serving.state import DECODING, NOBODY, PREFILL_FIRST, PREFILLING, STATIC, VICTIM, WAITING, Clock, Record


@clocked
def _last_decoding(clock: Clock, rank: int) -> int:
    """Of those who decode, who was admitted last; nobody who is at a prompt in the other lane."""
    request = int(clock.ranks[rank].run_last)
    while request != NOBODY and clock.requests[request].stage != DECODING:
        request = int(clock.requests[request].before)
    return request


@clocked
def _victim(clock: Clock, rule: Record, rank: int) -> int:
    """Whoever gives way first: by the hook, or who was admitted last, of the least urgent where urgency counts."""
    if clock.hooks[VICTIM] != 0:
        return int(victim(clock.hooks[VICTIM], clock.ranks, clock.requests, rule, rank))
    if rule.split:
        return _last_decoding(clock, rank)
    if not rule.displaces:
        return int(clock.ranks[rank].run_last)
    chosen, request = NOBODY, int(clock.ranks[rank].run_last)
    while request != NOBODY:
        runs = clock.requests[request].stage in (PREFILLING, DECODING)
        if runs and (chosen == NOBODY or clock.requests[request].priority > clock.requests[chosen].priority):
            chosen = request
        request = int(clock.requests[request].before)
    return chosen


@clocked
def preempt(clock: Clock, rule: Record, rank: int, request: int) -> None:
    """Sends a running request back to the head of the queue, of those as urgent where urgency counts."""
    decoded = clock.requests[request].stage == DECODING
    if decoded:
        drop_end(clock, rank, request)
        stop_decoding(clock, rule, rank, request)
    release(clock, rule, rank, request, decoded)
    leave_running(clock, rank, request)
    if clock.ranks[rank].partial == request:
        clock.ranks[rank].partial = NOBODY
    made = clock.requests[request].made
    if decoded and rule.swaps:
        clock.requests[request].needed = clock.requests[request].prompt + made - 1
        clock.requests[request].ready = clock.requests[request].needed
        clock.ranks[rank].moved_s += 2.0 * rule.swap_token_s * clock.requests[request].needed  # out now, in again later
    else:
        clock.requests[request].needed = clock.requests[request].prompt + made
        clock.requests[request].ready = 0
    clock.requests[request].stage = WAITING
    clock.requests[request].preempted += 1
    clock.system.preemptions += 1
    join_queue(clock, rule, rank, request, True, bool(rule.displaces))


@clocked
def ensure_growth(clock: Clock, rule: Record, rank: int) -> bool:
    """Takes caches that are kept, then preempts, until the next step's blocks are free; whether it had to."""
    preempted = False
    while clock.ranks[rank].used + growth(clock, rule, rank, 1) > rule.capacity:
        if clock.ranks[rank].keep_first != NOBODY:
            stop_keeping(clock, rule, rank, int(clock.ranks[rank].keep_first))
            preempted = True
            continue
        request = _victim(clock, rule, rank)
        if request == NOBODY or (clock.ranks[rank].running < 2 and clock.ranks[rank].lent == 0):
            break
        preempt(clock, rule, rank, request)
        preempted = True
    return preempted


@clocked
def _make_way(clock: Clock, rule: Record, rank: int, known_s: float) -> None:
    """Those who run and are less urgent than who is next give way, the least urgent first, until it fits."""
    while clock.ranks[rank].waiting > 0:
        request, yields = head(clock, rule, rank), _victim(clock, rule, rank)
        if request == NOBODY or late(clock, request, known_s):
            return
        if yields == NOBODY or clock.requests[yields].priority <= clock.requests[request].priority:
            return
        if fits(clock, rule, rank, request):
            return
        preempt(clock, rule, rank, yields)


@clocked
def _take_chunk(clock: Clock, rule: Record, rank: int, request: int, tokens: int) -> None:
    place = clock.ranks[rank].chunks
    chunk = clock.chunks[rank, place]
    chunk[0], chunk[1], chunk[2] = request, tokens, seen_tokens(rule, clock.requests[request].ready)
    clock.ranks[rank].chunks = place + 1
    if clock.requests[request].ready + tokens < clock.requests[request].needed:
        clock.ranks[rank].partial = request
    elif clock.ranks[rank].partial == request:
        clock.ranks[rank].partial = NOBODY


@clocked
def form_batch(clock: Clock, rule: Record, rank: int, known_s: float, now_s: float) -> None:
    """Chooses the chunks of the next iteration: the prompt begun first, then waiting ones in order, within the budget.

    Whoever came after `known_s` [s] was not there when it was prepared, and waits for the one after it. A cache that
    came from another pool brings a first token with it, which is passed on when it is admitted, `now_s` [s].

    Engines that mix count a token (and those drafted) of every decoding sequence against the budget. Without chunking
    a prompt longer than the budget has an iteration of its own.
    """
    clock.ranks[rank].chunks = clock.ranks[rank].stands = 0
    see(clock, rule, rank)
    if rule.scheduler == STATIC and clock.ranks[rank].running > 0 and clock.ranks[rank].partial == NOBODY:
        return
    mixes = rule.scheduler not in (PREFILL_FIRST, STATIC)
    if mixes and clock.ranks[rank].decoding > 0:
        ensure_growth(clock, rule, rank)
    if rule.displaces and rule.scheduler != STATIC:
        _make_way(clock, rule, rank, known_s)
    taken = int(clock.ranks[rank].decoding * (1.0 + rule.drafted)) if mixes else 0
    left = rule.token_budget - taken
    partial = clock.ranks[rank].partial
    if partial != NOBODY and left > 0:
        tokens = min(left, clock.requests[partial].needed - clock.requests[partial].ready)
        _take_chunk(clock, rule, rank, partial, tokens)
        left -= tokens
    while left > 0 and clock.ranks[rank].partial == NOBODY and clock.ranks[rank].waiting > 0:
        if (
            rule.displaces and rule.scheduler != STATIC and clock.ranks[rank].chunks == 0
        ):  # after who came back from the host
            _make_way(clock, rule, rank, known_s)
        request = head(clock, rule, rank)
        if request == NOBODY or late(clock, request, known_s):
            break
        hits = resident(clock, rule, rank, request) * rule.prefix_tokens
        tokens = clock.requests[request].needed - max(hits, clock.requests[request].ready)
        merges = 0 < rule.elastic <= tokens and clock.ranks[rank].helpers > 0
        if merges and clock.ranks[rank].chunks > 0:
            break
        if (
            not rule.chunked
            and not merges
            and tokens > left
            and (clock.ranks[rank].chunks > 0 or (taken > 0 and tokens <= rule.token_budget))
        ):
            break
        if not admit(clock, rule, rank, request):
            break
        if clock.requests[request].ready == clock.requests[request].needed:
            start_decoding(clock, rule, rank, request)
            clock.ranks[rank].stands += rule.stands
            if math.isnan(clock.requests[request].first_s):
                clock.requests[request].first_s = now_s
            if mixes:
                left -= 1
            continue
        tokens = clock.requests[request].needed - clock.requests[request].ready
        if rule.chunked and not merges:
            tokens = min(tokens, left)
        _take_chunk(clock, rule, rank, request, tokens)
        left -= tokens
