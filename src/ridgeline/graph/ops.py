"""What is computed: operators with shapes.

Shape letters: T tokens, S sequence, D hidden, H heads, K kv heads, F ffn, V vocabulary, E experts,
L layers. Shapes are those of the whole, undivided model; degrees and ranks belong to `lower`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar


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


class OpRole(Enum):
    """What a product or a norm is in its layer, where shapes do not tell."""

    OTHER = "other"
    QKV = "qkv"  # queries, keys and values by one product
    QUERY_DOWN = "query_down"  # into the low rank of queries, and out of it
    QUERY_UP = "query_up"
    KEY_DOWN = "key_down"  # into what is cached: a latent, or the one key of all heads
    KEY_UP = "key_up"
    INDEX = "index"  # of an indexer, whose kernels are those of the sparse core
    INDEX_HEADS = "index_heads"  # queries of an indexer with a head for each key head, which choose blocks of keys
    INDEX_KEY = "index_key"
    OUTPUT_GROUPS = "output_groups"  # attention's results by groups of heads into a low rank
    OUTPUT = "output"  # attention's last
    UP = "up"  # a feed-forward's first, with its gate, and its last
    DOWN = "down"
    SHARED_UP = "shared_up"  # those of the shared expert
    SHARED_DOWN = "shared_down"
    WIDTH = "width"  # between the residual's width and that of routed experts
    ROUTER = "router"
    SHARED_GATE = "shared_gate"
    ENTRY = "entry"  # the norm of what the parts of a layer have added to the residual
    QUERY_KEY = "query_key"  # the norm of queries and keys

    @property
    def shared(self) -> bool:
        """Whether it belongs to the shared expert."""
        return self in (OpRole.SHARED_UP, OpRole.SHARED_DOWN, OpRole.SHARED_GATE)

    @property
    def feeds(self) -> bool:
        """Whether it belongs to the feed-forward, not to attention."""
        return self.shared or self in (OpRole.UP, OpRole.DOWN, OpRole.WIDTH, OpRole.ROUTER)


class Keys(Enum):
    """What an attention keeps of each token for later ones."""

    HEADS = "heads"  # keys and values of each key head: MHA, GQA, MQA
    LATENT = "latent"  # one latent vector of all heads (MLA)
    ENTRIES = "entries"  # the last keys, and entries that stand for those before (DeepSeek-V4)
    BLOCKS = "blocks"  # keys and values, and an index key by which blocks of them are chosen (MiniMax-M3)


@dataclass(frozen=True, kw_only=True)
class Op:
    """One operator of one layer, with the shapes of the undivided model; its `name` is a label for reports.

    `params` are the trainable numbers of one copy (one expert of experts), bias included [1].
    """

    name: str
    region: Region
    params: int = 0
    params_split: bool = False  # divided over tp (or etp), else repeated on every rank
    tied: bool = False  # its weight is the table of tokens
    saved: tuple[Saved, ...] = ()
    kernels: int = 1  # launches in forward, eager mode
    frozen: bool = False  # computed forward alone: neither it nor anything before it is trained


@dataclass(frozen=True, kw_only=True)
class WeightPasses:
    """What every forward makes of a weight before it is multiplied, and backward reads for gradients of how.

    Of each number `forward_bytes` go through memory beside the weight as it is read, and `backward_bytes` beside its
    gradient [byte]; `held_bytes` of them wait from forward to backward [byte].
    """

    forward_bytes: float
    backward_bytes: float = 0.0
    held_bytes: float = 0.0
    kernels: int = 1


@dataclass(frozen=True, kw_only=True)
class ProductFormats:
    """Number formats of one product in place of the workload's, by pass, and what holding them so takes.

    `forward`, `inputs` (the gradient of its input) and `weights` (that of its weight) are formats by name; one that
    begins with '-' ends the workload's own (`facts.records.SPARSE`), '' is the workload's own. Bytes: `held_bytes` are
    held of each weight in place of the workload's copy of it (None: that), `beside_bytes` besides, `update_bytes` moved
    of each in an update, `gradient_bytes` of each number of the incoming gradient in a backward.
    """

    forward: str = ""
    inputs: str = ""
    weights: str = ""
    held_bytes: float | None = None
    beside_bytes: float = 0.0
    update_bytes: float = 0.0
    gradient_bytes: float = 0.0

    def more_bytes(self, width: float) -> float:
        """Bytes held of each weight over the workload's copy of `width` bytes [byte]; below 0 where they are fewer."""
        return self.beside_bytes + (0.0 if self.held_bytes is None else self.held_bytes - width)


