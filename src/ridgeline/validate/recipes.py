"""Reads the cells that name a recipe: precision, recompute, sharding, optimizer, task, execution."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ridgeline.errors import InputError
from ridgeline.facts.programs import TrainingProgram, before_flash_attention
from ridgeline.facts.records import Accelerator
from ridgeline.graph.workload import PRECISIONS, Task
from ridgeline.plan.plan import Recompute
from ridgeline.validate.fine_tunes import ALL_ABOVE, PAGED, fine_tune_plan, recipe_adapters
from ridgeline.validate.habits import TITAN_2025, bytes_precision
from ridgeline.validate.megatron_experts import tested_experts
from ridgeline.validate.megatron_tests import is_test
from ridgeline.validate.notes import Notes
from ridgeline.validate.published_plans import published_execution, published_recompute, published_sharding
from ridgeline.validate.rows import Row

_PRECISION_WORDS: tuple[tuple[str, str], ...] = (
    (r"nvfp4|\bfp4|mxfp4", "nvfp4"),
    (r"mx-?fp8|fp8[-_ ]?mx", "mxfp8"),
    (r"nf4|int4|4-?bit", "nf4"),
    (r"fp8|float8", "fp8"),
    (r"tf32", "tf32"),
    (r"fp32|float32", "fp32"),
    (r"bf16|bfloat16", "bf16"),
    (r"fp16|float16|half", "fp16"),
    (r"\bamp\b|mixed", "fp16"),
    (r"\bint8\b", "int8"),
)
"""The first that a cell names wins: 'bf16+fp8' is fp8 compute, 'mixed (AMP fp16)' is fp16."""

_OPTIMIZERS: tuple[tuple[str, str], ...] = (
    (r"paged.?adamw.?(?:8|in 8)", "paged-adamw-8bit"),
    (r"paged.?adamw", "paged-adamw"),
    (r"8-?bit adamw|adamw.?8-?bit|galore 8-bit", "adamw-8bit"),
    (r"adafactor", "adafactor"),
    (r"\bmuon\b", "muon"),
    (r"\blion\b", "lion"),
    (r"sgd.*momentum", "sgd-momentum"),
    (r"\bsgd\b", "sgd"),
    (r"adamw", "adamw"),
    (r"\badam\b", "adam"),
)

FP8_ARCHITECTURES = ("ada", "hopper", "blackwell", "cdna3", "cdna4")
TF32_ARCHITECTURES = ("ampere", "ada", "hopper", "blackwell")
HALF_ONLY = ("volta", "turing", "pascal")
"""Generations without bf16 matrix units. Source: NVIDIA architecture white papers."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Workload and plan fields that recipe cells state or that the program's conventions give."""

    workload: Mapping[str, object]
    plan: Mapping[str, object]
    assumptions: tuple[str, ...]


SOURCE_OFFLOADS: tuple[tuple[str, Mapping[str, object], str], ...] = (
    (
        "stas00/ml-engineering",
        {"offload_optimizer": True},
        "its README: activation checkpointing and AdamW on the CPU; activations stay on the device",
    ),
)
"""What sources offload where a cell is vague: (source, plan fields, known from)."""


SOURCE_TASKS: tuple[tuple[str, str, Task], ...] = (("FlagPerf", r"^llama2_7b_finetune$", Task.LORA),)
"""What a benchmark trains where its name alone is given: (source, model, task).

Source: FlagOpen/FlagPerf, training/benchmarks/llama2_7b_finetune/pytorch/config/_base.py: use_peft, lora.
"""

NEMO_RANK = 32
"""Source: NVIDIA/NeMo@0078023, examples/nlp/language_modeling/tuning/conf/megatron_gpt_finetuning_config.yaml."""

MAXTEXT_CAPACITY = 1.25
"""Source: AI-Hypercomputer/maxtext@e591f30, benchmarks/maxtext_trillium_model_configs.py, mixtral_8x7b_dropped."""

SOURCE_RECOMPUTES: tuple[tuple[str, str, str], ...] = (
    ("FlagPerf", r"^cpm$", "full"),  # training/benchmarks/cpm/pytorch/config/_base.py, checkpoint_activations
)
"""What a source computes again where a row does not say: (source, model, recompute)."""


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
    if _loops(row, task, str(workload["precision"])):
        said.append("BertAdam in full precision: weights are updated one after another (DeepLearningExamples)")
        workload |= {"fused_optimizer": False, "looped_optimizer": True}
    if task in (Task.LORA, Task.QLORA):
        workload["lora_rank"] = _lora_rank(row, engine, said)
        if engine.name == "torchtune (recipes)":
            workload |= recipe_adapters(row, task, said)
        if "mlcommons/training_results" in row.text("source"):
            # mlcommons/training@00baefa, llama2_70b_lora/README.md: qkv_proj,o_proj; lora_dropout 0.1
            workload |= {"lora_targets": "attention", "lora_dropout": True}
        elif engine.name == "NeMo":
            said.append("NeMo's default of lora_tuning: target_modules attention_qkv")
            workload["lora_targets"] = "qkv"
    plan: dict[str, object] = {}
    plan |= _recompute(row, engine, said)
    plan |= _zero(row, notes, engine, task, said)
    plan |= _overlap(row, notes, engine)
    plan |= _offload(row, said)
    plan |= fine_tune_plan(row, engine, str(workload["optimizer"]), plan, said)
    said.append(f"{engine.name} conventions: {engine.reason}")
    return Recipe(workload=workload, plan=plan, assumptions=tuple(said))


