"""What rows of fine-tunes say of their loss, optimizer and host memory, and what torchtune's configurations say."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ridgeline.facts.programs import TrainingProgram
from ridgeline.graph.workload import Task
from ridgeline.validate.rows import Row

RECIPES = "torchtune (recipes)"
PAGED = "paged-adamw-8bit"
"""Of torchtune's recipes/configs/llama3_1/8B_full_single_device.yaml at 30b8519, the commit of its README's table."""

ALL_ABOVE = "all of the above"
"""How torchtune's table of optimization flags ends: with compile, chunked loss and offloaded activations."""


def recipe_adapters(row: Row, task: Task, said: list[str]) -> dict[str, object]:
    """Rank and targets of torchtune's recipes/configs/llama3_1 at 30b8519, the commit of its README's table."""
    rank = 8 if (row.count("n_devices") or 1) == 1 else 16
    targets = "qkv" if task is Task.LORA else "all"
    said[:] = [line for line in said if not line.startswith("LoRA rank not stated")]
    said.append(f"LoRA rank {rank} on {targets}: recipes/configs/llama3_1 of the table's commit")
    return {"lora_rank": rank, "lora_targets": targets}


def fine_tune_plan(
    row: Row, engine: TrainingProgram, optimizer: str, plan: Mapping[str, object], said: list[str]
) -> dict[str, object]:
    """Loss, optimizer in backward and weights on the host, as a row or its program's configurations say."""
    found = _loss(row, engine, said)
    if engine.name == RECIPES and optimizer == PAGED:
        found["optimizer_in_backward"] = True  # 8B_full_single_device.yaml
    elif re.search(r"\+ fuse optimizer step", row.text("notes"), re.IGNORECASE):
        said.append("optimizer step in backward: a gradient is used up before the next one is made")
        found["optimizer_in_backward"] = True
    if engine.name == RECIPES and plan.get("offload_optimizer"):
        said.append("70B_full.yaml: fsdp_cpu_offload keeps weights, gradients and states on the host")
        found |= {"offload_optimizer": False, "offload_weights": True}
    return found


def _loss(row: Row, engine: TrainingProgram, said: list[str]) -> dict[str, object]:
    """How the loss holds logits, where a row or its program's configurations say so."""
    words = "; ".join(row.text(name) for name in ("engine", "model", "recompute", "notes", "offload", "source_where"))
    if re.search(r"\bliger\b", words, re.IGNORECASE):
        said.append("Liger's loss is fused with the head")
        return {"loss": "fused"}
    above = re.search(rf"chunked cross entropy|{ALL_ABOVE}", words, re.IGNORECASE)
    if engine.name == RECIPES or (engine.name == "torchtune" and above):
        said.append("chunked cross entropy: CEWithChunkedOutputLoss, 8 chunks")
        return {"loss": "chunked"}
    return {}
