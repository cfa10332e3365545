"""SliceGPT: a residual turned to its principal directions, the least of which are deleted from every weight.

Shape letters: D hidden, d what is left of it, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from ridgeline.facts.records import Fact
from ridgeline.graph.model import Block, Graph
from ridgeline.graph.ops import (
    AttentionOp,
    ElementwiseOp,
    EmbeddingOp,
    GemmOp,
    GroupedGemmOp,
    NormOp,
    Op,
    Region,
    ResidualOp,
    Routing,
    RoutingOp,
    Saved,
    Split,
)
from ridgeline.graph.parts import repeated
from ridgeline.seams.graph import GraphRewrite
from ridgeline.seams.setting import Setting
from ridgeline.seams.technique import accuracy, param

_STEP = 8  # widths are multiples of it, rounded down. Source: experiments/run_slicegpt.py, round_interval


@dataclass(frozen=True, kw_only=True)
class SliceGpt(GraphRewrite):
    """SliceGPT: weights lose rows or columns of the residual, which gets a product of its own before each sum.

    Fills the seam of graphs. With d = (1 - `slicing`) D, down to a multiple of 8, products into a part take d, products
    out of it and tables give d, and so are norms, sums and what ranks exchange. Each block's signal has its own
    principal directions, so the residual is multiplied with a d x d matrix before each sum, every tensor rank with the
    whole of it. A head that was the table of tokens is a weight of its own.

    Checked: weights by hand; turning and deleting on arrays (`ridgeline numerics sliced`). Left out: the head, which
    the authors leave at D; scales of norms, which go into the next weight. Encoders are refused; experts are sliced as
    feed-forwards are, which the authors did not try.
    """

    key: ClassVar[str] = "slicegpt"
    source: ClassVar[tuple[str, ...]] = ("slicegpt-2024", "slicegpt-code")
    owns: ClassVar[frozenset[str]] = frozenset({"residual width"})
    claims: ClassVar[tuple[str, ...]] = ("64 % of dense compute, Llama-2-70B on devices of 24 GB; 66 % on those of 40",)
    quality: ClassVar[Fact | None] = accuracy(
        "99 % of zero-shot accuracy of Llama-2-70B and OPT-66B, 90 % of Phi-2, with up to 25 % of weights removed,"
        " abstract",
        "slicegpt-2024",
        0.99,
        "1",
    )
    slicing: float = param(0.25, "1", "share of the residual's width that is deleted", low=0.0, high=0.9)

    def axes(self, setting: Setting) -> tuple[str, ...]:
        """None: it is another model, made before it runs."""
        return ()

    def refusal(self, graph: Graph) -> str:
        """Why it does not apply to a graph, in a phrase; '' where it does."""
        plain = all(
            any(isinstance(op, AttentionOp) for op in block.ops) and not block.encoder
            for block in graph.blocks.values()
        )
        if not plain:
            return "a layer is no decoder's with attention"
        last = any(isinstance(block.ops[-1], NormOp) for block in graph.blocks.values())
        return "norms follow the residual sum, so that a rotated residual is another model" if last else ""

    def width(self, hidden: int) -> int:
        """d of D [1]."""
        kept = int((1.0 - self.slicing) * hidden)
        return max(_STEP, kept - kept % _STEP)

    def rewrite(self, graph: Graph) -> Graph:
        """The graph with the narrower residual."""
        width = self.width(graph.hidden)
        return replace(
            graph,
            blocks={name: self._block(block, graph.hidden, width) for name, block in graph.blocks.items()},
            embedding=tuple(self._sliced(graph.embedding, graph.hidden, width)),
            head=tuple(self._sliced(graph.head, graph.hidden, width)),
            hidden=width,
            tied_embeddings=False,
        )

    def _block(self, block: Block, hidden: int, width: int) -> Block:
        edges = (replace(one, width=width if one.width == hidden else one.width) for one in block.boundaries)
        return replace(block, ops=tuple(self._sliced(block.ops, hidden, width)), boundaries=tuple(edges))

    def _sliced(self, ops: Iterable[Op], hidden: int, width: int) -> Iterator[Op]:
        for op in ops:
            if isinstance(op, ResidualOp):
                kept = (Saved(elements=width, region=Region.SEQUENCE),)
                yield repeated(f"{op.name}_shortcut", width, width, kept=kept)
            yield narrowed(op, hidden, width)


def narrowed(op: Op, hidden: int, width: int) -> Op:
    """An operator with `width` in place of `hidden` wherever it reads or writes the residual."""
    share = width / hidden
    saved = tuple(replace(one, elements=one.elements * share) if one.elements == hidden else one for one in op.saved)
    if isinstance(op, GemmOp | GroupedGemmOp):
        out = op.split is Split.ROW  # of a part, into the residual
        k, n = (width if size == hidden and mine else size for size, mine in ((op.k, not out), (op.n, out)))
        bias = max(0, op.params - op.k * op.n)
        own = k * n + (bias if n == op.n else round(bias * share))
        return replace(op, k=k, n=n, params=own, tied=False, saved=saved)
    if isinstance(op, RoutingOp) and op.step is Routing.ROUTE:
        return op
    if isinstance(op, EmbeddingOp) and op.k == hidden:
        return replace(op, k=width, params=op.n * width, saved=saved)
    if isinstance(op, ElementwiseOp) and op.region is Region.SEQUENCE:
        sizes = {name: getattr(op, name) * share for name in ("read", "write", "backward_read", "backward_write")}
        return replace(op, **sizes, params=round(op.params * share), saved=saved)
    return op