@dataclass(frozen=True, kw_only=True)
class LinearOp(Op):
    """A (k, n) weight applied to rows, perhaps of several linear layers merged (`parts`: each gets its own adapter).

    What is marked `cross` counts encoder tokens, as does what it saves. A `constant` one multiplies data, not a weight:
    only its input gets a gradient. An `adapter` is trained beside frozen weights. A `plain` one is multiplied in the
    format of activations where a recipe casts others to a narrower one. `made` is what is made of its weight first.
    """

    k: int
    n: int
    split: Split = Split.NONE
    lora: bool = False  # a LoRA adapter may be attached to this weight
    adapter: bool = False
    parts: int = 1
    cross: bool = False
    constant: bool = False
    plain: bool = False
    made: WeightPasses | None = None
    formats: ProductFormats = ProductFormats()


@dataclass(frozen=True, kw_only=True)
class GemmOp(LinearOp):
    """A product of every token with one weight."""

    role: OpRole = OpRole.OTHER
    wide: bool = False  # engines keep its weight in 32 bits and widen its input, whatever format they serve


@dataclass(frozen=True, kw_only=True)
class ConvolutionOp(GemmOp):
    """A product of `rows` output pixels for each token with a filter of `taps` points; k counts a group at all of them.

    Other rows than tokens are of this type too: one point for the pixels of an image or for a share of the tokens.
    """

    rows: float = 1.0
    taps: int = 1
    stride: int = 1  # pixels between outputs, in all directions
    axes: int = 2  # directions: 2 of an image, 3 of a volume
    groups: int = 1  # products of (k, n) beside each other, on channels of their own
    loads: float = 1.0  # of memory for a multiplication where each group has one filter: input's, perhaps filter's
    direct: bool = False  # groups of which no kernel makes a product: each point of each output by itself
    leaf: bool = False  # the input is data: it gets no gradient

    @property
    def pixelwise(self) -> bool:
        """Whether it is more than a product of every token: of one pixel it is none."""
        return self.rows != 1 or self.leaf


@dataclass(frozen=True, kw_only=True)
class RecurrentOp(GemmOp):
    """Products of a state that wait for each other: `steps` of `rows` for each token."""

    rows: float = 1.0
    steps: float = 1.0


@dataclass(frozen=True, kw_only=True)
class GroupedGemmOp(LinearOp):
    """One product for each expert on the rows that are routed to it; `gated` where it makes gates and ups."""

    gated: bool = False


@dataclass(frozen=True, kw_only=True)
class AttentionOp(Op):
    """Scores, softmax and weighted sum, fused or not.

    A query sees `window` tokens at most, with a `chunk` those of its own chunk; of the tokens seen, the `top` by an
    indexer's score; or with a `ratio` the last `near` tokens and an entry for each `ratio` of those before (0: none),
    of which `top` where any are chosen. None is no limit.
    """

    heads: int
    kv_heads: int
    qk_dim: int
    v_dim: int
    keys: Keys = Keys.HEADS
    causal: bool = True
    window: int | None = None
    chunk: int | None = None
    top: int | None = None
    index_heads: int = 0  # heads of the indexer, `index_dim` wide; all of them on every tensor rank
    index_dim: int = 0
    ratio: int | None = None
    near: int = 0
    cross: bool = False  # keys and values come from the encoder
    borrowed: bool = False  # keys and values are those that a layer before has kept
    rows: float = 1.0  # queries for each token: the pixels of an image
    positions: int = 0  # keys that are not the sequence: an image's pixels or its words, a memory before it

    @property
    def latent(self) -> bool:
        """Whether it keeps one latent vector a token for all heads."""
        return self.keys is Keys.LATENT


