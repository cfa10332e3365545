"""Reads the cells that name a recipe: precision, recompute, sharding, optimizer, task, execution."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ridgeline.errors import InputError
from ridgeline.facts.programs import TrainingProgram, before_flash_attention
from ridgeline.facts.readings import reading, settings
from ridgeline.facts.records import Accelerator
from ridgeline.graph.workload import PRECISIONS, Task
from ridgeline.validate.megatron_tests import is_test, tested_experts
from ridgeline.validate.notes import Notes
from ridgeline.validate.published_plans import (
    bytes_precision,
    published_execution,
    published_recompute,
    published_sharding,
)
from ridgeline.validate.rows import Row

FP8_ARCHITECTURES = ("ada", "hopper", "blackwell", "cdna3", "cdna4")
TF32_ARCHITECTURES = ("ampere", "ada", "hopper", "blackwell")
HALF_ONLY = ("volta", "turing", "pascal")
"""Generations without bf16 matrix units. Source: NVIDIA architecture white papers."""


ALL_ABOVE = "all of the above"
"""How torchtune's table of optimization flags ends: with compile, chunked loss and offloaded activations."""

TORCHTUNE, PAGED = "torchtune (recipes)", "paged-adamw-8bit"
"""A program whose configurations run that optimizer in backward. Source: pytorch/torchtune@30b8519,
recipes/configs/llama3_1/8B_full_single_device.yaml."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Workload and plan fields that recipe cells state or that the program's conventions give."""

    workload: Mapping[str, object]
    plan: Mapping[str, object]
    assumptions: tuple[str, ...]


def read_recipe(row: Row, notes: Notes, engine: TrainingProgram, device: Accelerator) -> Recipe:
    """Precision, task, optimizer, attention kernel, execution, recompute, sharding and overlap of a row."""
    said: list[str] = []
    task = read_task(row)
    workload: dict[str, object] = {
        "task": task,
        "precision": bytes_precision(row, engine, read_precision(row, notes, engine, device, said), said),
        "optimizer": _optimizer(row, notes, engine, task),
        "attention_kernel": _attention(row, notes, engine, device, said),
        "execution": _execution(row, notes, engine, said),
        "framework": engine.framework,
        "fused_optimizer": engine.fused_optimizer,
        "counts_zeros": is_test(engine),
        "expert_capacity": _capacity(row, notes, engine, said),
        **(tested_experts(notes) if is_test(engine) else {}),
    }
    named = row.text("engine")
    looped = reading(
        "looped_optimizer", runs=f"{row.text('source')} {named}", words=f"{named}; {task.value} {workload['precision']}"
    )
    if looped is not None:
        said.append(looped.told)
        workload |= {"fused_optimizer": False, "looped_optimizer": True}
    if task in (Task.LORA, Task.QLORA):
        workload["lora_rank"] = _lora_rank(row, engine, said)
        devices = row.count("n_devices") or 1
        adapter = settings("adapter", said, **row.cells_of(engine.name, words=f"{devices} {task.value}"))
        if "lora_rank" in adapter:
            said[:] = [line for line in said if not line.startswith("LoRA rank not stated")]
        workload |= adapter
    plan: dict[str, object] = {}
    plan |= _recompute(row, engine, said)
    plan |= _zero(row, notes, engine, task, said)
    plan |= _overlap(row, notes, engine)
    plan |= _offload(row, said)
    plan |= _fine_tune(row, engine, str(workload["optimizer"]), plan, said)
    said.append(f"{engine.name} conventions: {engine.reason}")
    return Recipe(workload=workload, plan=plan, assumptions=tuple(said))


def read_task(row: Row) -> Task:
    """What a row trains: LoRA and QLoRA are named in engine, model, precision or notes."""
    text = " ".join(row.text(name) for name in ("engine", "model", "precision"))
    notes = re.match(r"^(?:task=)?(QLoRA|LoRA|SFT)\b", row.text("notes"))
    words = f"{text} {notes[1] if notes else ''}"
    found = reading("task", **row.cells_of(words=words))
    if found is not None:
        return Task(found.text)
    full = re.search(r"fine-?tun|full finetun|SFT|SQuAD", f"{words} {row.text('notes')[:40]}", re.IGNORECASE)
    return Task.FULL if full else Task.PRETRAIN


