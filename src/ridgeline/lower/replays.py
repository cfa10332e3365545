"""Which kernels of a layer with experts are replayed as CUDA graphs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ridgeline.graph.model import Block
from ridgeline.graph.ops import Routing, RoutingOp
from ridgeline.lower.work import Collective, Work


def replayed(work: Iterable[Work], captured: str, block: Block) -> list[Work]:
    """The same work, where what `captured` names of a block with experts is marked as part of a graph."""
    names = _names(captured, block) if block.experts else frozenset()
    return [
        one if isinstance(one, Collective) or one.name not in names else replace(one, captured=True) for one in work
    ]


def _names(captured: str, block: Block) -> frozenset[str]:
    """Operators that are replayed: experts, and what follows them, only where each computes as many rows as any other.

    The router comes with its norm and its product.
    """
    last = next((n for n, op in enumerate(block.ops) if isinstance(op, RoutingOp) and op.step is Routing.ROUTE), -1)
    first, end = {
        "none": (0, 0), "router": (max(0, last - 2), last + 1),
        "attention": (0, last + 1), "layer": (0, len(block.ops)),
    }[captured]  # fmt: skip
    return frozenset(op.name for op in block.ops[first:end])
