"""Advice on training with sequences of unlike lengths: a step as `predict` divides them, way by way."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from ridgeline.advise.cases import DOLLARS, Change, TrialOutcome
from ridgeline.advise.training import TrainingCase
from ridgeline.advise.training_levers import TrainedChoice
from ridgeline.plan.rules import check
from ridgeline.plan.runnable import check_runs
from ridgeline.predict.unlike_lengths import Costs, divided_lengths, least_lengths_s
from ridgeline.report.lengths import LengthsReport
from ridgeline.seams.context import context_style
from ridgeline.seams.resolve import rewritten

WAITING = "waiting for slower ranks"


@dataclass
class LengthsCase(TrainingCase):
    """A training scenario whose workload has `lengths`; its objective is time or dollars.

    Micro-batches fill memory, so that what a device holds is all of it, and a plan that leaves no room is refused.
    """

    bounds_nothing: bool = True  # of what waits for slower ranks, so that a division is made for each trial
    _costs: dict[Any, Costs] = field(default_factory=dict)
    _divided: dict[TrainedChoice, LengthsReport] = field(default_factory=dict)

    def costs(self, on: TrainedChoice) -> Costs:
        """What sequences cost under a choice, whatever divides them."""
        key = TrainedChoice(workload=on.workload, plan=replace(on.plan, length_balance=self.base.plan.length_balance))
        if key not in self._costs:
            built = rewritten(self.model, on.plan.technique)
            self._costs[key] = Costs(built, self.cluster, on.workload, key.plan)
        return self._costs[key]

    def _bound(self, on: TrainedChoice) -> TrialOutcome:
        one, plan = self.predictor(on), on.plan
        check(plan, context_style(plan.context_style), one.limits, on.workload, self.cluster.count)
        check_runs(plan, on.workload, one.split(plan), experts=one.limits.experts > 0)
        return self._valued(least_lengths_s(self.costs(on), on.workload))

    def closer(self, on: TrainedChoice) -> float:
        """None: 0."""
        return 0.0

    def _valued(self, step_s: float) -> TrialOutcome:
        room = float(self.cluster.accelerator.memory_bytes)
        return TrialOutcome(
            value=step_s * (self.usd_per_s if self.objective == DOLLARS else 1.0), memory_bytes=room, excess_bytes=0.0
        )

    def divided(self, on: TrainedChoice) -> LengthsReport:
        """The report of a choice, as `predict` makes it."""
        if on not in self._divided:
            self._divided[on] = divided_lengths(self.costs(on), on.workload, on.plan)
        return self._divided[on]

    def outcome(self, on: TrainedChoice) -> TrialOutcome:
        """The divided step."""
        return self._valued(self.divided(on).step_s)

    def explained(self, on: TrainedChoice) -> TrialOutcome:
        """The divided step with what ranks wait for each other, and its interval."""
        found = self.divided(on)
        plain = self._valued(found.step_s)
        scale = plain.value / found.step_s
        parts = {"sequences": found.step_s * (1.0 - found.waiting), WAITING: found.step_s * found.waiting}
        kinds = {"sequences": "compute", WAITING: "queue"}
        return replace(plain, parts=parts, kinds=kinds, ends=(scale * found.low_s, scale * found.high_s))

    def lists(self, change: Change[TrainedChoice]) -> bool:
        """As of training; files of frameworks do not say how they divide sequences."""
        return change.slot != "length_balance" and super().lists(change)

    def programs(self, on: TrainedChoice) -> tuple[str, ...]:
        """Frameworks that run the plan, which pack sequences; none for another division."""
        return super().programs(on) if on.plan.length_balance.startswith("packed") else ()

    def range_of(self, before: TrialOutcome, after: TrialOutcome) -> tuple[float, float]:
        """Both ends of after over before [1], at the same end of what prices may be wrong."""
        ratios = [after.value / before.value]
        ratios += [end / first for first, end in zip(before.ends or (), after.ends or (), strict=False)]
        return min(ratios), max(ratios)