def read_precision(row: Row, notes: Notes, engine: TrainingProgram, device: Accelerator, said: list[str]) -> str:
    """The training recipe of a row, a name of `PRECISIONS`; what was assumed goes to `said`."""
    cell = row.text("precision")
    if not cell:
        return _silent(row, engine, device, said)
    kind = _named(cell)
    if re.search(r"\bor\b", cell) or re.fullmatch(r"fp16/bf16", cell):
        only = re.search(r"only for (\w+)", notes.text)
        kind = _named(only[1]) if only and _named(only[1]) else "bf16"
        said.append(f"precision '{cell}' is open: {kind} assumed")
    if kind is None:
        raise InputError(f"'{cell}' names no precision; known: {', '.join(PRECISIONS)}", field="precision")
    return _recipe_name(kind, cell, engine, device, said)


def _named(text: str) -> str | None:
    found = reading("precision", words=text)
    return None if found is None else found.text


def _recipe_name(kind: str, cell: str, engine: TrainingProgram, device: Accelerator, said: list[str]) -> str:
    tensor_float = device.architecture in TF32_ARCHITECTURES
    if kind == "nf4":
        return "bf16-pure"
    if kind == "tf32" and not tensor_float:
        return "fp32"
    if kind == "fp32" and tensor_float and (engine.tf32 or "TF32" in cell):
        said.append("fp32 of NGC containers multiplies in TF32 on this device")
        return "tf32"
    if kind in ("fp16", "bf16"):
        amp = re.search(r"\bamp\b", cell, re.IGNORECASE) and engine.name != "llm-foundry"
        name = kind + ("-amp" if amp and engine.half == "" and engine.name != "PaddlePaddle" else engine.half)
        return name if name in PRECISIONS else kind
    return kind


def _silent(row: Row, engine: TrainingProgram, device: Accelerator, said: list[str]) -> str:
    """The recipe of a row without a precision."""
    name = engine.precision
    in_notes = re.search(r"(?:^|;\s*)(fp16|bf16|fp8|fp32)(?:;|$)|数据精度=(fp16|bf16|fp32)", row.text("notes"))
    if in_notes:
        return _recipe_name(in_notes[1] or in_notes[2], "", engine, device, said)
    part = " ".join((device.architecture, device.vendor, *device.peak_flop_per_s))
    published = reading("mlperf_precision", **row.cells_of(runs=f"{row.text('source')}; {engine.name}", device=part))
    if published is not None:
        name = published.text
    if name in ("fp8", "bf16") and row.second and engine.precision == "fp8":
        name = "mxfp8"
    if name in ("bf16", "bf16-amp") and device.architecture in HALF_ONLY:
        name = name.replace("bf16", "fp16")
    if name in ("tf32", "fp32"):
        name = _recipe_name(name, "", engine, device, [])
    said.append(f"precision not stated: {name} assumed ({engine.name})")
    return name


def _optimizer(row: Row, notes: Notes, engine: TrainingProgram, task: Task) -> str:
    text = "; ".join((row.text("optimizer"), row.text("engine"), row.text("notes")))
    stated = reading("optimizer", words=text)
    if stated is not None and not notes.says(r"except .*8-bit adamw"):
        return stated.text
    unsaid = reading("optimizer_unsaid", program=engine.name, words=f"{row.count('n_devices') or 1} {task.value}")
    if unsaid is not None:
        return unsaid.text
    return engine.optimizer if task in (Task.PRETRAIN, Task.FULL) else "adamw"


