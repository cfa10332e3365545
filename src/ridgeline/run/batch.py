"""A static batch, priced and run: prompts in one pass, then one token a step, with a cache of keys and values."""

from __future__ import annotations

import numpy as np

from ridgeline.errors import ModelError, PlanError, WorkloadError
from ridgeline.facts.records import Cluster
from ridgeline.graph.ops import Model
from ridgeline.plan.deployment import Deployment
from ridgeline.predict.serving import simulate_serving
from ridgeline.report.serving import ServingReport
from ridgeline.run.launch import launch
from ridgeline.run.mapping import Execution, shape_of
from ridgeline.run.measured import Measured
from ridgeline.run.phases import Comparison, Phase, elsewhere, phase_of
from ridgeline.serving.traffic.traffic import Traffic

FORMATS = {"": "bf16-pure", "bf16": "bf16-pure"}
_DEFAULT = Deployment()
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
    report = simulate_serving(model, cluster, (deployment,), traffic, offline=True)
    words = {"batch": batch, "prompt": prompt, "output": output}
    measured = launch(asked, repeats=repeats, device=device, limit_s=limit_s, generate=words)
    phases = batch_phases(report, measured)
    gaps = {
        "prefill": abs(phases[0].predicted - phases[0].measured),
        "decode step": abs(phases[1].predicted - phases[1].measured) * (output - 1),
    }
    return Comparison(
        report=report,
        measured=measured,
        phases=phases,
        gaps=gaps,
        remarks=tuple(elsewhere(cluster, device)),
    )


def generation_of(model: Model, deployment: Deployment) -> Execution:
    """What runs a deployment's static batch; raises PlanError for words that have no way to run here."""
    if deployment.weights not in FORMATS:
        raise PlanError(f"deployment: weights = {deployment.weights} is not run here; needs bf16")
    for name, value in vars(deployment).items():
        if name not in _RUN and value != getattr(_DEFAULT, name):
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


def batch_phases(report: ServingReport, measured: Measured) -> tuple[Phase, ...]:
    """Rows of a comparison: the prompts' pass, one decode step, and the whole batch [s]."""
    rows = []
    for name, metric in (("prefill", "ttft"), ("decode step", "tpot"), ("batch", "latency")):
        ends = sorted(getattr(one, metric).mean for one in report.ends)
        predicted = float(getattr(report.metrics, metric).mean)
        known = predicted if np.isfinite(predicted) else 0.0
        low, high = (end if np.isfinite(end) else known for end in (ends[0], ends[-1]))
        rows.append(phase_of(name, known, (low, high), [one[name] for one in measured.phases_s]))
    return tuple(rows)
