"""What a training row says of its recipe, and what its program does where it is silent: precision, task, sharding."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ridgeline.errors import InputError
from ridgeline.facts.frameworks import FrameworkPolicy, framework_policy
from ridgeline.facts.programs import before_flash_attention
from ridgeline.facts.published_plans import PublishedPlan
from ridgeline.facts.readings import reading
from ridgeline.graph.workload import PRECISIONS, Task
from ridgeline.validate.notes import TrainingRow

FP8_ARCHITECTURES = ("ada", "hopper", "blackwell", "cdna3", "cdna4")
TF32_ARCHITECTURES = ("ampere", "ada", "hopper", "blackwell")
HALF_ONLY = ("volta", "turing", "pascal")
"""Generations without bf16 matrix units. Source: NVIDIA architecture white papers."""

_NO_MASTER = re.compile(
    r"\b(?:bf16|fp16|half) (?:optimi[sz]er )?(?:states|weights|adamw?)\b|\badamw?[ _-]?bf16\b"
    r"|\b(?:pure|full) (?:bf16|fp16)",
    re.IGNORECASE,
)
_MASTER = re.compile(r"\b(?:fp32|32[- ]bit) (?:master|weights|param)|\bmaster \w+ in (?:fp32|32)", re.IGNORECASE)
ADAPTERS = (Task.LORA, Task.QLORA)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Workload and plan fields that recipe cells state or that the program's conventions give."""

    workload: Mapping[str, object]
    plan: Mapping[str, object]


def read_recipe(told: TrainingRow) -> Recipe:
    """Precision, task, optimizer, attention kernel, execution, recompute, sharding and overlap of a row."""
    row, engine, said = told.row, told.engine, told.said
    task, precision = read_task(told), bytes_precision(told, read_precision(told))
    workload: dict[str, object] = {
        "task": task,
        "precision": precision,
        "optimizer": _in_weights_format(_optimizer(told, task), precision),
        "attention_kernel": _attention(told),
        "execution": _execution(told),
        "framework": engine.framework,
        "fused_optimizer": engine.fused_optimizer,
        "expert_capacity": _capacity(told),
        **told.settings("experts"),
    }
    named = row.text("engine")
    if told.reading(
        "looped_optimizer", runs=f"{row.text('source')} {named}", words=f"{named}; {task.value} {precision}"
    ):
        workload |= {"fused_optimizer": False, "looped_optimizer": True}
    if task in ADAPTERS:
        workload["lora_rank"] = _lora_rank(told)
        adapter = told.settings("adapter", words=f"{row.count('n_devices') or 1} {task.value}")
        adapter |= told.settings("adapter_stated", words=told.notes.text)
        if "lora_rank" in adapter:
            said[:] = [line for line in said if not line.startswith("LoRA rank not stated")]
        workload |= adapter
    plan = _recompute(told) | _zero(told, task) | _overlap(told) | _offload(told)
    plan |= _fine_tune(told, str(workload["optimizer"]), plan)
    said.append(f"{engine.name} conventions: {engine.reason}")
    return Recipe(workload=workload, plan=plan)


def read_task(told: TrainingRow) -> Task:
    """What a row trains: LoRA and QLoRA are named in engine, model, precision or notes."""
    row = told.row
    text = " ".join(row.text(name) for name in ("engine", "model", "precision"))
    said = r"(?:^|;\s*)(?:task=)?(Q-?LoRA|LoRA|SFT|full[- ](?:parameter|fine-?tun\w*))\b"
    notes = re.search(said, row.text("notes"), re.IGNORECASE)
    words = f"{text} {notes[1] if notes else ''}"
    found = told.reading("task", program="", words=words)
    if found is not None:
        return Task(found.text)
    begun = f"{words} {row.text('notes')[:40]}"
    full = re.search(r"fine-?tun|full finetun|full parameter|SFT|SQuAD", begun, re.IGNORECASE)
    return Task.FULL if full else Task.PRETRAIN


def read_precision(told: TrainingRow) -> str:
    """The training recipe of a row, a name of `PRECISIONS`."""
    cell = told.row.text("precision")
    if not cell:
        return _silent(told)
    kind = _named(cell)
    if re.search(r"\bor\b", cell) or re.fullmatch(r"fp16/bf16", cell):
        only = re.search(r"only for (\w+)", told.notes.text)
        kind = _named(only[1]) if only and _named(only[1]) else "bf16"
        told.said.append(f"precision '{cell}' is open: {kind} assumed")
    if kind is None:
        raise InputError(f"'{cell}' names no precision; known: {', '.join(PRECISIONS)}", field="precision")
    return _recipe_name(told, kind, cell)


