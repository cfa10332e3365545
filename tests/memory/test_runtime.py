"""Habits of training programs: scratch, gathered layers, buckets, fixed widths."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ridgeline.errors import UnknownNameError
from ridgeline.graph.build import from_dims
from ridgeline.graph.workload import Workload
from ridgeline.memory.activations import logit_bytes
from ridgeline.memory.query import resolve
from ridgeline.memory.runtime import named_runtime
from ridgeline.memory.stage import stage_memory
from ridgeline.memory.states import update_copy_bytes

DEEPSPEED, FSDP, MEGATRON, TORCH = (named_runtime(name) for name in ("deepspeed", "fsdp", "megatron", "torch"))

MIB = 2.0**20
GRAPH = from_dims(layers=8, hidden=512, heads=8, vocab=4096, max_positions=256).graph
LAYER = GRAPH.blocks["dense"].params
ENDS = GRAPH.params - 8 * LAYER


def held(framework: str = "megatron", **options: object) -> dict[str, float]:
    workload = Workload(seq_len=16, global_batch=8, framework=framework)
    found = stage_memory(GRAPH, workload, layers={"dense": 8}, **options)  # type: ignore[arg-type]
    return {name: float(value) for name, value in found.items()}


@pytest.mark.parametrize(
    ("architecture", "deterministic", "engine", "grouped", "mib"),
    [
        ("hopper", False, True, False, 64 + 32),
        ("ampere", False, True, False, 16.25 + 4),
        ("ampere", True, True, False, 64 + 4),
        ("blackwell", False, True, False, 16.25 + 32),
        ("hopper", False, True, True, 64 + 5 * 32),
        ("volta", False, False, True, 16.25),
        ("cpu", False, False, False, 0.0),
    ],
)
def test_scratch_of_matrix_libraries(
    architecture: str, deterministic: bool, engine: bool, grouped: bool, mib: float
) -> None:
    runtime = replace(MEGATRON, architecture=architecture, deterministic=deterministic, transformer_engine=engine)
    assert runtime.workspace_bytes(grouped=grouped) == mib * MIB


def test_a_framework_is_found_by_name() -> None:
    assert held("fsdp", zero=3, dp=8) == held(zero=3, dp=8, runtime=FSDP)
    with pytest.raises(UnknownNameError, match="DeepSpeed"):
        named_runtime("deepsped")


def test_fully_sharded_weights_are_gathered_two_layers_and_the_ends() -> None:
    few_tokens = held(zero=3, dp=1000, runtime=replace(FSDP, logit_fp32_copies=0))
    gathered = 2 * (2 * LAYER + ENDS)
    passing = LAYER * (2 + 4)  # one layer's gradients in 16 bits, then reduced in 32
    working = few_tokens["buffers"] - gathered
    assert working == pytest.approx(passing)


def test_a_pipeline_that_keeps_its_stage_gathered_holds_all_of_it() -> None:
    endless = replace(FSDP, gathered_layers=float("inf"), unreduced_layers=float("inf"))
    assert held(zero=3, dp=1000, runtime=endless)["buffers"] == pytest.approx(2 * (8 * LAYER + ENDS) + 8 * LAYER * 6)


def test_fixed_allowances_are_filled_up_to_the_stage() -> None:
    """DeepSpeed gathers 1e9 numbers and reduces 5e8 at once, both in 16 bits; a small stage has fewer."""
    everything = GRAPH.params
    assert held(zero=3, dp=1000, runtime=DEEPSPEED)["buffers"] == pytest.approx(2 * everything + 2 * everything)
    capped = replace(DEEPSPEED, live_numbers=0.0, bucket_numbers=0.0)
    assert held(zero=3, dp=1000, runtime=capped)["buffers"] == pytest.approx(2 * max(2 * LAYER, ENDS) + 4 * LAYER)


def test_unfused_accumulation_holds_one_weight_gradient_apart() -> None:
    fused, apart = (
        held(runtime=replace(MEGATRON, fused_gradients=fused, logit_fp32_copies=0)) for fused in (True, False)
    )
    assert apart["buffers"] == 2 * 512 * 2048 > fused["buffers"]


def test_widths_of_a_recipe_can_be_overridden() -> None:
    narrow = held(runtime=replace(MEGATRON, weight_bytes=1.0, gradient_bytes=2.0))
    assert (narrow["weights"], narrow["gradients"]) == (GRAPH.params, 2 * GRAPH.params)


def test_fp32_weights_under_autocast_are_copied_for_computation() -> None:
    workload = Workload(seq_len=16, global_batch=8, precision="bf16-amp")
    found = stage_memory(GRAPH, workload, layers={"dense": 8}, runtime=TORCH)
    assert float(found["weights"]) == 4 * GRAPH.params
    assert float(found["buffers"]) >= 2 * GRAPH.params


def test_a_chunked_loss_holds_16_bit_logits_and_one_chunk() -> None:
    job = Workload(seq_len=2048, global_batch=8)
    names = ("whole", "chunked")
    stages = [resolve(GRAPH, job, {"layers": {"dense": 1}, "runtime": TORCH, "loss": name}) for name in names]
    whole, chunked = (float(logit_bytes(stage)) for stage in stages)
    assert whole == 12 * 2048 * 4096
    assert chunked == (2 + 2 / 8) * 2048 * 4096


def test_all_forwards_first_keep_one_probability_tensor_each() -> None:
    one, four = (
        float(
            stage_memory(
                GRAPH, Workload(seq_len=2048, global_batch=8), layers={"dense": 1}, in_flight=n, head_in_flight=n
            )["logits"]
        )
        for n in (1, 4)
    )
    assert one == 6 * 2048 * 4096
    assert four == (6 + 3 * 4) * 2048 * 4096


def test_selective_recompute_by_products_keeps_half_of_them() -> None:
    """torchtitan: the layer's input, half the products' outputs, the attention output; h = 512."""
    found = stage_memory(
        GRAPH,
        Workload(seq_len=64, global_batch=8),
        layers={"dense": 1},
        recompute="selective",
        first=False,
        last=False,
        runtime=replace(MEGATRON, selective="every-second-matmul"),
    )
    width = 512 + (3 * 512 + 512 + 2048 + 512) / 2 + 512
    assert float(found["activations"]) == 2 * 64 * width


def test_eager_mode_keeps_the_gate_and_fp32_norms() -> None:
    graph = from_dims(
        layers=1, hidden=512, heads=8, vocab=4096, ffn=1024, gated=True, activation="silu", norm="rms",
        bias=False, positions="rope",
    ).graph  # fmt: skip
    eager, compiled = (
        float(
            stage_memory(
                graph,
                Workload(seq_len=64, global_batch=8, execution=execution),
                layers={"dense": 1},
                first=False,
                last=False,
            )["activations"]
        )
        for execution in ("eager", "compiled")
    )
    assert eager - compiled == 64 * (2 * 1024 + 2 * 4 * 512)  # act(gate); two norms, 4 bytes each


def test_gradients_of_the_first_micro_batch_wait_beside_the_activations_of_the_second() -> None:
    """Without a buffer of their own gradients come as activations go, but accumulation keeps them all step long."""
    job = Workload(seq_len=256, global_batch=64, framework="torch", precision="fp32")
    one, two = (
        {
            name: float(value)
            for name, value in stage_memory(
                GRAPH, job, layers={"dense": 8}, micro_batch=32, micro_batches=count
            ).items()
        }
        for count in (1, 2)
    )
    assert one["activations"] > 0
    assert one["gradients"] == 0.0
    assert two["gradients"] == 4.0 * GRAPH.params
    assert two["activations"] == one["activations"]


@pytest.mark.parametrize(
    ("precision", "zero", "each"),
    [
        ("fp16", 0, 8.0),
        ("bf16", 0, 0.0),
        ("fp16-amp", 0, 0.0),
        ("fp16", 1, 6 / 8),
        ("bf16", 2, 6 / 8),
        ("bf16", 3, 4 / 8),
    ],
)
def test_deepspeed_makes_fp32_copies_of_16_bit_gradients_at_an_update(precision: str, zero: int, each: float) -> None:
    """Two of fp16 ones where no ranks share the update; a shard is flattened in 2 bytes and widened to 4 under ZeRO-1
    and 2, widened alone under ZeRO-3: when activations are gone, more than those of few tokens."""
    job = Workload(seq_len=16, global_batch=8, framework="deepspeed", precision=precision)
    stage = resolve(GRAPH, job, {"layers": {"dense": 8}, "zero": zero, "dp": 8})
    assert float(update_copy_bytes(stage)) == each * GRAPH.params
    held = stage_memory(GRAPH, job, layers={"dense": 8}, zero=zero, dp=8)
    assert float(held["buffers"]) >= each * GRAPH.params


def test_zero_3_widens_one_group_of_a_shard_at_a_time() -> None:
    job = Workload(seq_len=16, global_batch=8, framework="deepspeed", precision="bf16")
    runtime = replace(DEEPSPEED, update_numbers=1000.0)
    stage = resolve(GRAPH, job, {"layers": {"dense": 8}, "zero": 3, "dp": 8, "runtime": runtime})
    assert float(update_copy_bytes(stage)) == 4 * 1000
