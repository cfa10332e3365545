"""A layer divided for serving: what one device does in one iteration, as shapes that tokens multiply.

Shape letters: T tokens of an iteration on one attention rank, N sequences, D hidden, H heads, K kv heads, E experts.
Products, passes and reductions count each of T tokens; what `rows` calls 'sequences' runs once a sequence (the head),
and what it calls 'group' sees the tokens of all attention ranks together (experts).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace

from ridgeline.errors import PlanError
from ridgeline.graph.model import Block, Graph, Model
from ridgeline.graph.ops import (
    ActivationOp,
    AttentionOp,
    ElementwiseOp,
    GemmOp,
    GroupedGemmOp,
    HyperConnectionOp,
    Keys,
    NormOp,
    Op,
    OpRole,
    Region,
    ResidualOp,
    RoutingOp,
    ScanOp,
    Split,
)
from ridgeline.lower.pieces import (
    CompressedKV,
    Core,
    ElementwisePiece,
    ExpertAllToAll,
    Experts,
    Fusions,
    HyperConnection,
    LayerKind,
    Piece,
    Product,
    Recurrence,
    Reduce,
    Served,
    TopKIndexer,
)
from ridgeline.plan.deployment import Deployment
from ridgeline.plan.deployment_rules import check_divides
from ridgeline.seams.serving import Placement, of

_STATE_BYTES = 4.0  # recurrent states are kept in fp32 (vLLM mamba_ssm_cache_dtype, gated delta kernels)
_SUMS_WIDTH = 4  # of 16 bits: two sums in fp32
_WIDENED = 3.0  # elements of 16 bits that widening one moves: it is read, 32 bits are written


def serve(model: Model, deployment: Deployment, fusions: Fusions | None = None) -> Served:
    """What one device of an instance does; raises `PlanError` where degrees do not divide the model."""
    fusions = fusions or Fusions()
    graph = model.graph
    _check(graph, deployment, whole_groups=fusions.whole_groups)
    kinds = []
    for name, block in graph.blocks.items():
        if any(op.cross for op in graph.attentions):
            raise PlanError(f"{model.name} is an encoder-decoder; decoders, and encoders alone, are served")
        pieces = tuple(_apart(_layer(block, graph, deployment, fusions), fusions.layer_kernels))
        deferred = any(edge.deferred for edge in block.boundaries)
        kinds.append(LayerKind(name=name, count=graph.layers.count(name), pieces=pieces, deferred=deferred))
    tp = deployment.tp
    head: list[Piece] = [
        Product(name="lm_head", n=graph.vocab / tp, k=graph.hidden, part="plain", rows="sequences"),
        ElementwisePiece(name="sample", elements=2.0 * graph.vocab, kernels=3.0, rows="sequences"),
    ]
    embedding: list[Piece] = [ElementwisePiece(name="embed", elements=2.0 * graph.hidden)]
    if tp > 1:
        head.insert(1, Reduce(width=graph.vocab, rows="sequences", gather=True))
        embedding.append(Reduce(width=graph.hidden))
    norm = ElementwisePiece(name="final_norm", elements=2.0 * graph.hidden)
    return Served(kinds=tuple(kinds), embedding=tuple(embedding), head=(norm, *head), hidden=graph.hidden)


def _layer(block: Block, graph: Graph, deployment: Deployment, fusions: Fusions) -> Iterator[Piece]:
    """A layer's pieces as an engine launches them; the two down-projections of latent attention may be one."""
    core = block.attention
    whole = fusions.whole_groups and core is not None and not core.latent
    cut = _cut(core, deployment.tp) if whole and core is not None else float(deployment.tp)
    down: Product | None = None
    for op in block.ops:
        for piece in _launched(op, list(_op(op, block, deployment, cut)), fusions, reduced=deployment.tp > 1):
            if isinstance(piece, Product) and piece.role is OpRole.QUERY_DOWN and fusions.latents:
                down = piece
            elif isinstance(piece, Product) and piece.role is OpRole.KEY_DOWN and down is not None:
                yield replace(down, name="latent_down", n=down.n + piece.n)
                down = None
            else:
                yield piece
    yield from _edges(block, graph, deployment)


def _launched(op: Op, pieces: list[Piece], fusions: Fusions, *, reduced: bool) -> Iterator[Piece]:
    """The pieces of an operator as an engine launches them; `reduced` where an all-reduce comes before norms.

    In chains each kernel of an elementwise operator, the last of its pieces, reads and writes the width by itself, and
    products that share an input are not merged either.
    """
    yield from pieces[:-1]
    for piece in pieces[-1:]:
        if fusions.chains and isinstance(piece, Product):
            yield from [replace(piece, n=piece.n / op.kernels)] * int(op.kernels)
            continue
        if fusions.chains and isinstance(piece, ElementwisePiece) and isinstance(op, ElementwiseOp) and op.kernels > 1:
            share = piece.elements / max(op.read + op.write, 1e-9)
            elements = share * max(op.read + op.write, 2.0 * op.kernels * op.write)
            piece = replace(piece, elements=elements, kernels=float(op.kernels))
        if isinstance(op, ResidualOp) and op.branches == 1 and isinstance(piece, ElementwisePiece) and not fusions.norm:
            piece = replace(piece, kernels=1.0)
        summed = isinstance(op, NormOp) and op.role is OpRole.ENTRY
        if summed and isinstance(piece, ElementwisePiece) and fusions.reduced_norm and reduced:
            piece = replace(piece, kernels=0.0)
        yield piece


