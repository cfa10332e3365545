"""Predicted against measured, phase by phase, and which phase explains most of the gap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ridgeline.cost.interval import interval
from ridgeline.facts.records import Cluster
from ridgeline.graph.ops import Model
from ridgeline.graph.workload import Workload
from ridgeline.plan.plan import Plan
from ridgeline.predict import RECOMPUTE_CODE, Evaluation, Predictor, explain
from ridgeline.report.report import Report
from ridgeline.run.launch import Measured, launch
from ridgeline.run.mapping import execution_of
from ridgeline.training.parts import part_tables

_STEP = "step"
_FOLDED = {"broadcast": "all_gather", "recv": "", "barrier": ""}  # ZeRO's broadcast gathers; receiving is sending


@dataclass(frozen=True, kw_only=True)
class Phase:
    """One part of a step: predicted with its 80 % interval, measured with its 10th and 90th percentile, in `unit`.

    `within` says that the row is busy time inside other rows, which overlap may hide; it is no part of the gap.
    """

    name: str
    predicted: float
    low: float
    high: float
    measured: float
    measured_low: float
    measured_high: float
    unit: str = "s"
    within: bool = False

    @property
    def error(self) -> float | None:
        """(predicted - measured) / measured [1]; None where nothing was measured."""
        return (self.predicted - self.measured) / self.measured if self.measured else None

    @property
    def covered(self) -> bool:
        """Whether the measured value lies in the interval."""
        return self.low <= self.measured <= self.high


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A plan that was priced and run: the report, what was measured, rows by phase, and the widest gap."""

    report: Report
    measured: Measured
    phases: tuple[Phase, ...]
    widest: str
    widest_share: float  # of the absolute gaps of all phases
    remarks: tuple[str, ...]

    @property
    def step(self) -> Phase:
        """The whole step."""
        return next(one for one in self.phases if one.name == _STEP)


def compare_plan(
    model: Model, cluster: Cluster, workload: Workload, plan: Plan, *, repeats: int, device: str, limit_s: float
) -> Comparison:
    """Prices a plan, runs the same plan on local devices, and sets the two side by side."""
    remarks = elsewhere(cluster, device)
    if workload.execution != "eager":
        remarks.append(f"execution = {workload.execution} was asked; what runs, and is predicted, is eager PyTorch")
        workload = replace(workload, execution="eager")
    asked = execution_of(model, workload, plan)
    predictor = Predictor(model, cluster, workload)
    evaluation = predictor.evaluate(plan)
    report = explain(predictor, evaluation)
    measured = launch(asked, repeats=repeats, device=device, limit_s=limit_s)
    phases = phases_of(predictor, evaluation, report, measured)
    gaps = {one.name: abs(one.predicted - one.measured) for one in phases if _is_part(one)}
    widest = max(gaps, key=lambda name: gaps[name])
    total = sum(gaps.values())
    return Comparison(
        report=report,
        measured=measured,
        phases=phases,
        widest=widest,
        widest_share=gaps[widest] / total if total else 0.0,
        remarks=tuple(remarks),
    )


def elsewhere(cluster: Cluster, device: str) -> list[str]:
    """A note where the prediction is for a machine that cannot be the one that ran."""
    part = cluster.accelerator
    if (part.architecture == "cpu") == (device == "cpu"):
        return []
    return [f"predicted for {part.name}, run on this machine's {device}: --on here predicts what ran"]


def _is_part(phase: Phase) -> bool:
    return phase.unit == "s" and phase.name != _STEP and not phase.within