def read_task(row: Row) -> Task:
    """What a row trains: LoRA and QLoRA are named in engine, model, precision or notes."""
    text = " ".join(row.text(name) for name in ("engine", "model", "precision"))
    for source, model, task in SOURCE_TASKS:
        if re.search(source, row.text("source")) and re.search(model, row.text("model")):
            return task
    notes = re.match(r"^(?:task=)?(QLoRA|LoRA|SFT)\b", row.text("notes"))
    words = f"{text} {notes[1] if notes else ''}"
    both = re.search(r"LoRA/QLoRA", words, re.IGNORECASE)
    if both or (re.search(r"LoRA", words) and not re.search(r"QLoRA|NF4", words, re.IGNORECASE)):
        return Task.LORA
    if re.search(r"QLoRA|NF4", words, re.IGNORECASE):
        return Task.QLORA
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
    return next((name for word, name in _PRECISION_WORDS if re.search(word, text, re.IGNORECASE)), None)


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
    if "mlcommons/training_results" in row.text("source") or name == "mlperf":
        narrow = device.architecture in FP8_ARCHITECTURES and not _plain_bert(row, device)
        name = "fp8" if narrow else "bf16" if device.vendor != "NVIDIA" else "fp16"
    if name == "bf16" and _int8(row, device):
        name = "int8"
    if name in ("fp8", "bf16") and row.second and engine.precision == "fp8":
        name = "mxfp8"
    if name in ("bf16", "bf16-amp") and device.architecture in HALF_ONLY:
        name = name.replace("bf16", "fp16")
    if name in ("tf32", "fp32"):
        name = _recipe_name(name, "", engine, device, [])
    said.append(f"precision not stated: {name} assumed ({engine.name})")
    return name


def _int8(row: Row, device: Accelerator) -> bool:
    """Whether Google's GPT-3 of MLPerf quantises its products: quantization=int8.

    Source: AI-Hypercomputer/maxtext@e591f30, src/maxtext/configs/tpu/v5p/gpt3_175b/gpt3_175b_base.sh and gpt_3_175b of
    benchmarks/maxtext_trillium_model_configs.py.
    """
    results = "mlcommons/training_results" in row.text("source")
    gpt = re.match(r"gpt-?3", row.text("model"), re.IGNORECASE) is not None
    return results and gpt and device.architecture == "tpu" and "int8" in device.peak_flop_per_s


def _plain_bert(row: Row, device: Accelerator) -> bool:
    """Whether MLPerf's BERT ran without 8-bit products and fused attention: `--fused_mha`, no transformer engine.

    Source: mlcommons/training_results_v3.1@f33f944, xFusion/benchmarks/bert/implementations/pytorch/
    config_G5500V7x10xL40.sh, config_G5500V7x8xL40S.sh and config_2288H_V7x6xL4.sh.
    """
    results = "mlcommons/training_results" in row.text("source")
    return results and device.architecture == "ada" and row.text("model").casefold().startswith("bert")


def _optimizer(row: Row, notes: Notes, engine: TrainingProgram, task: Task) -> str:
    text = "; ".join((row.text("optimizer"), row.text("engine"), row.text("notes")))
    stated = next((name for word, name in _OPTIMIZERS if re.search(word, text, re.IGNORECASE)), None)
    if stated is not None and not notes.says(r"except .*8-bit adamw"):
        return stated
    single = (row.count("n_devices") or 1) == 1
    if engine.name == "torchtune (recipes)" and task is Task.FULL and single:
        return PAGED
    return engine.optimizer if task in (Task.PRETRAIN, Task.FULL) else "adamw"