def _apart(pieces: Iterable[Piece], least: int) -> Iterator[Piece]:
    """The pieces, and a launch for each of `least` kernels that none of them stands for."""
    known = 0.0
    for piece in pieces:
        known += piece.kernels if isinstance(piece, ElementwisePiece) else 1.0
        yield piece
    if least > known:
        yield ElementwisePiece(name="apart", elements=0.0, kernels=least - known)


def _check(graph: Graph, deployment: Deployment, *, whole_groups: bool) -> None:
    for block in graph.blocks.values():
        for op in block.ops:
            if not isinstance(op, AttentionOp):
                continue
            if (op.top is not None or op.ratio is not None) and deployment.kv_ranks > 1:
                raise PlanError(
                    "deployment: kv_ranks with keys that an indexer chooses, or entries, is not modelled; leave it out"
                )
            if op.heads % deployment.tp and not whole_groups:
                raise PlanError(f"deployment: tp = {deployment.tp} does not divide {op.heads} attention heads")
        check_divides(deployment.ep, block.experts, of(deployment, Placement).redundant)
    layers = len(graph.layers)
    if deployment.pp > layers:
        raise PlanError(f"deployment: pp = {deployment.pp} is more than the {layers} layers")
    if deployment.ep > 1 and not any(block.experts for block in graph.blocks.values()):
        raise PlanError(f"deployment: ep = {deployment.ep} needs experts; the model has none: leave it at 1")


def _cut(core: AttentionOp, tp: int) -> float:
    """Of how many alike the fullest of `tp` ranks is, where each has whole key heads with their queries [1].

    28 heads with 4 of keys over 8 ranks: four have 7 and 1, four none; over 3 one has 14 and 2. Source: deepspeed,
    deepspeed/module_inject/tp_shard.py, get_shard_size.
    """
    return core.kv_heads / math.ceil(core.kv_heads / tp)


def _op(op: Op, block: Block, deployment: Deployment, cut: float) -> Iterator[Piece]:
    """The pieces of one operator; its own comes last."""
    tp = deployment.tp
    if isinstance(op, GemmOp | NormOp) and op.role is OpRole.INDEX:
        return  # done by the sparse core
    if isinstance(op, GemmOp):
        if op.wide:
            yield ElementwisePiece(name="widened", elements=_WIDENED * op.k)
        yield _product(op, block.attention, tp, cut)
    elif isinstance(op, AttentionOp):
        window = min(op.window or op.chunk or 0, op.chunk or op.window or 0)
        ranks = deployment.kv_ranks
        kv_heads = 1.0 if op.latent else max(1.0, op.kv_heads * ranks / cut)
        yield Core(
            heads=op.heads / cut, kv_heads=kv_heads, qk_dim=op.qk_dim, v_dim=op.v_dim, window=window,
            chunked=op.chunk is not None and op.window is None, latent=op.latent, ranks=ranks,
             causal=op.causal, borrowed=op.borrowed, choice=_choice(op, block), entries=_entries(op, block, cut),
        )  # fmt: skip
        if not op.borrowed:
            yield ElementwisePiece(name="cache_write", elements=2.0 * kv_heads * (op.qk_dim + op.v_dim) / ranks)
    elif isinstance(op, ScanOp):
        state = op.heads * op.qk_dim * op.v_dim * _STATE_BYTES / tp
        yield Recurrence(
            flop_per_token=op.flop_per_token / tp, elements=(op.read + op.write) / tp, state_bytes=2.0 * state,
            handed=op.handed / tp, kernels=float(op.kernels), delta=op.delta, heads=op.heads / tp,
            key_heads=max(1.0, op.kv_heads / tp), key_dim=op.qk_dim, value_dim=op.v_dim,
        )  # fmt: skip
    elif isinstance(op, GroupedGemmOp):
        if op.split is Split.COLUMN:
            yield _experts(op, block, deployment)
    elif isinstance(op, NormOp) and op.role is OpRole.QUERY_KEY and op.params_split and tp > 1:
        yield from _norm_of_ranks(op, tp)
    elif isinstance(op, HyperConnectionOp):
        yield HyperConnection(width=op.width, streams=op.streams, before=op.before)
    elif isinstance(op, RoutingOp) or op.region is Region.EXPERT:
        return  # done by the experts' own kernels
    elif isinstance(op, ElementwiseOp):
        share = 1.0 if op.region is Region.SEQUENCE else 1.0 / tp
        fused = isinstance(op, ResidualOp) and op.branches == 1  # added by the norm that follows
        shared = isinstance(op, ActivationOp) and op.shared
        yield ElementwisePiece(
            name=op.name, elements=(op.read + op.write) * share, kernels=0.0 if fused else 1.0,
            rows="shared" if shared else "tokens",
        )  # fmt: skip