def _named(text: str) -> str | None:
    found = reading("precision", words=text)
    return None if found is None else found.text


def _recipe_name(told: TrainingRow, kind: str, cell: str, *, quiet: bool = False) -> str:
    engine, tensor_float = told.engine, told.device.architecture in TF32_ARCHITECTURES
    if kind == "nf4":
        return "bf16-pure"
    if kind == "tf32" and not tensor_float:
        return "fp32"
    if kind == "fp32" and tensor_float and (engine.tf32 or "TF32" in cell):
        told.said.extend([] if quiet else ["fp32 of NGC containers multiplies in TF32 on this device"])
        return "tf32"
    if kind in ("fp16", "bf16"):
        words = f"{told.row.text('optimizer')}; {cell}; {told.notes.text}"
        own = "-amp" if engine.half == "-pure" and _MASTER.search(words) else engine.half
        half = "-pure" if _NO_MASTER.search(words) else own
        if half in ("", "-pure") and engine.amp_is_autocast and re.search(r"\bamp\b", cell, re.IGNORECASE):
            half = "-amp"
        name = kind + half
        return name if name in PRECISIONS else kind
    return kind


def _silent(told: TrainingRow) -> str:
    """The recipe of a row without a precision."""
    row, engine, device = told.row, told.engine, told.device
    name = engine.precision
    in_notes = re.search(r"(?:^|;\s*)(fp16|bf16|fp8|fp32)(?:;|$)|数据精度=(fp16|bf16|fp32)", row.text("notes"))
    if in_notes:
        return _recipe_name(told, in_notes[1] or in_notes[2], "")
    part = " ".join((device.architecture, device.vendor, *device.peak_flop_per_s))
    published = told.reading("mlperf_precision", runs=f"{row.text('source')}; {engine.name}", device=part)
    if published is not None:
        name = published.text
    if name in ("fp8", "bf16") and row.second and engine.precision == "fp8":
        name = "mxfp8"
    if name in ("bf16", "bf16-amp") and device.architecture in HALF_ONLY:
        name = name.replace("bf16", "fp16")
    if name in ("tf32", "fp32"):
        name = _recipe_name(told, name, "", quiet=True)
    told.said.append(f"precision not stated: {name} assumed ({engine.name})")
    return name


def bytes_precision(told: TrainingRow, precision: str) -> str:
    """The recipe whose bytes a row that asks for bytes is counted in; other rows keep theirs."""
    found = told.reading("bytes_precision", words=precision) if told.row.asks_bytes else None
    return precision if found is None else found.text


def _optimizer(told: TrainingRow, task: Task) -> str:
    row = told.row
    stated = reading("optimizer", words="; ".join(map(row.text, ("optimizer", "engine", "notes"))))
    if stated is not None and not told.notes.says(r"except .*8-bit adamw"):
        return stated.text
    unsaid = told.reading("optimizer_unsaid", words=f"{row.count('n_devices') or 1} {task.value}")
    if unsaid is not None:
        return unsaid.text
    return told.engine.optimizer if task not in ADAPTERS else "adamw"


def _in_weights_format(optimizer: str, precision: str) -> str:
    """Moments in 16 bits where weights are trained in 16 bits: torch.optim makes them like the parameters."""
    return "adamw-bf16" if optimizer in ("adam", "adamw") and precision.endswith("-pure") else optimizer


def _attention(told: TrainingRow) -> str:
    stated = re.search(r"attention-backend=(\w+)|flash_attention=(True|False)", told.notes.text, re.IGNORECASE)
    if stated:
        word = (stated[1] or stated[2]).casefold()
        return "flash" if word in ("flash", "fused", "true", "auto") else "unfused"
    architecture, kernel = told.device.architecture, told.engine.attention_kernel
    named = "; ".join(part for part in map(told.row.text, ("engine", "notes")) if part)
    found = told.reading("attention", words=named, device=f"{architecture} ")
    if found is not None:
        return found.text
    early = architecture in HALF_ONLY or before_flash_attention(told.row.text("source"))
    if kernel.startswith("flash") and early:
        told.said.append("unfused attention: the device or the time of the source is before FlashAttention")
        return "unfused"
    return kernel


def _capacity(told: TrainingRow) -> float:
    """Rows of an expert over its balanced share, stated or by the program's recipes [1]."""
    stated = re.search(r"\bcapacity (\d+(?:\.\d+)?)", told.notes.text)
    if stated:
        return float(stated[1])
    found = told.reading("capacity", words=f"{told.row.text('model')}; {told.notes.text}")
    return 1.0 if found is None else found.number


