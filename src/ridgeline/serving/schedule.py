"""What a rank takes into its next iteration: admission, chunks of prompts, preemption, and the end of requests."""

from __future__ import annotations

import math

from numba import njit

from ridgeline.serving.clock import Times
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
    pop_end,
    publish,
    push_end,
    resident,
)
from ridgeline.serving.state import (
    DECODING,
    ENDED,
    HIT_TOKENS,
    NOBODY,
    PEAK_BLOCKS,
    PREEMPTIONS,
    PREFILL_FIRST,
    PREFILLING,
    PROMPT_TOKENS,
    STATIC,
    WAITING,
    Ranks,
    Record,
    Requests,
    Rules,
)


@njit(cache=True)
def start_decoding(ranks: Ranks, requests: Requests, times: Times, rules: Rules, rank: int, request: int) -> None:
    """A request whose cache is complete joins the sequences that gain tokens every step."""
    step, length = ranks.step[rank], requests.needed[request]
    left = requests.output[request] - requests.made[request]
    requests.stage[request] = DECODING
    requests.since[request], requests.length[request] = step, length
    requests.until[request] = step + math.ceil(left / times.gained)
    ranks.phase[rank, (step + first_growth(length, rules.block_tokens, times.gained)) % rules.period] += 1
    ranks.decoding[rank] += 1
    ranks.context[rank] += length + 1
    push_end(ranks, rank, requests.until[request], request)


@njit(cache=True)
def stop_decoding(ranks: Ranks, requests: Requests, times: Times, rules: Rules, rank: int, request: int) -> None:
    """Takes a request out of the sequences that gain tokens; its tokens so far are counted, its cache stays."""
    steps = ranks.step[rank] - requests.since[request]
    length = requests.length[request]
    start = requests.since[request] + first_growth(length, rules.block_tokens, times.gained)
    ranks.phase[rank, start % rules.period] -= 1
    ranks.decoding[rank] -= 1
    ranks.context[rank] -= length + 1 + times.gained * steps
    if ranks.decoding[rank] == 0:
        ranks.context[rank] = 0.0
    gained = math.floor(times.gained * steps)
    requests.made[request] = min(requests.output[request], requests.made[request] + gained)


