"""Operators of one part of a layer: norms, residuals, attention (MHA to MLA) and MLPs.

Letters: D hidden, H heads, K kv heads, F ffn. Element counts are per token at the whole width.
Traffic is that of one fused kernel per operator; `kernels` counts the launches of the eager
PyTorch modules in Hugging Face transformers. A tensor kept for backward is listed once, on the
first operator that needs it; `kept` hands the first GEMM the input it keeps.
"""

from __future__ import annotations

from dataclasses import replace

from ridgeline.graph.ops import (
    ActivationOp,
    AttentionOp,
    ElementwiseOp,
    GemmOp,
    HyperConnectionOp,
    LinearOp,
    NormOp,
    Op,
    OpRole,
    Region,
    ResidualOp,
    Saved,
    Split,
    elementwise,
    passing,
)
from ridgeline.graph.spec import AttentionSpec, Chosen, Entries, Latent, Mlp, Norm
from ridgeline.graph.workload import Precision

MASK_BYTES = 1.0  # a dropout mask is one byte per element
MASK_TRAFFIC = 0.5  # that byte, in elements of a two-byte dtype
STATISTIC_BYTES = 4.0  # log-sum-exp and router scores are fp32
_NORM_KERNELS = {"rms": 8, "layer": 1}  # LlamaRMSNorm: two casts and six maths kernels
_ROTARY_KERNELS = 10  # negate, concatenate, two products and a sum, for q and for k


def linear(
    name: str,
    k: int,
    n: int,
    *,
    split: Split,
    role: OpRole = OpRole.OTHER,
    bias: bool = False,
    kept: tuple[Saved, ...] = (),
    parts: int = 1,
) -> GemmOp:
    """A linear layer (k, n) that adapters may change; its bias rides in the epilogue."""
    return GemmOp(
        name=name, region=Region.TENSOR, k=k, n=n, split=split, role=role, params=k * n + (n if bias else 0),
        params_split=split is not Split.NONE, saved=kept, kernels=parts, lora=True, parts=parts,
    )  # fmt: skip


def repeated(
    name: str,
    k: int,
    n: int,
    *,
    role: OpRole = OpRole.OTHER,
    bias: bool = False,
    kept: tuple[Saved, ...] = (),
    lora: bool = False,
) -> GemmOp:
    """A linear layer that every tensor rank holds whole, on the tokens of its sequence shard."""
    return replace(
        linear(name, k, n, split=Split.NONE, role=role, bias=bias, kept=kept), region=Region.SEQUENCE, lora=lora
    )


def norm_op(
    name: str,
    norm: Norm,
    width: int,
    *,
    role: OpRole = OpRole.OTHER,
    saved_as: str = "norm",
    keep: bool = True,
    region: Region = Region.SEQUENCE,
) -> NormOp:
    """A norm over `width`; it keeps its input unless already kept."""
    found = passing(
        NormOp, name, width, width, 2 * width, region=region, kept=width if keep else 0, role=saved_as,
        kernels=_NORM_KERNELS[norm.kind], params=norm.params(width), function=f"{norm.kind}_norm",
    )  # fmt: skip
    return replace(found, role=role)


def residual_op(name: str, width: int, *, branches: int = 1, dropout: bool = False) -> ResidualOp:
    """Residual add of `branches` outputs, fused with their dropout; keeps one mask per branch."""
    mask = width * branches * MASK_TRAFFIC if dropout else 0.0
    moved = width * (branches + 1)
    return passing(
        ResidualOp, name, moved, width + mask, moved + mask, width * branches, region=Region.SEQUENCE,
        branches=branches, kept=width * branches if dropout else 0, element_bytes=MASK_BYTES,
        kernels=branches * (2 if dropout else 1), function="" if dropout or branches > 1 else "residual",
    )  # fmt: skip


def rotary_op(elements: int) -> ElementwiseOp:
    """Rotary embedding of `elements` of q and k per token; backward rotates back and keeps nothing."""
    return elementwise("rotary", elements, elements, kernels=_ROTARY_KERNELS, function="rotary")


