"""No interval of a step begins below what the machine's datasheet allows, whatever the device and the format."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.errors import RidgelineError
from ridgeline.facts.accelerators import accelerators
from ridgeline.facts.clusters import cluster
from ridgeline.graph.build import from_dims
from ridgeline.graph.flop import model_flop_per_token
from ridgeline.graph.workload import PRECISIONS, Task, Workload
from ridgeline.plan.plan import Plan, Recompute
from ridgeline.predict import Predictor, predict
from ridgeline.predict.floor import step_floor_s

MODEL = from_dims(name="wide", layers=4, hidden=4096, heads=32, ffn=14336, vocab=32000, max_positions=65536)
PASSES = {Task.PRETRAIN: 3.0, Task.FULL: 3.0, Task.LORA: 2.0}


@given(
    device=st.sampled_from(sorted(accelerators())),
    precision=st.sampled_from(sorted(PRECISIONS)),
    seq_len=st.sampled_from((512, 4096, 32768)),
    task=st.sampled_from(sorted(PASSES, key=str)),
    recompute=st.sampled_from((Recompute.NONE, Recompute.FULL)),
    devices=st.sampled_from((1, 4)),
)
@settings(max_examples=150, deadline=None, derandomize=True)
def test_no_low_is_quicker_than_the_peak(
    device: str, precision: str, seq_len: int, task: Task, recompute: Recompute, devices: int
) -> None:
    work = Workload(seq_len=seq_len, global_batch=4, precision=precision, task=task)
    try:
        found = predict(
            MODEL, cluster(f"{devices}x{device}"), work, Plan(dp=devices, recompute=recompute), changes=False
        )
    except RidgelineError:
        return
    formats = PRECISIONS[precision]
    peaks = found.cluster.accelerator.peak_flop_per_s
    peak = max(peaks.get(name) or peaks.get("fp32") or found.cluster.accelerator.vector_flop_per_s for name in
               (formats.compute, formats.attention))  # fmt: skip
    flop = PASSES[task] * model_flop_per_token(MODEL.graph, float(seq_len), attention="causal") * work.step_tokens
    step = found.step_time
    assert step.low * (1 + 1e-9) >= flop / (peak * devices)
    assert step.low <= step.value <= step.high
    assert found.hfu <= 1.0
    weights = 2.0 * (MODEL.graph.params if task is Task.PRETRAIN else 0)  # read at least once
    assert step.low > weights / found.cluster.accelerator.memory_bytes_per_s


@pytest.mark.parametrize("devices", ["8xRTX-4090", "8xH100-SXM", "2x8xA100-SXM-40GB"])
def test_exchanges_take_at_least_their_bytes_over_the_link(devices: str) -> None:
    """Ring: each rank sends 2 (N - 1) / N of the gradients; a switch that reduces, (N + 1) / N."""
    where = cluster(devices)
    work = Workload(seq_len=256, global_batch=where.count)
    predictor = Predictor(MODEL, where, work)
    evaluation = predictor.evaluate(Plan(dp=where.count))
    size, fastest = 2.0 * MODEL.graph.params, max(tier.bytes_per_s for tier in where.tiers)
    assert step_floor_s(predictor, evaluation, trained=3.0) > size / fastest
    slow = replace(where, tiers=tuple(replace(tier, bytes_per_s=tier.bytes_per_s / 100) for tier in where.tiers))
    other = Predictor(MODEL, slow, work)
    known = step_floor_s(other, other.evaluate(Plan(dp=where.count)), trained=3.0)
    assert known == pytest.approx(100 * step_floor_s(predictor, evaluation, trained=3.0), rel=0.5)
    found = predict(MODEL, slow, work, Plan(dp=where.count), changes=False)
    assert found.step_time.low >= known
