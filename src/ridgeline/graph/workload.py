"""What is asked of the model: training workloads, as choices of the person, not of the planner."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from ridgeline.errors import WorkloadError
from ridgeline.facts.records import SPARSE

if TYPE_CHECKING:
    from ridgeline.facts.frameworks import FrameworkPolicy


class Task(Enum):
    """What is trained."""

    PRETRAIN = "pretrain"
    FULL = "full"  # full fine-tuning
    LORA = "lora"
    QLORA = "qlora"


POST_TASKS = ("grpo", "ppo", "dpo", "sft", "reward")
"""Tasks of post-training, which have a scenario of their own."""


@dataclass(frozen=True, kw_only=True)
class Precision:
    """Bytes and matrix rates of one training recipe.

    `compute` names the matrix rate used by the large GEMMs; `attention` that of the attention
    core; `weight_bytes` the copy that is computed with and gathered; `grad_bytes` the gradient
    that is accumulated and reduced; `master_bytes` a separate fp32 master copy (0 if none).
    `quantize` marks recipes that cast GEMM operands on the fly (fp8, mxfp8, int8, nvfp4).
    """

    name: str
    compute: str
    attention: str
    activation_bytes: float
    weight_bytes: float
    grad_bytes: float
    master_bytes: float
    quantize: bool = False


def _recipe(
    name: str, compute: str, attention: str, sizes: tuple[int, int, int, int], *, quantize: bool = False
) -> Precision:
    """A recipe; `sizes` are bytes of activations, weights, gradients and master copies."""
    activation, weight, grad, master = sizes
    return Precision(
        name=name, compute=compute, attention=attention, activation_bytes=activation, weight_bytes=weight,
        grad_bytes=grad, master_bytes=master, quantize=quantize,
    )  # fmt: skip


PRECISIONS: dict[str, Precision] = {
    each.name: each
    for each in (
        _recipe("fp32", "fp32", "fp32", (4, 4, 4, 0)),
        _recipe("tf32", "tf32", "tf32", (4, 4, 4, 0)),
        _recipe("fp16", "fp16", "fp16", (2, 2, 4, 4)),
        _recipe("bf16", "bf16", "bf16", (2, 2, 4, 4)),
        _recipe("bf16-pure", "bf16", "bf16", (2, 2, 2, 0)),
        _recipe("fp16-amp", "fp16", "fp16", (2, 4, 4, 0)),
        _recipe("bf16-amp", "bf16", "bf16", (2, 4, 4, 0)),
        _recipe("fp8", "fp8", "bf16", (2, 2, 4, 4), quantize=True),
        _recipe("mxfp8", "fp8", "bf16", (2, 2, 4, 4), quantize=True),
        _recipe("int8", "int8", "bf16", (2, 2, 4, 4), quantize=True),
        _recipe("nvfp4", "fp4", "bf16", (2, 2, 4, 4), quantize=True),
    )
}


_INSTEAD = {"tf32": ("fp32",), "bf16": ("fp16", "fp32"), "fp16": ("bf16", "fp32"), "fp8": ("bf16", "fp16")}
"""Formats that programs multiply in where a device lacks one, the first that it has. Source: PyTorch,
docs/source/notes/cuda.rst (TF32 is of Ampere and later) and torch/amp (fp16 is its default on GPUs)."""


def instead(dtype: str, known: Collection[str]) -> str:
    """The format that programs take where a device multiplies none of `dtype`; '' where nothing is usual."""
    return next((word for word in _INSTEAD.get(dtype, ()) if word in known), "")


def without_rate(name: str, dtype: str, known: Collection[str]) -> str:
    """What is said of a device that multiplies no numbers of a format: what programs take there, and all it has."""
    if not known:
        return f"{name} has no published matrix rate; describe it in a file with yours: --on FILE.toml"
    dense = sorted(word for word in known if not word.endswith(SPARSE))
    usual = dtype.removesuffix(SPARSE) if dtype.removesuffix(SPARSE) in known else instead(dtype, known)
    return f"{name} has no {dtype} matrix rate; {f'nearest: {usual}; ' if usual else ''}it has {', '.join(dense)}"


PRICED_AS = "Megatron-LM"
"""The framework whose behaviours a job is priced with where none is asked."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A training job: what is trained, on how many tokens, in what shape and precision.

    `seq_len` S [tokens], `global_batch` [sequences per optimizer step], `tokens` of the whole run
    (None when only the step is asked). `mean_document` [tokens] is the mean length of the packed
    documents that attention may not cross (None: attention spans the sequence). `padding` is the
    share of positions that carry no token when sequences are padded, not packed [1]. `unpredicted` is the share of
    positions that the head leaves out: a masked language model needs logits of masked positions alone [1].
    A `framework` that is a policy is a program's own, such as that of a measured run: it prices, and refuses no plan.
    `expert_capacity` is the rows that each expert computes over its share under balanced routing: experts of a fixed
    capacity compute padding, and drop what is beyond it [1]. `expert_choice` is how a router balances experts,
    `expert_dispatch` how tokens reach those of other ranks, `expert_modules` whether a rank's experts are one module
    or one each, as Megatron-LM offers them. `captured` is what a CUDA graph replays of a layer with experts: its
    router, attention and router, or all of it, where experts have a fixed number of rows.
    """

    task: Task = Task.PRETRAIN
    seq_len: int
    global_batch: int
    tokens: int | None = None
    precision: str = "bf16"
    optimizer: str = "adamw"
    mean_document: float | None = None
    lengths: str = ""  # sequences are of unlike lengths: a law or a file (`facts.lengths`); '' all of seq_len
    padding: float = 0.0
    unpredicted: float = 0.0
    expert_capacity: float = 1.0
    expert_choice: str = "top"  # 'top' scores, or 'sinkhorn' (repeated until rows and columns are balanced)
    expert_dispatch: str = "alltoall"  # 'allgather': each rank gathers all tokens; 'deepep', 'hybridep': once a node
    expert_modules: str = "grouped"  # or 'single'
    captured: str = "none"  # CUDA graphs up to the 'router', from 'attention' on, or of the whole 'layer'
    encoder_seq_len: int | None = None
    lora_rank: int = 16
    lora_targets: str = "all"  # 'all' linear layers, those of 'attention' or 'qkv' alone
    lora_dropout: bool = False  # whether adapters drop elements of their inputs
    attention_kernel: str = "flash"  # 'flash' (the device's best), 'flash1', 'flash2' or 'unfused'
    execution: str = "compiled"  # 'eager', 'compiled' or 'graph': how kernels are launched
    framework: str | FrameworkPolicy = ""  # NAME or NAME@VERSION: plans that it runs; '' any, priced as PRICED_AS
    fused_optimizer: bool = True  # one pass over the states, or one for each operation of the update
    looped_optimizer: bool = False  # weights are updated one after another, each operation launched for each of them
    counts_zeros: bool = False  # zeros of every gradient are counted each step (Megatron-LM's --log-num-zeros-in-grad)

    def __post_init__(self) -> None:
        for name in ("seq_len", "global_batch", "lora_rank"):
            value = getattr(self, name)
            if value < 1:
                raise WorkloadError(f"workload: {name} = {value}, needs >= 1")
        if self.tokens is not None and self.tokens < 1:
            raise WorkloadError(f"workload: tokens = {self.tokens}, needs >= 1")
        if not 0.0 <= self.padding < 1.0:
            raise WorkloadError(f"workload: padding = {self.padding}, needs 0 <= padding < 1 (a share)")
        if not 0.0 <= self.unpredicted <= 1.0:
            raise WorkloadError(f"workload: unpredicted = {self.unpredicted}, needs 0 <= unpredicted <= 1 (a share)")
        if not self.expert_capacity > 0.0:
            raise WorkloadError(f"workload: expert_capacity = {self.expert_capacity}, needs > 0 (1 is balanced)")
        if self.mean_document is not None and self.mean_document < 1:
            raise WorkloadError(f"workload: mean_document = {self.mean_document}, needs >= 1 token")

    @property
    def policy(self) -> FrameworkPolicy:
        """What the training framework does; raises `UnknownNameError` for an unknown one."""
        from ridgeline.facts.frameworks import framework_policy

        named = self.framework
        return framework_policy(named or PRICED_AS) if isinstance(named, str) else named

    @property
    def held_to_framework(self) -> bool:
        """Whether plans must be such as the framework runs: it was asked for by name."""
        return isinstance(self.framework, str) and bool(self.framework)

    @property
    def step_tokens(self) -> int:
        """Tokens of one optimizer step, padding positions included [token]."""
        return self.global_batch * self.seq_len
