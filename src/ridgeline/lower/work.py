"""What one rank must do for one micro-batch of one block: sharded shapes and collectives.

Every number may be a scalar or a NumPy array over plans; arrays broadcast. Shape letters: T tokens
of a micro-batch on one context shard, S sequence, B micro-batch, D hidden, H heads, K kv heads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.seams.context import ContextStyle, Leaving, context_style
from ridgeline.seams.registry import each_name

Number = float | NDArray[Any]


class Phase(Enum):
    """When a piece of work runs."""

    FORWARD = "forward"
    BACKWARD_INPUT = "backward_input"  # gradients of activations
    BACKWARD_WEIGHT = "backward_weight"  # gradients of weights
    RECOMPUTE = "recompute"  # forward work repeated in backward


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The degrees that decide a rank's share; each may be an array over plans."""

    tp: Number = 1
    cp: Number = 1
    ep: Number = 1
    etp: Number = 1
    sequence_parallel: Number = 0  # 0 or 1
    context: str | NDArray[np.str_] = "ring"  # style of context parallelism
    micro_batch: Number = 1
    overlap_tensor: Number = 0  # 0 or 1

    @property
    def styles(self) -> tuple[tuple[ContextStyle, NDArray[np.bool_]], ...]:
        """Each style of context parallelism that a plan has, and which plans have it."""
        return tuple((context_style(name), chosen) for name, chosen in each_name(self.context))

    def with_style(self, asked: Callable[[ContextStyle], bool]) -> NDArray[np.bool_]:
        """Whether a plan's style of context parallelism is one that is asked for."""
        return reduce(np.logical_or, (chosen & asked(style) for style, chosen in self.styles))

    def tokens(self, seq_len: float) -> Number:
        """T, tokens of one micro-batch on one context shard [token]."""
        return self.micro_batch * seq_len / self.cp

    def sequence_tokens(self, seq_len: float) -> Number:
        """Tokens of a SEQUENCE-region tensor on one rank [token]."""
        return self.tokens(seq_len) / np.where(self.sequence_parallel, self.tp, 1)

    def expert_rows(self, seq_len: float, top_k: int) -> Number:
        """Rows that reach one rank's experts when routing is balanced [token].

        ep * etp ranks bring T / tp tokens each, every token goes to top_k experts, and the rows of
        an expert are seen by its etp ranks: ep * etp * T / tp * top_k / ep.
        """
        return self.tokens(seq_len) * top_k * self.etp / self.tp


@dataclass(frozen=True, kw_only=True)
class Gemm:
    """`count` products of (m, k) by (k, n); `uneven` where tokens choose how many of them each has, m on average.

    `operand_bytes` is the size of one element of the two inputs, `output_bytes` of the result;
    `accumulate` reads the result before writing it (gradient accumulation into fp32). Each element that memory gives of
    the (m, k) operand is used `taps` times (the points of a convolution's filter). All of it is done `steps` times, one
    after another. A `direct` convolution is no product: each thread loads both factors of each multiplication;
    where a group has one filter, so many `loads`. `routed` are rows of experts, as of `Stream`.
    """

    name: str
    phase: Phase
    m: Number
    n: Number
    k: Number
    count: Number = 1
    output_bytes: float = 2.0
    accumulate: bool = False
    quantized: bool = False  # operands are in the compute format, narrower than others
    cast_layouts: int = 2  # layouts in which the first operand is cast to it first: 0 where something else wrote it so
    weight_rows: Number = 0  # k * n elements dequantized before use (QLoRA), else 0
    kernels: float = 1.0
    taps: float = 1.0
    steps: float = 1.0
    direct: bool = False
    loads: float = 1.0
    routed: bool = False
    uneven: bool = False
    together: float = 0.0  # routed products on the device at a time; 0: all of them, as one kernel
    captured: bool = False  # replayed as part of a CUDA graph
    form: str = ""  # its number format in place of the workload's; one that begins with '-' ends the workload's own

    def piece(self, share: float) -> Gemm:
        """The same for a share of its rows."""
        return replace(self, m=self.m * share)


@dataclass(frozen=True, kw_only=True)
class Attention:
    """The attention core: `sequences` x `heads` independent score matrices of q x kv tokens.

    `mean_context` is the mean number of keys that one query attends to, masks applied. Where it is not `fused`, a
    program may still scale, mask and normalise scores in one kernel, or do each in its own (`chained`), and then drop
    some (`dropout`); or all of it is operators of PyTorch one by one (`plain`).
    """

    name: str
    phase: Phase
    sequences: Number
    heads: Number
    kv_heads: Number
    q_tokens: Number
    kv_tokens: Number
    mean_context: Number
    qk_dim: int
    v_dim: int
    fused: bool
    chained: bool = False
    plain: bool = False
    dropout: bool = False
    kernels: float = 1.0
    captured: bool = False


@dataclass(frozen=True, kw_only=True)
class Stream:
    """Work bound by memory traffic: `bytes` through HBM, `flop` on the vector (or `matrix`) units.

    `calls` of collectives go with it, of so few bytes that only their issue takes time. A `function` that programs have
    a call for makes so many `elements`; a lookup's backward makes the gradient of a whole `table` of so many.
    """

    name: str
    phase: Phase
    bytes: Number
    flop: Number = 0.0
    matrix: bool = False
    kernels: Number = 1.0
    calls: float = 0.0
    function: str = ""
    elements: Number = 0.0
    table: Number = 0.0
    routed: bool = False
    captured: bool = False

    def piece(self, share: float) -> Stream:
        """The same for a share of its rows."""
        return replace(self, bytes=self.bytes * share, flop=self.flop * share, elements=self.elements * share)


class CollectiveKind(Enum):
    """Collective operations; `bytes` is the whole buffer of one rank (nccl-tests convention)."""

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_TO_ALL = "all_to_all"
    SEND = "send"


@dataclass(frozen=True, kw_only=True)
class Collective:
    """A collective over `ranks` ranks that are `stride` devices apart.

    `hidden_behind` names the work it may overlap with: '' none (exposed), 'attention' (ring context
    parallel), 'gemm' (pipelined tensor parallel, when the layout asks for it). `leaving` as of
    `seams.context.Exchange`: over which network cards ranks of a node reach the next.
    """

    name: str
    phase: Phase
    kind: CollectiveKind
    bytes: Number
    ranks: Number
    stride: Number
    repeats: float = 1.0
    hidden_behind: str = ""
    hidden: Number = 1  # 0 or 1: whether it does hide there
    copies: float = 0.0  # of each row in an all-to-all that goes to a node once, and there to its ranks; 0: each apart
    nodes_chosen: float = 1.0  # share of the nodes that the copies of one row may go to
    leaving: Leaving | None = None


Work = Gemm | Attention | Stream | Collective