def _norm_of_ranks(op: NormOp, tp: int) -> Iterator[Piece]:
    """A norm of queries and keys over the heads of all ranks: sums of squares, their all-reduce, and the norm itself.

    Sums are two numbers of 32 bits a token, one of queries and one of keys. Source: vllm, MiniMaxText01RMSNormTP of
    model_executor/layers/mamba/linear_attn.py; sglang, pull request #14416: three kernels.
    """
    yield ElementwisePiece(name="qk_sums", elements=op.read / tp)
    yield Reduce(width=_SUMS_WIDTH)
    yield ElementwisePiece(name=op.name, elements=(op.read + op.write) / tp)


def _choice(op: AttentionOp, block: Block) -> TopKIndexer | None:
    """How latent keys are chosen; None where all are seen."""
    down, up, keys = block.gemm(OpRole.QUERY_DOWN), block.gemm(OpRole.QUERY_UP), block.gemm(OpRole.KEY_DOWN)
    if not op.latent or op.top is None or keys is None:
        return None
    rank = up.k if down is not None and up is not None else 0
    return TopKIndexer(top=op.top, heads=op.index_heads, dim=op.index_dim, rank=rank, hidden=keys.k)


def _entries(op: AttentionOp, block: Block, cut: float) -> CompressedKV | None:
    """Compressed keys or blocks of keys that a core sees, by the projections around it."""
    index = block.gemm(OpRole.INDEX_KEY)
    if op.keys is Keys.BLOCKS and index is not None:
        group = op.heads // op.kv_heads
        return CompressedKV(
            kind="msa", ratio=1, window=0, top=op.top or 0, index_heads=max(1.0, op.index_heads / cut),
            dim=op.index_dim, hidden=index.k, rank=0, out_rank=0, group=group,
        )  # fmt: skip
    queries, keys, out = block.gemm(OpRole.QUERY_DOWN), block.gemm(OpRole.KEY_DOWN), block.gemm(OpRole.OUTPUT_GROUPS)
    if op.ratio is None or queries is None or keys is None or out is None:
        return None
    group = out.k // op.v_dim
    return CompressedKV(
        kind="hca" if op.top is None else "csa", ratio=op.ratio, window=op.near, top=op.top or 0,
        index_heads=float(op.index_heads), dim=op.index_dim, hidden=keys.k, rank=queries.n,
        out_rank=out.n * group // op.heads, group=group,
    )  # fmt: skip


def _product(op: GemmOp, core: AttentionOp | None, tp: int, cut: float) -> Product:
    """A projection on one rank, attention's on one of `cut`; keys and values of fewer heads than ranks are repeated."""
    n, k = float(op.n), float(op.k)
    small = op.role in (OpRole.ROUTER, OpRole.SHARED_GATE)
    ranks = tp if op.role.feeds else cut
    if op.split is Split.COLUMN:
        kv = core.kv_heads * (core.qk_dim + core.v_dim) if core is not None and op.role is OpRole.QKV else 0
        repeated = max(1.0, core.kv_heads / ranks) / core.kv_heads if core is not None and kv else 1.0
        n = (op.n - kv) / ranks + kv * repeated
        if core is not None and op.role is OpRole.INDEX_HEADS:  # one for each key head of this rank
            n = op.n * max(1.0, core.kv_heads / ranks) / core.kv_heads
    elif op.split is Split.ROW:
        k = op.k / ranks
    part = "wide" if op.wide else "plain" if small else "out" if op.role is OpRole.OUTPUT else "attention"
    if op.role.feeds and not small:
        part = "shared" if op.role.shared else "feed"
    return Product(name=op.name, role=op.role, n=n, k=k, part=part, rows="shared" if op.role.shared else "tokens")


def _experts(op: GroupedGemmOp, block: Block, deployment: Deployment) -> Experts:
    """The experts of one rank: whole over `ep` ranks, each cut over the ranks that are left."""
    cut = deployment.tp * deployment.dp // deployment.ep
    inner = op.n / (2.0 if op.gated else 1.0) / cut
    return Experts(
        hidden=op.k, inner=inner, top_k=block.top_k, count=block.experts, ranks=deployment.ep, gated=op.gated
    )


def _edges(block: Block, graph: Graph, deployment: Deployment) -> Iterable[Piece]:
    """What a layer sends: one reduction after each part, the shared expert's with the experts'."""
    parts = sum(edge.kind == "tensor" for edge in block.boundaries)
    pieces: list[Piece] = []
    if block.experts:
        parts -= bool(block.shared_experts)
        if deployment.dp > 1:
            ranks = deployment.tp * deployment.dp
            width = next(edge.width for edge in block.boundaries if edge.kind == "expert")
            placed = of(deployment, Placement)
            pieces.append(
                ExpertAllToAll(
                    width=width, ranks=ranks, top_k=block.top_k, experts=block.experts,
                    stay=placed.stay, inside=placed.rows[0], between=placed.rows[1],
                )
            )  # fmt: skip
        else:
            parts += 1
    if deployment.tp > 1:
        pieces += [Reduce(width=graph.hidden)] * parts
    return pieces
