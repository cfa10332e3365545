"""What context-parallel ranks send each other around one attention of a training step."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ridgeline.graph.ops import AttentionOp
from ridgeline.graph.workload import Precision
from ridgeline.lower.work import Collective, CollectiveKind, Layout, Phase, Stream, Work
from ridgeline.seams.context import Attended, Exchange


def context_exchange(op: AttentionOp, layout: Layout, precision: Precision, *, queries: float) -> Iterable[Work]:
    """Exchanges of each style among ranks that have it, forward and backward; `queries` [token]."""
    attended = Attended(
        tokens=layout.tokens(queries),
        heads=op.heads,
        kv_heads=op.kv_heads,
        qk_dim=op.qk_dim,
        v_dim=op.v_dim,
        element_bytes=precision.activation_bytes,
        tensor=layout.tp,
        ranks=layout.cp,
    )
    for phase in (Phase.FORWARD, Phase.BACKWARD_INPUT):
        for style, chosen in layout.styles:
            ranks = np.where(chosen, layout.cp, 1)
            for one in style.exchanges(attended, backward=phase is Phase.BACKWARD_INPUT):
                if isinstance(one, Exchange):
                    yield Collective(
                        name=f"{op.name}.{one.name}",
                        phase=phase,
                        kind=CollectiveKind(one.kind),
                        ranks=ranks,
                        bytes=np.asarray(one.size_bytes),
                        stride=layout.tp,
                        repeats=one.repeats,
                        hidden_behind="attention" if one.hidden else "",
                        leaving=one.leaving,
                    )
                    continue
                moved = np.where(ranks > 1, 1.0, 0.0)
                yield Stream(
                    name=f"{op.name}.{one.name}",
                    phase=phase,
                    bytes=moved * np.asarray(one.moved_bytes),
                    kernels=one.kernels * moved,
                )