def _attention(row: Row, notes: Notes, engine: TrainingProgram, device: Accelerator, said: list[str]) -> str:
    stated = re.search(r"attention-backend=(\w+)|flash_attention=(True|False)", notes.text, re.IGNORECASE)
    if stated:
        word = (stated[1] or stated[2]).casefold()
        return "flash" if word in ("flash", "fused", "true", "auto") else "unfused"
    found = reading(
        "attention", **row.cells_of(engine.name, words=row.text("engine"), device=f"{device.architecture} ")
    )
    if found is not None:
        said.extend(filter(None, [found.told]))
        return found.text
    if engine.attention_kernel.startswith("flash") and (
        device.architecture in HALF_ONLY or before_flash_attention(row.text("source"))
    ):
        said.append("unfused attention: the device or the time of the source is before FlashAttention")
        return "unfused"
    return engine.attention_kernel


def _capacity(row: Row, notes: Notes, engine: TrainingProgram, said: list[str]) -> float:
    """Rows of an expert over its balanced share, stated or by the program's recipes [1]."""
    stated = re.search(r"\bcapacity (\d+(?:\.\d+)?)", notes.text)
    if stated:
        return float(stated[1])
    found = reading("capacity", **row.cells_of(engine.name, words=f"{row.text('model')}; {notes.text}"))
    if found is not None:
        said.append(found.told)
        return found.number
    return 1.0


def _execution(row: Row, notes: Notes, engine: TrainingProgram, said: list[str]) -> str:
    if published := published_execution(row, said):
        return published
    parts = notes.says(r"cuda-graph-impl=(?:none|transformer_engine)")  # that of the engine captures parts of layers
    if not parts and notes.says(r"cuda.?graph"):
        return "graph"
    words = f"{row.text('engine')}; {notes.text}"
    compiled = reading("execution", **row.cells_of(engine.name, words=words))
    return engine.execution if compiled is None or engine.execution != "eager" else compiled.text


def _lora_rank(row: Row, engine: TrainingProgram, said: list[str]) -> int:
    stated = re.search(r"\br(?:ank)?\s?=?\s?(\d+)\b", f"{row.text('model')} {row.text('notes')}")
    if stated and int(stated[1]) >= 1:
        return int(stated[1])
    found = reading("lora_rank", program=engine.name)
    assert found is not None  # the last row of the key is of any program
    rank = int(found.number)
    said.append(f"LoRA rank not stated: {rank} assumed")
    return rank


def _recompute(row: Row, engine: TrainingProgram, said: list[str]) -> dict[str, object]:
    cell = row.text("recompute").casefold()
    own = None if cell else reading("recompute", **row.cells_of())
    if own is not None:
        said.append(own.told)
        cell = own.text
    if not cell:
        if published := published_recompute(row, said):
            return published
        if engine.recompute is None:
            return {}
        said.append(f"recompute not stated: {engine.recompute} ({engine.name})")
        cell = engine.recompute
    plan: dict[str, object] = {}
    if "sequence parallel" in cell:
        plan["sequence_parallel"] = True
    if re.match(r"none|no\b|false|0", cell):
        return plan | {"recompute": "none"}
    if re.match(r"full|true|yes|on\b|all|uniform|block|activation checkpointing|a\.?c\.?$", cell):
        return plan | {"recompute": "full"}
    if re.match(r"selective|core_attn|sac\b", cell):
        if "[" in cell and "core_attn" not in cell:
            said.append(f"recompute '{cell}' leaves the attention core alone and the rest is small: counted as none")
            return plan | {"recompute": "none"}
        if "[" in cell:
            said.append(f"recompute '{cell}' counted as selective (attention core)")
        return plan | {"recompute": "selective"}
    raise InputError(f"'{cell[:40]}' names no recompute; known: none, selective, full", field="recompute")


