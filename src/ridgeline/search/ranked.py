"""What a search found, in order, and which of two equal plans is the plainer."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ridgeline.plan.plan import Plan
from ridgeline.report.report import Infeasible
from ridgeline.search.space import alone

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
