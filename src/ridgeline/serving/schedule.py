"""What a rank takes into its next iteration: admission, chunks of prompts, preemption, and the end of requests."""

from __future__ import annotations

import math

from numba import njit

from ridgeline.serving.borrowing import asks, borrow, debt, give_back
from ridgeline.serving.fairness import charge, decodes, head, see
from ridgeline.serving.kept import cut, fetched_tokens, held_tokens, prompt_tokens, read_tokens, seen_tokens
from ridgeline.serving.loading import leave_adapter, loadable, take_adapter
from ridgeline.serving.looks import late
from ridgeline.serving.queues import (
    blocks_of,
    drop_end,
    first_growth,
    growth,
    held_blocks,
    hold,
    idle_among,
    join_queue,
    join_running,
    leave_queue,
    leave_running,
    let_go,
    make_room,
    most_blocks,
    pop_end,
    publish,
    push_end,
    resident,
)
from ridgeline.serving.state import (
    DECODING,
    ENDED,
    MIXED_BATCHES,
    NOBODY,
    PREFILL_FIRST,
    PREFILLING,
    STATIC,
    WAITING,
    Fleet,
    Lists,
    Record,
    Records,
)


@njit(cache=True)
def start_decoding(ranks: Records, lists: Lists, requests: Records, rule: Record, rank: int, request: int) -> None:
    """A request whose cache is complete joins the sequences that gain tokens every step."""
    step, needed = ranks[rank].step, requests[request].needed
    length = held_tokens(rule, needed)
    cut(ranks, requests, rule, rank, request, length)
    left = requests[request].output - requests[request].made
    requests[request].stage = DECODING
    requests[request].since, requests[request].length = step, length
    requests[request].until = step + math.ceil(left / rule.gained)
    ranks[rank].decoding += 1
    requests[request].reads, requests[request].fetches = read_tokens(rule, needed), fetched_tokens(rule, needed)
    if requests[request].lent > 0:
        requests[request].reads = max(0, needed - requests[request].lent * rule.block_tokens)
        asks(ranks, lists, requests, rule, rank, request, 1)
    else:
        lists.phase[rank, (step + first_growth(rule, length)) % rule.period] += 1
    ranks[rank].context += requests[request].reads + 1
    ranks[rank].fetching += requests[request].fetches
    decodes(ranks, lists, rule, rank, requests[request].client, 1)
    push_end(ranks, lists, rank, requests[request].until, request)


@njit(cache=True)
def stop_decoding(ranks: Records, lists: Lists, requests: Records, rule: Record, rank: int, request: int) -> None:
    """Takes a request out of the sequences that gain tokens; its tokens so far are counted, its cache stays."""
    steps = ranks[rank].step - requests[request].since
    length = requests[request].length
    start = requests[request].since + first_growth(rule, length)
    if requests[request].lent > 0:
        asks(ranks, lists, requests, rule, rank, request, -1)
    else:
        lists.phase[rank, start % rule.period] -= 1
    ranks[rank].decoding -= 1
    ranks[rank].context -= requests[request].reads + 1 + rule.gained * steps
    ranks[rank].fetching -= requests[request].fetches
    decodes(ranks, lists, rule, rank, requests[request].client, -1)
    if ranks[rank].decoding == 0:
        ranks[rank].context = 0.0
    gained = math.floor(rule.gained * steps)
    requests[request].made = min(requests[request].output, requests[request].made + gained)