def activation_op(mlp: Mlp, region: Region, name: str = "activation", *, shared: bool = False) -> ActivationOp:
    """The activation, with the gate's product: reads 2F (gated) or F, writes F.

    Backward needs its input (gate and up). A plain ReLU needs only its sign, which its output,
    kept by the down projection, already holds.
    """
    wide = mlp.ffn * (2 if mlp.gated else 1)
    keeps = mlp.gated or mlp.activation != "relu"
    return passing(
        ActivationOp, name, wide, mlp.ffn, wide + mlp.ffn, region=region, shared=shared, kept=wide if keeps else 0,
        role="mlp", kernels=2 if mlp.gated or mlp.activation == "relu2" else 1,
        function="gated" if mlp.gated else "activation",
    )  # fmt: skip


def mlp_ops(mlp: Mlp, hidden: int, kept: tuple[Saved, ...], *, shared: bool = False) -> list[Op]:
    """Up (and gate), activation, down; `shared` for those of the experts that every token visits."""
    prefix = "shared" if shared else "mlp"
    first, last = (OpRole.SHARED_UP, OpRole.SHARED_DOWN) if shared else (OpRole.UP, OpRole.DOWN)
    wide = mlp.ffn * (2 if mlp.gated else 1)
    parts = 2 if mlp.gated and not mlp.merged_gate else 1
    inner = (Saved(elements=mlp.ffn, region=Region.TENSOR),)
    return [
        linear(f"{prefix}_up", hidden, wide, split=Split.COLUMN, role=first, bias=mlp.bias, kept=kept, parts=parts),
        activation_op(mlp, Region.TENSOR, f"{prefix}_activation", shared=shared),
        linear(f"{prefix}_down", mlp.ffn, hidden, split=Split.ROW, role=last, bias=mlp.bias, kept=inner),
    ]


def narrowed(op: Op, precision: Precision) -> bool:
    """Whether a product's operands are cast to the recipe's narrow format: all but the head's and `plain` ones."""
    return precision.quantize and op.region is not Region.VOCAB and not (isinstance(op, LinearOp) and op.plain)


def feeds_forward(op: Op) -> bool:
    """Whether an operator is one of a dense feed-forward, which works on each token by itself."""
    product = isinstance(op, GemmOp) and op.role in (OpRole.UP, OpRole.DOWN)
    return product or any(saved.role == "mlp" for saved in op.saved)


