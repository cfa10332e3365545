"""What one device does in one iteration of a served model, piece by piece, as shapes that tokens multiply.

Shape letters: T tokens of an iteration on one attention rank, N sequences, D hidden, H heads, K kv heads, E experts.
Products, passes and reductions count each of T tokens; what `rows` calls 'sequences' runs once a sequence (the head),
and what it calls 'group' sees the tokens of all attention ranks together (experts).
"""

from __future__ import annotations

from dataclasses import dataclass

from ridgeline.graph.ops import OpRole

_LATENT, _ROTARY = 512.0, 64.0  # of a latent token: what heads share, and its position (DeepSeek-V2, arXiv:2405.04434)
_ENTRY_SCALES = 8.0  # bytes of the scales of an entry in 8 bits
_MIX_BYTES = 4.0  # of a weight that mixes streams, in 32 bits
_SCALE_BYTES, _SCALED = 4.0, 128.0  # one scale for so many elements in 8 bits


@dataclass(frozen=True, kw_only=True)
class Product:
    """`count` products of (rows, k) by (k, n); `part` says whose number format the weight has.

    'feed' is that of feed-forwards, 'shared' of shared experts, 'attention' of projections into it, 'out' out of it;
    'plain' is 16 bits (router, head), 'wide' 32.
    """

    name: str
    n: float
    k: float
    role: OpRole = OpRole.OTHER
    count: float = 1.0
    part: str = "feed"
    rows: str = "tokens"


@dataclass(frozen=True, kw_only=True)
class TopKIndexer:
    """How a sparse core comes by its keys: the `top` by the scores of `heads` narrow heads, `dim` wide.

    Its queries come of a latent of `rank`, its key and weights of the hidden state; 0 heads take the choice of the
    layer before. Every tensor rank scores for itself.
    """

    top: int
    heads: int
    dim: int
    rank: int
    hidden: int

    @property
    def elements(self) -> float:
        """Elements of the weights that make queries, keys and weights of the scores [1]."""
        return float(self.heads * self.dim * self.rank + (self.dim + self.heads) * self.hidden) if self.heads else 0.0

    @property
    def token_bytes(self) -> float:
        """Bytes of one token's index key: 8 bits an element and a scale for each 128 of them [byte].

        Source: vllm, vllm/model_executor/models/deepseek_v2.py, Indexer.
        """
        return self.dim * (1.0 + _SCALE_BYTES / _SCALED) if self.heads else 0.0


@dataclass(frozen=True, kw_only=True)
class CompressedKV:
    """Entries that stand for far keys, beside the last `window` ones, or keys that are chosen in blocks.

    `kind` is that of the kernels: 'csa' (entries of 4 keys, chosen), 'hca' (of 128, all seen; with a `ratio` of 0 none)
    or 'msa' (blocks of keys). `index_heads` of this rank score what is chosen, `top` entries at most. The other widths
    are those of the whole layer, by which kernels were measured: hidden, ranks of queries and of the output, heads of
    a group of the output or of a key head.
    """

    kind: str
    ratio: int
    window: int
    top: int
    index_heads: float
    dim: int
    hidden: int
    rank: int
    out_rank: int
    group: int

    def entry_bytes(self, width: int, element_bytes: float) -> float:
        """One entry or near key: in 8 bits with its scales and 64 elements of its position in 16 bits [byte].

        Source: vllm, cache dtype fp8_ds_mla of DeepSeek-V4: 584 bytes for 512 elements.
        """
        return width * element_bytes if element_bytes >= 2 else width + _ROTARY + _ENTRY_SCALES

    @property
    def index_bytes(self) -> float:
        """The index key of one entry, in 8 bits with a scale, or of one key of blocks in 16 bits [byte]."""
        if self.kind == "msa":
            return 2.0 * self.dim
        return self.dim * (1.0 + _SCALE_BYTES / _SCALED) if self.kind == "csa" else 0.0


