"""What no placement of experts can undercut, and how many replicas each expert is given."""

from __future__ import annotations

import numpy as np

from ridgeline.search.programs import Floats, Whole


def replica_counts(loads: Floats, ranks: int, redundant: int) -> Whole:
    """Replicas of each expert (E) [1]: each further one goes to the expert whose replicas carry most.

    No other choice makes the largest replica smaller. An expert has no more replicas than there are ranks.

    >>> replica_counts(np.array([6.0, 3.0, 1.0]), 4, 2).tolist()
    [3, 1, 1]
    """
    counts = np.ones(loads.size, dtype=np.int64)
    for _ in range(redundant):
        each = np.where(counts < ranks, loads / counts, -1.0)
        most = int(each.argmax())
        if each[most] <= 0.0:
            break
        counts[most] += 1
    return counts


def load_bound(loads: Floats, ranks: int, slots_per_rank: int, redundant: int = 0) -> float:
    """Load that the fullest rank carries at least [1].

    The largest of: the mean over ranks; the largest replica when replicas are given out best; and, without replicas,
    for every k the k + 1 smallest of the k R + 1 largest experts (some rank holds k + 1 of them), and the largest
    expert beside the S - 1 smallest where no slot stays empty.

    >>> load_bound(np.array([5.0, 4.0, 3.0]), 2, 2)  # one rank holds two of three: at least 3 + 4
    7.0
    """
    best = max(float(loads.sum()) / ranks, float((loads / replica_counts(loads, ranks, redundant)).max()))
    if redundant:
        return best
    falling = np.sort(loads)[::-1]
    for held in range(1, (loads.size - 1) // ranks + 1):
        best = max(best, float(falling[held * ranks - held : held * ranks + 1].sum()))
    if loads.size == ranks * slots_per_rank:
        best = max(best, float(falling[0] + falling[loads.size - slots_per_rank + 1 :].sum()))
    return best


def traffic_bound(flow: Floats, *, on_rank: int, on_node: int, inside_cost: float, between_cost: float) -> float:
    """What the traffic of one pair of layers costs at least, in the unit of the costs.

    An expert shares its rank with at most `on_rank` experts of the other layer, so no more of its traffic can stay
    than that of its largest partners; the same holds for nodes.

    >>> flow = np.array([[2.0, 1.0], [1.0, 2.0]])
    >>> float(traffic_bound(flow, on_rank=1, on_node=2, inside_cost=1.0, between_cost=9.0))
    2.0
    """
    crossing = [float(flow.sum()) - _kept(flow, partners) for partners in (on_rank, on_node)]
    return inside_cost * crossing[0] + (between_cost - inside_cost) * crossing[1]


def _kept(flow: Floats, partners: int) -> float:
    """The most that can stay together when each expert is beside at most so many of the other layer."""
    if partners >= flow.shape[0]:
        return float(flow.sum())
    first = flow.shape[0] - partners
    return min(float(np.sort(side, axis=1)[:, first:].sum()) for side in (flow, flow.T))