@njit(cache=True)
def release(
    ranks: Records, lists: Lists, requests: Records, rule: Record, rank: int, request: int, decoded: bool
) -> None:
    """Gives back all blocks of a request and what was set aside for it."""
    if requests[request].lent > 0:
        held = requests[request].own
        give_back(ranks, lists, requests, rank, request)
    elif decoded:
        held = held_blocks(requests, rule, request, ranks[rank].step)
    else:
        held = blocks_of(prompt_tokens(rule, requests[request].needed), rule.block_tokens)
    own = held - requests[request].shared * (rule.prefix_tokens // rule.block_tokens)
    ranks[rank].used -= own + let_go(ranks, lists, requests, rule, rank, request)
    ranks[rank].committed -= requests[request].reserved
    requests[request].reserved = 0
    ranks[rank].hosted -= requests[request].hosted
    requests[request].hosted = 0
    leave_adapter(ranks, lists, requests, rule, rank, request)


@njit(cache=True)
def _found(lists: Lists, requests: Records, rule: Record, rank: int, request: int) -> tuple[bool, int]:
    """Whether the cache of a request exists already, and the prefix blocks of it that the rank holds else."""
    moved = requests[request].ready == requests[request].needed  # it was computed elsewhere, or comes from the host
    return moved, 0 if moved else resident(lists, requests, rule, rank, request)


@njit(cache=True)
def _wants(lists: Lists, requests: Records, rule: Record, rank: int, request: int, hits: int) -> tuple[int, int]:
    """Blocks that a request takes when it is admitted, and those that it sets aside [1]."""
    each = rule.prefix_tokens // rule.block_tokens
    taken = prompt_tokens(rule, requests[request].needed)
    needed = blocks_of(taken, rule.block_tokens) - hits * each
    left = requests[request].output - requests[request].made
    reserved = blocks_of(taken + rule.reserve * left, rule.block_tokens)
    return needed + each * idle_among(lists, rank, request, hits), reserved


@njit(cache=True)
def fits(ranks: Records, lists: Lists, requests: Records, rule: Record, rank: int, request: int) -> bool:
    """Whether a place and the blocks of a waiting request are free."""
    if ranks[rank].running >= rule.max_seqs or not loadable(ranks, lists, requests, rule, rank, request):
        return False
    if rule.host_tokens > 0 and ranks[rank].hosted + requests[request].needed > rule.host_tokens:
        return False
    return _roomy(ranks, lists, requests, rule, rank, request) or debt(
        ranks, lists, requests, rule, rank, request
    ) > 0  # fmt: skip


@njit(cache=True)
def _roomy(ranks: Records, lists: Lists, requests: Records, rule: Record, rank: int, request: int) -> bool:
    """Whether the blocks of a waiting request are free at its own rank."""
    if rule.borrows and most_blocks(rule, requests[request].prompt, requests[request].output) > rule.capacity:
        return False
    moved, hits = _found(lists, requests, rule, rank, request)
    taken, reserved = _wants(lists, requests, rule, rank, request, hits)
    kept = rule.kept_free if ranks[rank].running > 0 else 0
    grows = moved or rule.scheduler == MIXED_BATCHES or rule.split  # what decodes in this iteration, or beside it
    if ranks[rank].running > 0 and grows:
        kept += growth(ranks, lists, rule, rank, 1)
        if moved:
            starts = first_growth(rule, requests[request].needed) == 0
            kept += rule.growth_blocks if starts else 0
    if ranks[rank].used + taken + kept > rule.capacity:
        return False
    return not (ranks[rank].running > 0 and ranks[rank].committed + reserved > rule.capacity)


@njit(cache=True)
def admit(ranks: Records, lists: Lists, requests: Records, fleet: Fleet, rule: Record, rank: int, request: int) -> bool:
    """Admits a waiting request when its blocks are free; the blocks of its whole prompt are taken at once."""
    if not fits(ranks, lists, requests, rule, rank, request):
        return False
    moved, hits = _found(lists, requests, rule, rank, request)
    taken, reserved = _wants(lists, requests, rule, rank, request, hits)
    if rule.borrows and not _roomy(ranks, lists, requests, rule, rank, request):
        taken = reserved = borrow(ranks, lists, requests, fleet, rule, rank, request)
    leave_queue(ranks, lists, requests, rule, rank, request)
    charge(lists, requests, rule, rank, request)
    take_adapter(ranks, lists, requests, fleet, rule, rank, request)
    hold(ranks, lists, requests, rank, request, hits)
    make_room(ranks, lists, rule, rank, taken)
    ranks[rank].used += taken
    fleet.system[0].peak_blocks = max(fleet.system[0].peak_blocks, ranks[rank].used)
    ranks[rank].committed += reserved
    requests[request].reserved = reserved
    if rule.host_tokens > 0:
        requests[request].hosted = requests[request].needed
        ranks[rank].hosted += requests[request].hosted
    if not moved:
        requests[request].ready = hits * rule.prefix_tokens
        requests[request].hit += requests[request].ready
        fleet.system[0].hit_tokens += requests[request].ready
        fleet.system[0].prompt_tokens += requests[request].needed
    requests[request].stage = PREFILLING
    join_running(ranks, requests, rank, request)
    return True


@njit(cache=True)
def _last_decoding(ranks: Records, requests: Records, rank: int) -> int:
    """Of those who decode, who was admitted last; nobody who is at a prompt in the other lane."""
    request = int(ranks[rank].run_last)
    while request != NOBODY and requests[request].stage != DECODING:
        request = int(requests[request].before)
    return request


@njit(cache=True)
def _victim(ranks: Records, requests: Records, rule: Record, rank: int) -> int:
    """Whoever gives way first: who was admitted last, of the least urgent ones where urgency counts; or nobody."""
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


@njit(cache=True)
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


@njit(cache=True)
def ensure_growth(ranks: Records, lists: Lists, requests: Records, fleet: Fleet, rule: Record, rank: int) -> bool:
    """Preempts until the next step's blocks are free; whether it had to."""
    preempted = False
    while ranks[rank].used + growth(ranks, lists, rule, rank, 1) > rule.capacity:
        request = _victim(ranks, requests, rule, rank)
        if request == NOBODY or (ranks[rank].running < 2 and ranks[rank].lent == 0):
            break
        preempt(ranks, lists, requests, fleet, rule, rank, request)
        preempted = True
    return preempted


@njit(cache=True)
def _make_way(
    ranks: Records, lists: Lists, requests: Records, fleet: Fleet, rule: Record, rank: int, known_s: float
) -> None:
    """Those who run and are less urgent than who is next give way, the least urgent first, until it fits."""
    while ranks[rank].waiting > 0:
        request, victim = head(ranks, lists, requests, rule, rank), _victim(ranks, requests, rule, rank)
        if request == NOBODY or late(requests, request, known_s):
            return
        if victim == NOBODY or requests[victim].priority <= requests[request].priority:
            return
        if fits(ranks, lists, requests, rule, rank, request):
            return
        preempt(ranks, lists, requests, fleet, rule, rank, victim)


@njit(cache=True)
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


@njit(cache=True)
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
    ranks[rank].chunks = 0
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


@njit(cache=True)
def finish(
    ranks: Records, lists: Lists, requests: Records, rule: Record, rank: int, request: int, now_s: float
) -> None:
    """Ends a request that has all its tokens."""
    decoded = requests[request].stage == DECODING
    if decoded:
        stop_decoding(ranks, lists, requests, rule, rank, request)
        requests[request].made = requests[request].output
    release(ranks, lists, requests, rule, rank, request, decoded)
    leave_running(ranks, requests, rank, request)
    requests[request].stage, requests[request].end_s = ENDED, now_s


@njit(cache=True)
def next_end(ranks: Records, lists: Lists, rank: int) -> int:
    """The request that has done its last step, or nobody."""
    if ranks[rank].ends > 0 and lists.ends[rank, 0, 0] <= ranks[rank].step:
        request = int(lists.ends[rank, 0, 1])
        pop_end(ranks, lists, rank)
        return request
    return NOBODY


@njit(cache=True)
def prompt_done(
    ranks: Records, lists: Lists, requests: Records, rule: Record, rank: int, request: int, now_s: float
) -> None:
    """A prompt whose last chunk has been computed has made a token."""
    publish(lists, requests, rule, rank, request)
    if requests[request].made == 0:
        requests[request].first_s = now_s
    requests[request].made += 1