@dataclass(frozen=True, kw_only=True)
class Core:
    """An attention core over a cache; `latent` ones share one latent vector a token among all heads.

    `heads` of queries are this rank's own. Of each context it holds 1 / `ranks`, with the `kv_heads` that all of these
    ranks together need. With a `choice` a query sees the best keys only. Of a core with a `window` engines keep as many
    tokens, of a `chunked` one, whose queries see their own chunk, all of them.
    Source: tensorrt-llm, tensorrt_llm/_torch/pyexecutor/resource_manager.py; vllm, pull request #21761.
    """

    heads: float
    kv_heads: float
    qk_dim: int
    v_dim: int
    window: int = 0  # tokens that a query sees at most; 0 all
    chunked: bool = False  # the window is that of a chunk
    latent: bool = False
    ranks: int = 1
    causal: bool = True  # else a query sees the tokens after its own as well
    borrowed: bool = False  # reads the cache of a layer before, and keeps none
    choice: TopKIndexer | None = None
    entries: CompressedKV | None = None

    @property
    def token_elements(self) -> float:
        """Elements of one token's cache on the rank that holds it [1]."""
        return _LATENT + _ROTARY if self.latent else self.kv_heads * (self.qk_dim + self.v_dim)

    def token_bytes(self, element_bytes: float) -> float:
        """One token's cache on the rank that holds it, elements of so many bytes each [byte].

        The latent of a sparse core in 8 bits keeps a scale for each 128 elements and its position in 16 bits.
        Source: FlashMLA, README: 656 bytes a token.
        """
        if self.borrowed:
            return 0.0
        if self.entries is not None:
            each = self.entries
            if each.kind == "msa":
                return self.token_elements * element_bytes + each.index_bytes
            size = each.entry_bytes(self.qk_dim, element_bytes) + each.index_bytes
            return size / each.ratio if each.ratio else 0.0
        if self.choice is None:
            return self.token_elements * element_bytes
        if element_bytes >= 2:
            return self.token_elements * element_bytes + self.choice.token_bytes
        latent = _LATENT * (element_bytes + _SCALE_BYTES / _SCALED) + 2.0 * _ROTARY
        return latent + self.choice.token_bytes

    def near_bytes(self, element_bytes: float) -> float:
        """Keys of one sequence's window that are kept beside entries [byte]."""
        each = self.entries
        return 0.0 if each is None else each.window * each.entry_bytes(self.qk_dim, element_bytes)

    @property
    def query_elements(self) -> float:
        """Elements of one head's query as it meets the cache [1]."""
        return _LATENT + _ROTARY if self.latent else self.qk_dim

    @property
    def result_elements(self) -> float:
        """Elements of one head's sum over the cache [1]."""
        return _LATENT if self.latent else self.v_dim


@dataclass(frozen=True, kw_only=True)
class Recurrence:
    """A scan: FLOP and elements a token, and the state of one sequence that every iteration reads and writes [byte].

    Kernels over many tokens of a sequence hand each other `handed` bytes a token, in `kernels`; over one they are one.
    `delta` says that it is a gated delta rule of `heads` states, `key_dim` x `value_dim` each.
    """

    flop_per_token: float
    elements: float
    state_bytes: float
    handed: float = 0.0
    kernels: float = 2.0
    delta: bool = False
    heads: float = 0.0
    key_heads: float = 0.0
    key_dim: int = 0
    value_dim: int = 0


@dataclass(frozen=True, kw_only=True)
class Experts:
    """Routed experts on one rank: `inner` is an expert's width here, `ranks` those that experts are divided over."""

    hidden: int
    inner: float
    top_k: int
    count: int
    ranks: int
    gated: bool


@dataclass(frozen=True, kw_only=True)
class ElementwisePiece:
    """A pass over `elements` numbers of each token (or sequence), read and written; `kernels` 0 when fused away."""

    name: str
    elements: float
    kernels: float = 1.0
    rows: str = "tokens"


@dataclass(frozen=True, kw_only=True)
class HyperConnection:
    """`streams` of a residual of `width` mixed into a part's input (`before`), or its output into them."""

    width: int
    streams: int
    before: bool
    rows: str = "tokens"

    @property
    def weight_bytes(self) -> float:
        """Weights that make the mix, which every rank holds [byte]."""
        return _MIX_BYTES * self.streams * self.width * self.streams * (self.streams + 2) if self.before else 0.0


@dataclass(frozen=True, kw_only=True)
class Reduce:
    """An all-reduce of `width` elements of each token over the tensor-parallel ranks."""

    width: int
    rows: str = "tokens"
    gather: bool = False  # an all-gather of the parts instead


@dataclass(frozen=True, kw_only=True)
class ExpertAllToAll:
    """Tokens of attention ranks sent to their experts and back: `width` elements of each, over `ranks` devices.

    Where tokens `stay` with their experts, not back but on to those of the next layer: `inside` and `between` are rows
    that the busiest rank sends within its node and beyond of each token of the mean rank (None: of ranks alike).
    """

    width: int
    ranks: int
    top_k: int
    experts: int
    stay: bool = False
    inside: float | None = None
    between: float | None = None


Piece = Product | Core | Recurrence | Experts | ElementwisePiece | HyperConnection | Reduce | ExpertAllToAll


@dataclass(frozen=True, kw_only=True)
class LayerKind:
    """One kind of layer: how often it occurs in the model and what one device does in one of them.

    Where it is `deferred` the all-reduce of each part may run beside the next part.
    """

    name: str
    count: int
    pieces: tuple[Piece, ...]
    deferred: bool = False


@dataclass(frozen=True, kw_only=True)
class Fusions:
    """What an engine makes one kernel of: `norm` a norm and the residual before it, `reduced_norm` these and the
    all-reduce before them, `latents` both down-projections of latent attention; with `chains` nothing else is one.
    `layer_kernels` is how many kernels a layer has at least, where each operator is one [1]. With `whole_groups` heads
    are cut by key heads with their queries, not evenly: pieces are those of the fullest rank."""

    norm: bool = True
    reduced_norm: bool = False
    latents: bool = False
    chains: bool = False
    layer_kernels: int = 0
    whole_groups: bool = False


@dataclass(frozen=True, kw_only=True)
class Served:
    """A model divided for serving: kinds of layers, and the two ends."""

    kinds: tuple[LayerKind, ...]
    embedding: tuple[Piece, ...]
    head: tuple[Piece, ...]
    hidden: int
