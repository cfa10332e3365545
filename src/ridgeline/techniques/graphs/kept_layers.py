"""Layers at both ends of a model that are multiplied in 16 bits under recipes of narrower formats."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from ridgeline.graph.model import Block, Graph
from ridgeline.graph.ops import LinearOp, Op
from ridgeline.graph.workload import PRECISIONS
from ridgeline.seams.graph import GraphRewrite
from ridgeline.seams.setting import Setting
from ridgeline.seams.technique import accuracy, param


@dataclass(frozen=True, kw_only=True)
class KeptLayers(GraphRewrite):
    """Selective high precision: the first and last layers keep 16-bit products where the recipe's are narrower.

    What it adds to a recipe of 4 or 8 bits: products of `first` and `last` layers, whose errors cost a run most, are
    not cast, take the 16-bit matrix rate and keep 16-bit inputs for backward. The embedding, the head, attention
    scores, norms and the optimizer are in 16 and 32 bits under every recipe. With hybrid models a layer is one mixer or
    one feed-forward, as in the paper, whose defaults these are.

    Checked: all layers kept are the 16-bit recipe's time and activations, none the narrow one's, and each more
    lies between. Left out: single products that are kept inside other layers, and a switch to 16 bits late in a run.
    """

    key: ClassVar[str] = "kept-layers"
    source: ClassVar[tuple[str, ...]] = ("nvfp4-pretraining-2025",)
    kinds: ClassVar[frozenset[str]] = frozenset({"training"})
    owns: ClassVar[frozenset[str]] = frozenset({"kept layers"})
    commutes: ClassVar[frozenset[str]] = frozenset({"graphs"})
    quality = accuracy(
        "loss within 1 % of FP8's, 12B hybrid model, 10 of 62 layers kept", "nvfp4-pretraining-2025", 0.01, "1"
    )
    claims: ClassVar[tuple[str, ...]] = ("training in NVFP4 stays with FP8's loss with few layers kept in 16 bits",)

    first: int = param(2, "layers", "layers kept at the start", low=0, high=10_000)
    last: int = param(8, "layers", "layers kept at the end", low=0, high=10_000)

    def applies(self, setting: Setting) -> str:
        """Why it does not apply, in a phrase; '' where the recipe casts products to a narrower format."""
        job = setting.job
        if job is not None and not PRECISIONS[job.precision].quantize:
            return f"products are in {job.precision}, no narrower than activations"
        return super().applies(setting)

    def refusal(self, graph: Graph) -> str:
        """Why it does not apply to a graph, in a phrase; '' where it does."""
        return "" if self.first + self.last else "it keeps no layer: first and last are 0"

    def rewrite(self, graph: Graph) -> Graph:
        """The graph whose first and last layers have plain products."""
        count = len(graph.layers)
        kept = [i < self.first or i >= count - self.last for i in range(count)]
        names = {name: f"{name}_16_bits" for name, at in zip(graph.layers, kept, strict=True) if at}
        layers = tuple(names[name] if at else name for name, at in zip(graph.layers, kept, strict=True))
        blocks = {name: block for name, block in graph.blocks.items() if name in layers}
        blocks |= {other: _plain(graph.blocks[name], other) for name, other in names.items()}
        return replace(graph, blocks=blocks, layers=layers)


def _plain(block: Block, name: str) -> Block:
    return replace(block, name=name, ops=tuple(map(_uncast, block.ops)))


def _uncast(op: Op) -> Op:
    return replace(op, plain=True) if isinstance(op, LinearOp) else op
