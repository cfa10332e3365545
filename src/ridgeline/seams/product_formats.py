"""The seam of product formats: techniques whose products are in number formats of their own, and what keeps them so."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from ridgeline.facts.records import SPARSE
from ridgeline.graph.ops import LinearOp, Op, ProductFormats
from ridgeline.graph.workload import PRECISIONS, without_rate
from ridgeline.seams.graph import GraphRewrite

if TYPE_CHECKING:
    from ridgeline.graph.model import Graph
    from ridgeline.seams.setting import Setting

PLACE_BYTES = 0.125  # of each weight: two bits tell which of four a kept one is. Source: PTX ISA, mma.sp metadata


def packed_bytes(width: float) -> float:
    """A weight of `width` bytes where two of four are kept: half of it and its places [byte].

    >>> packed_bytes(2.0)
    1.125
    """
    return width / 2 + PLACE_BYTES


@dataclass(frozen=True, kw_only=True)
class FormatRewrite(GraphRewrite):
    """Products in number formats of their own: `formats` says which, of one product."""

    kinds: ClassVar[frozenset[str]] = frozenset({"training"})
    owns: ClassVar[frozenset[str]] = frozenset({"product formats"})

    def formats(self, op: LinearOp) -> ProductFormats | None:
        """Formats of a product; None leaves them to the workload."""
        raise NotImplementedError

    def rate(self, compute: str) -> str:
        """The matrix rate that a device must have for a workload that computes in a format: with two of four kept."""
        return compute + SPARSE

    def applies(self, setting: Setting) -> str:
        """Why it does not apply, in a phrase; '' where it does: to devices with the rate that it needs."""
        said, job = super().applies(setting), setting.job
        if said or job is None:
            return said
        rate, part = self.rate(PRECISIONS[job.precision].compute), setting.cluster.accelerator
        return "" if rate in part.peak_flop_per_s else without_rate(part.name, rate, part.peak_flop_per_s)

    def refusal(self, graph: Graph) -> str:
        """Why it does not apply to a graph, in a phrase; '' where it does."""
        ops = (op for block in graph.blocks.values() for op in block.ops)
        found = any(isinstance(op, LinearOp) and self.formats(op) for op in ops)
        return "" if found else "it has no product whose format it changes"

    def rewrite(self, graph: Graph) -> Graph:
        """The graph with the formats put in place."""
        blocks = {name: replace(block, ops=self._ops(block.ops)) for name, block in graph.blocks.items()}
        return replace(graph, blocks=blocks, embedding=self._ops(graph.embedding), head=self._ops(graph.head))

    def _ops(self, ops: Iterable[Op]) -> tuple[Op, ...]:
        found = ((op, self.formats(op) if isinstance(op, LinearOp) else None) for op in ops)
        return tuple(replace(op, formats=own) if own and isinstance(op, LinearOp) else op for op, own in found)