@njit(cache=True)
def release(
    ranks: Ranks, requests: Requests, times: Times, rules: Rules, rank: int, request: int, decoded: bool
) -> None:
    """Gives back all blocks of a request and what was set aside for it."""
    if decoded:
        held = held_blocks(requests, rules, request, ranks.step[rank], times.gained)
    else:
        held = blocks_of(requests.needed[request], rules.block_tokens)
    own = held - requests.shared[request] * (rules.prefix_tokens // rules.block_tokens)
    ranks.used[rank] -= own + let_go(ranks, requests, rules, rank, request)
    ranks.committed[rank] -= requests.reserved[request]
    requests.reserved[request] = 0


@njit(cache=True)
def admit(ranks: Ranks, requests: Requests, record: Record, rules: Rules, rank: int) -> bool:
    """Admits the first waiting request when its blocks are free; the blocks of its whole prompt are taken at once."""
    request = ranks.wait_first[rank]
    if request == NOBODY or ranks.running[rank] >= rules.max_seqs:
        return False
    moved = requests.ready[request] == requests.needed[request]  # its cache was computed elsewhere
    hits = 0 if moved else resident(ranks, requests, rules, rank, request)
    each = rules.prefix_tokens // rules.block_tokens
    needed = blocks_of(requests.needed[request], rules.block_tokens) - hits * each
    taken = needed + each * idle_among(ranks, requests, rank, request, hits)
    kept = rules.kept_free if ranks.running[rank] > 0 else 0
    left = requests.output[request] - requests.made[request]
    reserved = blocks_of(requests.needed[request] + rules.reserve * left, rules.block_tokens)
    if ranks.used[rank] + taken + kept > rules.capacity:
        return False
    if ranks.running[rank] > 0 and ranks.committed[rank] + reserved > rules.capacity:
        return False
    leave_queue(ranks, requests, rank)
    hold(ranks, requests, rank, request, hits)
    make_room(ranks, rules, rank, taken)
    ranks.used[rank] += taken
    record.counts[PEAK_BLOCKS] = max(record.counts[PEAK_BLOCKS], ranks.used[rank])
    ranks.committed[rank] += reserved
    requests.reserved[request] = reserved
    if not moved:
        requests.ready[request] = hits * rules.prefix_tokens
        requests.hit[request] += requests.ready[request]
        record.counts[HIT_TOKENS] += requests.ready[request]
        record.counts[PROMPT_TOKENS] += requests.needed[request]
    requests.stage[request] = PREFILLING
    join_running(ranks, requests, rank, request)
    return True


@njit(cache=True)
def preempt(ranks: Ranks, requests: Requests, record: Record, times: Times, rules: Rules, rank: int) -> bool:
    """Sends the request that was admitted last back to the head of the queue; False when it is the only one."""
    request = ranks.run_last[rank]
    if request == NOBODY or ranks.run_first[rank] == request:
        return False
    decoded = requests.stage[request] == DECODING
    if decoded:
        drop_end(ranks, rank, request)
        stop_decoding(ranks, requests, times, rules, rank, request)
    release(ranks, requests, times, rules, rank, request, decoded)
    leave_running(ranks, requests, rank, request)
    if ranks.partial[rank] == request:
        ranks.partial[rank] = NOBODY
    made = requests.made[request]
    if decoded and rules.swaps:
        requests.needed[request] = requests.prompt[request] + made - 1
        requests.ready[request] = requests.needed[request]
        ranks.moved_s[rank] += 2.0 * rules.swap_token_s * requests.needed[request]  # out now, in again later
    else:
        requests.needed[request] = requests.prompt[request] + made
        requests.ready[request] = 0
    requests.stage[request] = WAITING
    requests.preempted[request] += 1
    record.counts[PREEMPTIONS] += 1
    join_queue(ranks, requests, rank, request, True, False)
    return True


@njit(cache=True)
def ensure_growth(ranks: Ranks, requests: Requests, record: Record, times: Times, rules: Rules, rank: int) -> None:
    """Preempts until the next step's blocks are free."""
    while ranks.used[rank] + growth(ranks, rules, rank, 1) > rules.capacity:
        if not preempt(ranks, requests, record, times, rules, rank):
            break


@njit(cache=True)
def _take_chunk(ranks: Ranks, requests: Requests, rank: int, request: int, tokens: int) -> None:
    place = ranks.chunks[rank]
    ranks.chunk_request[rank, place] = request
    ranks.chunk_tokens[rank, place] = tokens
    ranks.chunk_past[rank, place] = requests.ready[request]
    ranks.chunks[rank] = place + 1
    if requests.ready[request] + tokens < requests.needed[request]:
        ranks.partial[rank] = request
    elif ranks.partial[rank] == request:
        ranks.partial[rank] = NOBODY


@njit(cache=True)
def form_batch(ranks: Ranks, requests: Requests, record: Record, times: Times, rules: Rules, rank: int) -> None:
    """Chooses the chunks of the next iteration: the prompt begun first, then waiting ones in order, within the budget.

    Engines that mix count a token (and those drafted) of every decoding sequence against the budget. Without chunking
    a prompt longer than the budget has an iteration of its own.
    """
    ranks.chunks[rank] = 0
    if rules.scheduler == STATIC and ranks.running[rank] > 0:
        return
    mixes = rules.scheduler not in (PREFILL_FIRST, STATIC)
    if mixes and ranks.decoding[rank] > 0:
        ensure_growth(ranks, requests, record, times, rules, rank)
    taken = int(ranks.decoding[rank] * (1.0 + times.drafted)) if mixes else 0
    left = rules.token_budget - taken
    partial = ranks.partial[rank]
    if partial != NOBODY and left > 0:
        tokens = min(left, requests.needed[partial] - requests.ready[partial])
        _take_chunk(ranks, requests, rank, partial, tokens)
        left -= tokens
    while left > 0 and ranks.partial[rank] == NOBODY and ranks.waiting[rank] > 0:
        request = ranks.wait_first[rank]
        hits = resident(ranks, requests, rules, rank, request) * rules.prefix_tokens
        tokens = requests.needed[request] - max(hits, requests.ready[request])
        if (
            not rules.chunked
            and tokens > left
            and (ranks.chunks[rank] > 0 or (taken > 0 and tokens <= rules.token_budget))
        ):
            break
        if not admit(ranks, requests, record, rules, rank):
            break
        if requests.ready[request] == requests.needed[request]:
            start_decoding(ranks, requests, times, rules, rank, request)
            if mixes:
                left -= 1
            continue
        tokens = requests.needed[request] - requests.ready[request]
        if rules.chunked:
            tokens = min(tokens, left)
        _take_chunk(ranks, requests, rank, request, tokens)
        left -= tokens


@njit(cache=True)
def finish(ranks: Ranks, requests: Requests, times: Times, rules: Rules, rank: int, request: int, now_s: float) -> None:
    """Ends a request that has all its tokens."""
    decoded = requests.stage[request] == DECODING
    if decoded:
        stop_decoding(ranks, requests, times, rules, rank, request)
        requests.made[request] = requests.output[request]
    release(ranks, requests, times, rules, rank, request, decoded)
    leave_running(ranks, requests, rank, request)
    requests.stage[request], requests.end_s[request] = ENDED, now_s


@njit(cache=True)
def next_end(ranks: Ranks, rank: int) -> int:
    """The request that has done its last step, or nobody."""
    if ranks.heap_size[rank] > 0 and ranks.heap_step[rank, 0] <= ranks.step[rank]:
        request = int(ranks.heap_request[rank, 0])
        pop_end(ranks, rank)
        return request
    return NOBODY


@njit(cache=True)
def prompt_done(ranks: Ranks, requests: Requests, rules: Rules, rank: int, request: int, now_s: float) -> None:
    """A prompt whose last chunk has been computed has made a token."""
    publish(ranks, requests, rules, rank, request)
    if requests.made[request] == 0:
        requests.first_s[request] = now_s
    requests.made[request] += 1
