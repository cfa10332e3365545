"""Products in formats of their own: bytes by hand, sparse rates, what holds and moves weights, forwards alone."""

from __future__ import annotations

import pytest

from ridgeline.cost.formats import form
from ridgeline.cost.machine import device
from ridgeline.errors import DomainError
from ridgeline.facts.accelerators import accelerator
from ridgeline.facts.clusters import cluster
from ridgeline.facts.rates import loaded_rate
from ridgeline.graph.load import load
from ridgeline.graph.ops import GemmOp, LinearOp, OpRole
from ridgeline.graph.vision_transformer import vision_transformer
from ridgeline.graph.workload import Workload
from ridgeline.lower.params import rank_params, step_forwards
from ridgeline.lower.shard import Sharder
from ridgeline.lower.work import Gemm, Layout, Phase
from ridgeline.plan.plan import Plan
from ridgeline.predict import predict
from ridgeline.report.report import Report
from ridgeline.seams.registry import listed
from ridgeline.seams.resolve import rewritten

A100 = accelerator("A100-SXM-80GB")


@pytest.mark.parametrize(
    ("name", "matrix", "bits"),
    [
        ("bf16-2:4", "bf16-2:4", 9),
        ("int8-2:4", "int8-2:4", 5),
        ("w4a4-2:4", "int4-2:4", 2.5),
        ("fp8-2:4", "fp8-2:4", 5),
    ],
)
def test_bits_of_sparse_formats_by_hand(name: str, matrix: str, bits: float) -> None:
    """Half of the bits, and two bits for the place of each kept number, or kept pair of 4 bits."""
    found = form(name)
    assert (found.matrix, 8 * found.weight_bytes) == (matrix, bits)


def test_sparse_rates_are_facts_of_devices_that_have_them_and_lend_nothing_to_others() -> None:
    assert A100.facts["peak_flop_per_s.int4-2:4"].value == pytest.approx(2496e12)
    rates = device(A100).matrix
    assert rates["bf16-2:4"] == pytest.approx(2 * rates["bf16"])
    sparse, dense = loaded_rate(A100, "bf16-2:4"), loaded_rate(A100, "bf16")
    assert sparse is not None
    assert dense is not None
    assert sparse.value == pytest.approx(2 * dense.value)
    assert not any(name.endswith("-2:4") for name in accelerator("V100-SXM2-16GB").peak_flop_per_s)
    with pytest.raises(DomainError, match="no bf16-2:4 matrix rate"):
        device(accelerator("V100-SXM2-16GB")).matrix_rate("bf16-2:4")


def test_feed_forwards_are_sparse_in_the_passes_of_each_technique() -> None:
    """All three of the transposable masks; S-STE's gradient of inputs is dense."""
    model, job = load("gpt2"), Workload(seq_len=1024, global_batch=8)
    alone = {Phase.FORWARD, Phase.BACKWARD_WEIGHT}
    for key, sparse in (("transposable-sparsity", alone | {Phase.BACKWARD_INPUT}), ("s-ste", alone)):
        graph = rewritten(model, (key,)).graph
        block = next(iter(graph.blocks.values()))
        work = [one for one in Sharder(job, Layout(micro_batch=2)).block(block) if isinstance(one, Gemm)]
        assert {one.phase for one in work if one.form and one.name == "mlp_up"} == sparse
        assert not any(one.form for one in work if one.name == "qkv")


def test_bytes_of_masks_and_packed_copies_by_hand() -> None:
    """Two copies of 1.125 bytes and a mask; two reads of 4 + 1 and writes of 1.125, decay 13, a fortieth of 5."""
    graph = rewritten(load("gpt2"), ("transposable-sparsity",)).graph
    op = next(one for one in next(iter(graph.blocks.values())).ops if isinstance(one, GemmOp) and one.role is OpRole.UP)
    assert op.formats.beside_bytes == pytest.approx(3.25)
    assert op.formats.update_bytes == pytest.approx(2 * (5 + 1.125) + 13 + 5 / 40)
    assert op.formats.gradient_bytes == pytest.approx(2 + 1.125)
    job = Workload(seq_len=1024, global_batch=8)
    moved = rank_params([op], Layout(), job).moved_dense - rank_params([load_up()], Layout(), job).moved_dense
    assert moved == pytest.approx(op.formats.update_bytes * op.params)


def load_up() -> GemmOp:
    block = next(iter(load("gpt2").graph.blocks.values()))
    return next(one for one in block.ops if isinstance(one, GemmOp) and one.role is OpRole.UP)


def run(*technique: str, precision: str = "bf16-pure", optimizer: str = "forward-only", batch: int = 64) -> Report:
    job = Workload(
        seq_len=197, global_batch=batch, precision=precision, optimizer=optimizer, execution="graph",
    )  # fmt: skip
    plan = Plan(micro_batch=batch, technique=technique)
    return predict(vision_transformer("vit-base-patch16-224"), cluster("1xA100-SXM-40GB"), job, plan)


def test_a_network_runs_forward_alone_in_no_less_than_its_flop_allow() -> None:
    job = Workload(seq_len=197, global_batch=64, optimizer="forward-only")
    assert step_forwards(job) == 1.0
    found = run()
    assert found.mfu < 1.0
    assert found.step_time.low < found.step_time.value
    assert found.memory[0].categories["gradients"] == found.memory[0].categories["optimizer"] == 0.0


@pytest.mark.parametrize(("bits", "each"), [(8, 5), (4, 2.5)])
def test_sparse_integers_hold_their_bits_and_run_faster(bits: int, each: float) -> None:
    """Weights of products at their bits, biases, norms and positions at 16."""
    text = f"gpusq-vit(bits={bits})"
    found, plain = run(text), run()
    graph = vision_transformer("vit-base-patch16-224").graph
    listed_ops = [*graph.embedding, *graph.head, *(op for name in graph.layers for op in graph.blocks[name].ops)]
    products = sum(op.k * op.n for op in listed_ops if isinstance(op, LinearOp))
    expected = products * each / 8 + 2 * (graph.params - products)
    assert found.memory[0].categories["weights"] == pytest.approx(expected, rel=1e-6)
    assert found.step_time.value < 0.8 * plain.step_time.value
    assert listed(text).key == "gpusq-vit"
