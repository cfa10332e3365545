"""A layer divided for serving: what one device does in one iteration, as shapes that tokens multiply.

Shape letters: T tokens of an iteration on one attention rank, N sequences, D hidden, H heads, K kv heads, E experts.
Products, passes and reductions count each of T tokens; what `rows` calls 'sequences' runs once a sequence (the head),
and what it calls 'group' sees the tokens of all attention ranks together (experts).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from ridgeline.errors import PlanError
from ridgeline.graph.ops import Block, Graph, Model, Op, OpKind, Region, Split
from ridgeline.graph.recurrent import DELTA_RULE
from ridgeline.plan.deployment import Deployment

_LATENT, _ROTARY = 512.0, 64.0  # of a latent token: what heads share, and its position (DeepSeek-V2, arXiv:2405.04434)
_SCALE_BYTES, _SCALED = 4.0, 128.0  # one scale for so many elements in 8 bits
_STATE_BYTES = 4.0  # recurrent states are kept in fp32 (vLLM mamba_ssm_cache_dtype, gated delta kernels)
_INSIDE_EXPERTS = frozenset({"route", "dispatch", "experts_activation", "combine"})  # done by the experts' own kernels
_AFTER_REDUCE = frozenset({"attention_norm", "mlp_norm"})  # norms of what a layer\'s parts have summed over ranks


@dataclass(frozen=True, kw_only=True)
class Product:
    """`count` products of (rows, k) by (k, n); `part` says whose number format the weight has."""

    name: str
    n: float
    k: float
    count: float = 1.0
    part: str = "feed"  # 'feed' (feed-forwards), 'attention' (its projections), 'plain' (16 bits: router, head)
    rows: str = "tokens"


@dataclass(frozen=True, kw_only=True)
class Choice:
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
class Core:
    """An attention core over a cache; `latent` ones share one latent vector a token among all heads.

    `heads` of queries are this rank's own. Of each context it holds 1 / `ranks`, with the `kv_heads` that all of these
    ranks together need. With a `choice` a query sees the best keys only.
    """

    heads: float
    kv_heads: float
    qk_dim: int
    v_dim: int
    window: int = 0  # tokens that a query sees at most; 0 all
    latent: bool = False
    ranks: int = 1
    choice: Choice | None = None

    @property
    def token_elements(self) -> float:
        """Elements of one token's cache on the rank that holds it [1]."""
        return _LATENT + _ROTARY if self.latent else self.kv_heads * (self.qk_dim + self.v_dim)

    def token_bytes(self, element_bytes: float) -> float:
        """One token's cache on the rank that holds it, elements of so many bytes each [byte].

        The latent of a sparse core in 8 bits keeps a scale for each 128 elements and its position in 16 bits.
        Source: FlashMLA, README: 656 bytes a token.
        """
        if self.choice is None:
            return self.token_elements * element_bytes
        if element_bytes >= 2:
            return self.token_elements * element_bytes + self.choice.token_bytes
        latent = _LATENT * (element_bytes + _SCALE_BYTES / _SCALED) + 2.0 * _ROTARY
        return latent + self.choice.token_bytes

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

    `delta` says that it is a gated delta rule of `heads` states, `key_dim` x `value_dim` each.
    """

    flop_per_token: float
    elements: float
    state_bytes: float
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
class Pass:
    """A pass over `elements` numbers of each token (or sequence), read and written; `kernels` 0 when fused away."""

    name: str
    elements: float
    kernels: float = 1.0
    rows: str = "tokens"


@dataclass(frozen=True, kw_only=True)
class Reduce:
    """An all-reduce of `width` elements of each token over the tensor-parallel ranks."""

    width: int
    rows: str = "tokens"
    gather: bool = False  # an all-gather of the parts instead


@dataclass(frozen=True, kw_only=True)
class Trade:
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


Piece = Product | Core | Recurrence | Experts | Pass | Reduce | Trade


@dataclass(frozen=True, kw_only=True)
class LayerKind:
    """One kind of layer: how often it occurs in the model and what one device does in one of them."""

    name: str
    count: int
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, kw_only=True)
class Fusions:
    """What an engine makes one kernel of: `norm` a norm and the residual before it, `reduced_norm` these and the
    all-reduce before them, `latents` both down-projections of latent attention; with `chains` nothing else is one.
    `layer_kernels` is how many kernels a layer has at least, where each operator is one [1]."""

    norm: bool = True
    reduced_norm: bool = False
    latents: bool = False
    chains: bool = False
    layer_kernels: int = 0


@dataclass(frozen=True, kw_only=True)
class Served:
    """A model divided for serving: kinds of layers, and the two ends."""

    kinds: tuple[LayerKind, ...]
    embedding: tuple[Piece, ...]
    head: tuple[Piece, ...]
    hidden: int


def serve(model: Model, deployment: Deployment, fusions: Fusions | None = None) -> Served:
    """What one device of an instance does; raises `PlanError` where degrees do not divide the model."""
    fusions = fusions or Fusions()
    graph = model.graph
    _check(graph, deployment)
    kinds = []
    for name, block in graph.blocks.items():
        if block.encoder or any(op.cross or (op.kind is OpKind.ATTENTION and not op.causal) for op in block.ops):
            raise PlanError(f"{model.name} has an encoder; only decoders are served")
        layer = _layer(block, graph, deployment)
        layer = _chained(layer, block) if fusions.chains else layer
        pieces = tuple(_apart(_fused(layer, fusions, reduced=deployment.tp > 1), fusions.layer_kernels))
        kinds.append(LayerKind(name=name, count=graph.layers.count(name), pieces=pieces))
    tp = deployment.tp
    head: list[Piece] = [
        Product(name="lm_head", n=graph.vocab / tp, k=graph.hidden, part="plain", rows="sequences"),
        Pass(name="sample", elements=2.0 * graph.vocab, kernels=3.0, rows="sequences"),
    ]
    embedding: list[Piece] = [Pass(name="embed", elements=2.0 * graph.hidden)]
    if tp > 1:
        head.insert(1, Reduce(width=graph.vocab, rows="sequences", gather=True))
        embedding.append(Reduce(width=graph.hidden))
    norm = Pass(name="final_norm", elements=2.0 * graph.hidden)
    return Served(kinds=tuple(kinds), embedding=tuple(embedding), head=(norm, *head), hidden=graph.hidden)


def _chained(pieces: Iterable[Piece], block: Block) -> Iterator[Piece]:
    """The pieces with each operator of an elementwise chain by itself: all read and write the chain's width.

    Products that share an input are not merged either.
    """
    ops = {op.name: op for op in block.ops}
    for piece in pieces:
        op = ops.get(piece.name) if isinstance(piece, Pass | Product) else None
        if isinstance(piece, Product) and op is not None:
            yield from [replace(piece, n=piece.n / op.kernels)] * int(op.kernels)
        elif isinstance(piece, Pass) and op is not None and op.kernels > 1:
            share = piece.elements / max(op.read + op.write, 1e-9)
            elements = share * max(op.read + op.write, 2.0 * op.kernels * op.write)
            yield replace(piece, elements=elements, kernels=float(op.kernels))
        else:
            yield piece


def _fused(pieces: Iterable[Piece], fusions: Fusions, *, reduced: bool) -> Iterator[Piece]:
    """The pieces as an engine launches them; `reduced` where an all-reduce comes before a layer's norms."""
    down: Product | None = None
    for piece in pieces:
        if isinstance(piece, Pass) and piece.name.endswith("_residual") and not fusions.norm:
            yield replace(piece, kernels=1.0)
        elif isinstance(piece, Pass) and piece.name in _AFTER_REDUCE and fusions.reduced_norm and reduced:
            yield replace(piece, kernels=0.0)
        elif isinstance(piece, Product) and piece.name == "q_down" and fusions.latents:
            down = piece
        elif isinstance(piece, Product) and piece.name == "kv_down" and down is not None:
            yield replace(down, name="latent_down", n=down.n + piece.n)
            down = None
        else:
            yield piece


