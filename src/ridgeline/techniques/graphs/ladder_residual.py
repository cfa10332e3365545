"""Layers whose parts read the residual before the sum of the part ahead of them has arrived."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from ridgeline.facts.records import Fact
from ridgeline.graph.model import Block, Graph
from ridgeline.graph.ops import OpRole
from ridgeline.seams.graph import GraphRewrite
from ridgeline.seams.setting import Setting
from ridgeline.seams.technique import accuracy


@dataclass(frozen=True, kw_only=True)
class LadderResidual(GraphRewrite):
    """Ladder Residual: a part's all-reduce runs beside the part after it, which reads the residual without it.

    Attention i reads what was summed up to attention i - 1, and feed-forward i what was summed up to feed-forward
    i - 1. So under tensor parallelism the all-reduce after attention runs beside the feed-forward, and that after the
    feed-forward beside the next attention; a layer takes max(F, r) + max(A, r) in place of A + r + F + r. Products that
    wait for compute lose the multiprocessors that a collective holds (`overlap.compute_slowdown`); what an attention's
    projections do not cover its core may.

    Fills the seam of graphs: sums of layers are `deferred`, and the engine's iterations run them beside kernels. The
    model must have been trained so, or adapted. Checked: a layer by hand; its two bounds, no collective at all and none
    hidden; the paper's throughputs on 2 to 8 devices. Left out: training, experts, how a second stream slows launches,
    and that memory-bound kernels share bandwidth with a collective; where an iteration has prompts and decode steps,
    the cores of each hide what they would alone.
    """

    key: ClassVar[str] = "ladder-residual"
    source: ClassVar[tuple[str, ...]] = ("ladder-residual",)
    kinds: ClassVar[frozenset[str]] = frozenset({"serving"})
    owns: ClassVar[frozenset[str]] = frozenset({"iterations"})
    quality: ClassVar[Fact | None] = accuracy(
        "trained from scratch at 1B and 3B as a standard transformer's; Llama-3.1 8B adapted with 3B tokens, abstract",
        "ladder-residual",
    )
    claims: ClassVar[tuple[str, ...]] = ("29 % sooner end to end at 70B over 8 devices",)

    def applies(self, setting: Setting) -> str:
        """Layers that are not divided have no all-reduce."""
        said, one = super().applies(setting), setting.deployment
        return said or ("hides all-reduces of tensor ranks, of which there is one" if one and one.tp == 1 else "")

    def refusal(self, graph: Graph) -> str:
        """Why it does not apply to a graph, in a phrase; '' where it does."""
        for block in graph.blocks.values():
            if block.experts:
                return "is modelled for layers without experts"
            if block.gemm(OpRole.OUTPUT) is None or len(block.boundaries) != 2:
                return "needs layers of attention, then a feed-forward, each with a sum of its own"
        return ""

    def rewrite(self, graph: Graph) -> Graph:
        """The graph whose layers' sums enter the residual one part later."""
        return replace(graph, blocks={name: self._block(block) for name, block in graph.blocks.items()})

    def _block(self, block: Block) -> Block:
        return replace(block, boundaries=tuple(replace(edge, deferred=True) for edge in block.boundaries))
