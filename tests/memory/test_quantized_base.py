"""What programs hold of a 4-bit base beside its weights: constants, copies, inputs of its products; by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ridgeline.graph.build import from_dims
from ridgeline.graph.workload import Task, Workload
from ridgeline.memory.activations import kept_bytes
from ridgeline.memory.query import resolve
from ridgeline.memory.runtime import named_runtime
from ridgeline.memory.stage import host_bytes, stage_memory

LITGPT = named_runtime("litgpt")

L, D, F, V, R, T = 4, 512, 2048, 8192, 8, 256  # layers, hidden, ffn, vocabulary, adapter rank, tokens of a micro-batch
DIMS: dict[str, Any] = {
    "name": "tune", "layers": L, "hidden": D, "heads": 8, "vocab": V, "ffn": F, "gated": True, "activation": "silu",
    "norm": "rms", "bias": False, "positions": "rope", "max_positions": 4096,
}  # fmt: skip
LINEAR = L * (4 * D * D + 3 * D * F)
NORMS = (2 * L + 1) * D


def graph(*, tied: bool = False) -> Any:
    return from_dims(**DIMS, tied=tied).graph


def job(framework: str, task: Task = Task.QLORA) -> Workload:
    return Workload(
        task=task, seq_len=T, global_batch=1, precision="bf16-pure", optimizer="paged-adamw", framework=framework,
        lora_rank=R, lora_targets="qkv", execution="eager",
    )  # fmt: skip


def held(framework: str, *, tied: bool = False, task: Task = Task.QLORA, **options: Any) -> dict[str, float]:
    table = stage_memory(graph(tied=tied), job(framework, task), layers={"dense": float(L)}, **options)
    return {name: float(value) for name, value in table.items()}


def test_litgpt_quantizes_the_head_with_fp32_constants() -> None:
    adapters = L * R * (D + 3 * D)
    expected = (LINEAR + D * V) * (0.5 + 4 / 64) + 2 * (V * D + NORMS + adapters)
    assert held("litgpt")["weights"] == pytest.approx(expected)


@pytest.mark.parametrize("task", [Task.QLORA, Task.LORA, Task.FULL])
def test_litgpt_ties_no_table(task: Task) -> None:
    assert held("litgpt", tied=True, task=task) == held("litgpt", task=task)
    assert held("torch", tied=True, task=task)["weights"] < held("torch", task=task)["weights"]


def test_inputs_of_4_bit_products_are_held_once_and_again_until_the_next_loss() -> None:
    inputs = T * 2 * (L * (D + D + F) + D)  # of qkv, of gate and up, of down, of the head; attention keeps its output
    options: dict[str, Any] = {"layers": {"dense": float(L)}}

    def kept(count: float) -> float:
        runtime = replace(LITGPT, held_inputs=count)
        return float(kept_bytes(resolve(graph(), job("litgpt"), options | {"runtime": runtime})))  # type: ignore[arg-type]

    without = inputs - T * 2 * L * D  # adapters without dropout keep the input of qkv anyway
    assert kept(1.0) - kept(0.0) == pytest.approx(without)
    at_loss = [held("litgpt", runtime=replace(LITGPT, held_inputs=count))["activations"] for count in (1.0, 2.0)]
    assert at_loss[1] - at_loss[0] == pytest.approx(inputs)
    assert held("litgpt", task=Task.LORA) == held("litgpt", task=Task.LORA, runtime=replace(LITGPT, held_inputs=0.0))


def test_recompute_drops_the_earlier_inputs() -> None:
    one, two = (held("litgpt", recompute="full", runtime=replace(LITGPT, held_inputs=count)) for count in (1.0, 2.0))
    assert one == two


def test_a_head_in_4_bits_is_copied_while_it_works() -> None:
    most = held("litgpt", runtime=replace(LITGPT, dequantized_copies=40.0))["buffers"]
    assert most == pytest.approx(40 * 2 * D * V)


@pytest.mark.parametrize("offload", [False, True])
def test_constants_stay_whole_on_the_device_where_fsdp_shards_weights(offload: bool) -> None:
    constants = LINEAR * 0.127 / 8
    options: dict[str, Any] = {"zero": 3, "dp": 4, "offload_weights": offload}
    table = held("transformers", **options)
    rest = held("fsdp1", **options)
    assert table["weights"] - rest["weights"] == pytest.approx(constants * (1.0 if offload else 0.75))
    layers: dict[str, Any] = {"layers": {"dense": float(L)}}
    if offload:
        host = [
            float(host_bytes(resolve(graph(), job(name), {**layers, **options}))) for name in ("transformers", "fsdp1")
        ]
        assert host[1] - host[0] == pytest.approx(constants / 4)