def _apart(pieces: Iterable[Piece], least: int) -> Iterator[Piece]:
    """The pieces, and a launch for each of `least` kernels that none of them stands for."""
    known = 0.0
    for piece in pieces:
        known += piece.kernels if isinstance(piece, Pass) else 1.0
        yield piece
    if least > known:
        yield Pass(name="apart", elements=0.0, kernels=least - known)


def _check(graph: Graph, deployment: Deployment) -> None:
    for block in graph.blocks.values():
        for op in block.ops:
            if op.top is not None and deployment.kv_ranks > 1:
                raise PlanError("deployment: kv_ranks with keys that an indexer chooses is not modelled; leave it out")
            if op.kind is OpKind.ATTENTION and op.heads % deployment.tp:
                raise PlanError(f"deployment: tp = {deployment.tp} does not divide {op.heads} attention heads")
        if block.experts % deployment.ep:
            raise PlanError(f"deployment: ep = {deployment.ep} does not divide {block.experts} experts")
    layers = len(graph.layers)
    if deployment.pp > layers:
        raise PlanError(f"deployment: pp = {deployment.pp} is more than the {layers} layers")
    if deployment.ep > 1 and not any(block.experts for block in graph.blocks.values()):
        raise PlanError(f"deployment: ep = {deployment.ep} needs experts; the model has none: leave it at 1")


