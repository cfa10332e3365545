"""What context-parallel ranks send each other around one attention of a training step.

Shape letters: H heads, K kv heads, q and v numbers of a head's query and value.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ridgeline.graph.ops import AttentionOp
from ridgeline.graph.workload import Precision
from ridgeline.lower.work import Collective, CollectiveKind, Layout, Number, Phase, Stream, Work


def context_exchange(op: AttentionOp, layout: Layout, precision: Precision, *, queries: float) -> Iterable[Work]:
    """Ring: keys and values pass all other shards; all-to-all: heads are traded for tokens. `queries` [token]."""
    size = precision.activation_bytes
    tokens = layout.tokens(queries)
    ring = np.where(layout.ulysses, 0, 1)
    kv_bytes = tokens * (op.qk_dim + op.v_dim) * np.maximum(1, op.kv_heads / np.asarray(layout.tp)) * size
    for phase, factor in ((Phase.FORWARD, 1.0), (Phase.BACKWARD_INPUT, 2.0)):
        yield Collective(
            name=f"{op.name}.ring",
            phase=phase,
            kind=CollectiveKind.ALL_GATHER,
            ranks=np.where(ring, layout.cp, 1),
            bytes=factor * kv_bytes * layout.cp,
            stride=layout.tp,
            hidden_behind="attention",
        )
        ranks = np.where(ring, 1, layout.cp)
        yield from _trade(op, phase, tokens * size / layout.tp, ranks=ranks, stride=layout.tp)


def _trade(op: AttentionOp, phase: Phase, token_bytes: Number, *, ranks: Number, stride: Number) -> Iterable[Work]:
    """Queries, keys, values and results, or their gradients, trade heads for tokens: an all-to-all each.

    Each is laid out anew before and after it, which reads and writes it: 4 (H + K) (q + v) numbers of a token. Source:
    NVIDIA/TransformerEngine@d0067d0 transformer_engine/pytorch/attention/dot_product_attention/context_parallel.py,
    flash_attn_a2a_communicate; so does deepspeedai/DeepSpeed, deepspeed/sequence/layer.py, single_all_to_all.
    """
    width = op.qk_dim + op.v_dim  # of a query beside a result, of a key beside a value
    for heads in (op.heads, op.kv_heads):
        yield Collective(
            name=f"{op.name}.all_to_all", phase=phase, kind=CollectiveKind.ALL_TO_ALL, stride=stride,
            bytes=token_bytes * heads * width / 2.0, ranks=ranks, repeats=2.0,
        )  # fmt: skip
    traded = np.where(np.asarray(ranks) > 1, 1.0, 0.0)
    moved = 4.0 * token_bytes * (op.heads + op.kv_heads) * width
    yield Stream(name=f"{op.name}.trade", phase=phase, bytes=traded * moved, kernels=8.0 * traded)
