"""Advice on a scenario as a person wrote it: the baseline completed as `predict` does, its floor, its title."""

from __future__ import annotations

from ridgeline.advise.cases import DOLLARS, GOODPUT, TIME
from ridgeline.advise.composing import AdviceQuestion, advise
from ridgeline.advise.lengths import LengthsCase
from ridgeline.advise.training import UNITS, TrainingCase
from ridgeline.advise.training_levers import TrainedChoice
from ridgeline.errors import InputError
from ridgeline.graph.model import SAMPLE
from ridgeline.graph.workload import PRECISIONS
from ridgeline.lower.params import step_forwards
from ridgeline.plan.plan import Plan
from ridgeline.plan.sampling import DEGREES
from ridgeline.predict.floor import model_floor_s
from ridgeline.report.advice import Advice
from ridgeline.report.deployments import counted
from ridgeline.scenario.sampling import SamplingScenario
from ridgeline.scenario.training import Scenario

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
