"""Adapters that a rank holds: which may be loaded, which give way, compiled; the longest unused goes first."""

from __future__ import annotations

from ridgeline.serving.compiling import clocked
from ridgeline.serving.state import NOBODY, Fleet, Lists, Record, Records

USED, HOLDERS = range(2)  # of `Lists.adapters`: the serial of its last use (0: not here), requests that run with it


@clocked
def loadable(ranks: Records, lists: Lists, requests: Records, rule: Record, rank: int, request: int) -> bool:
    """Whether the adapter of a request is there, or a slot for it that no running request needs."""
    if rule.slots == 0:
        return True
    return bool(lists.adapters[rank, requests[request].adapter, USED] > 0 or ranks[rank].pinned < rule.slots)


@clocked
def take_adapter(
    ranks: Records, lists: Lists, requests: Records, fleet: Fleet, rule: Record, rank: int, request: int
) -> None:
    """A request that is admitted holds its adapter, which is loaded first where it is absent."""
    if rule.slots == 0:
        return
    mine = lists.adapters[rank, requests[request].adapter]
    if mine[USED] == 0:
        if ranks[rank].loaded == rule.slots:
            _unload(ranks, lists, rank)
        ranks[rank].loaded += 1
        ranks[rank].moved_s += rule.load_s
        fleet.system[0].loads += 1
    ranks[rank].uses += 1
    mine[USED] = ranks[rank].uses
    mine[HOLDERS] += 1
    ranks[rank].pinned += mine[HOLDERS] == 1


@clocked
def leave_adapter(ranks: Records, lists: Lists, requests: Records, rule: Record, rank: int, request: int) -> None:
    """A request that no longer runs needs its adapter no more; it stays until its slot is needed."""
    if rule.slots == 0:
        return
    mine = lists.adapters[rank, requests[request].adapter]
    ranks[rank].uses += 1
    mine[USED] = ranks[rank].uses
    mine[HOLDERS] -= 1
    ranks[rank].pinned -= mine[HOLDERS] == 0


@clocked
def _unload(ranks: Records, lists: Lists, rank: int) -> None:
    """Forgets the longest unused adapter that no request runs with."""
    oldest = NOBODY
    for adapter in range(lists.adapters.shape[1]):
        one = lists.adapters[rank, adapter]
        if one[USED] > 0 and one[HOLDERS] == 0 and (oldest == NOBODY or one[USED] < lists.adapters[rank, oldest, USED]):
            oldest = adapter
    lists.adapters[rank, oldest, USED] = 0
    ranks[rank].loaded -= 1
