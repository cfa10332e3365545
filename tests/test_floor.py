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
from ridgeline.plan.plan import Plan
from ridgeline.plan.sampling import Sampling
from ridgeline.predict import Predictor, predict
from ridgeline.predict.floor import step_floor_s
from ridgeline.predict.operator import operator_cost
from ridgeline.predict.sampling import sample

MODEL = from_dims(name="wide", layers=4, hidden=4096, heads=32, ffn=14336, vocab=32000, max_positions=65536)
PASSES = {Task.PRETRAIN: 3.0, Task.FULL: 3.0, Task.LORA: 2.0}


@given(
    device=st.sampled_from(sorted(accelerators())),
    precision=st.sampled_from(sorted(PRECISIONS)),
    seq_len=st.sampled_from((512, 4096, 32768)),
    task=st.sampled_from(sorted(PASSES, key=str)),
    recompute=st.sampled_from(("none", "full")),
    devices=st.sampled_from((1, 4)),
)
@settings(max_examples=150, deadline=None, derandomize=True)
def test_no_low_is_quicker_than_the_peak(
    device: str, precision: str, seq_len: int, task: Task, recompute: str, devices: int
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


@given(
    device=st.sampled_from(sorted(name for name, part in accelerators().items() if part.peak_flop_per_s)),
    dtype=st.sampled_from(("bf16", "fp16", "fp32", "fp8", "int8", "int4_wo")),
    asked=st.sampled_from(
        (
            ("gemm", "8192x8192x8192", 2.0 * 8192**3, 0.0),
            ("prefill", "1x16384x32x8x128", 2.0 * 16384**2 * 32 * 128, 0.0),
            ("decode", "256x8192x32x8x128", 0.0, 256 * 8192 * 8 * 2 * 128),
            ("stream", "4GB", 0.0, 4e9),
        )
    ),
)
@settings(max_examples=150, deadline=None, derandomize=True)
def test_no_operator_begins_below_the_peak(device: str, dtype: str, asked: tuple[str, str, float, float]) -> None:
    kind, shape, flop, moved = asked
    part = accelerators()[device]
    try:
        found = operator_cost(kind, shape, dtype, cluster(device))
    except RidgelineError:
        return
    cache = part.l2_bytes or 1e9
    peak = max(part.peak_flop_per_s.values())
    assert found.low_s * (1 + 1e-9) >= min(found.seconds, max(flop / peak, (moved - cache) / part.memory_bytes_per_s))
    assert found.low_s <= found.seconds <= found.high_s


def test_an_operator_of_a_poorly_known_device_is_held_by_its_peak() -> None:
    found = operator_cost("gemm", "8192x8192x8192", "fp16", cluster("Apple-M3-Max-40-core"))
    assert found.low_s == pytest.approx(found.compute_s)  # lent kernels' interval alone reaches below
    gathered = operator_cost("all_gather", "1GB", "bf16", cluster("8xRTX-4090"))
    assert gathered.low_s >= 7 / 8 * 1e9 / max(tier.bytes_per_s for tier in cluster("8xRTX-4090").tiers)


@pytest.mark.parametrize("precision", ["bf16", "fp8"])
def test_no_picture_begins_below_the_peak(precision: str) -> None:
    """FLUX.1: 11.9 billion weights multiply some 4,096 + 512 positions of each of 8 steps."""
    asked, answered = Sampling(width=1024, height=1024, steps=8, precision=precision), 0
    for device, part in sorted(accelerators().items()):
        try:
            found = sample("flux.1-dev", cluster(device), asked)
        except RidgelineError:
            continue
        answered += 1
        least = 8 * 2.0 * 0.4 * 11.9e9 * 4608 / max(part.peak_flop_per_s.values())  # half of it modulates or is text's
        assert min(found.seconds, least) <= found.low_s <= found.seconds <= found.high_s, device
    assert answered > 50


def test_pictures_of_a_poorly_known_device_are_held_by_its_peak() -> None:
    asked = Sampling(width=1024, height=1024, steps=8)
    found = sample("flux.1-dev", cluster("Apple-M3-Max-40-core"), asked)
    part = accelerators()["Apple-M3-Max-40-core"]
    rate = max(part.peak_flop_per_s.values())
    quick = sample("flux.1-dev", cluster("H100-SXM"), asked)
    assert found.low_s / found.seconds > 0.5
    assert found.low_s > 50e12 * 8 / rate > 0.0  # some 60 TFLOP a step
    assert quick.low_s / quick.seconds > 0.5