def _layer(block: Block, graph: Graph, deployment: Deployment) -> Iterator[Piece]:
    core = next((op for op in block.ops if op.kind is OpKind.ATTENTION), None)
    latent = any(op.name == "kv_up" for op in block.ops)
    for op in block.ops:
        yield from _op(op, block, core, deployment, latent=latent)
    yield from _edges(block, graph, deployment)


def _op(op: Op, block: Block, core: Op | None, deployment: Deployment, *, latent: bool) -> Iterator[Piece]:
    tp = deployment.tp
    if op.name.startswith("index_"):
        return  # done by the sparse core
    if op.kind is OpKind.GEMM:
        yield _product(op, core, tp)
    elif op.kind is OpKind.ATTENTION:
        window = min(op.window or op.chunk or 0, op.chunk or op.window or 0)
        ranks = deployment.kv_ranks
        kv_heads = 1.0 if latent else max(1.0, op.kv_heads * ranks / tp)
        yield Core(
            heads=op.heads / tp, kv_heads=kv_heads, qk_dim=op.qk_dim, v_dim=op.v_dim, window=window, latent=latent,
            ranks=ranks, choice=_choice(op, block),
        )  # fmt: skip
        yield Pass(name="cache_write", elements=2.0 * kv_heads * (op.qk_dim + op.v_dim) / ranks)
    elif op.kind is OpKind.SCAN:
        state = op.heads * op.qk_dim * op.v_dim * _STATE_BYTES / tp
        yield Recurrence(
            flop_per_token=op.flop_per_token / tp, elements=(op.read + op.write) / tp, state_bytes=2.0 * state,
            delta=op.name == DELTA_RULE, heads=op.heads / tp, key_heads=max(1.0, op.kv_heads / tp),
            key_dim=op.qk_dim, value_dim=op.v_dim,
        )  # fmt: skip
    elif op.kind is OpKind.GROUPED_GEMM:
        if op.split is Split.COLUMN:
            yield _experts(op, block, deployment)
    elif op.kind in (OpKind.ELEMENTWISE, OpKind.PERMUTE) and op.name not in _INSIDE_EXPERTS:
        share = 1.0 if op.region is Region.SEQUENCE else 1.0 / tp
        fused = op.name.endswith("_residual")  # added by the norm that follows
        yield Pass(name=op.name, elements=(op.read + op.write) * share, kernels=0.0 if fused else 1.0)


def _choice(op: Op, block: Block) -> Choice | None:
    if op.top is None:
        return None
    widths = {other.name: other.k for other in block.ops if other.kind is OpKind.GEMM}
    return Choice(
        top=op.top,
        heads=op.index_heads,
        dim=op.index_dim,
        rank=widths.get("q_down", 0) and widths["q_up"],
        hidden=widths["kv_down"],
    )


def _product(op: Op, core: Op | None, tp: int) -> Product:
    """A projection on one rank; keys and values of fewer heads than ranks are repeated."""
    n, k = float(op.n), float(op.k)
    if op.split is Split.COLUMN:
        kv = core.kv_heads * (core.qk_dim + core.v_dim) if core is not None and op.name == "qkv" else 0
        repeated = max(1.0, core.kv_heads / tp) / core.kv_heads if core is not None and kv else 1.0
        n = (op.n - kv) / tp + kv * repeated
    elif op.split is Split.ROW:
        k = op.k / tp
    small = op.name.startswith(("router", "shared_gate"))
    feed = op.name.startswith(("mlp", "shared"))
    return Product(name=op.name, n=n, k=k, part="plain" if small else "feed" if feed else "attention")


def _experts(op: Op, block: Block, deployment: Deployment) -> Experts:
    """The experts of one rank: whole over `ep` ranks, each cut over the ranks that are left."""
    gated = any(other.name == "experts_activation" and other.read > other.write for other in block.ops)
    cut = deployment.tp * deployment.dp // deployment.ep
    inner = op.n / (2.0 if gated else 1.0) / cut
    return Experts(hidden=op.k, inner=inner, top_k=block.top_k, count=block.experts, ranks=deployment.ep, gated=gated)


def _edges(block: Block, graph: Graph, deployment: Deployment) -> Iterable[Piece]:
    """What a layer sends: one reduction after each part, the shared expert's with the experts'."""
    parts = sum(edge.kind == "tensor" for edge in block.boundaries)
    pieces: list[Piece] = []
    if block.experts:
        parts -= bool(block.shared_experts)
        if deployment.dp > 1:
            ranks = deployment.tp * deployment.dp
            pieces.append(
                Trade(
                    width=graph.hidden, ranks=ranks, top_k=block.top_k, experts=block.experts,
                    stay=deployment.tokens_stay, inside=deployment.expert_inside, between=deployment.expert_between,
                )
            )  # fmt: skip
        else:
            parts += 1
    if deployment.tp > 1:
        pieces += [Reduce(width=graph.hidden)] * parts
    return pieces
