"""The interval of a step, by hand: each part's mechanism, what other sources measured, and the host."""

from __future__ import annotations

import math
from dataclasses import fields, replace

import pytest

from ridgeline.cost.host_times import host_range
from ridgeline.facts.accelerators import accelerator
from ridgeline.facts.clusters import cluster
from ridgeline.facts.records import Evidence
from ridgeline.graph.build import from_dims
from ridgeline.graph.ops import ConvolutionOp, GemmOp
from ridgeline.graph.workload import Workload
from ridgeline.plan.plan import Plan
from ridgeline.predict import Predictor, predict
from ridgeline.predict.step_interval import convolved, step_interval

MODEL = from_dims(name="small", layers=12, hidden=512, heads=8, vocab=50304, max_positions=1024)
WORK = Workload(seq_len=1024, global_batch=32, execution="eager")
PARTS = {"matrix": 8.0, "memory": 1.0, "tensor link": 0.5, "launch": 0.5, "bubble": 2.0}


def on(device: str, hosts_s: tuple[float, float] = (0.5, 0.5), **parts: float) -> tuple[float, float]:
    predictor = Predictor(MODEL, cluster(f"8x{device}"), WORK)
    return step_interval(PARTS | parts, hosts_s, predictor=predictor, evidence=Evidence.MEASURED)


def test_parts_err_alone_and_together() -> None:
    # A100: kernels of layers reach 0.58 of the stream, others up to 0.82, none less; of 10 s without waiting
    alone = (8 * 0.13) ** 2 + (1 - 0.58 / 0.82) ** 2 + (0.5 * 0.43) ** 2
    low = math.sqrt(alone + (8 * 0.361 + 1 * 0.335 + 0.5 * 0.062) ** 2) / 10
    alone = (8 * 0.22) ** 2 + (0.5 * 0.713) ** 2
    high = math.sqrt(alone + (8 * 0.154 + 1 * 0.291 + 0.5 * 0.458) ** 2) / 10
    assert on("A100-SXM-80GB") == pytest.approx((12 * (1 - low), 12 * (1 + high)), rel=2e-3)


def test_a_slower_host_lengthens_a_step_alone() -> None:
    same, other = on("A100-SXM-80GB"), on("A100-SXM-80GB", (0.1, 6.5))
    for end, host in ((0, 0.4), (1, 6.0)):
        before, after = abs(same[end] / 12 - 1), abs(other[end] / 12 - 1)
        assert after == pytest.approx(math.hypot(before, host / 10))


def test_hosts_span_what_was_measured() -> None:
    quick, slow = host_range(accelerator("H100-SXM"))
    assert (quick, slow) == pytest.approx((0.80 * 0.82, 2.24 * 1.22))
    assert host_range(accelerator("GB200")) == pytest.approx((0.80 / 1.55 * 0.82, 2.24 / 1.55 * 1.22))


def test_a_small_eager_model_is_uncertain_and_a_large_one_is_not() -> None:
    plan = Plan(tp=1, pp=1, cp=1, dp=8, micro_batch=4)
    small = predict(MODEL, cluster("8xH100-SXM"), WORK, plan).step_time
    wide = from_dims(name="wide", layers=2, hidden=8192, heads=64, vocab=50304, max_positions=1024)
    large = predict(wide, cluster("8xH100-SXM"), WORK, plan).step_time
    assert small.high / small.value > 1.1 * large.high / large.value
    assert small.low < small.value < small.high


def test_a_rate_that_nobody_measured_is_wider() -> None:
    predictor = Predictor(MODEL, cluster("8xA100-SXM-80GB"), WORK)
    measured, derived = (
        step_interval(PARTS, (0.5, 0.5), predictor=predictor, evidence=rung)
        for rung in (Evidence.MEASURED, Evidence.DERIVED)
    )
    assert derived[1] > measured[1]
    assert derived[0] < measured[0]


def test_language_models_convolve_nothing_and_all_of_a_filters_products_count() -> None:
    assert convolved(MODEL) == 0.0
    graph = MODEL.graph
    block = next(iter(graph.blocks.values()))
    known = [field.name for field in fields(GemmOp)]
    made = tuple(
        ConvolutionOp(**{name: getattr(op, name) for name in known}, rows=2.0) if type(op) is GemmOp else op
        for op in block.ops
    )
    pixels = replace(block, ops=made)
    seen = replace(MODEL, graph=replace(graph, blocks=dict.fromkeys(graph.blocks, pixels), head=()))
    assert convolved(seen) == 1.0
