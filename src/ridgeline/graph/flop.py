"""Model FLOP: the arithmetic that the mathematics needs, per token.

Letters: S sequence, H heads, D hidden, V vocabulary. A multiply and an add are two FLOP. Only
matrix products count; norms, activations and softmax are left out, as in published counts.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ridgeline.errors import WorkloadError
from ridgeline.graph.model import Graph
from ridgeline.graph.ops import (
    AttentionOp,
    ConvolutionOp,
    ElementwiseOp,
    GemmOp,
    GroupedGemmOp,
    LinearOp,
    Op,
    RecurrentOp,
    ScanOp,
)

Number = TypeVar("Number", float, NDArray[np.float64])
COUNTS = ("causal", "full")


def mean_context(op: AttentionOp, seq_len: Number, *, attention: str = "causal") -> Number:
    """Positions that one query of an attention op attends to, on average over the sequence [token].

    Full bidirectional: S. Causal: (S + 1) / 2. Causal within a window w < S:
    w - w (w - 1) / (2 S), and as much where an indexer chooses w keys of all; of entries as many as there are by then.
    Causal within chunks c: S = q c + r gives (q c (c + 1) + r (r + 1)) / (2 S). `attention='full'` counts every
    position of the window, chunk or sequence, as kernels without causal skipping compute it and as Megatron-LM's
    published FLOP formula counts it.
    """
    if attention not in COUNTS:
        raise WorkloadError(f"attention = '{attention}', needs 'causal' or 'full'")
    s = np.asarray(seq_len, dtype=np.float64)
    limit = s if op.window is None else np.minimum(s, op.window)
    limit = limit if op.chunk is None else np.minimum(limit, op.chunk)
    limit = limit if op.top is None else np.minimum(limit, op.top)
    if op.ratio is not None and attention == "causal":
        found = _entries_seen(op, s)
    elif attention == "full" or not op.causal:
        found = limit
    elif op.chunk is not None:
        chunk = np.minimum(s, op.chunk)
        rest = s % chunk
        found = ((s - rest) * (chunk + 1) + rest * (rest + 1)) / (2 * s)
    else:
        found = limit - limit * (limit - 1) / (2 * s)
    return found if isinstance(seq_len, np.ndarray) else float(found)


def _entries_seen(op: AttentionOp, s: NDArray[np.float64]) -> NDArray[np.float64]:
    """Keys of a query's own window, and entries of those before it, chosen or all, on average over a sequence [1]."""
    near = np.minimum(s, op.near)
    seen = near - near * (near - 1) / (2 * s)
    if not op.ratio:
        return np.asarray(seen)
    made = s / op.ratio
    most = made if op.top is None else np.minimum(made, op.top)
    return np.asarray(seen + most - most * most / (2 * made))


def index_flop_per_token(op: AttentionOp, seq_len: Number, *, attention: str = "causal") -> Number:
    """Forward FLOP per token of the scores that choose an attention's keys: 2 I d for each key seen [FLOP/token].

    I heads of width d, 0 where nothing chooses.
    """
    if not op.index_heads:
        return seq_len * 0.0
    if op.ratio:  # an index key for each entry
        return seq_len * (op.index_heads * op.index_dim / op.ratio)
    return mean_context(replace(op, top=None), seq_len, attention=attention) * (2.0 * op.index_heads * op.index_dim)


def op_flop_per_token(op: Op, context: Number, *, top_k: int = 1) -> Number:
    """Forward FLOP of one op per token of its own stream [FLOP/token].

    GEMM 2 k n; GROUPED_GEMM that times `top_k`; ATTENTION 2 H (qk + v) context; SCAN as given. Over an image, GEMM and
    ATTENTION times its rows, the latter of its own positions. A GEMM of steps counts each of them.
    """
    zero = context * 0.0
    match op:
        case ConvolutionOp():
            return zero + 2.0 * op.k * op.n * op.rows * op.groups
        case RecurrentOp():
            return zero + 2.0 * op.k * op.n * op.rows * op.steps
        case GemmOp():
            return zero + 2.0 * op.k * op.n
        case GroupedGemmOp():
            return zero + 2.0 * op.k * op.n * top_k
        case AttentionOp():
            return (op.positions or context) * (2.0 * op.heads * (op.qk_dim + op.v_dim)) * op.rows + zero
        case ElementwiseOp() | ScanOp():
            return zero + op.flop_per_token
        case _:
            return zero


def model_flop_per_token(
    graph: Graph,
    seq_len: Number,
    *,
    attention: str = "causal",
    context: Number | None = None,
    encoder_seq_len: Number | None = None,
) -> Number:
    """Forward FLOP per token of the (decoder's) sequence, logits included [FLOP/token].

    Parameters
    ----------
    seq_len : S [token]; a float or an array, the result has its shape.
    attention : 'causal' counts attended positions only, 'full' all S of them.
    context : mean attended positions of an unwindowed self-attention [token], in place of S's, e.g.
        for packed documents that attention may not cross; windows still cap it.
    encoder_seq_len : tokens of the encoder for each decoder sequence (default S).

    Domain: S >= 1. Training costs three times this: each product's backward is two products of its size. Experts count
    `top_k` times.
    """
    source = seq_len if encoder_seq_len is None else encoder_seq_len
    total = seq_len * 0.0
    for block_name in dict.fromkeys(graph.layers):
        block = graph.blocks[block_name]
        repeats = graph.layers.count(block_name)
        share = source / seq_len if block.encoder else 1.0
        for op in block.ops:
            own = source if block.encoder else seq_len
            attended = _context(op, own, source, attention, context)
            tokens = source / seq_len if isinstance(op, LinearOp) and op.cross else share
            flop = op_flop_per_token(op, attended, top_k=block.top_k)
            if isinstance(op, AttentionOp):
                flop = flop + index_flop_per_token(op, own, attention=attention)
            total = total + flop * tokens * repeats
    for op in (*graph.embedding, *graph.head):
        total = total + op_flop_per_token(op, seq_len)
    return total


def _context(op: Op, own: Number, source: Number, attention: str, given: Number | None) -> Number:
    if not isinstance(op, AttentionOp) or op.cross:
        return source
    found = mean_context(op, own, attention=attention)
    if given is None:
        return found
    capped: Number = np.minimum(found, given) + own * 0.0
    return capped