def attention_ops(spec: AttentionSpec, hidden: int, kept: tuple[Saved, ...], *, dropout: bool) -> list[Op]:
    """Projections, query and key norm, rotary, core, output projection."""
    prefix = "cross_" if spec.cross else ""
    if spec.latent is not None:
        ops = _latent_projections(spec, spec.latent, hidden, kept)
    elif spec.entries is not None:
        ops = _entry_projections(spec, spec.entries, hidden, kept)
    elif spec.cross:
        ops = _cross_projections(spec, hidden, kept)
    else:
        values = 0 if spec.values_are_keys else spec.v_dim
        wide = spec.heads * spec.qk_dim + spec.made * (spec.qk_dim + values)
        wide += spec.heads * spec.v_dim if spec.output_gate else 0
        parts = 1 if spec.merged_qkv or spec.borrowed else 3
        ops = [
            linear("qkv", hidden, wide, split=Split.COLUMN, role=OpRole.QKV, bias=spec.qkv_bias, kept=kept, parts=parts)
        ]
    if spec.blocks is not None:
        index = Saved(elements=spec.blocks.dim, region=Region.SEQUENCE)
        ops += [
            linear(
                "blocks_q", hidden, spec.blocks.heads * spec.blocks.dim, split=Split.COLUMN, role=OpRole.INDEX_HEADS
            ),
            repeated("blocks_k", hidden, spec.blocks.dim, role=OpRole.INDEX_KEY, kept=(index,), lora=True),
        ]
    if spec.qk_norm is not None:
        ops.append(_qk_norm(spec, spec.qk_norm))
    if spec.rotary_dim:
        keys = 1 if spec.latent is not None else spec.made
        ops.append(rotary_op((spec.heads + keys) * spec.rotary_dim))
    ops.append(_core(spec, f"{prefix}attention", dropout=dropout))
    width = spec.heads * spec.v_dim
    if spec.output_gate:
        ops.append(gate_op("attention_gate", width))
    if spec.entries is not None:
        groups, rank = spec.entries.out_groups, spec.entries.out_rank
        ops.append(
            linear("attention_groups", width // groups, groups * rank, split=Split.COLUMN, role=OpRole.OUTPUT_GROUPS)
        )
        width = groups * rank
    last = OpRole.OTHER if spec.cross else OpRole.OUTPUT
    ops.append(linear(f"{prefix}attention_out", width, hidden, split=Split.ROW, role=last, bias=spec.out_bias))
    return ops


def gate_op(name: str, width: int) -> ElementwiseOp:
    """Product with a sigmoid gate; keeps the gate and the product, which the projection after it needs."""
    return elementwise(name, 2 * width, width, 3 * width, kept=2 * width, kernels=2)


def layer_embedding_ops(width: int, hidden: int, norm: Norm) -> list[Op]:
    """A layer's own embedding, gated by the residual, projected, normed and added (Gemma 4's per-layer inputs)."""
    kept, inner = (Saved(elements=each, region=Region.SEQUENCE) for each in (hidden, width))
    return [
        repeated("layer_gate", hidden, width, role=OpRole.WIDTH, kept=(kept,)),
        elementwise("layer_product", 2 * width, width, 3 * width, region=Region.SEQUENCE, kept=2 * width, kernels=2),
        repeated("layer_project", width, hidden, role=OpRole.WIDTH, kept=(inner,)),
        norm_op("layer_norm", norm, hidden),
        residual_op("layer_residual", hidden),
    ]


def _cross_projections(spec: AttentionSpec, hidden: int, kept: tuple[Saved, ...]) -> list[Op]:
    width = spec.kv_heads * (spec.qk_dim + spec.v_dim)
    keys = (Saved(elements=width, region=Region.TENSOR),)
    made = linear("cross_kv", hidden, width, split=Split.COLUMN, bias=spec.qkv_bias, kept=keys, parts=2)
    return [
        linear("cross_q", hidden, spec.heads * spec.qk_dim, split=Split.COLUMN, bias=spec.qkv_bias, kept=kept),
        replace(made, cross=True),
    ]


def _latent_projections(spec: AttentionSpec, latent: Latent, hidden: int, kept: tuple[Saved, ...]) -> list[Op]:
    rms = Norm(kind="rms")
    queries = spec.heads * spec.qk_dim
    ops: list[Op] = []
    if latent.q_rank is None:
        ops.append(linear("q", hidden, queries, split=Split.COLUMN, kept=kept))
    else:
        rank = latent.q_rank
        low = (Saved(elements=rank, region=Region.SEQUENCE),)
        ops += [
            repeated("q_down", hidden, rank, role=OpRole.QUERY_DOWN, bias=spec.qkv_bias, kept=kept, lora=True),
            norm_op("q_norm", rms, rank),
            linear("q_up", rank, queries, split=Split.COLUMN, role=OpRole.QUERY_UP, kept=low),
        ]
    low = (Saved(elements=latent.kv_rank, region=Region.SEQUENCE),)
    keys = spec.heads * (latent.nope_dim + spec.v_dim)
    ops += [
        repeated(
            "kv_down", hidden, latent.kv_rank + latent.rope_dim, role=OpRole.KEY_DOWN, bias=spec.qkv_bias, lora=True
        ),
        norm_op("kv_norm", rms, latent.kv_rank),
        linear("kv_up", latent.kv_rank, keys, split=Split.COLUMN, role=OpRole.KEY_UP, kept=low),
    ]
    if latent.chosen is not None and latent.chosen.heads:
        ops += _indexer(latent.chosen, latent.q_rank or hidden, hidden)
    return ops


def _entry_projections(spec: AttentionSpec, entries: Entries, hidden: int, kept: tuple[Saved, ...]) -> list[Op]:
    """Queries over a rank, the one key of all heads, and what makes entries and chooses among them.

    Entries that overlap, those that are chosen, are made twice; each of a key and its weight.
    """
    rms, low = Norm(kind="rms"), (Saved(elements=entries.q_rank, region=Region.SEQUENCE),)
    ops = [
        repeated("q_down", hidden, entries.q_rank, role=OpRole.QUERY_DOWN, bias=spec.qkv_bias, kept=kept, lora=True),
        norm_op("q_norm", rms, entries.q_rank),
        linear("q_up", entries.q_rank, spec.heads * spec.qk_dim, split=Split.COLUMN, role=OpRole.QUERY_UP, kept=low),
        repeated("kv_down", hidden, spec.qk_dim, role=OpRole.KEY_DOWN, bias=spec.qkv_bias, lora=True),
        norm_op("kv_norm", rms, spec.qk_dim),
    ]
    chosen, made = entries.chosen, 4 if entries.chosen is not None else 2
    if entries.ratio:
        ops.append(repeated("entry", hidden, made * spec.qk_dim, lora=True))
    if chosen is not None:
        ops += [
            repeated("entry_q", entries.q_rank, chosen.heads * chosen.dim, lora=True),
            repeated("entry_k", hidden, made * chosen.dim, lora=True),
            repeated("entry_weights", hidden, chosen.heads, lora=True),
        ]
    return ops


def streams_op(name: str, width: int, streams: int, *, before: bool) -> HyperConnectionOp:
    """Several streams of a residual mixed into a part's input (`before`), or its output into them.

    Weights of the mix are made of all streams by a product with streams (streams + 2) columns. Source: mHC (Xie and
    others 2025, arXiv:2512.24880).
    """
    read, write = (streams * width, width) if before else ((streams + 1) * width, streams * width)
    return HyperConnectionOp(
        name=name, region=Region.SEQUENCE, width=width, streams=streams, before=before, read=read, write=write,
        backward_read=read + write, backward_write=read,
        params=streams * width * streams * (streams + 2) if before else 0,
        saved=(Saved(elements=streams * width, region=Region.SEQUENCE),) if before else (),
    )  # fmt: skip


def _indexer(chosen: Chosen, rank: int, hidden: int) -> list[Op]:
    """Queries, one key and a weight of each head for the scores that choose keys; every tensor rank has them whole."""
    return [
        repeated("index_q", rank, chosen.heads * chosen.dim, role=OpRole.INDEX, lora=True),
        repeated("index_k", hidden, chosen.dim, role=OpRole.INDEX, lora=True),
        norm_op("index_norm", Norm(kind="layer", bias=True), chosen.dim, role=OpRole.INDEX),
        repeated("index_weights", hidden, chosen.heads, role=OpRole.INDEX, lora=True),
    ]


def _qk_norm(spec: AttentionSpec, norm: Norm) -> NormOp:
    total = (spec.heads + spec.made) * spec.qk_dim
    norms = 1 if spec.borrowed else 2
    params = norms * norm.params(spec.qk_dim) if spec.qk_norm_over == "head" else norm.params(total)
    found = norm_op("qk_norm", norm, total, role=OpRole.QUERY_KEY, region=Region.TENSOR)
    apart = spec.qk_norm_over == "all"
    return replace(found, kernels=norms * found.kernels, params=params, params_split=apart, function="")


def _core(spec: AttentionSpec, name: str, *, dropout: bool) -> AttentionOp:
    """Scores, softmax, weighted sum. Keeps q, k, v, the output and, by kernel, statistics or scores."""
    keys = 0 if spec.cross else spec.made * (spec.qk_dim + spec.v_dim)
    owner = spec.latent or spec.entries
    chosen = owner.chosen if owner is not None else spec.blocks
    entries = spec.entries
    saved = [
        Saved(elements=spec.heads * spec.qk_dim + keys, region=Region.TENSOR),
        Saved(elements=spec.heads * spec.v_dim, region=Region.TENSOR),
        Saved(elements=spec.heads, region=Region.TENSOR, element_bytes=STATISTIC_BYTES, kernel="flash"),
    ]
    scores = Saved(elements=spec.heads, region=Region.TENSOR, role="core", times_seq=True, kernel="unfused")
    saved.append(scores)
    if dropout:
        saved += [replace(scores, element_bytes=MASK_BYTES), scores]
    return AttentionOp(
        name=name,
        region=Region.TENSOR,
        heads=spec.heads,
        kv_heads=spec.kv_heads,
        qk_dim=spec.qk_dim,
        v_dim=spec.v_dim,
        keys=spec.keys,
        causal=spec.causal,
        window=spec.window,
        chunk=spec.chunk,
        top=chosen.top if chosen else None,
        index_heads=chosen.heads if chosen else 0,
        index_dim=chosen.dim if chosen else 0,
        ratio=entries.ratio if entries else None,
        near=entries.window if entries else 0,
        cross=spec.cross,
        borrowed=spec.borrowed,
        params=spec.heads * (int(spec.sinks) + spec.relative_buckets),
        params_split=True,
        saved=tuple(saved),
    )
