"""What training programs do when a row does not say: one line per program, with the reason."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Engine:
    """The conventions of one training program.

    `pattern` is looked for in the engine cell, case ignored. `precision` is the recipe when the row
    is silent, `half` what its plain 'fp16' or 'bf16' means: '' a half-precision copy beside an fp32
    master, '-amp' fp32 weights under autocast, '-pure' no fp32 at all. `zero` None leaves the
    sharding to be chosen. `accounting` is how its FLOP rates count attention and recompute: 'full'
    (all S positions), 'causal' (attended positions), 'hardware' (recompute counted, all positions).
    `whole_job_batch` marks tables whose micro-batch cell is that of all devices together.
    `mebibytes` marks programs that print MiB under the name MB; `tf32` those whose fp32 multiplies in
    TF32; `devices` is the count when a row does not say; `data_only` those that only divide
    data and sharded states; `interleaving_open` tables of tuned runs that leave out the virtual
    pipeline; `framework` names the habits of holding memory and launching kernels;
    `older_attention` is the attention kernel of its tables for devices before Hopper, where that
    differs; `single_micro_batch` runs without accumulation; `step_tokens` the batch [token] that
    the program's paper gives. `reason` says where this is known from.
    """

    name: str
    pattern: str
    reason: str
    precision: str = "bf16"
    half: str = ""
    attention_kernel: str = "flash"
    execution: str = "eager"
    optimizer: str = "adamw"
    zero: int | None = None
    sequence_parallel: bool = False
    overlap_gradients: bool = True
    overlap_weights: bool = True
    overlap_tensor: bool = False
    recompute: str | None = None
    accounting: str = "full"
    whole_job_batch: bool = False
    mebibytes: bool = False
    tf32: bool = False
    devices: int | None = None
    data_only: bool = False
    interleaving_open: bool = False
    single_micro_batch: bool = False
    step_tokens: int | None = None
    framework: str = "megatron"
    older_attention: str = ""


ENGINES: tuple[Engine, ...] = (
    Engine(
        name="Megatron-LM (2020)",
        pattern=r"megatron-lm.*2020",
        reason="README of September 2020: tensor and data parallel only, activation checkpointing on, fused softmax",
        precision="fp16",
        attention_kernel="unfused",
        execution="compiled",
        optimizer="adam",
        zero=0,
        overlap_gradients=False,
        overlap_weights=False,
        recompute="full",
        accounting="hardware",
    ),
    Engine(
        name="Megatron-LM (2021)",
        pattern=r"megatron-lm.*(?:2021|ptd-p)",
        reason="SC21 (arXiv:2104.04473): activation recompute, no sequence parallelism; eq. 3 counts recompute",
        precision="fp16",
        attention_kernel="unfused",
        execution="compiled",
        optimizer="adam",
        zero=0,
        overlap_gradients=False,
        overlap_weights=False,
        recompute="full",
        accounting="hardware",
    ),
    Engine(
        name="Megatron-LM (2022)",
        pattern=r"megatron-lm.*2022",
        reason="arXiv:2205.05198: fused unflashed attention; sequence parallelism is a choice of each row",
        precision="fp16",
        attention_kernel="unfused",
        execution="compiled",
        optimizer="adam",
        zero=0,
        overlap_gradients=False,
        overlap_weights=False,
    ),
    Engine(
        name="Megatron-Lite",
        pattern=r"^(?:mlite|mbridge|bridge)$",
        reason="Megatron-LM dev branch, experimental/lite README: distributed optimizer, fused kernels",
        execution="compiled",
        zero=1,
        sequence_parallel=True,
    ),
    Engine(
        name="Megatron-Bridge",
        pattern=r"megatron-bridge",
        reason="performance summary: tuned recipes, distributed optimizer, all overlaps on; fp8 unless stated",
        precision="fp8",
        execution="compiled",
        zero=1,
        sequence_parallel=True,
        overlap_tensor=True,
    ),
    Engine(
        name="NeMo",
        pattern=r"nemo",
        reason="NeMo recipes: distributed optimizer, sequence parallelism with tp, gradient, weight and tp overlap",
        precision="bf16",
        execution="compiled",
        zero=1,
        sequence_parallel=True,
        overlap_tensor=True,
    ),
    Engine(
        name="Megatron-Core (CI)",
        pattern=r"megatron-core \+ (?:te|local)",
        reason="Megatron-LM functional tests: overlap, sharding and sequence parallelism only where a flag says so",
        execution="compiled",
        optimizer="adam",
        zero=0,
        overlap_gradients=False,
        overlap_weights=False,
        recompute="none",
        devices=8,
    ),
    Engine(
        name="Megatron-DeepSpeed",
        pattern=r"megatron-deepspeed|megatron-lm \+ deepspeed|deepspeed \+ megatron",
        reason="arXiv:2201.11990 and DeepSpeed posts 2021-22: no sequence parallelism, fused unflashed attention",
        precision="fp16",
        attention_kernel="unfused",
        execution="compiled",
        optimizer="adam",
        zero=1,
        overlap_gradients=False,
        recompute="full",
        accounting="hardware",
    ),
    Engine(
        name="Megatron-Core",
        pattern=r"megatron|mcore|flagscale",
        reason="Megatron-Core since 2023: distributed optimizer, sequence parallelism with tp, overlaps on",
        execution="compiled",
        zero=1,
        sequence_parallel=True,
        overlap_tensor=True,
        interleaving_open=True,
    ),
    Engine(
        name="torchtitan",
        pattern=r"torchtitan",
        reason="README and configs: FSDP2, bf16 compute, fp32 reduce; torch.compile only where a row says compile",
        zero=3,
        sequence_parallel=True,
        framework="fsdp",
        attention_kernel="flash2",
    ),
    Engine(
        name="llm-foundry",
        pattern=r"llm-foundry|composer",
        reason="scripts/train/benchmarking: FSDP, flash attention, eager; mfu tables count recompute apart",
        zero=3,
        data_only=True,
        framework="fsdp",
        attention_kernel="flash1",
    ),
    Engine(
        name="torchtune (recipes)",
        pattern=r"torchtune.*(?:finetune|lora)",
        reason="single-device and distributed recipe configs: bf16 states, activation checkpointing, packed data",
        half="-pure",
        zero=3,
        optimizer="adamw-bf16",
        recompute="full",
        data_only=True,
        framework="fsdp",
        attention_kernel="flash2",
    ),
    Engine(
        name="torchtune",
        pattern=r"torchtune",
        reason="README: bf16 weights, gradients and optimizer states; FSDP2 on more than one device",
        half="-pure",
        zero=3,
        optimizer="adamw-bf16",
        data_only=True,
        recompute="none",
        framework="torch",
        attention_kernel="flash2",
    ),
    Engine(
        name="MaxText",
        pattern=r"maxtext",
        reason="MaxText configs: one compiled XLA program, weights sharded over the fsdp axis",
        execution="graph",
        zero=3,
        data_only=True,
        framework="fsdp",
    ),
    Engine(
        name="Levanter",
        pattern=r"levanter",
        reason="README: JAX, FSDP, bf16 compute with fp32 weights, gradient checkpointing of every block",
        execution="graph",
        zero=3,
        recompute="full",
        data_only=True,
        framework="fsdp",
    ),
    Engine(
        name="Pathways",
        pattern=r"pathways|t5x",
        reason="arXiv:2204.02311: XLA, two-way weight sharding, rematerialisation; hfu counts it",
        execution="graph",
        zero=3,
        recompute="full",
        framework="fsdp",
    ),
    Engine(
        name="DeepSpeed transformer kernel",
        pattern=r"deepspeed transformer kernel",
        reason="tutorial bert-finetuning: fp16 fine-tuning with fused, unflashed kernels, one device",
        devices=1,
        precision="fp16",
        attention_kernel="unfused",
        execution="compiled",
        zero=0,
        recompute="none",
        data_only=True,
        framework="deepspeed",
    ),
    Engine(
        name="ZeRO-Infinity",
        pattern=r"zero-infinity|zero-3 offload",
        reason="arXiv:2104.07857: fp16, stage 3, recompute of every block; its FLOP are 8 x tokens x parameters",
        precision="fp16",
        attention_kernel="unfused",
        zero=3,
        recompute="full",
        accounting="hardware",
        data_only=True,
    ),
    Engine(
        name="DeepSpeed",
        pattern=r"deepspeed|zero-infinity|ulysses|arctic",
        reason="DeepSpeed documentation: overlap_comm on, eager PyTorch modules; stage 3 where ZeRO is not stated",
        zero=3,
        data_only=True,
        framework="deepspeed",
    ),
    Engine(
        name="Colossal-AI",
        pattern=r"colossal",
        reason="performance evaluator of examples/language: FLOP formula with four passes, i.e. recompute counted",
        recompute="full",
        accounting="hardware",
        framework="fsdp",
        attention_kernel="flash2",
    ),
    Engine(
        name="BMTrain",
        pattern=r"bmtrain",
        reason="README: ZeRO-3 with recomputation, fused unflashed attention (2022)",
        precision="fp16",
        attention_kernel="unfused",
        zero=3,
        recompute="full",
        data_only=True,
        framework="deepspeed",
    ),
    Engine(
        name="Galvatron",
        pattern=r"galvatron",
        reason="profiler on Megatron layers, states fully sharded (default_dp_type); bytes / 2**20 under the name MB",
        zero=3,
        sequence_parallel=True,
        execution="compiled",
        recompute="none",
        mebibytes=True,
        single_micro_batch=True,
    ),
    Engine(
        name="PaddlePaddle",
        pattern=r"paddle",
        reason="PaddleNLP run scripts: O2 keeps an fp32 master; flash attention where a row says so",
        precision="fp16",
        attention_kernel="unfused",
        execution="compiled",
        zero=0,
        recompute="none",
        framework="deepspeed",
    ),
    Engine(
        name="NGC DeepLearningExamples (Lambda)",
        pattern=r"pytorch ngc",
        reason="lambdal/deeplearning-benchmark: DDP with apex AMP; the batch column grows with the device count",
        precision="tf32",
        half="-amp",
        attention_kernel="unfused",
        zero=0,
        recompute="none",
        whole_job_batch=True,
        tf32=True,
        data_only=True,
        framework="ddp",
    ),
    Engine(
        name="MLPerf (NVIDIA code)",
        pattern=r"ngc|nvidia|mxnet|hugectr|dgl|merlin|rocm|llmboost|pytorch [\d.]+\w*$|nccl",
        reason="MLPerf training code: CUDA graphs, distributed optimizer, all overlaps on; fp8 from Hopper on",
        precision="mlperf",
        execution="graph",
        sequence_parallel=True,
        overlap_tensor=True,
        interleaving_open=True,
        zero=1,
    ),
    Engine(
        name="TensorFlow",
        pattern=r"tensorflow",
        reason="DeepLearningExamples TensorFlow2: Horovod data parallel, XLA, unfused attention, AMP",
        precision="tf32",
        half="-amp",
        attention_kernel="unfused",
        execution="compiled",
        zero=0,
        recompute="none",
        tf32=True,
        data_only=True,
        framework="ddp",
    ),
    Engine(
        name="Hugging Face",
        pattern=r"hugging ?face|\bhf\b|peft|qlora|lora\b|full finetuning|full 16-bit|galore",
        reason="transformers Trainer: eager modules, autocast, data parallel",
        half="-amp",
        precision="bf16-amp",
        zero=0,
        recompute="none",
        devices=1,
        data_only=True,
        framework="torch",
        attention_kernel="flash2",
    ),
    Engine(
        name="Meta",
        pattern=r"meta in-house|in-house|xformers",
        reason="arXiv:2302.13971 (2048 devices, 4M tokens a step): memory-efficient attention, sharded states",
        devices=2048,
        sequence_parallel=True,
        execution="compiled",
        zero=3,
        interleaving_open=True,
        step_tokens=4_000_000,
        framework="fsdp",
        attention_kernel="flash2",
    ),
    Engine(
        name="MegaScale",
        pattern=r"megascale",
        reason="arXiv:2402.15627: Megatron-LM with all overlaps, flash attention",
        execution="compiled",
        zero=1,
        sequence_parallel=True,
        overlap_tensor=True,
        interleaving_open=True,
    ),
    Engine(
        name="PyTorch",
        pattern=r"pytorch|torch\b",
        reason="plain PyTorch of an NGC container: eager, data parallel, unfused attention, TF32 allowed",
        precision="fp32",
        half="-amp",
        attention_kernel="unfused",
        zero=0,
        recompute="none",
        tf32=True,
        data_only=True,
        framework="torch",
    ),
)

EARLY_SOURCES = r"arXiv:(?:1\d|20|21|220[1-4])\d*\.|bigscience-workshop|BMTrain|DeepLearningExamples"
"""Sources that ran before FlashAttention (May 2022) was in training programs."""

UNKNOWN = Engine(
    name="not stated",
    pattern="",
    reason="engine not in the table of conventions: eager execution, flash attention, bf16 with fp32 master (assumed)",
    framework="torch",
    attention_kernel="flash2",
)


def find_engine(text: str, source: str = "") -> Engine:
    """The conventions of the program that an engine cell names; MLPerf is told by its source.

    'Megatron-LM' without a year is the program of the source's time: early where the source is.
    """
    if "mlcommons/training_results" in source and not re.search(r"maxtext|nemo framework", text, re.IGNORECASE):
        return next(engine for engine in ENGINES if engine.precision == "mlperf")
    if re.fullmatch(r"megatron-lm", text.strip(), re.IGNORECASE) and re.search(EARLY_SOURCES, source):
        text += " 2021"
    for engine in ENGINES:
        if re.search(engine.pattern, text, re.IGNORECASE):
            return engine
    return UNKNOWN