@dataclass(frozen=True, kw_only=True)
class ElementwiseOp(Op):
    """Bound by bytes: elements read and written per token at the whole width, forward and backward."""

    read: float = 0.0
    write: float = 0.0
    backward_read: float = 0.0
    backward_write: float = 0.0
    flop_per_token: float = 0.0  # forward, where they are more than bytes
    function: str = ""  # what it computes, where programs have a call for it
    pieces: int = 1  # of its rows, each with kernels of its own
    rides: bool = False  # a sum or a copy that an engine's graph does inside the kernels around it


Pass = TypeVar("Pass", bound=ElementwiseOp)


def passing(
    kind: type[Pass],
    name: str,
    read: float,
    write: float,
    backward_read: float | None = None,
    backward_write: float | None = None,
    *,
    region: Region = Region.TENSOR,
    kept: float = 0.0,
    **more: Any,
) -> Pass:
    """A pass over so many elements a token; backward reads what forward wrote and writes what it read unless said.

    `kept` elements wait for backward in its region; their other fields and those of the operator are in `more`.
    """
    about = {key: more.pop(key) for key in ("role", "element_bytes", "times_seq", "kernel") if key in more}
    if kept:
        more["saved"] = (Saved(elements=kept, region=region, **about),)
    back_read = write if backward_read is None else backward_read
    back_write = read if backward_write is None else backward_write
    return kind(
        name=name, region=region, read=read, write=write, backward_read=back_read, backward_write=back_write, **more
    )


def elementwise(name: str, read: float, write: float, *backward: float, **more: Any) -> ElementwiseOp:
    """A pass without a name of its own, as `passing`."""
    return passing(ElementwiseOp, name, read, write, *backward, **more)


@dataclass(frozen=True, kw_only=True)
class NormOp(ElementwiseOp):
    """A normalisation of each token."""

    role: OpRole = OpRole.OTHER


@dataclass(frozen=True, kw_only=True)
class ResidualOp(ElementwiseOp):
    """The outputs of `branches` added to the residual."""

    branches: int = 1


@dataclass(frozen=True, kw_only=True)
class ActivationOp(ElementwiseOp):
    """A feed-forward's activation; `shared` is that of the shared expert."""

    shared: bool = False


@dataclass(frozen=True, kw_only=True)
class HyperConnectionOp(ElementwiseOp):
    """Several `streams` of a residual of `width` mixed into a part's input (`before`), or its output into them."""

    width: int
    streams: int
    before: bool


class Routing(Enum):
    """What is done with the rows of experts: they are chosen, laid out by expert, and summed at their tokens."""

    ROUTE = "route"
    DISPATCH = "dispatch"
    COMBINE = "combine"


@dataclass(frozen=True, kw_only=True)
class RoutingOp(ElementwiseOp):
    """A step of a token's way to its experts and back."""

    step: Routing


@dataclass(frozen=True, kw_only=True)
class ScanOp(Op):
    """A state-space or linear attention recurrence in chunks; `delta` is the gated delta rule.

    Its kernels write `handed` bytes a token for each other and read them again, forward.
    """

    heads: int
    kv_heads: int
    qk_dim: int
    v_dim: int
    read: float
    write: float
    backward_read: float
    backward_write: float
    flop_per_token: float
    handed: float
    delta: bool = False


@dataclass(frozen=True, kw_only=True)
class EmbeddingOp(Op):
    """A gather of rows of width `k` from a table of `n`; `tokens` marks the vocabulary's own."""

    k: int
    n: int
    tokens: bool = False


@dataclass(frozen=True, kw_only=True)
class SparseTableOp(EmbeddingOp):
    """Tables that lie in parts on all devices, rows updated where they were looked up; counts are of rows' elements."""

    read: float
    write: float
    backward_read: float
    backward_write: float


@dataclass(frozen=True, kw_only=True)
class CrossEntropyOp(Op):
    """Softmax and loss over a vocabulary of `n`."""

    n: int
