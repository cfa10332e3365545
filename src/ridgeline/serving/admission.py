"""Whether a waiting request finds a place and its blocks, and what is taken when it is admitted."""

from __future__ import annotations

from ridgeline.serving.compiling import clocked
from ridgeline.serving.fairness import charge
from ridgeline.serving.kv_eviction import prompt_tokens
from ridgeline.serving.loading import loadable, take_adapter
from ridgeline.serving.queues import (
    blocks_of,
    first_growth,
    growth,
    hold,
    idle_among,
    join_running,
    leave_queue,
    make_room,
    most_blocks,
    resident,
    stop_keeping,
)
from ridgeline.serving.remote_kv import borrow, debt
from ridgeline.serving.state import MIXED_BATCHES, NOBODY, PREFILLING, Clock, Record


@clocked
def _found(clock: Clock, rule: Record, rank: int, request: int) -> tuple[bool, int]:
    """Whether the cache of a request exists already, and the prefix blocks of it that the rank holds else."""
    moved = (
        clock.requests[request].ready == clock.requests[request].needed
    )  # it was computed elsewhere, or comes from the host
    return moved, 0 if moved else resident(clock, rule, rank, request)


@clocked
def _wants(clock: Clock, rule: Record, rank: int, request: int, hits: int) -> tuple[int, int]:
    """Blocks that a request takes when it is admitted, and those that it sets aside [1]."""
    each = rule.prefix_tokens // rule.block_tokens
    taken = prompt_tokens(rule, clock.requests[request].needed)
    needed = blocks_of(taken, rule.block_tokens) - hits * each
    left = clock.requests[request].output - clock.requests[request].made
    reserved = blocks_of(taken + rule.reserve * left, rule.block_tokens)
    return needed + each * idle_among(clock, rank, request, hits), reserved


@clocked
def fits(clock: Clock, rule: Record, rank: int, request: int) -> bool:
    """Whether a place and the blocks of a waiting request are free."""
    if clock.ranks[rank].running >= rule.max_seqs or not loadable(clock, rule, rank, request):
        return False
    if rule.host_tokens > 0 and clock.ranks[rank].hosted + clock.requests[request].needed > rule.host_tokens:
        return False
    return _roomy(clock, rule, rank, request) or debt(
        clock, rule, rank, request
    ) > 0  # fmt: skip


@clocked
def _roomy(clock: Clock, rule: Record, rank: int, request: int) -> bool:
    """Whether the blocks of a waiting request are free at its own rank."""
    if (
        rule.borrows
        and most_blocks(rule, clock.requests[request].prompt, clock.requests[request].output) > rule.capacity
    ):
        return False
    moved, hits = _found(clock, rule, rank, request)
    taken, reserved = _wants(clock, rule, rank, request, hits)
    kept = rule.kept_free if clock.ranks[rank].running > 0 else 0
    grows = moved or rule.scheduler == MIXED_BATCHES or rule.split  # what decodes in this iteration, or beside it
    if clock.ranks[rank].running > 0 and grows:
        kept += growth(clock, rule, rank, 1)
        if moved:
            starts = first_growth(rule, clock.requests[request].needed) == 0
            kept += rule.growth_blocks if starts else 0
    if clock.ranks[rank].used + taken + kept > rule.capacity:
        return False
    return not (clock.ranks[rank].running > 0 and clock.ranks[rank].committed + reserved > rule.capacity)


@clocked
def admit(clock: Clock, rule: Record, rank: int, request: int) -> bool:
    """Admits a waiting request when its blocks are free; the blocks of its whole prompt are taken at once."""
    while not fits(clock, rule, rank, request):
        kept = int(clock.ranks[rank].keep_first)
        if kept == NOBODY or clock.ranks[rank].running > 0:
            return False
        stop_keeping(clock, rule, rank, kept)  # nothing else would make room
    moved, hits = _found(clock, rule, rank, request)
    taken, reserved = _wants(clock, rule, rank, request, hits)
    if rule.borrows and not _roomy(clock, rule, rank, request):
        taken = reserved = borrow(clock, rule, rank, request)
    leave_queue(clock, rule, rank, request)
    charge(clock, rule, rank, request)
    take_adapter(clock, rule, rank, request)
    hold(clock, rule, rank, request, hits)
    make_room(clock, rule, rank, taken)
    clock.ranks[rank].used += taken
    clock.system.peak_blocks = max(clock.system.peak_blocks, clock.ranks[rank].used)
    clock.ranks[rank].committed += reserved
    clock.requests[request].reserved = reserved
    if rule.host_tokens > 0:
        clock.requests[request].hosted = clock.requests[request].needed
        clock.ranks[rank].hosted += clock.requests[request].hosted
    if not moved:
        clock.requests[request].ready = hits * rule.prefix_tokens
        clock.requests[request].hit += clock.requests[request].ready
        clock.system.hit_tokens += clock.requests[request].ready
        clock.system.prompt_tokens += clock.requests[request].needed
    before = int(clock.requests[request].follows)
    if before != NOBODY and clock.requests[before].kept:
        stop_keeping(clock, rule, rank, before)
    clock.requests[request].stage = PREFILLING
    join_running(clock, rank, request)
    return True
