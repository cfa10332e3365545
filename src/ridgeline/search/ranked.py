"""What a search found, in order, which of two equal plans is the plainer, and what a step takes of other aims."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from ridgeline.cost.phases import PARTS
from ridgeline.energy.power import above_idle_w, least_energy_j
from ridgeline.errors import NoPlanError
from ridgeline.facts.records import Cluster
from ridgeline.plan.plan import Plan
from ridgeline.predict import Predictor
from ridgeline.predict.explain import explain
from ridgeline.report.aims import AIMS, unknown
from ridgeline.report.report import Infeasible
from ridgeline.seams.registry import STRATEGIES, of_family
from ridgeline.search.grid import PricedGrid
from ridgeline.search.space import alone
from ridgeline.training.pipeline import pipeline_schedule

TIE = 1e-3  # of a step time; chosen: a tenth of what two runs of one plan differ by


@dataclass(frozen=True, kw_only=True)
class Ranked:
    """Plans in order of simulated step time [s], or of what an aim wants less of, and how the search went."""

    plans: tuple[tuple[float, Plan], ...]
    covered: int
    legal: int
    feasible: int
    simulated: int
    infeasible: tuple[Infeasible, ...]
    least: float = np.inf  # no plan that fits and was not simulated has less

    @property
    def gap(self) -> float:
        """How much less than the best found the best of the space may have, as a share of it [1]."""
        best = self.plans[0][0]
        return max(0.0, (best - self.least) / best)

    def plain_first(self) -> Ranked:
        """The same, at its head the plainest of those that tie with the quickest: within 0.1 %, far inside errors."""
        least_s = self.plans[0][0]
        first = min(
            (item for item in self.plans if item[0] <= least_s * (1.0 + TIE)), key=lambda item: plainness(item[1])
        )
        others = (item for item in self.plans if item is not first)
        return replace(self, plans=(first, *others), least=min(self.least, least_s))

    def joined(self, other: Ranked, top: int) -> Ranked:
        """The `top` best of two searches, and the account of both."""
        counts = {item.reason: item for item in other.infeasible}
        both = [
            replace(item, plans=item.plans + (counts.pop(item.reason).plans if item.reason in counts else 0))
            for item in self.infeasible
        ]
        return Ranked(
            plans=tuple(sorted((*self.plans, *other.plans), key=lambda item: item[0])[:top]),
            covered=self.covered + other.covered,
            legal=self.legal + other.legal,
            feasible=self.feasible + other.feasible,
            simulated=self.simulated + other.simulated,
            infeasible=(*both, *counts.values()),
            least=min(self.least, other.least),
        )


def plainest(plan: Plan, *, experts: bool) -> Plan:
    """The same run without choices that change nothing: sharding over one rank, overlap of what is not exchanged."""
    ranks = plan.dp * plan.cp
    if plan.offload_weights or (plan.offload_optimizer and plan.zero == 2):
        return plan
    if alone(plan, experts=experts):
        return replace(plan, zero=0, zero_group=None, overlap_gradients=True, overlap_weights=True)
    group = None if plan.zero == 0 or plan.zero_group is None or plan.zero_group >= ranks else plan.zero_group
    return replace(plan, zero_group=group, overlap_weights=plan.overlap_weights or plan.zero == 0)


def plainness(plan: Plan) -> tuple[int, ...]:
    """Among equally fast plans the plainer one first: fewer shards, fewer options."""
    return (
        plan.zero,
        int(plan.offload_optimizer or plan.offload_weights),
        int(plan.offload_activations),
        int(plan.optimizer_in_backward) + int(plan.loss != Plan.loss),
        int(plan.recompute != Plan.recompute),
        int(plan.overlap_tensor),
        plan.tp,
        plan.pp,
        plan.cp,
    )


@dataclass(frozen=True, kw_only=True)
class Spending:
    """By what plans are ranked: `of` a plan whose step takes so long, never less than the `floor` of those seconds.

    The floor grows with the seconds.
    """

    of: Callable[[Plan, float], float]
    floor: Callable[[float], float]


TIME = Spending(of=lambda _, step_s: step_s, floor=lambda bound_s: bound_s)


def spending(aim: str, predictor: Predictor, grid: PricedGrid) -> Spending:
    """What a step takes of dollars [USD], joules [J] or carbon [kg], and its lower bound.

    Raises `NoPlanError` where nothing is known of it.
    """
    cluster, least = predictor.cluster, _floor(aim, predictor, grid)
    if least is None:
        raise NoPlanError(unknown(aim, cluster.name))

    def of(plan: Plan, step_s: float) -> float:
        found = AIMS[aim].step(explain(predictor, predictor.evaluate(plan)))
        assert found is not None  # as the floor is not
        return found

    return Spending(of=of, floor=least)


def _floor(aim: str, predictor: Predictor, grid: PricedGrid) -> Callable[[float], float] | None:
    """The least that a step of so many seconds takes of an aim; None where nothing is known of it."""
    cluster = predictor.cluster
    price, carbon = cluster.price_usd_per_device_h, cluster.carbon_kg_per_j
    if aim == "dollars":
        return None if price is None else lambda seconds: price.value * cluster.count * seconds / 3600.0
    if not cluster.accelerator.tdp_w or (aim == "carbon" and carbon is None):
        return None
    above_j, scale = _above_idle_j(cluster, grid), carbon.value if aim == "carbon" and carbon is not None else 1.0
    return lambda seconds: scale * least_energy_j(seconds, above_j, cluster)


def _above_idle_j(cluster: Cluster, grid: PricedGrid) -> float:
    """What the devices of a step draw beyond idle at least, whatever plan of the grid runs it [J].

    0 where layers are run in ways of their own, or some are skipped.
    """
    space = grid.space
    skipped = any(pipeline_schedule(one).visited(2) < 2 for one in space.schedules)
    if skipped or of_family(STRATEGIES, space.techniques) is not None:
        return 0.0
    return grid.least_spent({name: above_idle_w(name, cluster) for name in PARTS})
