"""Replicas of experts, and how evenly they load the ranks that hold them.

Letters: E experts of a layer, R ranks over which they are divided.
"""

from __future__ import annotations

from dataclasses import replace
from heapq import heappop, heappush

from ridgeline.errors import PlanError
from ridgeline.graph.model import Model
from ridgeline.lower.pieces import Experts, Piece, Served
from ridgeline.plan.deployment import Deployment
from ridgeline.scenario.serving_words import replaced
from ridgeline.seams.serving import Placement, expert_ranks, of


def replicated(served: Served, one: Deployment) -> Served:
    """The model with the replicas of its placement: as many experts on a rank as it has slots."""
    redundant = of(one, Placement).redundant
    if not redundant:
        return served

    def more(piece: Piece) -> Piece:
        if not isinstance(piece, Experts):
            return piece
        return replace(piece, count=-(-(piece.count + redundant) // piece.ranks) * piece.ranks)

    kinds = [replace(kind, pieces=tuple(map(more, kind.pieces))) for kind in served.kinds]
    return replace(served, kinds=tuple(kinds))


def even_imbalance(experts: int, redundant: int, ranks: int) -> float:
    """Load of the fullest of R ranks over the mean where E experts are asked for alike [1].

    Replicas are spread over experts, and the copies of each, those with fewest first, go to the least loaded ranks with
    a free slot, one to a rank.
    """
    slots = -(-(experts + redundant) // ranks)
    each, more = divmod(experts + redundant, experts)
    open_ranks, full = [(0.0, 0)] * ranks, 0.0
    for copies in [each] * (experts - more) + [each + 1] * more:
        for load, held in [heappop(open_ranks) for _ in range(min(copies, len(open_ranks)))]:
            full = max(full, load + 1.0 / copies)
            if held + 1 < slots:
                heappush(open_ranks, (load + 1.0 / copies, held + 1))
    return full * ranks / experts


def evenly_placed(one: Deployment, model: Model) -> Deployment:
    """The deployment with the imbalance of its replicas for even loads, where it says none.

    Raises `PlanError` for replicas of a model without experts.
    """
    placement, ranks = of(one, Placement), expert_ranks(one)
    if not placement.redundant or placement.imbalance is not None or ranks == 1:
        return one
    experts = max((block.experts for block in model.graph.blocks.values()), default=0)
    if not experts:
        raise PlanError(f"deployment: expert_redundant = {placement.redundant}, but {model.name} has no experts")
    return replaced(one, expert_imbalance=even_imbalance(experts, placement.redundant, ranks))
