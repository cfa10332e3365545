"""What is computed: operators with shapes, and how a layer's operators stand to each other.

Shape letters: T tokens, S sequence, D hidden, H heads, K kv heads, F ffn, V vocabulary, E experts,
L layers. Shapes are those of the whole, undivided model; degrees and ranks belong to `lower`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


class OpKind(Enum):
    """How an operator spends time; each has one mechanism in `cost`."""

    GEMM = "gemm"
    GROUPED_GEMM = "grouped_gemm"  # one gemm per expert, uneven rows
    ATTENTION = "attention"  # scores, softmax and weighted sum, fused or not
    ELEMENTWISE = "elementwise"  # norms, activations, rotary, residuals, casts: bound by bytes
    EMBEDDING = "embedding"  # gather of rows
    CROSS_ENTROPY = "cross_entropy"  # softmax and loss over the vocabulary
    PERMUTE = "permute"  # tokens to experts and back
    SCAN = "scan"  # state-space or linear attention recurrence


class Region(Enum):
    """Which tokens and which part of the width one rank holds when tensor parallelism is on.

    SEQUENCE: whole width; tokens divided by tp if sequence parallel is on, else repeated.
    TENSOR:   all tokens of the rank's context shard; width (heads or ffn) divided by tp.
    VOCAB:    all tokens; vocabulary divided by tp.
    EXPERT:   tokens * top_k, spread over the expert-parallel group; width divided by etp.
    """

    SEQUENCE = "sequence"
    TENSOR = "tensor"
    VOCAB = "vocab"
    EXPERT = "expert"


class Split(Enum):
    """How a weight is divided over the tensor-parallel group (or the expert-tensor group)."""

    NONE = "none"  # repeated on every rank
    COLUMN = "column"  # n divided
    ROW = "row"  # k divided


@dataclass(frozen=True, kw_only=True)
class Saved:
    """A tensor kept from forward to backward: `elements` per token of `region`, whole width.

    `element_bytes` is None for the activation dtype. `role` says which recompute policies drop it:
    'core' (attention scores, dropped by selective recompute), 'input' (a layer's input, kept even
    by full recompute), 'mlp' (the activation function's input), 'norm', 'logits', or ''.
    `times_seq` tensors have `elements` per token and attended position (attention scores).
    `kernel` names the attention kernel that keeps it, 'flash' or 'unfused'; '' when both do.
    """

    elements: float
    region: Region
    element_bytes: float | None = None
    role: str = ""
    times_seq: bool = False
    kernel: str = ""


@dataclass(frozen=True, kw_only=True)
class Op:
    """One operator of one layer, with the shapes of the undivided model.

    GEMM and GROUPED_GEMM: a (k, n) weight applied to T rows (T * top_k rows spread over the
    experts for GROUPED_GEMM; the weight exists once per expert). ATTENTION: `heads`, `kv_heads`,
    `qk_dim`, `v_dim`, `causal`, `window` (tokens seen by one query at most, None for all), `chunk`
    (queries see their own chunk only), `top` (of the tokens seen, the best by an indexer), or with a `ratio` the last
    `near` tokens and entries of those before them, of which `top` where any are chosen.
    ELEMENTWISE and PERMUTE: `read` and `write` elements per token at the whole width, and the same
    for backward. EMBEDDING: `n` rows of width `k`; a sparse one has `read`, `write` and
    the like too, those of rows in the format of weights. CROSS_ENTROPY: vocabulary `n`. SCAN:
    `flop_per_token`, `read`/`write` and `handed`.
    """

    name: str
    kind: OpKind
    region: Region
    k: int = 0
    n: int = 0
    split: Split = Split.NONE
    heads: int = 0
    kv_heads: int = 0
    qk_dim: int = 0
    v_dim: int = 0
    causal: bool = True
    window: int | None = None
    chunk: int | None = None
    top: int | None = None  # keys that a query attends to at most, the best of all by the indexer's score
    index_heads: int = 0  # heads of the indexer, `index_dim` wide; all of them on every tensor rank
    index_dim: int = 0
    ratio: int | None = None  # tokens of one entry that stands for keys before the last `near` (0: there are none)
    near: int = 0
    cross: bool = (
        False  # keys and values come from the encoder; a GEMM so marked, and what it saves, count encoder tokens
    )
    read: float = 0.0
    write: float = 0.0
    backward_read: float = 0.0
    backward_write: float = 0.0
    flop_per_token: float = 0.0  # forward, for SCAN and anything the shapes do not say
    handed: float = 0.0  # bytes a token that kernels of a chunked SCAN write for each other and read again, forward
    params: int = 0  # trainable numbers of one copy (one expert for GROUPED_GEMM), bias included
    params_split: bool = False  # divided over tp (or etp), else repeated on every rank
    shared_params: str | None = None  # name of the op whose weight this one reuses (tied head)
    saved: tuple[Saved, ...] = ()
    kernels: int = 1  # launches in forward, eager mode
    lora: bool = False  # a LoRA adapter may be attached to this weight
    rows: float = 1.0  # rows of a GEMM, queries of an attention for each token: the output pixels of an image's layer
    positions: int = (
        0  # keys of an attention that are not the sequence: an image's pixels or its words, a memory before it
    )
    taps: int = 1  # points of a convolution's filter; k counts the channels of one group at all of them
    stride: int = 1  # pixels between outputs of a convolution, in all directions
    axes: int = 2  # directions of a convolution: 2 of an image, 3 of a volume
    groups: int = 1  # products of (k, n) beside each other, on channels of their own
    loads: float = (
        1.0  # of memory for a multiplication where each group has one filter: the input's, perhaps the filter's
    )
    direct: bool = False  # groups that no kernel makes a product of: each point of each output is multiplied by itself
    steps: float = 1.0  # products of (k, n) that wait for each other: those of a recurrence over a sequence
    leaf: bool = False  # the input is data: it gets no gradient
    rides: bool = False  # a sum or a copy that an engine's graph does inside the kernels around it
    frozen: bool = False  # computed forward alone: neither it nor anything before it is trained
    sparse: bool = False  # a table that lies in parts on all devices, its rows updated where they were looked up
    wide: bool = False  # engines keep its weight in 32 bits and widen its input, whatever format they serve
    function: str = ""  # what an element-wise operator computes, where programs have a call for it
    parts: int = 1  # linear layers that this GEMM merges, e.g. 3 for q, k and v; each gets its own adapter


@dataclass(frozen=True, kw_only=True)
class Boundary:
    """A place where a block's activations enter and leave a divided region.

    'tensor': an all-gather/reduce-scatter pair with sequence parallel, one all-reduce without, of
    `width` elements per token, in forward and again in backward. 'expert': dispatch and combine
    all-to-all of `width` elements per token and selected expert. 'tables': an all-to-all of `width` elements per token
    from the devices that hold them, and back of their gradients.
    """

    kind: str
    width: int


@dataclass(frozen=True, kw_only=True)
class Block:
    """One kind of layer, stored once and repeated; `ops` in execution order."""

    name: str
    ops: tuple[Op, ...]
    boundaries: tuple[Boundary, ...]
    experts: int = 0
    top_k: int = 0
    shared_experts: int = 0
    encoder: bool = False  # runs over the encoder's tokens in an encoder-decoder

    @property
    def params(self) -> int:
        """Trainable numbers of one such layer, all experts counted [1]."""
        return sum(op_params(op, self.experts) for op in self.ops)

    @property
    def active_params(self) -> int:
        """Trainable numbers that one token passes through [1]."""
        return sum(op_params(op, self.top_k) for op in self.ops)


def op_params(op: Op, experts: int) -> int:
    """Trainable numbers of an op when `experts` copies of an expert weight are counted [1]."""
    if op.shared_params is not None:
        return 0
    return op.params * (experts if op.region is Region.EXPERT else 1)


@dataclass(frozen=True, kw_only=True)
class Graph:
    """A model's computation: blocks stored once, the order of layers, and the two ends.

    `embedding` runs before the first layer, `head` after the last (final norm, logits, loss).
    """

    blocks: Mapping[str, Block]
    layers: tuple[str, ...]  # block name of each layer, in order
    embedding: tuple[Op, ...]
    head: tuple[Op, ...]
    hidden: int  # D, the width that crosses a pipeline cut
    vocab: int
    tied_embeddings: bool

    @property
    def params(self) -> int:
        """All trainable numbers [1]."""
        return self._ends() + sum(self.blocks[name].params * count for name, count in Counter(self.layers).items())

    @property
    def active_params(self) -> int:
        """Trainable numbers that one token passes through, the embedding table included [1]."""
        return self._ends() + sum(
            self.blocks[name].active_params * count for name, count in Counter(self.layers).items()
        )

    def _ends(self) -> int:
        return sum(op_params(op, 1) for op in (*self.embedding, *self.head))


SAMPLE = "tokens_per_sample"
"""The dimension of a network that says how many tokens one sample counts: one for an image, the words of a sentence."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """An architecture: its name, where its dimensions come from, and its graph."""

    name: str
    model_type: str
    graph: Graph
    max_positions: int | None
    source: str
    dims: Mapping[str, float | int | str | bool | None] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    config: Mapping[str, object] = field(default_factory=dict, repr=False, compare=False)  # what it was built from
    techniques: tuple[str, ...] = ()  # those that were put in place in its graph