def _zero(row: Row, notes: Notes, engine: TrainingProgram, task: Task, said: list[str]) -> dict[str, object]:
    cell = row.text("zero_stage")
    published = {} if cell else published_sharding(row)
    if published:
        return published
    unsaid = reading("zero_unsaid", **row.cells_of(engine.name, words=f"metric: {row.text('metric')}"))
    if unsaid is not None:
        said.append(unsaid.told)
        return {"zero": unsaid.value}
    if "use-megatron-fsdp" in notes.switches:  # without it a strategy is not looked at (megatron/training/arguments.py)
        by_strategy = {"optim": 1, "optim_grads": 2, "optim_grads_params": 3, "no_shard": 0}
        return {"zero": by_strategy.get(notes.word("data-parallel-sharding-strategy") or "", 3)}
    if notes.says(r"use-distributed-optimizer|distributed optimizer") or "distributed" in row.text("optimizer"):
        return {"zero": 1}
    if cell and row.second and re.search(r"FSDP", cell) and "(" in row.text("tp") and engine.zero is not None:
        return {"zero": engine.zero}  # of two recipes in one line, FSDP is the first one's
    if cell:
        digit = re.search(r"(?<!FSDP)(?:\b|(?<=zero))([0-3])\b", cell, re.IGNORECASE)
        if digit:
            return {"zero": int(digit[1])}
        word = reading("zero", words=cell)
        if word is not None:
            return {"zero": word.value}
        raise InputError(
            f"'{cell[:40]}' names no sharding; known: 0 to 3, FSDP, SHARD_GRAD_OP, DDP", field="zero_stage"
        )
    stage = re.search(r"ZeRO-?(?:stage )?([1-3])", row.text("engine"))
    if stage:
        return {"zero": int(stage[1])}
    if task in (Task.LORA, Task.QLORA) and engine.zero in (1, None):
        return {"zero": 0}
    return {} if engine.zero is None else {"zero": engine.zero}


def _overlap(row: Row, notes: Notes, engine: TrainingProgram) -> dict[str, object]:
    named = f"{notes.text}; {row.text('source_where')}"
    gradients = engine.overlap_gradients or bool(re.search(r"overlap.grad.reduce", named))
    weights = engine.overlap_weights or bool(re.search(r"overlap.param.gather|param_gather", named))
    tensor = engine.overlap_tensor or bool(re.search(r"Async ?TP|tp.comm.overlap|tp_overlap", named, re.IGNORECASE))
    return {"overlap_gradients": gradients, "overlap_weights": weights, "overlap_tensor": tensor}


def _offload(row: Row, said: list[str]) -> dict[str, object]:
    own = settings("offload", said, **row.cells_of())
    if own:
        return dict(own)
    text = f"{row.text('offload')}; {row.text('engine')}; {row.text('recompute')}; {row.text('notes')}".casefold()
    if re.search(r"nvme", text):
        raise InputError("offload to NVMe is not predicted yet", field="offload")
    activations = re.search(
        rf"activation\w* (?:cpu )?offload|activations? (?:to|\(see)|offload\w*.{{0,12}}activation|{ALL_ABOVE}", text
    )
    if activations is None:
        activations = re.search(r"cpu \(activations", text)
    plan: dict[str, object] = {}
    if activations:
        plan["offload_activations"] = True
    without = re.sub(
        r"activation\w* (?:cpu )?offload\w*|cpu \(activations[^)]*\)|activations? to cpu|opt offl=n[^;]*", "", text
    )
    if re.search(r"cpu.?offload|full offload|offload.*optimizer|superoffload|zero-?3 offload", without):
        plan["offload_optimizer"] = True
    return plan


def _fine_tune(
    row: Row, engine: TrainingProgram, optimizer: str, plan: Mapping[str, object], said: list[str]
) -> dict[str, object]:
    """Loss, optimizer in backward and weights on the host, as a row or its program's configurations say."""
    found: dict[str, object] = dict(settings("loss", said, **row.cells_of(engine.name, words=row.words)))
    if engine.name == TORCHTUNE and optimizer == PAGED:
        found["optimizer_in_backward"] = True
    elif re.search(r"\+ fuse optimizer step", row.text("notes"), re.IGNORECASE):
        said.append("optimizer step in backward: a gradient is used up before the next one is made")
        found["optimizer_in_backward"] = True
    if engine.name == TORCHTUNE and plan.get("offload_optimizer"):
        said.append("70B_full.yaml: fsdp_cpu_offload keeps weights, gradients and states on the host")
        found |= {"offload_optimizer": False, "offload_weights": True}
    return found
