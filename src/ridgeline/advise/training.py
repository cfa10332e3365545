"""Advice on training: a plan and its workload, priced and simulated as `predict` does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ridgeline.advise.cases import DOLLARS, JOULES, MEMORY, TIME, Change, TrialOutcome
from ridgeline.advise.training_levers import TrainedChoice, levers
from ridgeline.advise.words import training_techniques
from ridgeline.errors import PlanError
from ridgeline.facts.frameworks import framework_policy
from ridgeline.facts.policies import FRAMEWORKS
from ridgeline.facts.records import Cluster
from ridgeline.graph.model import Model
from ridgeline.plan.rules import check
from ridgeline.plan.runnable import check_runs, why_not, workload_why_not
from ridgeline.predict.explain import explain
from ridgeline.predict.predictor import Predictor
from ridgeline.predict.step_interval import ratio_range
from ridgeline.report.report import Report
from ridgeline.scenario.fields import WORDS
from ridgeline.seams.context import context_style
from ridgeline.seams.resolve import rewritten
from ridgeline.seams.setting import Setting
from ridgeline.training.bounds import step_bound_s
from ridgeline.training.exchanges import exchange_rules
from ridgeline.training.pipeline import pipeline_schedule

UNITS = {TIME: "s", MEMORY: "byte", DOLLARS: "USD", JOULES: "J"}


@dataclass
class TrainingCase:
    """A training scenario; `objective` is one of `UNITS`, of one step."""

    model: Model
    cluster: Cluster
    base: TrainedChoice
    objective: str = TIME
    bounds_nothing: bool = False
    evidence: str | None = None
    _predictors: dict[Any, Predictor] = field(default_factory=dict)
    _reports: dict[TrainedChoice, Report] = field(default_factory=dict)
    _bounds: dict[TrainedChoice, TrialOutcome] = field(default_factory=dict)
    _outcomes: dict[TrainedChoice, TrialOutcome] = field(default_factory=dict)

    def setting(self, on: TrainedChoice) -> Setting:
        """What techniques are asked about."""
        return Setting(model=self.model, cluster=self.cluster, workload=on.workload, plan=on.plan)

    def changes(self, on: TrainedChoice) -> Iterator[Change[TrainedChoice]]:
        """Levers of plan and workload, then every technique of the registry."""
        yield from levers(self.model, self.cluster, on.workload, on.plan, self.base.plan)
        yield from training_techniques(self.setting(on))

    def predictor(self, on: TrainedChoice) -> Predictor:
        """The predictor of a choice; what choices share is computed once."""
        key = (on.plan.technique, on.workload)
        if key not in self._predictors:
            known = next(iter(self._predictors.values()), None)
            self._predictors[key] = Predictor(
                rewritten(self.model, on.plan.technique), self.cluster, on.workload,
                datasheet_only=self.evidence == "datasheet", resolved=None if known is None else known.machine,
            )  # fmt: skip
        return self._predictors[key]

    def bound(self, on: TrainedChoice) -> TrialOutcome:
        """The closed form of a step, and its memory; raises `PlanError` where the plan is not legal."""
        if on not in self._bounds:
            self._bounds[on] = self._bound(on)
        return self._bounds[on]

    def _bound(self, on: TrainedChoice) -> TrialOutcome:
        one, plan = self.predictor(on), on.plan
        check(plan, context_style(plan.context_style), one.limits, on.workload, self.cluster.count)
        check_runs(plan, on.workload, one.split(plan), experts=one.limits.experts > 0)
        schedule, micro_batches = pipeline_schedule(plan.schedule), plan.micro_batches(on.workload.global_batch)
        if plan.pp == 1 and not schedule.alone:
            raise PlanError(f"schedule {plan.schedule} needs pp >= 2")
        schedule.check(plan.pp, micro_batches, plan.chunks)
        held = self._outcome(on, 0.0)
        if not held.fits or self.objective not in (TIME, DOLLARS):
            return held
        _, times = one.prepare(plan)
        step_s = float(step_bound_s(schedule, micro_batches, times, exchange_rules(plan)))
        return replace(held, value=step_s * (1.0 if self.objective == TIME else self.usd_per_s))

    def closer(self, on: TrainedChoice) -> float:
        """The least that the value of a choice can be where states move between tiers, which `bound` leaves out."""
        if self.objective not in (TIME, DOLLARS):
            return 0.0
        from ridgeline.predict.on_lanes import busiest_stage_s

        least_s = busiest_stage_s(self.predictor(on), on.plan)
        return least_s * (1.0 if self.objective == TIME else self.usd_per_s)

    def _outcome(self, on: TrainedChoice, step_s: float) -> TrialOutcome:
        one = self.predictor(on)
        table = {name: np.broadcast_to(value, (on.plan.pp,)) for name, value in one.memory(on.plan).items()}
        stages = sum(table.values())
        fullest = int(np.argmax(stages))
        peak = float(np.max(stages))
        excess = max(0.0, peak - self.cluster.accelerator.memory_bytes)
        excess += max(0.0, one.host_bytes(on.plan) - self.cluster.host.dram_bytes)
        value = {MEMORY: peak, DOLLARS: step_s * self.usd_per_s}.get(self.objective, step_s)
        held = {name: float(each[fullest]) for name, each in table.items()}
        return TrialOutcome(value=value, memory_bytes=peak, excess_bytes=excess, held=held)

    @property
    def usd_per_s(self) -> float:
        """Price of the whole cluster [USD/s]; 0 where none is known."""
        price = self.cluster.price_usd_per_device_h
        return 0.0 if price is None else price.value * self.cluster.count / 3600.0

    def outcome(self, on: TrainedChoice) -> TrialOutcome:
        """The simulated step; of energy, with its parts."""
        if self.objective == JOULES:
            return self.explained(on)
        if on not in self._outcomes:
            self._outcomes[on] = self._outcome(on, self.predictor(on).evaluate(on.plan).timeline.makespan_s)
        return self._outcomes[on]

    def report(self, on: TrainedChoice) -> Report:
        """The report of a choice, as `predict` makes it."""
        if on not in self._reports:
            one = self.predictor(on)
            self._reports[on] = explain(one, one.evaluate(on.plan))
        return self._reports[on]

    def explained(self, on: TrainedChoice) -> TrialOutcome:
        """The simulated step with its parts and its interval."""
        report = self.report(on)
        plain = self._outcome(on, report.step_time.value)
        value = report.energy_j_per_step if self.objective == JOULES else plain.value
        share = value / report.step_time.value
        timed = self.objective != MEMORY
        return replace(
            plain, value=value, parts={one.label: one.seconds for one in report.shares},
            kinds={one.label: one.kind for one in report.shares},
            ends=(share * report.step_time.low, share * report.step_time.high) if timed else None,
        )  # fmt: skip

    def range_of(self, before: TrialOutcome, after: TrialOutcome) -> tuple[float, float]:
        """Both ends of after over before [1], parts erring alike; memory is compared as it is."""
        ratio = after.value / before.value
        if self.objective == MEMORY:
            return ratio, ratio
        report = self.report(self.base)
        low, high = ratio_range(
            before.parts, after.parts, predictor=self.predictor(self.base), evidence=report.evidence["matrix rate"]
        )
        times = sum(after.parts.values()) / sum(before.parts.values())
        return ratio * low / times, ratio * high / times

    def lists(self, change: Change[TrainedChoice]) -> bool:
        """Whether files of frameworks say if they have it: all that a plan or workload says, but optimizers."""
        return not change.key or (change.slot in WORDS and change.slot != "optimizers")

    def programs(self, on: TrainedChoice) -> tuple[str, ...]:
        """Training frameworks that run the plan and its workload."""
        one = self.predictor(on)
        layers, experts = one.split(on.plan), one.limits.experts > 0
        named = [FRAMEWORKS.names()] if not on.workload.held_to_framework else [(on.workload.policy.key,)]
        found = []
        for name in named[0]:
            policy = framework_policy(name)
            if not (
                workload_why_not(policy, on.workload) or why_not(on.plan, policy, on.workload, layers, experts=experts)
            ):
                found.append(policy.name)
        return tuple(found)