def phases_of(predictor: Predictor, evaluation: Evaluation, report: Report, measured: Measured) -> tuple[Phase, ...]:
    """Rows of a comparison: forward, backward (with what it waits for), optimizer, step, collectives, memory."""
    rung = report.step_time.evidence
    times, count = evaluation.times, evaluation.micro_batches
    stage = _busiest(evaluation)
    forward, optimizer = float(times.forward_s[stage].sum()) * count, float(times.optimizer_s.max())
    step = report.step_time.value
    alone = evaluation.plan.devices == 1
    backward = "backward" if alone else "backward, exchange, waiting"
    predicted = {"forward": forward, backward: step - forward - optimizer, "optimizer": optimizer, _STEP: step}
    seen = {
        "forward": [one["forward"] for one in measured.phases_s],
        backward: [one[_STEP] - one["forward"] - one["optimizer"] for one in measured.phases_s],
        "optimizer": [one["optimizer"] for one in measured.phases_s],
        _STEP: [one[_STEP] for one in measured.phases_s],
    }
    rows = [_phase(name, value, interval(value, rung), seen[name]) for name, value in predicted.items()]
    busy = _kinds(measured.collectives)
    for kind, value in _collectives(predictor, evaluation, stage, cpu=measured.device == "cpu").items():
        rows.append(_phase(kind, value, interval(value, rung), [busy.get(kind, 0.0)], within=True))
    held = max(one.total_bytes - one.categories.get("context", 0.0) for one in report.memory)  # no allocator holds it
    rows.append(_phase("peak memory", held, interval(held, rung), [max(measured.memory_bytes)], unit="byte"))
    return tuple(rows)


def _phase(
    name: str,
    predicted: float,
    ends: tuple[float, float],
    seen: Sequence[float],
    *,
    unit: str = "s",
    within: bool = False,
) -> Phase:
    low, median, high = (float(value) for value in np.quantile(seen, [0.1, 0.5, 0.9]))
    return Phase(
        name=name,
        predicted=predicted,
        low=ends[0],
        high=ends[1],
        measured=median,
        measured_low=low,
        measured_high=high,
        unit=unit,
        within=within,
    )


def _busiest(evaluation: Evaluation) -> int:
    times = evaluation.times
    return int(np.argmax((times.forward_s + times.backward_input_s + times.backward_weight_s).sum(axis=1)))


def _kinds(seen: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Busy seconds by kind, under the names that predictions use."""
    found: dict[str, float] = {}
    for name, entry in seen.items():
        kind = name.split(":")[-1]
        kind = _FOLDED.get(kind, kind)
        if kind:
            found[kind] = found.get(kind, 0.0) + entry["seconds"]
    return found


def _collectives(predictor: Predictor, evaluation: Evaluation, stage: int, *, cpu: bool) -> dict[str, float]:
    """Busy seconds of one rank's collectives by kind in one step; gloo reduces and scatters by an all-reduce."""
    plan, times, count = evaluation.plan, evaluation.times, evaluation.micro_batches
    tables = part_tables(
        evaluation.cost,
        predictor.stages.block_names,
        evaluation.counts,
        evaluation.first,
        evaluation.last,
        times=times,
        recompute=RECOMPUTE_CODE[plan.recompute],
        recompute_layers=plan.recompute_layers,
    )
    tensor = float(tables["tensor link"].total_s[stage].sum()) * count if "tensor link" in tables else 0.0
    gather, reduce = float(times.gather_s[stage].sum()), float(times.reduce_s[stage].sum())
    scattered = "all_reduce" if cpu else "reduce_scatter"
    found: dict[str, float] = {}

    def add(kind: str, seconds: float) -> None:
        if seconds > 0:
            found[kind] = found.get(kind, 0.0) + seconds

    if plan.tp > 1 and plan.sequence_parallel:
        add("all_gather", tensor / 2)
        add(scattered, tensor / 2)
    else:
        add("all_reduce", tensor)
    add("all_gather", gather * {0: 0, 1: 1, 2: 1, 3: 2 * count}[plan.zero])
    add(scattered if plan.zero else "all_reduce", reduce * (count if plan.zero >= 2 else 1))
    if plan.pp > 1:
        add("send", float(times.send_forward_s[stage].sum() + times.send_backward_s[stage].sum()) * count)
    return found
