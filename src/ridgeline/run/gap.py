"""A plan or a static batch priced and run: predicted against measured, phase by phase, and what explains the gap."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from ridgeline.cost.answer import interval
from ridgeline.errors import ModelError, PlanError, WorkloadError
from ridgeline.facts.records import Cluster
from ridgeline.graph.model import Model
from ridgeline.graph.workload import Workload
from ridgeline.plan.deployment import Deployment
from ridgeline.plan.plan import Plan
from ridgeline.predict import Predictor
from ridgeline.predict.explain import explain
from ridgeline.predict.floor import stage_parts
from ridgeline.predict.predictor import Evaluation
from ridgeline.predict.serving import Operation, simulate_serving
from ridgeline.report.report import Report
from ridgeline.report.serving import ServingReport
from ridgeline.run.launch import launch
from ridgeline.run.mapping import Execution, as_it_runs, execution_of, shape_of
from ridgeline.run.measured import Comparison, MeasuredRun, RunPhase, elsewhere, idle_share, phase_of
from ridgeline.seams.schedule import BACKWARD_WEIGHT
from ridgeline.serving.traffic.traffic import Traffic

_STEP = "step"
_FOLDED = {"broadcast": "all_gather", "recv": "", "barrier": ""}  # ZeRO's broadcast gathers; receiving is sending


@dataclass(frozen=True, kw_only=True)
class PlanComparison(Comparison[Report]):
    """A plan that was priced and run; for pipelines with the share of time in which stages do not compute [1]."""

    idle_share: float | None = None

    @property
    def step(self) -> RunPhase:
        """The whole step."""
        return self.phase(_STEP)


def compare_plan(
    model: Model, cluster: Cluster, workload: Workload, plan: Plan, *, repeats: int, device: str, limit_s: float
) -> PlanComparison:
    """Prices a plan, runs the same plan on local devices, and sets the two side by side."""
    remarks = elsewhere(cluster, device)
    if workload.execution != "eager":
        remarks.append(f"execution = {workload.execution} was asked; what runs, and is predicted, is eager PyTorch")
    stated, workload = workload.optimizer, as_it_runs(workload)
    if workload.optimizer != stated:
        remarks.append(f"optimizer = {stated} of weights in bf16 keeps its moments in bf16 too, which is predicted")
    asked = execution_of(model, workload, plan)
    workload = replace(workload, execution="eager", framework=asked.policy)
    predictor = Predictor(model, cluster, workload)
    evaluation = predictor.evaluate(plan)
    report = explain(predictor, evaluation)
    measured = launch(asked, repeats=repeats, device=device, limit_s=limit_s)
    phases = phases_of(predictor, evaluation, report, measured)
    return PlanComparison(
        report=report,
        measured=measured,
        phases=phases,
        gaps={
            one.name: abs(one.predicted - one.measured)
            for one in phases
            if one.unit == "s" and one.name != _STEP and not one.within
        },
        remarks=tuple(remarks),
        idle_share=predicted_idle_share(evaluation) if plan.pp > 1 else None,
    )


def predicted_idle_share(evaluation: Evaluation) -> float:
    """Mean share of a pipeline's time in which its stages neither run forward nor backward [1]."""
    times, tasks = evaluation.times, evaluation.tasks
    whole = float(evaluation.timeline.end_s[tasks.kind <= BACKWARD_WEIGHT].max())
    stages = (times.forward_s + times.backward_input_s + times.backward_weight_s).sum(axis=1)
    return idle_share([float(one) * evaluation.micro_batches for one in stages], whole)


def phases_of(
    predictor: Predictor, evaluation: Evaluation, report: Report, measured: MeasuredRun
) -> tuple[RunPhase, ...]:
    """Rows of a comparison: forward, backward (with what it waits for), optimizer, step, collectives, memory."""
    rung, band = report.step_time.evidence, predictor.stages.pricer.interval
    times, count = evaluation.times, evaluation.micro_batches
    stage = _busiest(evaluation)
    forward = float(times.forward_s[stage].sum()) * count
    optimizer = float(np.max(times.optimizer_s - times.exchanged_s))
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
    rows = [phase_of(name, value, band(value, rung), seen[name]) for name, value in predicted.items()]
    busy = _kinds(measured.collectives)
    for kind, value in _collectives(predictor, evaluation, stage, cpu=measured.device == "cpu").items():
        rows.append(phase_of(kind, value, band(value, rung), [busy.get(kind, 0.0)], within=True))
    held = max(one.total_bytes - one.categories.get("context", 0.0) for one in report.memory)  # no allocator holds it
    rows.append(phase_of("peak memory", held, interval(held, rung), [max(measured.memory_bytes)], unit="byte"))
    return tuple(rows)


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
            found[kind] = found.get(kind, 0.0) + entry.get("moving", entry["seconds"])
    return found


