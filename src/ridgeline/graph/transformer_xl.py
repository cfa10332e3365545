"""Transformer-XL: segments that attend to the one before them, by content and by distance; an adaptive softmax.

Letters: S tokens of a segment, D hidden, H heads, F ffn, V vocabulary. Sources: Dai et al. 2019 (arXiv:1901.02860);
layers, sizes and the order of operators as PyTorch/LanguageModeling/Transformer-XL of NVIDIA/DeepLearningExamples runs
them one by one. The memory is as long as the segment.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from ridgeline.errors import UnknownNameError
from ridgeline.facts.mechanisms import token_frequency
from ridgeline.facts.store import toml_records
from ridgeline.graph.model import Block, Model, network_of
from ridgeline.graph.ops import AttentionOp, CrossEntropyOp, EmbeddingOp, Op, OpRole, Region, Saved, Split, elementwise
from ridgeline.graph.parts import MASK_BYTES, MASK_TRAFFIC, linear, norm_op, residual_op
from ridgeline.graph.pixels import kept, product
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
    block = Block(name="layer", ops=tuple(_layer(size, sequences)))
    return network_of(
        name, "transformer-xl", [block] * size.layers, hidden=size.hidden, vocab=_common(size), source="released code",
        embedding=_embedding(size), head=_head(size), tied_embeddings=True,
        dims={"hidden": size.hidden, "segment": size.segment, "vocab": VOCAB},
    )  # fmt: skip


def _layer(size: TransformerXLSize, sequences: int) -> list[Op]:
    wide, norm = size.hidden, Norm(kind="layer", bias=True)
    waiting, inner = (kept(wide),), (Saved(elements=size.ffn, region=Region.TENSOR),)
    return [
        *_attention(size, sequences),
        linear("attention_out", wide, wide, split=Split.NONE, role=OpRole.OUTPUT, kept=waiting),
        residual_op("attention_residual", wide, dropout=True),
        norm_op("attention_norm", norm, wide),
        linear("mlp_up", wide, size.ffn, split=Split.NONE, role=OpRole.UP, bias=True, kept=waiting),
        elementwise("mlp_activation", size.ffn, size.ffn, 2 * size.ffn),
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
    saved = (kept(4 * wide + 2 * wide), kept(2 * scores), Saved(
        elements=scores, region=Region.TENSOR, element_bytes=MASK_BYTES,
    ))  # fmt: skip
    core = AttentionOp(
        name="attention", region=Region.TENSOR, heads=heads, kv_heads=heads, qk_dim=2 * HEAD,
        v_dim=HEAD, positions=keys, saved=saved,
    )  # fmt: skip
    return [
        elementwise("memory", 2 * wide, 2 * wide, wide, wide),
        product("qkv", wide, 3 * wide, 2, bias=False),
        product("distances", wide, wide, 2.0 / sequences, bias=False, kept_input=False),
        _pass("content_bias", wide, backward=2),
        _pass("distance_bias", wide, backward=2),
        _pass("key_layout", 2 * wide),
        _pass("value_layout", 2 * wide),
        elementwise("distance_scores", 0, scores, 2 * scores),
        _pass("shift", scores, backward=2),
        elementwise("scores_sum", 2 * scores, scores, backward_write=scores),
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
            product(f"widen{number}", wide, size.hidden, share, bias=False)
            for number, _, _, wide, share in _clusters(size)
        ]
    return [*ops, _dropout("embed_dropout", size.hidden, params=2 * size.hidden)]


def _head(size: TransformerXLSize) -> list[Op]:
    """Logits of the frequent words and of the clusters; of a cluster's words for the tokens that are in it."""
    common = _common(size)
    ops = [_dropout("head_dropout", size.hidden)]
    if size.narrower > 1:
        ops.append(linear("head_project", size.hidden, size.hidden, split=Split.NONE))
    logits = linear("logits", size.hidden, common, split=Split.NONE, kept=(kept(size.hidden),))
    ops += [
        replace(logits, params=len(size.cutoffs) * (size.hidden + 1) + VOCAB),
        CrossEntropyOp(name="cross_entropy", region=Region.VOCAB, n=common),
    ]
    if size.cutoffs:
        ops.append(_pass("select", common, backward=2))
    for number, first, last, wide, share in list(_clusters(size))[1:]:
        alone: dict[str, Any] = {"bias": False, "kept_input": False, "params": 0}
        if size.narrower > 1:
            ops.append(product(f"narrow{number}", size.hidden, wide, share, **alone))
        ops.append(product(f"logits{number}", wide, last - first, share, **alone))
        rare = share * (last - first)
        ops.append(elementwise(f"loss{number}", 2 * rare, 2 * rare, 3 * rare))
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


def _pass(name: str, width: float, *, backward: int = 1) -> Op:
    """A kernel that reads and writes `width`; `backward` of them in backward."""
    return elementwise(name, width, width, backward * width, backward * width)


def _dropout(name: str, width: int, *, params: int = 0) -> Op:
    mask = MASK_TRAFFIC * width
    return elementwise(name, width, width + mask, kept=width, element_bytes=MASK_BYTES, params=params)
