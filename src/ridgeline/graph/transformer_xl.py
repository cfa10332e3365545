"""Transformer-XL: segments that attend to the one before them, by content and by distance; an adaptive softmax.

Letters: S tokens of a segment, D hidden, H heads, F ffn, V vocabulary. Sources: Dai et al. 2019 (arXiv:1901.02860);
layers, sizes and the order of operators as PyTorch/LanguageModeling/Transformer-XL of NVIDIA/DeepLearningExamples runs
them one by one. The memory is as long as the segment.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

from ridgeline.errors import UnknownNameError
from ridgeline.facts.mechanisms import token_frequency
from ridgeline.facts.store import toml_records
from ridgeline.graph.model import Block, Graph, Model
from ridgeline.graph.ops import (
    AttentionOp,
    ConvolutionOp,
    CrossEntropyOp,
    ElementwiseOp,
    EmbeddingOp,
    Op,
    OpRole,
    Region,
    Saved,
    Split,
)
from ridgeline.graph.parts import MASK_BYTES, MASK_TRAFFIC, linear, norm_op, residual_op
from ridgeline.graph.spec import Norm

HEAD = 64  # width of a head
VOCAB, CUTOFFS = 267_735, (19_997, 39_997, 199_997)  # words of WikiText-103, and ends of the clusters of rare ones


@dataclass(frozen=True, kw_only=True)
class TransformerXLSize:
    """Layers, D, F, S, and by how much each cluster of rarer words is narrower than the one before.

    `cutoffs` are the ends of the clusters; without them the softmax is over all words.
    """

    layers: int
    hidden: int
    ffn: int
    segment: int
    narrower: int
    cutoffs: tuple[int, ...] = CUTOFFS


SIZES = toml_records("networks.toml", "transformer_xl", TransformerXLSize)


def transformer_xl(name: str, *, sequences: int) -> Model:
    """A Transformer-XL by name; `sequences` of a micro-batch share the products of distances.

    >>> transformer_xl("transformer-xl-base", sequences=16).graph.params
    191950298
    """
    if name not in SIZES:
        raise UnknownNameError("Transformer-XL", name, SIZES)
    size = SIZES[name]
    block = Block(name="layer", ops=tuple(_layer(size, sequences)), boundaries=())
    graph = Graph(
        blocks={"layer": block}, layers=("layer",) * size.layers, embedding=tuple(_embedding(size)),
        head=tuple(_head(size)), hidden=size.hidden, vocab=_common(size), tied_embeddings=True,
    )  # fmt: skip
    dims = {"layers": size.layers, "hidden": size.hidden, "segment": size.segment, "vocab": VOCAB}
    return Model(
        name=name, model_type="transformer-xl", graph=graph, max_positions=None, source="released code", dims=dims
    )


def _layer(size: TransformerXLSize, sequences: int) -> list[Op]:
    wide, norm = size.hidden, Norm(kind="layer", bias=True)
    kept, inner = (_saved(wide),), (Saved(elements=size.ffn, region=Region.TENSOR),)
    return [
        *_attention(size, sequences),
        linear("attention_out", wide, wide, split=Split.NONE, role=OpRole.OUTPUT, kept=kept),
        residual_op("attention_residual", wide, dropout=True),
        norm_op("attention_norm", norm, wide),
        linear("mlp_up", wide, size.ffn, split=Split.NONE, role=OpRole.UP, bias=True, kept=kept),
        _map("mlp_activation", read=size.ffn, write=size.ffn, backward_read=2 * size.ffn, backward_write=size.ffn),
        _dropout("mlp_dropout", size.ffn),
        linear("mlp_down", size.ffn, wide, split=Split.NONE, role=OpRole.DOWN, bias=True, kept=inner),
        residual_op("mlp_residual", wide, dropout=True),
        norm_op("mlp_norm", norm, wide),
    ]


def _attention(size: TransformerXLSize, sequences: int) -> list[Op]:
    """Memory and segment beside each other; queries, keys and values; scores by content and by distance; their sum.

    Both are one product of twice a head's width; those by distance are written apart, shifted so that distances stand
    below positions, and added: passes over scores that an attention without them has not.
    """
    wide, heads, keys = size.hidden, size.hidden // HEAD, 2 * size.segment
    scores = heads * keys
    saved = (_saved(4 * wide + 2 * wide), _saved(2 * scores), Saved(
        elements=scores, region=Region.TENSOR, element_bytes=MASK_BYTES,
    ))  # fmt: skip
    core = AttentionOp(
        name="attention", region=Region.TENSOR, heads=heads, kv_heads=heads, qk_dim=2 * HEAD,
        v_dim=HEAD, positions=keys, saved=saved,
    )  # fmt: skip
    return [
        _map("memory", read=2 * wide, write=2 * wide, backward_read=wide, backward_write=wide),
        _rows("qkv", wide, 3 * wide, 2.0, kept=2 * wide),
        _rows("distances", wide, wide, 2.0 / sequences),
        _pass("content_bias", wide, backward=2),
        _pass("distance_bias", wide, backward=2),
        _pass("key_layout", 2 * wide),
        _pass("value_layout", 2 * wide),
        _map("distance_scores", read=0, write=scores, backward_read=2 * scores, backward_write=0),
        _pass("shift", scores, backward=2),
        _map("scores_sum", read=2 * scores, write=scores, backward_read=scores, backward_write=scores),
        _pass("mask", scores),
        core,
        _pass("output_layout", wide),
    ]


def _embedding(size: TransformerXLSize) -> list[Op]:
    """A table for each cluster, its rows widened where they are narrower; all layers share the biases of queries."""
    tables = [(0, VOCAB, size.hidden)] if size.narrower == 1 else [
        (first, last, wide) for _, first, last, wide, _ in _clusters(size)
    ]  # fmt: skip
    ops: list[Op] = [
        EmbeddingOp(
            name=f"embed{first}", region=Region.VOCAB, n=last - first, k=wide,
            params=(last - first) * wide,
        )
        for first, last, wide in tables
    ]  # fmt: skip
    if size.narrower > 1:
        ops += [
            _rows(f"widen{number}", wide, size.hidden, share, kept=share * wide)
            for number, _, _, wide, share in _clusters(size)
        ]
    return [*ops, _dropout("embed_dropout", size.hidden, params=2 * size.hidden)]


def _head(size: TransformerXLSize) -> list[Op]:
    """Logits of the frequent words and of the clusters; of a cluster's words for the tokens that are in it."""
    common = _common(size)
    ops = [_dropout("head_dropout", size.hidden)]
    if size.narrower > 1:
        ops.append(linear("head_project", size.hidden, size.hidden, split=Split.NONE))
    logits = linear("logits", size.hidden, common, split=Split.NONE, kept=(_saved(size.hidden),))
    ops += [
        replace(logits, params=len(size.cutoffs) * (size.hidden + 1) + VOCAB),
        CrossEntropyOp(name="cross_entropy", region=Region.VOCAB, n=common),
    ]
    if size.cutoffs:
        ops.append(_pass("select", common, backward=2))
    for number, first, last, wide, share in list(_clusters(size))[1:]:
        if size.narrower > 1:
            ops.append(_rows(f"narrow{number}", size.hidden, wide, share, params=0))
        ops.append(_rows(f"logits{number}", wide, last - first, share, params=0))
        rare = share * (last - first)
        ops.append(
            _map(f"loss{number}", read=2 * rare, write=2 * rare, backward_read=3 * rare, backward_write=2 * rare)
        )
    return ops


