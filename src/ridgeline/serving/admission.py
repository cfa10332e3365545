"""Whether a waiting request finds a place and its blocks, and what is taken when it is admitted."""

from __future__ import annotations

from ridgeline.serving.borrowing import borrow, debt
from ridgeline.serving.compiling import clocked
from ridgeline.serving.fairness import charge
from ridgeline.serving.kept import prompt_tokens
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
)
from ridgeline.serving.state import MIXED_BATCHES, PREFILLING, Fleet, Lists, Record, Records


@clocked
def _found(lists: Lists, requests: Records, rule: Record, rank: int, request: int) -> tuple[bool, int]:
    """Whether the cache of a request exists already, and the prefix blocks of it that the rank holds else."""
    moved = requests[request].ready == requests[request].needed  # it was computed elsewhere, or comes from the host
    return moved, 0 if moved else resident(lists, requests, rule, rank, request)


@clocked
def _wants(lists: Lists, requests: Records, rule: Record, rank: int, request: int, hits: int) -> tuple[int, int]:
    """Blocks that a request takes when it is admitted, and those that it sets aside [1]."""
    each = rule.prefix_tokens // rule.block_tokens
    taken = prompt_tokens(rule, requests[request].needed)
    needed = blocks_of(taken, rule.block_tokens) - hits * each
    left = requests[request].output - requests[request].made
    reserved = blocks_of(taken + rule.reserve * left, rule.block_tokens)
    return needed + each * idle_among(lists, rank, request, hits), reserved


@clocked
def fits(ranks: Records, lists: Lists, requests: Records, rule: Record, rank: int, request: int) -> bool:
    """Whether a place and the blocks of a waiting request are free."""
    if ranks[rank].running >= rule.max_seqs or not loadable(ranks, lists, requests, rule, rank, request):
        return False
    if rule.host_tokens > 0 and ranks[rank].hosted + requests[request].needed > rule.host_tokens:
        return False
    return _roomy(ranks, lists, requests, rule, rank, request) or debt(
        ranks, lists, requests, rule, rank, request
    ) > 0  # fmt: skip


@clocked
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


@clocked
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
