"""Where the experts of a served model lie, and by how much the fullest rank exceeds the mean there.

Letters: L layers with experts, E experts, R ranks, S slots of a rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from ridgeline.errors import PlanError
from ridgeline.plan.deployment import Deployment
from ridgeline.search.expert_placement import Experts, place
from ridgeline.search.programs import Floats

LINEAR, BALANCED = PLACEMENTS = ("linear", "balanced")


@dataclass(frozen=True, kw_only=True, eq=False)
class Loads:
    """Loads of experts (L, E) in any unit, and how experts are placed for them.

    `how` is 'linear', the experts of a layer in order, or 'balanced' for these loads, with `redundant` replicas in each
    layer.
    """

    loads: Floats
    how: str = BALANCED
    redundant: int = 0

    def __post_init__(self) -> None:
        if self.how == LINEAR and self.redundant:
            raise PlanError("deployment: expert_redundant says replicas, which a linear placement has none of")


def imbalance(asked: Loads, ranks: int) -> float:
    """Load of the fullest of R ranks over the mean, on average over layers by what they carry [1].

    (sum over layers of max_r load_lr) / (sum of the mean): each layer waits for its own fullest rank.
    """
    loads = asked.loads
    if ranks == 1:
        return 1.0
    if asked.how == LINEAR:
        if loads.shape[1] % ranks:
            raise PlanError(
                f"deployment: {ranks} ranks do not divide {loads.shape[1]} experts; a linear placement needs it"
            )
        held = loads.reshape(loads.shape[0], ranks, -1).sum(axis=2)
        return float(held.max(axis=1).sum() / held.mean(axis=1).sum())
    slots = -(-(loads.shape[1] + asked.redundant) // ranks)
    return place(Experts(loads=loads, ranks=ranks, slots_per_rank=slots, redundant=asked.redundant)).imbalance


def placed(one: Deployment, asked: Loads, experts: int, *, known: dict[int, float] | None = None) -> Deployment:
    """The deployment with the imbalance of its placement; `known` keeps that of numbers of ranks between calls.

    Raises `PlanError` where the loads are those of another number of experts than the model has.
    """
    if asked.loads.shape[1] != experts:
        raise PlanError(f"loads of {asked.loads.shape[1]} experts are given; the model has {experts}")
    ranks = one.expert_devices or one.ep
    if ranks == 1:
        return one
    found = known if known is not None else {}
    if ranks not in found:
        found[ranks] = imbalance(asked, ranks)
    return replace(one, expert_imbalance=found[ranks], expert_redundant=asked.redundant)


def loads_of(rows: Mapping[tuple[int, int], float]) -> Floats:
    """Loads (L, E) from those of (layer, expert); raises `PlanError` where one is missing."""
    layers = sorted({layer for layer, _ in rows})
    experts = 1 + max(expert for _, expert in rows)
    missing = [(layer, expert) for layer in layers for expert in range(experts) if (layer, expert) not in rows]
    if missing:
        raise PlanError(f"{len(missing)} loads are missing, the first of layer {missing[0][0]}, expert {missing[0][1]}")
    return np.array([[rows[layer, expert] for expert in range(experts)] for layer in layers])
