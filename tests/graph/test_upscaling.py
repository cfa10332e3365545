"""Networks that make pictures larger: published parameters, products counted by hand, a step that is priced."""

from __future__ import annotations

import pytest

from ridgeline.errors import UnknownNameError
from ridgeline.facts.clusters import cluster
from ridgeline.graph.load import load
from ridgeline.graph.networks import SIDE, UPSCALERS, upscaler
from ridgeline.graph.ops import ConvolutionOp
from ridgeline.graph.workload import Workload
from ridgeline.plan.plan import Plan
from ridgeline.predict import predict

# Of the released weights, in millions: sanghyun-son/EDSR-PyTorch, README.
MILLIONS = {"edsr-baseline-x2": 1.37, "edsr-baseline-x4": 1.52, "edsr-x2": 40.7, "edsr-x4": 43.1}


@pytest.mark.parametrize("name", UPSCALERS)
def test_parameters_are_those_that_are_released(name: str) -> None:
    assert upscaler(name).graph.params / 1e6 == pytest.approx(MILLIONS[name], rel=0.005)


def products(name: str, side: int) -> float:
    """Multiplications of one forward pass [1]."""
    graph = upscaler(name, side=side).graph
    ops = [op for layer in graph.layers for op in graph.blocks[layer].ops] + list(graph.head)
    return sum(float(op.k) * op.n * op.rows for op in ops if isinstance(op, ConvolutionOp))


def test_products_are_those_of_each_filter_at_each_pixel() -> None:
    """Of the baseline: 34 filters of 64 to 64 and the two ends at small size, growth, the colours at twice the side."""
    small = SIDE**2 * 9
    by_hand = small * (3 * 64 + 33 * 64 * 64 + 64 * 256) + 4 * small * 64 * 3
    assert products("edsr-baseline-x2", SIDE) == by_hand
    assert products("edsr-baseline-x2", 2 * SIDE) == 4 * by_hand


def test_a_step_is_priced_and_a_wider_network_costs_more() -> None:
    job, plan = Workload(seq_len=1, global_batch=16, precision="fp32"), Plan(micro_batch=16)
    steps = [
        predict(load(name), cluster("1xA100-SXM-40GB"), job, plan, changes=False).step_time.value
        for name in ("edsr-baseline-x2", "edsr-x2")
    ]
    assert 5 * steps[0] < steps[1]
    with pytest.raises(UnknownNameError, match="edsr-x2"):
        upscaler("edsr-x3")
