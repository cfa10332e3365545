"""What fine-tunes leave out of device memory: logits, gradients, states and weights, by hand and as properties."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.errors import PlanError
from ridgeline.facts.clusters import cluster
from ridgeline.graph.build import from_dims
from ridgeline.graph.ops import LinearOp
from ridgeline.graph.workload import Task, Workload
from ridgeline.lower.params import rank_params
from ridgeline.lower.work import Layout
from ridgeline.memory.activations import logit_bytes
from ridgeline.memory.query import resolve
from ridgeline.memory.stage import allocator_peak, host_bytes, stage_memory
from ridgeline.memory.states import gradient_bytes, moment_bytes
from ridgeline.plan.plan import Plan
from ridgeline.predict import Predictor

MODEL = from_dims(
    name="tune", layers=8, hidden=1024, heads=8, vocab=64000, ffn=4096, gated=True, activation="silu", norm="rms",
    bias=False, tied=False, positions="rope", max_positions=4096,
)  # fmt: skip
GRAPH = MODEL.graph
LAYERS = {"dense": 8.0}


def job(task: Task = Task.FULL, **words: Any) -> Workload:
    given_ = {"seq_len": 2048, "global_batch": 2, "precision": "bf16-pure", "framework": "fsdp"} | words
    return Workload(task=task, **given_)


def held(workload: Workload, **options: Any) -> dict[str, float]:
    table = stage_memory(GRAPH, workload, layers=LAYERS, micro_batch=2, **options)
    return {name: float(value) for name, value in table.items()}


@settings(max_examples=40, deadline=None)
@given(
    tokens=st.integers(6, 13),
    vocab=st.integers(8, 18),
    framework=st.sampled_from(["torch", "fsdp", "transformers", "megatron"]),
    execution=st.sampled_from(["eager", "compiled"]),
)
def test_a_chunked_loss_holds_no_more_than_a_whole_one(tokens: int, vocab: int, framework: str, execution: str) -> None:
    graph = from_dims(layers=2, hidden=256, heads=4, vocab=2**vocab, tied=False, max_positions=8192).graph
    one = Workload(seq_len=2**tokens, global_batch=1, framework=framework, execution=execution)
    whole, chunked, fused = (
        float(logit_bytes(resolve(graph, one, {"layers": {"dense": 2.0}, "loss": name})))
        for name in ("whole", "chunked", "fused")
    )
    assert chunked <= whole
    assert fused <= whole


def test_losses_of_many_plans_are_those_of_each_alone() -> None:
    names = ["fused", "whole", "chunked", "chunked(chunks=64)", "whole"]
    together = stage_memory(GRAPH, job(), layers=LAYERS, micro_batch=2, micro_batches=2, loss=names)
    for i, name in enumerate(names):
        alone = stage_memory(GRAPH, job(), layers=LAYERS, micro_batch=2, micro_batches=2, loss=name)
        assert {kind: values[i] for kind, values in together.items()} == alone
    _, whole, chunked, finer, _ = logit_bytes(resolve(GRAPH, job(), {"layers": LAYERS, "loss": names}))
    assert finer < chunked < whole


@pytest.mark.parametrize(("vocab", "rows"), [(32_000, 128), (64_000, 128), (256_000, 32)])
def test_a_fused_loss_holds_chunks_of_a_power_of_two_tokens(vocab: int, rows: int) -> None:
    """4,096 tokens over V / 1,024 chunks are 128, 66 and 17 each, up to the next power of two (Liger 0.8.2)."""
    graph = from_dims(layers=8, hidden=1024, heads=8, vocab=vocab, tied=False, max_positions=4096).graph
    stage = resolve(graph, job(Task.LORA), {"layers": LAYERS, "micro_batch": 2, "loss": "fused"})
    assert float(logit_bytes(stage)) == 2 * (rows * vocab + 4096 * 1024)


def test_optimizer_in_backward_holds_one_gradient() -> None:
    stage = resolve(GRAPH, job(), {"layers": LAYERS, "optimizer_in_backward": True})
    table = 64000 * 1024 * 2  # embedding or head, the largest weight, in 16 bits
    assert float(gradient_bytes(resolve(GRAPH, job(), {"layers": LAYERS}))) == 2 * GRAPH.params
    assert float(gradient_bytes(stage)) == pytest.approx(table, rel=1e-3)
    peak = held(job(), optimizer_in_backward=True, recompute="full", loss="fused")
    assert peak["gradients"] <= table * 1.001


@pytest.mark.parametrize("ranks", [1, 8])
def test_weights_on_the_host_leave_nothing_but_gathered_layers(ranks: int) -> None:
    options: dict[str, Any] = {"zero": 3, "dp": ranks, "recompute": "full", "offload_weights": True}
    away = held(job(optimizer="adamw-bf16"), **options)
    assert (away["weights"], away["optimizer"]) == (0.0, 0.0)
    host = float(
        host_bytes(resolve(GRAPH, job(optimizer="adamw-bf16"), {"layers": LAYERS, "micro_batch": 2, **options}))
    )
    assert host == pytest.approx(8 * GRAPH.params / ranks)  # weight, gradient and two moments of 16 bits
    layer = max(sum(op.params for op in block.ops) for block in GRAPH.blocks.values())
    assert away["buffers"] >= 2 * 2 * layer


def test_a_rank_that_holds_all_shards_gathers_nothing() -> None:
    assert held(job(), zero=3, dp=1) == held(job(), zero=2, dp=1)


def test_a_quantized_base_is_gathered_in_4_bits() -> None:
    lora, qlora = (held(job(task), zero=3, dp=2, recompute="full")["buffers"] for task in (Task.LORA, Task.QLORA))
    ends = 2 * 2 * 64000 * 1024
    assert qlora - ends < 0.75 * (lora - ends)
    predictors = [Predictor(MODEL, cluster("2xRTX-4090"), job(task)) for task in (Task.LORA, Task.QLORA)]
    plan = Plan(dp=2, zero=3, recompute="full")
    wide, narrow = (one.prepare(plan) for one in predictors)
    seconds = [float(made[-1].gather_s.sum()) for made in (wide, narrow)]
    few, params = (
        seconds[0] - seconds[1],
        8 * sum(op.k * op.n for op in GRAPH.blocks["dense"].ops if isinstance(op, LinearOp)),
    )
    link = seconds[0] / (2 * GRAPH.params)  # seconds for each byte gathered
    assert few == pytest.approx((2 - 0.516) * params * link, rel=0.05)


def test_paged_states_are_not_on_the_device_but_cross_its_host_link() -> None:
    assert held(job(optimizer="paged-adamw-8bit"))["optimizer"] == 0.0
    plans = [
        Predictor(MODEL, cluster("1xRTX-4090"), job(optimizer=name)) for name in ("adamw-8bit", "paged-adamw-8bit")
    ]
    kept, paged = (float(one.prepare(Plan(micro_batch=2))[-1].optimizer_s[0]) for one in plans)
    crossing = 2 * 2 * GRAPH.params / Predictor(MODEL, cluster("1xRTX-4090"), job()).machine.host_link_bytes_per_s
    assert paged - kept == pytest.approx(crossing, rel=0.01)


def test_muon_has_one_owner_of_its_states() -> None:
    """4 bytes for hidden matrices and Adam's 8 for the rest, in memory and in the update's traffic alike."""
    muon = job(optimizer="muon")
    ends = (*GRAPH.embedding, *GRAPH.head)
    params = [rank_params(ops, Layout(), muon) for ops in (*(b.ops for b in GRAPH.blocks.values()), ends)]
    matrix = 8.0 * sum(op.k * op.n for block in GRAPH.blocks.values() for op in block.ops if isinstance(op, LinearOp))
    moved = 8.0 * float(np.asarray(params[0].moved_dense)) + float(np.asarray(params[1].moved_dense))
    stage = resolve(GRAPH, muon, {"layers": LAYERS})
    assert float(moment_bytes(stage)) == moved / 2
    assert float(moment_bytes(stage)) == 4 * matrix + 8 * (GRAPH.params - matrix)


def test_weights_on_the_host_cross_the_link_forward_and_backward() -> None:
    one = Predictor(MODEL, cluster("1xRTX-4090"), job())
    plan = Plan(zero=3, micro_batch=2, recompute="full", offload_weights=True)
    times = one.prepare(plan)[-1]
    link = one.machine.host_link_bytes_per_s
    assert float(times.gather_s.sum()) == pytest.approx(2 * GRAPH.params / link, rel=1e-6)
    assert float(times.reduce_s.sum()) == pytest.approx(2 * GRAPH.params / link, rel=1e-6)
    stays = Plan(micro_batch=2, recompute="full")
    assert one.evaluate(plan).timeline.makespan_s > one.evaluate(stays).timeline.makespan_s


def test_moved_activations_cost_time_wherever_the_peak_is() -> None:
    """At the end of backward, the peak of this plan, no activations are held: they crossed the link all the same."""
    slow = Predictor(MODEL, cluster("1xRTX-4090"), job())
    plans = [Plan(micro_batch=2, offload_activations=on) for on in (False, True)]
    kept, moved = (slow.prepare(plan)[-1].forward_s.sum() for plan in plans)
    assert moved > kept


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (Plan(offload_weights=True), "nearest: zero 3"),
        (Plan(optimizer_in_backward=True), "one micro-batch a step"),
    ],
)
def test_what_cannot_be_is_refused_with_the_nearest(plan: Plan, words: str) -> None:
    with pytest.raises(PlanError, match=words):
        Predictor(MODEL, cluster("1xRTX-4090"), job()).evaluate(plan)


def test_all_of_it_together_is_the_least() -> None:
    full = job(optimizer="paged-adamw-8bit")
    steps: list[dict[str, Any]] = [{}, {"recompute": "full"}, {"loss": "fused"}, {"optimizer_in_backward": True}]
    options: dict[str, Any] = {}
    peaks = []
    for step in steps:
        options |= step
        peaks.append(float(allocator_peak(stage_memory(GRAPH, full, layers=LAYERS, micro_batch=2, **options))))
    assert peaks == sorted(peaks, reverse=True)
