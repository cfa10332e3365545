"""What becomes of a request on a rank: it decodes, stops, gives its room back, and ends."""

from __future__ import annotations

import math

from ridgeline.serving.compiling import clocked
from ridgeline.serving.fairness import decodes
from ridgeline.serving.hooks import held, keeps
from ridgeline.serving.kv_eviction import cut, fetched_tokens, held_tokens, prompt_tokens, read_tokens
from ridgeline.serving.loading import leave_adapter
from ridgeline.serving.queues import (
    blocks_of,
    first_growth,
    held_blocks,
    keep,
    leave_running,
    let_go,
    pop_end,
    publish,
    push_end,
)
from ridgeline.serving.remote_kv import asks, give_back
from ridgeline.serving.routing import push
from ridgeline.serving.state import DECODING, ENDED, HELD, KEEPS, NOBODY, Clock, Record


@clocked
def start_decoding(clock: Clock, rule: Record, rank: int, request: int) -> None:
    """A request whose cache is complete joins the sequences that gain tokens every step."""
    step, needed = clock.ranks[rank].step, clock.requests[request].needed
    length, reads = held_tokens(rule, needed), read_tokens(rule, needed)
    if clock.hooks[HELD] != 0:
        length = min(max(held(clock.hooks[HELD], clock.requests, rule, request, needed), 1), needed)
        reads = float(length)
    cut(clock, rule, rank, request, length)
    left = clock.requests[request].output - clock.requests[request].made
    clock.requests[request].stage = DECODING
    clock.requests[request].since, clock.requests[request].length = step, length
    clock.requests[request].until = step + math.ceil(left / rule.gained)
    clock.ranks[rank].decoding += 1
    clock.requests[request].reads, clock.requests[request].fetches = reads, fetched_tokens(rule, needed)
    if clock.requests[request].lent > 0:
        clock.requests[request].reads = max(0, needed - clock.requests[request].lent * rule.block_tokens)
        asks(clock, rule, rank, request, 1)
    else:
        clock.phase[rank, (step + first_growth(rule, length)) % rule.period] += 1
    clock.ranks[rank].context += clock.requests[request].reads + 1
    clock.ranks[rank].fetching += clock.requests[request].fetches
    decodes(clock, rule, rank, clock.requests[request].client, 1)
    push_end(clock, rank, clock.requests[request].until, request)


@clocked
def stop_decoding(clock: Clock, rule: Record, rank: int, request: int) -> None:
    """Takes a request out of the sequences that gain tokens; its tokens so far are counted, its cache stays."""
    steps = clock.ranks[rank].step - clock.requests[request].since
    length = clock.requests[request].length
    start = clock.requests[request].since + first_growth(rule, length)
    if clock.requests[request].lent > 0:
        asks(clock, rule, rank, request, -1)
    else:
        clock.phase[rank, start % rule.period] -= 1
    clock.ranks[rank].decoding -= 1
    clock.ranks[rank].context -= clock.requests[request].reads + 1 + rule.gained * steps
    clock.ranks[rank].fetching -= clock.requests[request].fetches
    decodes(clock, rule, rank, clock.requests[request].client, -1)
    if clock.ranks[rank].decoding == 0:
        clock.ranks[rank].context = 0.0
    gained = math.floor(rule.gained * steps)
    clock.requests[request].made = min(clock.requests[request].output, clock.requests[request].made + gained)


@clocked
def release(clock: Clock, rule: Record, rank: int, request: int, decoded: bool) -> None:
    """Gives back all blocks of a request and what was set aside for it."""
    if clock.requests[request].lent > 0:
        held = clock.requests[request].own
        give_back(clock, rank, request)
    elif decoded:
        held = held_blocks(clock, rule, request, clock.ranks[rank].step)
    else:
        held = blocks_of(prompt_tokens(rule, clock.requests[request].needed), rule.block_tokens)
    own = held - clock.requests[request].shared * (rule.prefix_tokens // rule.block_tokens)
    clock.ranks[rank].used -= own
    if not clock.requests[request].kept:
        clock.ranks[rank].used -= let_go(clock, rule, rank, request)
    clock.ranks[rank].committed -= clock.requests[request].reserved
    clock.requests[request].reserved = 0
    clock.ranks[rank].hosted -= clock.requests[request].hosted
    clock.requests[request].hosted = 0
    leave_adapter(clock, rule, rank, request)


@clocked
def _keep(clock: Clock, rule: Record, rank: int, request: int, now_s: float) -> None:
    """Keeps the cache of a turn for the next one, where a hook says so, and for as long."""
    if clock.hooks[KEEPS] == 0 or not clock.requests[request].goes_on:
        return
    seconds = keeps(clock.hooks[KEEPS], clock, rule, rank, request)
    if seconds > 0.0:
        keep(clock, rank, request)
        if seconds < math.inf:
            push(clock, now_s + seconds, request)


@clocked
def finish(clock: Clock, rule: Record, rank: int, request: int, now_s: float) -> None:
    """Ends a request that has all its tokens."""
    decoded = clock.requests[request].stage == DECODING
    if decoded:
        stop_decoding(clock, rule, rank, request)
        clock.requests[request].made = clock.requests[request].output
    if clock.requests[request].goes_on and clock.instances[clock.ranks[rank].instance].takes < 2:  # not of sent caches
        publish(clock, rule, rank, request, clock.requests[request].prompt + clock.requests[request].output - 1)
    _keep(clock, rule, rank, request, now_s)
    release(clock, rule, rank, request, decoded)
    leave_running(clock, rank, request)
    clock.requests[request].stage, clock.requests[request].end_s = ENDED, now_s


@clocked
def next_end(clock: Clock, rank: int) -> int:
    """The request that has done its last step, or nobody."""
    if clock.ranks[rank].ends > 0 and clock.ends[rank, 0, 0] <= clock.ranks[rank].step:
        request = int(clock.ends[rank, 0, 1])
        pop_end(clock, rank)
        return request
    return NOBODY


@clocked
def prompt_done(clock: Clock, rule: Record, rank: int, request: int, now_s: float) -> None:
    """A prompt whose last chunk has been computed has made a token."""
    publish(clock, rule, rank, request, clock.requests[request].prompt)
    if clock.requests[request].made == 0:
        clock.requests[request].first_s = now_s
    clock.requests[request].made += 1