def _attention(row: Row, notes: Notes, engine: TrainingProgram, device: Accelerator, said: list[str]) -> str:
    stated = re.search(r"attention-backend=(\w+)|flash_attention=(True|False)", notes.text, re.IGNORECASE)
    if stated:
        word = (stated[1] or stated[2]).casefold()
        return "flash" if word in ("flash", "fused", "true", "auto") else "unfused"
    if engine.name == "Megatron-Core (CI)" and "local" in row.text("engine"):
        return "unfused"
    if _plain_bert(row, device):
        said.append("fp16 and unfused attention, as the published configurations of such boards say")
        return "unfused"
    if engine.name == "Galvatron" and "memory_profiling" in row.text("source_where"):
        said.append("unfused attention: each layer of the memory profiles holds S x S scores")
        return "unfused"
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
    text = f"{row.text('model')}; {notes.text}"
    if engine.name == "MaxText" and re.search(r"mixtral 8x", text, re.IGNORECASE) and "dropless" not in text:
        said.append(
            f"experts compute {MAXTEXT_CAPACITY} times their share: capacity_factor of MaxText's Mixtral recipes"
        )
        return MAXTEXT_CAPACITY
    return 1.0


def _loops(row: Row, task: Task, precision: str) -> bool:
    """Whether BERT is fine-tuned by NVIDIA's example for PyTorch, whose optimizer is fused in half precision alone."""
    example = "DeepLearningExamples" in f"{row.text('source')} {row.text('engine')}"
    pytorch = re.match("pytorch", row.text("engine"), re.IGNORECASE) is not None
    return example and pytorch and task is Task.FULL and precision in ("fp32", "tf32")


def _execution(row: Row, notes: Notes, engine: TrainingProgram, said: list[str]) -> str:
    if published := published_execution(row, said):
        return published
    parts = notes.says(r"cuda-graph-impl=(?:none|transformer_engine)")  # that of the engine captures parts of layers
    if not parts and notes.says(r"cuda.?graph"):
        return "graph"
    words = f"{row.text('engine')}; {notes.text}"
    compiled = re.search(rf"torch\.compile|\bcompile\b|async ?tp|\bliger\b|{ALL_ABOVE}", words, re.IGNORECASE)
    if engine.name == "torchtitan" and re.search(TITAN_2025, row.text("source_where")):
        return "compiled"
    return "compiled" if compiled and engine.execution == "eager" else engine.execution


def _lora_rank(row: Row, engine: TrainingProgram, said: list[str]) -> int:
    stated = re.search(r"\br(?:ank)?\s?=?\s?(\d+)\b", f"{row.text('model')} {row.text('notes')}")
    if stated and int(stated[1]) >= 1:
        return int(stated[1])
    rank = NEMO_RANK if engine.name == "NeMo" else 16
    said.append(f"LoRA rank not stated: {rank} assumed")
    return rank


def _recompute(row: Row, engine: TrainingProgram, said: list[str]) -> dict[str, object]:
    cell = row.text("recompute").casefold()
    for source, model, kind in SOURCE_RECOMPUTES:
        if not cell and source in row.text("source") and re.search(model, row.text("model"), re.IGNORECASE):
            said.append(f"recompute not stated: {kind} (its config)")
            cell = kind
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
        return plan | {"recompute": Recompute.NONE}
    if re.match(r"full|true|yes|on\b|all|uniform|block|activation checkpointing|a\.?c\.?$", cell):
        return plan | {"recompute": Recompute.FULL}
    if re.match(r"selective|core_attn|sac\b", cell):
        if "[" in cell and "core_attn" not in cell:
            said.append(f"recompute '{cell}' leaves the attention core alone and the rest is small: counted as none")
            return plan | {"recompute": Recompute.NONE}
        if "[" in cell:
            said.append(f"recompute '{cell}' counted as selective (attention core)")
        return plan | {"recompute": Recompute.SELECTIVE}
    raise InputError(f"'{cell[:40]}' names no recompute; known: none, selective, full", field="recompute")


def _zero(row: Row, notes: Notes, engine: TrainingProgram, task: Task, said: list[str]) -> dict[str, object]:
    cell = row.text("zero_stage")
    published = {} if cell else published_sharding(row)
    if published:
        return published
    if engine.name == "Galvatron" and "activation" in row.text("metric"):
        said.append("activations of its profiles leave gathered weights out: ZeRO-1 taken (inferred from the numbers)")
        return {"zero": 1}
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
        if re.search(r"SHARD_GRAD_OP", cell, re.IGNORECASE):
            return {"zero": 2}
        if re.search(r"distributed optimizer", cell, re.IGNORECASE):
            return {"zero": 1}
        if re.search(r"NO_SHARD|DDP", cell, re.IGNORECASE):
            return {"zero": 0}
        if re.search(r"FSDP|FULL_SHARD|HYBRID|HSDP", cell, re.IGNORECASE):
            return {"zero": 3}
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
    for source, fields, reason in SOURCE_OFFLOADS:
        if source in row.text("source"):
            said.append(reason)
            return dict(fields)
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
