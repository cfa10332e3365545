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
from ridgeline.graph.spec import EmbeddingHead


def _gather(name: str, rows: int, width: int, region: Region) -> EmbeddingOp:
    tokens = region is Region.VOCAB
    return EmbeddingOp(
        name=name, region=region, k=width, n=rows, params=rows * width, params_split=tokens, tokens=tokens
    )


def embedding_ops(embedding_head: EmbeddingHead) -> list[Op]:
    """Tables looked up and summed, with projection, norm and dropout where the model has them."""
    width = embedding_head.embed_dim or embedding_head.hidden
    ops: list[Op] = [_gather("embed_tokens", embedding_head.vocab, width, Region.VOCAB)]
    position_width = embedding_head.hidden if embedding_head.embed_project == "in_out" else width
    for name, rows in (
        ("embed_positions", embedding_head.positions),
        ("embed_decoder_positions", embedding_head.decoder_positions),
        ("embed_types", embedding_head.token_types),
    ):
        if rows:
            ops.append(_gather(name, rows, position_width, Region.SEQUENCE))
    tables = len(ops)
    if embedding_head.embed_project:
        ops.append(_project("embed_project", width, embedding_head.hidden, bias=embedding_head.embed_project == "in"))
    if tables > 1 or embedding_head.dropout:
        ops.append(_embedding_sum(embedding_head, tables))
    if embedding_head.embed_norm is not None:
        name = "embed_norm"
        ops += [
            norm_op(name if not i else f"{name}_{i + 1}", embedding_head.embed_norm, width)
            for i in range(embedding_head.embed_norms)
        ]
    return ops


def _project(name: str, k: int, n: int, *, bias: bool) -> Op:
    kept = (Saved(elements=k, region=Region.SEQUENCE),)
    return repeated(name, k, n, bias=bias, kept=kept)


def _embedding_sum(embedding_head: EmbeddingHead, tables: int) -> Op:
    mask = MASK_TRAFFIC * embedding_head.hidden if embedding_head.dropout else 0.0
    kept = Saved(elements=embedding_head.hidden, region=Region.SEQUENCE, element_bytes=MASK_BYTES)
    return elementwise(
        "embed_sum",
        tables * embedding_head.hidden,
        embedding_head.hidden + mask,
        backward_write=embedding_head.hidden,
        region=Region.SEQUENCE,
        saved=(kept,) if embedding_head.dropout else (),
        kernels=tables - 1 + int(embedding_head.dropout),
    )


def head_ops(embedding_head: EmbeddingHead) -> list[Op]:
    """Final norm, the head's own layers, logits and loss."""
    ops: list[Op] = []
    width = embedding_head.embed_dim or embedding_head.hidden
    if embedding_head.norm is not None:
        ops.append(norm_op("final_norm", embedding_head.norm, embedding_head.hidden))
    if embedding_head.embed_project == "in_out":
        ops.append(_project("head_project", embedding_head.hidden, width, bias=False))
    if embedding_head.pooler:
        ops += [
            _unit("pooler", embedding_head.hidden, embedding_head.hidden),
            _unit("next_sentence", embedding_head.hidden, 2),
        ]
    if embedding_head.head == "discriminator":
        return [
            *ops,
            *_transform(embedding_head.hidden, embedding_head.hidden),
            _project("head", embedding_head.hidden, 1, bias=True),
        ]
    if embedding_head.head == "mlm":
        ops += _transform(embedding_head.hidden, width)
        if embedding_head.embed_norm is not None:
            ops.append(norm_op("head_norm", embedding_head.embed_norm, width))
    return [*ops, *_logits(embedding_head, width)]


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


def _logits(embedding_head: EmbeddingHead, width: int) -> list[Op]:
    vocab = embedding_head.vocab
    bias = vocab if embedding_head.head_bias else 0
    ops: list[Op] = [
        GemmOp(
            name="lm_head",
            region=Region.VOCAB,
            k=width,
            n=vocab,
            split=Split.COLUMN,
            params=width * vocab + (0 if embedding_head.tied else bias),
            params_split=True,
            tied=embedding_head.tied,
            saved=(Saved(elements=width, region=Region.SEQUENCE),),
        )
    ]
    if embedding_head.tied and bias:
        ops.append(
            ElementwiseOp(
                name="head_bias",
                region=Region.VOCAB,
                backward_read=vocab,
                params=bias,
                params_split=True,
                kernels=0,
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