def _execution(told: TrainingRow) -> str:
    """'eager', 'compiled' or 'graph': as published with the code, else as flags and program say."""
    plan, notes = told.published, told.notes
    named = f"{told.row.text('engine')}; {notes.text}"
    if plan is not None and plan.execution is not None:
        if plan.execution != "graph":
            told.said.append(f"no CUDA graphs in the published configuration ({plan.name})")
        return plan.execution
    parts = notes.says(r"cuda-graph-impl=(?:none|transformer_engine)")  # that of the engine captures parts of layers
    off = notes.says(r"(?:\bno|without) cuda.?graphs?|cuda.?graphs?:? (?:off|disabled)")
    if not parts and not off and re.search(r"cuda.?graph", named, re.IGNORECASE):
        return "graph"
    compiled = told.reading("execution", words=named)
    own = told.engine.execution
    return own if compiled is None or own != "eager" else compiled.text


def _lora_rank(told: TrainingRow) -> int:
    stated = re.search(r"\br(?:ank)?\s?=?\s?(\d+)\b", f"{told.row.text('model')} {told.row.text('notes')}")
    if stated and int(stated[1]) >= 1:
        return int(stated[1])
    found = told.reading("lora_rank")
    assert found is not None  # the last row of the key is of any program
    told.said.append(f"LoRA rank not stated: {int(found.number)} assumed")
    return int(found.number)


def _recompute(told: TrainingRow) -> dict[str, object]:
    cell, engine = told.row.text("recompute").casefold(), told.engine
    own = None if cell else told.reading("recompute", program="")
    if own is not None:
        cell = own.text
    published = told.published
    if not cell and published is not None and published.recompute is not None:
        return _published_recompute(told, published)
    if not cell:
        if engine.recompute is None:
            return {}
        told.said.append(f"recompute not stated: {engine.recompute} ({engine.name})")
        cell = engine.recompute
    plan: dict[str, object] = {"sequence_parallel": True} if "sequence parallel" in cell else {}
    if re.match(r"none|no\b|false|0", cell):
        return plan | {"recompute": "none"}
    if re.match(r"full|true|yes|on\b|all|uniform|block|activation checkpointing|a\.?c\.?$", cell):
        return plan | {"recompute": "full"}
    if re.match(r"selective|core_attn|sac\b", cell):
        if "[" in cell and "core_attn" not in cell:
            told.said.append(f"recompute '{cell}' leaves the attention core alone, the rest is small: counted as none")
            return plan | {"recompute": "none"}
        if "[" in cell:
            told.said.append(f"recompute '{cell}' counted as selective (attention core)")
        return plan | {"recompute": "selective"}
    layers = re.match(r"(?:of )?(\d+)(?: of \d+)? (?:transformer )?(?:layers|blocks)\b", cell)
    if layers and int(layers[1]) > 0:
        return plan | {"recompute": "full", "recompute_layers": int(layers[1])}
    known = "none, selective, full, '10 layers'"
    raise InputError(f"'{cell[:40]}' names no recompute; known: {known}", field="recompute")


def _published_recompute(told: TrainingRow, plan: PublishedPlan) -> dict[str, object]:
    layers = "" if plan.recompute_layers is None else f" in {plan.recompute_layers} layers"
    told.said.append(f"recompute not stated: {plan.recompute}{layers}, as the published code ({plan.name})")
    fields: dict[str, object] = {"recompute": plan.recompute}
    return fields if plan.recompute_layers is None else fields | {"recompute_layers": plan.recompute_layers}


def published_sharding(told: TrainingRow) -> dict[str, object]:
    """How the published code shards states, as plan fields; empty where it says nothing."""
    plan, devices = told.published, told.row.count("n_devices") or 1
    if plan is None or plan.zero is None:
        return {}
    group = plan.zero_group
    grouped = group is not None and group < devices and devices % group == 0
    return {"zero": plan.zero, **({"zero_group": group} if grouped else {})}


