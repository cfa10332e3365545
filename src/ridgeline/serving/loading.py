"""Adapters that a rank holds: which may be loaded, which give way, compiled; the longest unused goes first."""

from __future__ import annotations

from ridgeline.serving.compiling import clocked
from ridgeline.serving.state import NOBODY, Clock, Record

USED, HOLDERS = range(2)  # of `Lists.adapters`: the serial of its last use (0: not here), requests that run with it


@clocked
def loadable(clock: Clock, rule: Record, rank: int, request: int) -> bool:
    """Whether the adapter of a request is there, or a slot for it that no running request needs."""
    if rule.slots == 0:
        return True
    return bool(
        clock.adapters[rank, clock.requests[request].adapter, USED] > 0 or clock.ranks[rank].pinned < rule.slots
    )


@clocked
def take_adapter(clock: Clock, rule: Record, rank: int, request: int) -> None:
    """A request that is admitted holds its adapter, which is loaded first where it is absent."""
    if rule.slots == 0:
        return
    mine = clock.adapters[rank, clock.requests[request].adapter]
    if mine[USED] == 0:
        if clock.ranks[rank].loaded == rule.slots:
            _unload(clock, rank)
        clock.ranks[rank].loaded += 1
        clock.ranks[rank].moved_s += rule.load_s
        clock.system.loads += 1
    clock.ranks[rank].uses += 1
    mine[USED] = clock.ranks[rank].uses
    mine[HOLDERS] += 1
    clock.ranks[rank].pinned += mine[HOLDERS] == 1


@clocked
def leave_adapter(clock: Clock, rule: Record, rank: int, request: int) -> None:
    """A request that no longer runs needs its adapter no more; it stays until its slot is needed."""
    if rule.slots == 0:
        return
    mine = clock.adapters[rank, clock.requests[request].adapter]
    clock.ranks[rank].uses += 1
    mine[USED] = clock.ranks[rank].uses
    mine[HOLDERS] -= 1
    clock.ranks[rank].pinned -= mine[HOLDERS] == 0


@clocked
def _unload(clock: Clock, rank: int) -> None:
    """Forgets the longest unused adapter that no request runs with."""
    oldest = NOBODY
    for adapter in range(clock.adapters.shape[1]):
        one = clock.adapters[rank, adapter]
        if one[USED] > 0 and one[HOLDERS] == 0 and (oldest == NOBODY or one[USED] < clock.adapters[rank, oldest, USED]):
            oldest = adapter
    clock.adapters[rank, oldest, USED] = 0
    clock.ranks[rank].loaded -= 1
