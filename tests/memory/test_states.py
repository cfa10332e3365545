"""Weights, gradients and optimizer states, by hand and by conservation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.errors import UnknownNameError
from ridgeline.graph.build import from_dims
from ridgeline.graph.model import Graph
from ridgeline.graph.workload import Task, Workload
from ridgeline.memory.query import resolve
from ridgeline.memory.runtime import named_runtime
from ridgeline.memory.stage import (
    CATEGORIES,
    activation_bytes,
    allocator_peak,
    device_peak,
    host_bytes,
    stage_memory,
)

DDP, FSDP, MEGATRON = (named_runtime(name) for name in ("ddp", "fsdp", "megatron"))

STATES = ("weights", "gradients", "optimizer")
LLAMA_7B = 6_738_415_616  # 32000 x 4096 twice, 32 layers of 202,383,360, final norm


def llama_7b() -> Graph:
    return from_dims(
        layers=32, hidden=4096, heads=32, vocab=32000, ffn=11008, gated=True, activation="silu", norm="rms",
        bias=False, tied=False, positions="rope",
    ).graph  # fmt: skip


def small(*, tied: bool = True, experts: int = 0) -> Graph:
    return from_dims(
        layers=4, hidden=256, heads=8, vocab=1024, tied=tied, max_positions=128, experts=experts,
        top_k=2 if experts else None,
    ).graph  # fmt: skip


def job(precision: str = "bf16", optimizer: str = "adamw", task: Task = Task.PRETRAIN) -> Workload:
    return Workload(seq_len=128, global_batch=8, precision=precision, optimizer=optimizer, task=task)


def whole(graph: Graph) -> dict[str, float]:
    return {name: float(graph.layers.count(name)) for name in graph.blocks}


def states(graph: Graph, workload: Workload, **options: object) -> float:
    held = stage_memory(graph, workload, layers=whole(graph), **options)  # type: ignore[arg-type]
    return sum(float(held[name]) for name in STATES)


@pytest.mark.parametrize(
    ("precision", "bytes_each"),
    [("bf16", 18), ("fp16", 18), ("bf16-amp", 16), ("fp32", 16), ("bf16-pure", 12)],
)
def test_bytes_per_parameter_of_adam(precision: str, bytes_each: int) -> None:
    """2 + 4 + 4 + 8; 4 + 4 + 8; 2 + 2 + 8: weight, gradient, master, two moments."""
    graph = small()
    assert states(graph, job(precision)) == bytes_each * graph.params


def test_llama_7b_by_hand() -> None:
    graph = llama_7b()
    assert graph.params == LLAMA_7B
    held = stage_memory(graph, Workload(seq_len=2048, global_batch=8), layers={"dense": 32}, dp=8, zero=1)
    assert float(held["weights"]) == 2 * LLAMA_7B
    assert float(held["gradients"]) == 4 * LLAMA_7B
    assert float(held["optimizer"]) == 12 * LLAMA_7B / 8
    # per token: norm inputs 2 x 2h, norm outputs 2 x 2h, q k v 6h, out 2h, gate and up 4f, down's input 2f, statistics
    layer = 2048 * (16 * 4096 + 6 * 11008 + 4 * 32)
    ends = 2048 * (2 * 4096 + 2 * 4096)  # final norm's input and output
    assert float(held["activations"]) == 32 * layer + ends


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_zero_divides_what_its_paper_says(zero: int) -> None:
    """arXiv:1910.02054, figure 1: optimizer from stage 1, gradients from 2, weights from 3."""
    graph, ranks = small(), 8
    held = stage_memory(graph, job(), layers=whole(graph), dp=ranks, zero=zero, runtime=MEGATRON)
    expected = {"optimizer": 12 / (ranks if zero else 1), "gradients": 4 / (ranks if zero > 1 else 1)}
    expected["weights"] = 2 / (ranks if zero > 2 else 1)
    for name, each in expected.items():
        assert float(held[name]) == pytest.approx(each * graph.params)


@settings(max_examples=30, deadline=None)
@given(ranks=st.sampled_from([1, 2, 4, 8, 64]), tied=st.booleans(), experts=st.sampled_from([0, 8]))
def test_zero_3_conserves_the_whole_over_its_ranks(ranks: int, tied: bool, experts: int) -> None:
    graph = small(tied=tied, experts=experts)
    assert ranks * states(graph, job(), dp=ranks, zero=3) == pytest.approx(states(graph, job()))


def test_hybrid_sharding_divides_by_its_group_only() -> None:
    graph = small()
    assert states(graph, job(), dp=64, zero=3, shard_ranks=8) == pytest.approx(states(graph, job()) / 8)


@settings(max_examples=20, deadline=None)
@given(tp=st.sampled_from([1, 2, 4, 8]))
def test_tensor_parallel_conserves_divided_weights(tp: int) -> None:
    """The sum over ranks exceeds the whole by the repeated weights alone."""
    graph = small()
    one = float(stage_memory(graph, job(), layers=whole(graph))["weights"])
    split = float(stage_memory(graph, job(), layers=whole(graph), tp=tp)["weights"])
    repeated = 2 * (128 * 256 + 2 * 256 + 4 * 4 * 256)  # positions, final norm, two norms a layer
    assert tp * split - one == pytest.approx((tp - 1) * repeated)


def test_experts_fold_over_tensor_and_data_ranks() -> None:
    """ep * etp divides experts; their ZeRO group is tp * cp * dp / (ep * etp)."""
    graph = small(experts=8)
    block = graph.blocks["moe"]
    experts = sum(op.params * 8 for op in block.ops if op.name.startswith("experts_"))
    rest = graph.params - 4 * experts
    plain = stage_memory(graph, job(), layers=whole(graph), dp=8, ep=4, zero=1)
    assert float(plain["weights"]) == pytest.approx(2 * (rest + experts))  # 4 layers, a quarter each
    assert float(plain["optimizer"]) == pytest.approx(12 * (rest / 8 + experts / 2))


def test_tied_embeddings_are_held_by_both_ends() -> None:
    graph = small()
    table = 1024 * 256
    both = [
        float(stage_memory(graph, job(), layers={"dense": 2}, first=first, last=last)["weights"])
        for first, last in ((True, False), (False, True))
    ]
    assert sum(both) == 2 * (graph.params + table)


@pytest.mark.parametrize(
    ("optimizer", "bytes_each"),
    [("sgd", 0), ("sgd-momentum", 4), ("lion", 4), ("adamw-8bit", 2), ("adamw-bf16", 4), ("adamw", 8)],
)
def test_optimizer_states(optimizer: str, bytes_each: int) -> None:
    graph = small()
    held = stage_memory(graph, job("fp32", optimizer), layers=whole(graph))
    assert float(held["optimizer"]) == bytes_each * graph.params


def test_adafactor_keeps_rows_and_columns() -> None:
    graph = small()
    held = stage_memory(graph, job("fp32", "adafactor"), layers=whole(graph))
    layer = (256 + 768) + (256 + 256) + (256 + 1024) + (1024 + 256) + 4 * 256  # qkv, out, up, down; two norms of 2 h
    ends = (1024 + 256) + (128 + 256) + 2 * 256  # table, positions, final norm
    assert float(held["optimizer"]) == 4 * (4 * layer + ends)


def test_muon_keeps_one_moment_for_hidden_matrices() -> None:
    graph = small()
    matrices = 4 * 12 * 256 * 256
    held = stage_memory(graph, job("fp32", "muon"), layers=whole(graph))
    assert float(held["optimizer"]) == 4 * matrices + 8 * (graph.params - matrices)


def test_paged_and_offloaded_states_move_to_the_host() -> None:
    graph = small()
    paged = stage_memory(graph, job("bf16-pure", "paged-adamw"), layers=whole(graph))
    assert float(paged["optimizer"]) == 0
    assert (
        float(host_bytes(resolve(graph, job("bf16-pure", "paged-adamw"), {"layers": whole(graph)}))) == 8 * graph.params
    )
    offloaded = stage_memory(graph, job(), layers=whole(graph), dp=4, zero=2, offload_optimizer=True)
    assert (float(offloaded["optimizer"]), float(offloaded["gradients"])) == (0, 0)
    host = host_bytes(resolve(graph, job(), {"layers": whole(graph), "dp": 4, "zero": 2, "offload_optimizer": True}))
    assert float(host) == pytest.approx(16 * graph.params / 4)


def test_offloaded_activations_are_on_the_host() -> None:
    graph = small()
    kept = float(activation_bytes(graph, job(), layers=whole(graph)))
    moved = stage_memory(graph, job(), layers=whole(graph), offload_activations=True)
    assert float(moved["activations"]) == kept * 2 / 4  # two of four layers are on their way
    assert float(host_bytes(resolve(graph, job(), {"layers": whole(graph), "offload_activations": True}))) == kept


def test_data_parallel_buckets_double_the_gradients() -> None:
    graph = small()
    held = stage_memory(graph, job("fp32"), layers=whole(graph), runtime=DDP)
    assert float(held["buffers"]) >= 4 * graph.params == float(held["gradients"])


def test_gradients_that_come_with_backward_do_not_add_to_the_loss() -> None:
    """Without a buffer of their own they replace activations; the peak holds one or the other."""
    workload = Workload(seq_len=8192, global_batch=8)
    early = stage_memory(llama_7b(), workload, layers={"dense": 32}, runtime=MEGATRON)
    late = stage_memory(llama_7b(), workload, layers={"dense": 32}, runtime=FSDP)
    assert float(early["gradients"]) == 4 * LLAMA_7B
    assert float(late["gradients"]) == 0 < float(late["activations"])


def test_peaks_nest() -> None:
    held = stage_memory(small(), job(), layers=whole(small()))
    assert set(held) == set(CATEGORIES)
    assert float(device_peak(held)) == sum(float(value) for value in held.values())
    assert float(allocator_peak(held)) == float(device_peak(held)) - float(held["context"])


@pytest.mark.parametrize(("options", "name"), [({"zeros": 1}, "zero"), ({"tpp": 2}, "tp")])
def test_unknown_options_name_the_nearest(options: dict[str, int], name: str) -> None:
    with pytest.raises(UnknownNameError, match=f"nearest: .*{name}"):
        stage_memory(small(), job(), layers={"dense": 1}, **options)  # type: ignore[arg-type]


def test_unknown_block_kind_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="block kind 'dens'"):
        stage_memory(small(), job(), layers={"dens": 1})


def test_arrays_give_what_scalars_give() -> None:
    graph, rng = llama_7b(), np.random.default_rng(7)
    count = 50
    plans = {
        "tp": 2 ** rng.integers(0, 4, count), "dp": 2 ** rng.integers(0, 4, count), "zero": rng.integers(0, 4, count),
        "micro_batch": rng.integers(1, 5, count), "recompute": rng.choice(["none", "selective", "full"], count),
        "in_flight": rng.random(count) * 4 + 1, "sequence_parallel": rng.random(count) < 0.5,
        "first": rng.random(count) < 0.5, "last": rng.random(count) < 0.5, "offload_optimizer": rng.random(count) < 0.3,
    }  # fmt: skip
    layers = rng.integers(0, 33, count)
    workload = Workload(seq_len=2048, global_batch=64)
    for runtime in (MEGATRON, FSDP):
        many = stage_memory(graph, workload, layers={"dense": layers}, runtime=runtime, **plans)
        assert all(value.shape == (count,) for value in many.values())
        for i in range(count):
            one_plan = {name: values[i] for name, values in plans.items()}
            one = stage_memory(graph, workload, layers={"dense": layers[i]}, runtime=runtime, **one_plan)
            assert {name: float(value[i]) for name, value in many.items()} == pytest.approx(
                {name: float(value) for name, value in one.items()}
            )
