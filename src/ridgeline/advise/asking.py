"""Advice on a scenario as a person wrote it: the baseline completed as `predict` does, its floor, its title."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from ridgeline.advise.cases import DOLLARS, GOODPUT, TIME, Change, TrialOutcome, ends_range
from ridgeline.advise.composing import AdviceQuestion, advise
from ridgeline.advise.training import UNITS, TrainingCase
from ridgeline.advise.training_levers import TrainedChoice
from ridgeline.errors import InputError
from ridgeline.graph.model import SAMPLE
from ridgeline.graph.workload import PRECISIONS
from ridgeline.lower.params import step_forwards
from ridgeline.plan.plan import Plan
from ridgeline.plan.rules import check
from ridgeline.plan.runnable import check_runs
from ridgeline.plan.sampling import DEGREES
from ridgeline.predict.floor import model_floor_s
from ridgeline.predict.unlike_lengths import Costs, divided_lengths, least_lengths_s
from ridgeline.report.advice import Advice
from ridgeline.report.deployments import counted
from ridgeline.report.lengths import LengthsReport
from ridgeline.scenario.sampling import SamplingScenario
from ridgeline.scenario.training import Scenario
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
        return ends_range(before, after)


_MODEL_PARTS = ("matrix", "attention")
_PICTURE_FLOOR = (
    "the denoiser's products and attention at these prices; only fewer steps, other kernels or formats go below"
)


def advise_training(asked: Scenario, *, objective: str = TIME, evidence: str | None = None) -> Advice:
    """Advice on a training scenario: of a step's time, memory, dollars or joules.

    The floor is the model's own FLOP at the best rate that the devices sustain: no order, sharding, overlap or place of
    states goes below it, fewer FLOP or another number format may.
    """
    if objective == GOODPUT:
        raise InputError("is of serving under an objective; say --for time of training", field="--for")
    assert asked.plan is not None
    priced = asked.cluster.price_usd_per_device_h
    if objective == DOLLARS and priced is None:
        raise InputError(f"no price is known of {asked.cluster.accelerator.name}; say time", field="--for")
    base = TrainedChoice(workload=asked.workload, plan=asked.plan)
    unlike = bool(asked.workload.lengths)
    if unlike and objective not in (TIME, DOLLARS):
        raise InputError("of sequences of unlike lengths is time or dollars", field="--for", value=objective)
    case = (LengthsCase if unlike else TrainingCase)(
        model=asked.model, cluster=asked.cluster, base=base, objective=objective, evidence=evidence
    )  # fmt: skip
    found = case.explained(base)
    question = AdviceQuestion(
        title=f"{asked.model.name} on {asked.cluster.name}: {asked.workload.task.value}, {_step_text(asked)} a step",
        objective=objective, unit=UNITS[objective], baseline=plan_text(asked.plan),
        capacity_bytes=asked.cluster.accelerator.memory_bytes, floor=_floor(case, objective),
        assumed=asked.assumed,
    )  # fmt: skip
    return advise(case, question, found)


def _step_text(asked: Scenario) -> str:
    """What a step trains on: sequences, or samples of other networks."""
    batch, length = asked.workload.global_batch, asked.workload.seq_len
    return (
        f"{batch:,} samples"
        if SAMPLE in asked.model.dims
        else (f"{batch:,} sequences of {'up to ' if asked.workload.lengths else ''}{length:,} tokens")
    )


def _floor(case: TrainingCase, objective: str) -> tuple[float, str] | None:
    if objective not in (TIME, DOLLARS) or case.base.workload.lengths:
        return None
    job = case.base.workload
    least_s = model_floor_s(case.predictor(case.base), trained=step_forwards(job))
    rate = PRECISIONS[job.precision].compute
    return least_s * (1.0 if objective == TIME else case.usd_per_s), (
        f"the model's own FLOP at the best {rate} rate that these devices sustain, on"
        f" {counted(case.cluster.count, 'device')}; only fewer FLOP or another number format goes below"
    )


def advise_pictures(asked: SamplingScenario, *, objective: str | None = None) -> Advice:
    """Advice on pictures: by default of the number a minute of all devices where one is wanted, else of time.

    The floor is what the denoiser's products and attention take at the same prices.
    """
    from ridgeline.advise.pictures import UNITS as PICTURED
    from ridgeline.advise.pictures import PictureChoice, PicturesCase

    goal = objective or (TIME if asked.per_minute is None else GOODPUT)
    if goal not in PICTURED:
        raise InputError(f"of pictures it is one of {', '.join(PICTURED)}", field="--for", value=goal)
    if goal == DOLLARS and asked.cluster.price_usd_per_device_h is None:
        raise InputError(f"no price is known of {asked.cluster.accelerator.name}; say time", field="--for")
    case = PicturesCase(
        model=asked.model, cluster=asked.cluster, base=PictureChoice(asked=asked.asked, by=asked.by), objective=goal
    )  # fmt: skip
    what, base, cost = asked.asked, case.explained(case.base), case.cost(case.base)
    own = sum(base.parts.get(name, 0.0) for name in _MODEL_PARTS)
    timed = goal in (TIME, GOODPUT)
    wanted = "" if asked.per_minute is None else f"{asked.per_minute:,} pictures a minute are wanted"
    divided = ", ".join(f"{name} {getattr(asked.by, name)}" for name in DEGREES if getattr(asked.by, name) > 1)
    question = AdviceQuestion(
        title=f"{asked.model} on {asked.cluster.name}: {what.width} x {what.height}, {what.steps} steps",
        objective=goal, unit=PICTURED[goal], load=wanted, inverse=goal == GOODPUT,
        baseline=f"batch {what.batch}, {what.precision}, {what.execution}, {divided or 'one device a batch'}",
        capacity_bytes=cost.memory.capacity_bytes,
        floor=(base.value * own / cost.seconds, _PICTURE_FLOOR) if timed else None,
        assumed=(*asked.assumed, *cost.assumptions),
    )  # fmt: skip
    return advise(case, question, base)


def plan_text(plan: Plan) -> str:
    """A plan by its fields that are not their defaults, degrees first."""
    usual = Plan()
    told = [f"{name} {getattr(plan, name)}" for name in ("tp", "pp", "cp", "dp") if getattr(plan, name) > 1]
    told += [
        f"{name.replace('_', ' ')} {value}" for name, value in vars(plan).items()
        if value != getattr(usual, name) and name not in ("tp", "pp", "cp", "dp")
    ]  # fmt: skip
    return ", ".join([*told, "all else as `predict` takes it"])
