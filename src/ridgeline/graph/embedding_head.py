"""Embeddings before the first layer, logits and loss after the last.

Letters: D hidden, V vocabulary.
"""

from __future__ import annotations

from ridgeline.graph.ops import (
    CrossEntropyOp,
    ElementwiseOp,
    EmbeddingOp,
    GemmOp,
    Op,
    Region,
    Saved,
    Split,
    elementwise,
)
from ridgeline.graph.parts import MASK_BYTES, MASK_TRAFFIC, STATISTIC_BYTES, norm_op, repeated
from ridgeline.graph.spec import EmbeddingHead, Norm


def _gather(name: str, rows: int, width: int, region: Region) -> EmbeddingOp:
    tokens = region is Region.VOCAB
    return EmbeddingOp(
        name=name, region=region, k=width, n=rows, params=rows * width, params_split=tokens, tokens=tokens
    )


def embedding_ops(ends: EmbeddingHead) -> list[Op]:
    """Tables looked up and summed, with projection, norm and dropout where the model has them."""
    width = ends.embed_dim or ends.hidden
    ops: list[Op] = [_gather("embed_tokens", ends.vocab, width, Region.VOCAB)]
    position_width = ends.hidden if ends.embed_project == "in_out" else width
    for name, rows in (
        ("embed_positions", ends.positions),
        ("embed_decoder_positions", ends.decoder_positions),
        ("embed_types", ends.token_types),
    ):
        if rows:
            ops.append(_gather(name, rows, position_width, Region.SEQUENCE))
    tables = len(ops)
    if ends.embed_project:
        ops.append(_project("embed_project", width, ends.hidden, bias=ends.embed_project == "in"))
    if tables > 1 or ends.dropout:
        ops.append(_embedding_sum(ends, tables))
    if ends.layer_rows:
        wide = ends.layer_width
        ops += [
            _gather("embed_layers", ends.layer_rows, wide, Region.SEQUENCE),
            _project("embed_layers_project", ends.hidden, wide, bias=False),
            norm_op("embed_layers_norm", Norm(scale=False), wide),
            elementwise("embed_layers_sum", 2 * wide, wide, backward_write=wide, region=Region.SEQUENCE),
        ]
    if ends.embed_norm is not None:
        name = "embed_norm"
        ops += [norm_op(name if not i else f"{name}_{i + 1}", ends.embed_norm, width) for i in range(ends.embed_norms)]
    return ops


def _project(name: str, k: int, n: int, *, bias: bool) -> Op:
    kept = (Saved(elements=k, region=Region.SEQUENCE),)
    return repeated(name, k, n, bias=bias, kept=kept)


def _embedding_sum(ends: EmbeddingHead, tables: int) -> Op:
    mask = MASK_TRAFFIC * ends.hidden if ends.dropout else 0.0
    kept = Saved(elements=ends.hidden, region=Region.SEQUENCE, element_bytes=MASK_BYTES)
    return elementwise(
        "embed_sum",
        tables * ends.hidden,
        ends.hidden + mask,
        backward_write=ends.hidden,
        region=Region.SEQUENCE,
        saved=(kept,) if ends.dropout else (),
        kernels=tables - 1 + int(ends.dropout),
    )


def head_ops(ends: EmbeddingHead) -> list[Op]:
    """Final norm, the head's own layers, logits and loss."""
    ops: list[Op] = []
    width = ends.embed_dim or ends.hidden
    if ends.norm is not None:
        ops.append(norm_op("final_norm", ends.norm, ends.hidden))
    if ends.embed_project == "in_out":
        ops.append(_project("head_project", ends.hidden, width, bias=False))
    if ends.pooler:
        ops += [_unit("pooler", ends.hidden, ends.hidden), _unit("next_sentence", ends.hidden, 2)]
    if ends.head == "discriminator":
        return [*ops, *_transform(ends.hidden, ends.hidden), _project("head", ends.hidden, 1, bias=True)]
    if ends.head == "mlm":
        ops += _transform(ends.hidden, width)
        if ends.embed_norm is not None:
            ops.append(norm_op("head_norm", ends.embed_norm, width))
    return [*ops, *_logits(ends, width)]


def _transform(hidden: int, width: int) -> list[Op]:
    """A dense layer and its activation, before the logits."""
    kept = (Saved(elements=width, region=Region.SEQUENCE, role="mlp"),)
    return [
        _project("head_transform", hidden, width, bias=True),
        elementwise("head_activation", width, width, 2 * width, region=Region.SEQUENCE, saved=kept),
    ]


def _unit(name: str, k: int, n: int) -> Op:
    """A linear layer on one token of each sequence: parameters, but no work per token."""
    return ElementwiseOp(name=name, region=Region.SEQUENCE, params=k * n + n)


def _logits(ends: EmbeddingHead, width: int) -> list[Op]:
    vocab = ends.vocab
    bias = vocab if ends.head_bias else 0
    ops: list[Op] = [
        GemmOp(
            name="lm_head",
            region=Region.VOCAB,
            k=width,
            n=vocab,
            split=Split.COLUMN,
            params=width * vocab + (0 if ends.tied else bias),
            params_split=True,
            tied=ends.tied,
            saved=(Saved(elements=width, region=Region.SEQUENCE),),
        )
    ]
    if ends.tied and bias:
        ops.append(
            ElementwiseOp(
                name="head_bias", region=Region.VOCAB, backward_read=vocab, params=bias, params_split=True, kernels=0
            )
        )
    ops.append(
        CrossEntropyOp(
            name="cross_entropy",
            region=Region.VOCAB,
            n=vocab,
            saved=(Saved(elements=vocab, region=Region.VOCAB, element_bytes=STATISTIC_BYTES, role="logits"),),
        )
    )
    return ops
