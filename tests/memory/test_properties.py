"""What must hold for any stage: more work never takes less memory, more ranks never more."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.graph.build import from_dims
from ridgeline.graph.workload import Task, Workload
from ridgeline.memory.runtime import Runtime, named_runtime
from ridgeline.memory.stage import allocator_peak, stage_memory

FRAMEWORKS = ("ddp", "deepspeed", "fsdp", "megatron", "torch")
DDP, DEEPSPEED, FSDP, MEGATRON, TORCH = (named_runtime(name) for name in FRAMEWORKS)

GRAPH = from_dims(
    layers=4, hidden=512, heads=8, kv_heads=4, vocab=2048, ffn=1408, gated=True, activation="silu", norm="rms",
    bias=False, tied=False, positions="rope",
).graph  # fmt: skip
RUNTIMES = st.sampled_from([MEGATRON, FSDP, DEEPSPEED, TORCH, DDP])
PLANS = st.fixed_dictionaries(
    {
        "tp": st.sampled_from([1, 2, 4]), "cp": st.sampled_from([1, 2]), "dp": st.sampled_from([1, 2, 8]),
        "zero": st.integers(0, 3), "recompute": st.sampled_from(["none", "selective", "full"]),
        "sequence_parallel": st.booleans(),
        "micro_batch": st.integers(1, 8), "in_flight": st.floats(1, 8), "first": st.booleans(), "last": st.booleans(),
    }
)  # fmt: skip
JOBS = st.builds(
    Workload,
    seq_len=st.sampled_from([256, 1024]),
    global_batch=st.just(64),
    task=st.sampled_from(list(Task)),
    precision=st.sampled_from(["bf16", "fp32", "bf16-amp", "fp8", "bf16-pure"]),
    attention_kernel=st.sampled_from(["flash", "unfused"]),
    execution=st.sampled_from(["eager", "compiled"]),
)


def peak(workload: Workload, runtime: Runtime, layers: int, **plan: object) -> float:
    held = stage_memory(GRAPH, workload, layers={"dense": layers}, runtime=runtime, **plan)  # type: ignore[arg-type]
    assert all(float(value) >= 0 for value in held.values())
    return float(allocator_peak(held))


@settings(max_examples=60, deadline=None)
@given(plan=PLANS, workload=JOBS, runtime=RUNTIMES, layers=st.integers(1, 4))
def test_more_work_takes_no_less_memory(
    plan: dict[str, object], workload: Workload, runtime: Runtime, layers: int
) -> None:
    base = peak(workload, runtime, layers, **plan)
    for more in (
        peak(workload, runtime, layers + 1, **plan),
        peak(workload, runtime, layers, **plan | {"micro_batch": int(str(plan["micro_batch"])) + 1}),
        peak(workload, runtime, layers, **plan | {"in_flight": float(str(plan["in_flight"])) + 1}),
        peak(replace(workload, seq_len=2 * workload.seq_len), runtime, layers, **plan),
    ):
        assert more >= base * (1 - 1e-12)


@settings(max_examples=60, deadline=None)
@given(plan=PLANS, workload=JOBS, runtime=RUNTIMES)
def test_more_ranks_take_no_more_memory(plan: dict[str, object], workload: Workload, runtime: Runtime) -> None:
    """One rank that holds all shards gathers nothing: ZeRO-3 is compared from two ranks on."""
    plan = plan | ({"dp": max(int(str(plan["dp"])), 2)} if plan["zero"] == 3 else {})
    base = peak(workload, runtime, 4, **plan)
    for name in ("tp", "cp", "dp"):
        assert peak(workload, runtime, 4, **plan | {name: 2 * int(str(plan[name]))}) <= base * (1 + 1e-12)


@settings(max_examples=40, deadline=None)
@given(plan=PLANS, workload=JOBS)
def test_recompute_keeps_no_more(plan: dict[str, object], workload: Workload) -> None:
    kept = [
        float(
            stage_memory(GRAPH, workload, layers={"dense": 4}, offload_optimizer=False, **plan | {"recompute": code})[  # type: ignore[arg-type]
                "activations"
            ]
        )
        for code in ("none", "selective", "full")
    ]
    assert kept[0] >= kept[1] >= kept[2] * (1 - 1e-12)


def test_adapters_hold_little_but_the_base() -> None:
    """LoRA: r (k + n) numbers per linear layer carry gradients and states; the base is 2 bytes each."""
    workload = Workload(seq_len=256, global_batch=8, task=Task.LORA, lora_rank=8)
    held = stage_memory(GRAPH, workload, layers={"dense": 4})
    layer = 8 * ((512 + 1024) + (512 + 512) + (512 + 2 * 1408) + (1408 + 512))  # qkv, out, gate and up, down
    assert float(held["weights"]) == 2 * (GRAPH.params + 4 * layer)
    assert float(held["gradients"]) == 4 * 4 * layer
    assert float(held["optimizer"]) == 12 * 4 * layer


def test_adapters_that_drop_elements_keep_what_is_left_and_a_mask() -> None:
    """Three bytes for each input of a linear layer (two of them and a mask) in place of the input itself."""
    kept = {
        (dropout, precision): float(
            stage_memory(
                GRAPH,
                Workload(
                    seq_len=256, global_batch=8, task=Task.LORA, lora_rank=1, lora_dropout=dropout, precision=precision
                ),
                layers={"dense": 1},
                first=False,
                last=False,
            )["activations"]
        )
        for dropout in (False, True)
        for precision in ("bf16", "fp8")
    }
    assert kept[True, "bf16"] == kept[True, "fp8"]  # adapters multiply in 16 bits whatever the base does
    assert kept[False, "bf16"] == kept[False, "fp8"]
    dropped = 3 * (512 + 512 + 512 + 1408)  # before qkv, out, gate and up, down
    shared = 2 * (512 + 512 + 1408)  # the output of attention is kept by its kernel, dropped or not
    assert kept[True, "bf16"] - kept[False, "bf16"] == 256 * (dropped - shared)


def test_what_activation_functions_keep_has_a_width_of_its_own() -> None:
    workload = Workload(seq_len=256, global_batch=8)
    held = [
        float(
            stage_memory(GRAPH, workload, layers={"dense": 1}, first=False, last=False, runtime=runtime)["activations"]
        )
        for runtime in (MEGATRON, replace(MEGATRON, mlp_input_bytes=1.0))
    ]
    assert held[0] - held[1] == 256 * 2 * 1408 * (2 - 1)


def test_quantized_base_takes_half_a_byte_and_its_constants() -> None:
    """QLoRA: 4 bits and 0.127 bit of doubly quantized constants per linear weight, arXiv:2305.14314."""
    lora, qlora = (
        float(stage_memory(GRAPH, Workload(seq_len=256, global_batch=8, task=task), layers={"dense": 4})["weights"])
        for task in (Task.LORA, Task.QLORA)
    )
    linear = 4 * (512 * 1024 + 512 * 512 + 3 * 512 * 1408)
    assert lora - qlora == pytest.approx(linear * (2 - 4.127 / 8))


def test_inputs_of_frozen_layers_without_adapter_are_not_kept() -> None:
    """Adapters on attention alone: the feed-forward's two inputs serve no gradient."""
    every, attention = (
        float(
            stage_memory(
                GRAPH,
                Workload(seq_len=256, global_batch=8, task=Task.LORA, lora_rank=1, lora_targets=targets),
                layers={"dense": 1},
                first=False,
                last=False,
            )["activations"]
        )
        for targets in ("all", "attention")
    )
    inputs = 512 + 1408  # of gate and up, of down
    ranks = 1 + 1  # one number for each adapter: gate with up, down
    assert every - attention == 256 * 2 * (inputs + ranks)
