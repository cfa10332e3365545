"""Layers kept in 16 bits and weights sampled before use: graphs, traffic and memory by hand, and the steps between."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from ridgeline.errors import PlanError
from ridgeline.facts.clusters import cluster
from ridgeline.facts.records import Cluster
from ridgeline.graph.load import load
from ridgeline.graph.ops import LinearOp, WeightPasses
from ridgeline.graph.workload import PRECISIONS, Workload
from ridgeline.lower.networks import made_of_weight
from ridgeline.lower.work import Phase, Stream
from ridgeline.plan.plan import Plan
from ridgeline.predict import Predictor
from ridgeline.seams.resolve import rewritten
from ridgeline.seams.setting import Setting
from ridgeline.techniques.graphs.kept_layers import KeptLayers
from ridgeline.techniques.graphs.weight_sampling import WeightSampling

MODEL, CLUSTER = load("tinyllama-1.1b"), cluster("1xB200-SXM")


def step(precision: str, *techniques: str, on: Cluster = CLUSTER) -> tuple[float, dict[str, float]]:
    """Seconds of a step and bytes by category."""
    job = Workload(seq_len=2048, global_batch=16, precision=precision)
    plan = Plan(dp=1, micro_batch=16, technique=techniques)
    predictor = Predictor(rewritten(MODEL, techniques), on, job)
    found = predictor.evaluate(plan)
    memory = predictor.memory(plan)
    return found.timeline.makespan_s, {name: float(size[0]) for name, size in memory.items()}


def test_ends_are_kept_and_nothing_else_changes() -> None:
    graph = KeptLayers(first=2, last=3).rewrite(MODEL.graph)
    kept = [all(op.plain for op in graph.blocks[name].ops if isinstance(op, LinearOp)) for name in graph.layers]
    assert kept == [i < 2 or i >= len(kept) - 3 for i in range(len(kept))]
    assert graph.params == MODEL.graph.params
    assert len(KeptLayers(first=100).rewrite(MODEL.graph).blocks) == 1
    with pytest.raises(PlanError, match="keeps no layer"):
        rewritten(MODEL, ("kept-layers(first=0,last=0)",))


def test_kept_layers_lie_between_the_narrow_recipe_and_16_bits() -> None:
    some = [step("nvfp4"), *(step("nvfp4", f"kept-layers(first=0,last={n})") for n in (4, 12, 22)), step("bf16")]
    times, kept = [each[0] for each in some], [each[1]["activations"] for each in some]
    assert times[-1] == pytest.approx(times[-2], rel=1e-9)
    assert kept[-1] == pytest.approx(kept[-2], rel=1e-9)
    assert all(a < b for a, b in pairwise(times[:-1]))
    assert all(a < b for a, b in pairwise(kept[:-1]))


def test_kept_layers_apply_to_narrow_recipes_alone() -> None:
    setting = Setting(model=MODEL, cluster=CLUSTER, workload=Workload(seq_len=2048, global_batch=4, precision="bf16"))
    assert setting.job is not None
    assert "no narrower" in KeptLayers().applies(setting)
    assert KeptLayers().applies(replace(setting, workload=replace(setting.job, precision="mxfp8"))) == ""


def test_traffic_of_sampled_weights_by_hand() -> None:
    """Forward 2 read, 0.5 written and read, 2 written; backward the gradient's 2 and 0.5."""
    graph = WeightSampling().rewrite(MODEL.graph)
    op = next(op for op in graph.blocks[graph.layers[0]].ops if isinstance(op, LinearOp))
    forward, backward = made_of_weight(op, PRECISIONS["bf16"], numbers=1000.0)
    assert isinstance(forward, Stream)
    assert isinstance(backward, Stream)
    assert (forward.phase, forward.bytes) == (Phase.FORWARD, 5000.0)
    assert (backward.phase, backward.bytes) == (Phase.BACKWARD_WEIGHT, 2500.0)
    assert list(made_of_weight(replace(op, made=None), PRECISIONS["bf16"], numbers=1.0)) == []
    once = replace(op, made=WeightPasses(forward_bytes=1.0))
    assert [each.phase for each in made_of_weight(once, PRECISIONS["bf16"], numbers=1.0)] == [Phase.FORWARD]


def test_sampled_weights_wait_in_two_bytes_each_and_cost_their_traffic() -> None:
    """A layer's kernels reach more than a third of the memory's peak, launches included."""
    ampere = cluster("1xA100-SXM-80GB")
    (plain, before), (found, after) = step("bf16", on=ampere), step("bf16", "weight-sampling", on=ampere)
    numbers = sum(
        op.params * MODEL.graph.layers.count(name) for name, block in MODEL.graph.blocks.items()
        for op in block.ops if isinstance(op, LinearOp)
    )  # fmt: skip
    assert sum(after.values()) - sum(before.values()) == pytest.approx(2.0 * numbers)
    least = 7.5 * numbers / ampere.accelerator.memory_bytes_per_s
    assert least < found - plain < 3.0 * least
    assert step("bf16", "weight-sampling(gradient=false)", on=ampere)[0] < found