def _zero(told: TrainingRow, task: Task) -> dict[str, object]:
    row, notes, engine = told.row, told.notes, told.engine
    cell = row.text("zero_stage")
    published = {} if cell else published_sharding(told)
    if published:
        return published
    unsaid = told.reading("zero_unsaid", words=f"metric: {row.text('metric')}")
    if unsaid is not None:
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
        word = None if digit else reading("zero", words=cell)
        if digit is None and word is None:
            known = "0 to 3, FSDP, SHARD_GRAD_OP, DDP"
            raise InputError(f"'{cell[:40]}' names no sharding; known: {known}", field="zero_stage")
        return {"zero": int(digit[1]) if digit else word.value if word else 0}
    stage = re.search(r"ZeRO-?(?:stage )?([1-3])", row.text("engine"))
    if stage:
        return {"zero": int(stage[1])}
    if task in ADAPTERS and engine.zero in (1, None):
        return {"zero": 0}
    return {} if engine.zero is None else {"zero": engine.zero}


def _overlap(told: TrainingRow) -> dict[str, object]:
    engine, named = told.engine, f"{told.notes.text}; {told.row.text('source_where')}"
    return {
        "overlap_gradients": engine.overlap_gradients or bool(re.search(r"overlap.grad.reduce", named)),
        "overlap_weights": engine.overlap_weights or bool(re.search(r"overlap.param.gather|param_gather", named)),
        "overlap_tensor": engine.overlap_tensor
        or bool(re.search(r"Async ?TP|tp.comm.overlap|tp_overlap", named, re.IGNORECASE)),
    }


def _offload(told: TrainingRow) -> dict[str, object]:
    own = told.settings("offload", program="")
    if own:
        return dict(own)
    text = "; ".join(map(told.row.text, ("offload", "engine", "recompute", "zero_stage", "notes"))).casefold()
    cell = told.row.text("offload").casefold()
    if re.search(r"nvme", text):
        raise InputError("offload to NVMe is not predicted yet", field="offload")
    plan: dict[str, object] = {}
    activations = (  # the last is how torchtune's table of flags ends: with compile, chunked loss and these
        r"activation\w* (?:cpu )?offload|activations? (?:to|\(see)|offload\w*.{0,12}activation|cpu \(activations"
        r"|all of the above|layer inputs to (?:the )?(?:cpu|host)"
    )
    if re.search(activations, text):
        plan["offload_activations"] = True
    moved = r"activation\w* (?:cpu )?offload\w*|cpu \(activations[^)]*\)|activations? to cpu|opt offl=n[^;]*"
    beside = re.sub(moved, "", text)
    optimizer = r"optimi[sz]er\w*(?: states?)?(?: and \w+)? (?:to|on) (?:the )?(?:cpu|host)"
    whole = r"cpu.?offload|full offload|offload.*optimizer|superoffload|zero-?3 offload|optimi[sz]er\w* offload"
    if re.search(rf"{whole}|{optimizer}", beside) or re.match(r"(?:cpu|optimi[sz]er)\b(?! \(activ)", cell):
        plan["offload_optimizer"] = True
    weights = r"(?:weights?|param\w*)"
    if re.search(rf"{weights}(?: and \w+)? (?:(?:to|on) (?:the )?(?:cpu|host)|offload)", beside) or re.search(
        rf"\b{weights}", cell
    ):
        plan["offload_weights"] = True
    return plan


def _fine_tune(told: TrainingRow, optimizer: str, plan: Mapping[str, object]) -> dict[str, object]:
    """Loss, optimizer in backward and weights on the host, as a row or its program's configurations say."""
    found: dict[str, object] = dict(told.settings("loss"))
    own = told.settings("tuned", words=f"{optimizer}; {'offload' if plan.get('offload_optimizer') else ''}")
    if "optimizer_in_backward" not in own and re.search(
        r"\+ fuse optimizer step", told.row.text("notes"), re.IGNORECASE
    ):
        told.said.append("optimizer step in backward: a gradient is used up before the next one is made")
        found["optimizer_in_backward"] = True
    return found | own


def policy_of(told: TrainingRow, *, stages: int) -> FrameworkPolicy:
    """The policy of the row's framework as its program, flags and published code change it."""
    words = f"pipelined; {told.row.words}" if stages > 1 else told.row.words
    found: dict[str, object] = dict(told.settings("runtime", words=words))
    plan = told.published
    if plan is not None and plan.mlp_input_bytes is not None:
        found["mlp_input_bytes"] = plan.mlp_input_bytes
        told.said.append(f"activation functions keep their inputs in 8 bits, as the published code ({plan.name})")
    if plan is not None and plan.weight_bytes is not None:
        found["weight_bytes"] = plan.weight_bytes
        told.said.append(f"weights are held in {8 * plan.weight_bytes:g} bits, as the published code ({plan.name})")
    return replace(framework_policy(told.engine.framework), **found)  # type: ignore[arg-type]