def _collectives(predictor: Predictor, evaluation: Evaluation, stage: int, *, cpu: bool) -> dict[str, float]:
    """Busy seconds of one rank's collectives by kind in one step; gloo reduces and scatters by an all-reduce."""
    plan, times, count = evaluation.plan, evaluation.times, evaluation.micro_batches
    tables = stage_parts(predictor, evaluation).tables()
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
    if "expert link" in tables:
        add("all_to_all", float(tables["expert link"].total_s[stage].sum()) * count)
    add("all_gather", gather * {0: 0, 1: 1, 2: 1, 3: 2 * count}[plan.zero])
    add(scattered if plan.zero else "all_reduce", reduce * (count if plan.zero >= 2 else 1))
    if plan.pp > 1:
        add("send", float(times.send_forward_s[stage].sum() + times.send_backward_s[stage].sum()) * count)
    return found


FORMATS = {"": "bf16-pure", "bf16": "bf16-pure"}
_DEFAULT = Deployment().said
_RUN = ("engine", "version", "tp", "weights")  # words of a deployment that say something about this run


def compare_batch(
    model: Model,
    cluster: Cluster,
    deployment: Deployment,
    traffic: Traffic,
    *,
    repeats: int,
    device: str,
    limit_s: float,
) -> Comparison[ServingReport]:
    """Replays a batch that starts together, runs it on local devices, and sets the two side by side."""
    asked = generation_of(model, deployment)
    batch = len(traffic.prompt_tokens)
    prompt, output = (int(np.max(part)) for part in (traffic.prompt_tokens, traffic.output_tokens))
    if np.ptp(traffic.prompt_tokens) or np.ptp(traffic.output_tokens):
        raise WorkloadError("a batch of unequal lengths is not run here; give one number for prompt and one for output")
    report = simulate_serving(model, cluster, (deployment,), traffic, operation=Operation(offline=True))
    words = {"batch": batch, "prompt": prompt, "output": output}
    measured = launch(asked, repeats=repeats, device=device, limit_s=limit_s, generate=words)
    phases = batch_phases(report, measured)
    gaps = {
        "prefill": abs(phases[0].predicted - phases[0].measured),
        "decode step": abs(phases[1].predicted - phases[1].measured) * (output - 1),
    }
    return Comparison(
        report=report, measured=measured, phases=phases, gaps=gaps, remarks=tuple(elsewhere(cluster, device))
    )


def generation_of(model: Model, deployment: Deployment) -> Execution:
    """What runs a deployment's static batch; raises PlanError for words that have no way to run here."""
    if deployment.weights not in FORMATS:
        raise PlanError(f"deployment: weights = {deployment.weights} is not run here; needs bf16")
    for name, value in deployment.said.items():
        if name not in _RUN and value != _DEFAULT[name]:
            raise PlanError(f"deployment: {name} = {value} is not run here; leave it out")
    shape, tp = shape_of(model), deployment.tp
    if shape.kv_rank:
        raise ModelError(f"{model.name}: a batch with latent attention, whose cache is the latents, is not run here")
    for name, value in (("kv_heads", shape.kv_heads), ("ffn", shape.ffn), ("vocab", shape.vocab)):
        if value % tp:
            raise PlanError(f"deployment: tp = {tp} does not divide {name} = {value}")
    return Execution(
        shape=shape,
        tp=tp,
        pp=1,
        cp=1,
        dp=1,
        data="",
        sequence_parallel=False,
        micro_batch=1,
        micro_batches=1,
        schedule="gpipe",
        layer_split=(shape.layers,),
        recompute="none",
        seq_len=1,
        precision=FORMATS[deployment.weights],
        optimizer="sgd",
    )


def batch_phases(report: ServingReport, measured: MeasuredRun) -> tuple[RunPhase, ...]:
    """Rows of a comparison: the prompts' pass, one decode step, and the whole batch [s]."""
    rows = []
    for name, metric in (("prefill", "ttft"), ("decode step", "tpot"), ("batch", "latency")):
        ends = sorted(getattr(one, metric).mean for one in report.ends)
        predicted = float(getattr(report.metrics, metric).mean)
        known = predicted if np.isfinite(predicted) else 0.0
        low, high = (end if np.isfinite(end) else known for end in (ends[0], ends[-1]))
        rows.append(phase_of(name, known, (low, high), [one[name] for one in measured.phases_s]))
    return tuple(rows)