def _common(size: TransformerXLSize) -> int:
    """Logits of every token: the frequent words and the clusters, or all words [1]."""
    return size.cutoffs[0] + len(size.cutoffs) if size.cutoffs else VOCAB


def _clusters(size: TransformerXLSize) -> list[tuple[int, int, int, int, float]]:
    """Number, first word, end, width and share of the tokens of each cluster, frequent words first."""
    ends = (0, *size.cutoffs, VOCAB)
    return [
        (
            number,
            first,
            last,
            size.hidden // size.narrower**number,
            token_frequency(first, last) if size.cutoffs else 1.0,
        )
        for number, (first, last) in enumerate(pairwise(ends))
    ]


def _saved(elements: float) -> Saved:
    return Saved(elements=elements, region=Region.TENSOR)


def _rows(name: str, k: int, n: int, rows: float, *, kept: float = 0.0, params: int | None = None) -> Op:
    """A product without bias on `rows` rows for each token."""
    return ConvolutionOp(
        name=name, region=Region.TENSOR, k=k, n=n, rows=rows,
        params=k * n if params is None else params, saved=(_saved(kept),) if kept else (),
    )  # fmt: skip


def _pass(name: str, width: float, *, backward: int = 1) -> Op:
    """A kernel that reads and writes `width`; `backward` of them in backward."""
    return _map(name, read=width, write=width, backward_read=backward * width, backward_write=backward * width)


def _map(name: str, *, read: float, write: float, backward_read: float, backward_write: float, params: int = 0) -> Op:
    return ElementwiseOp(
        name=name, region=Region.TENSOR, read=read, write=write, backward_read=backward_read,
        backward_write=backward_write,
    )  # fmt: skip


def _dropout(name: str, width: int, *, params: int = 0) -> Op:
    mask = MASK_TRAFFIC * width
    return ElementwiseOp(
        name=name, region=Region.TENSOR, read=width, write=width + mask, backward_read=width + mask,
        backward_write=width, saved=(Saved(elements=width, region=Region.TENSOR, element_bytes=MASK_BYTES),),
        params=params,
    )  # fmt: skip
