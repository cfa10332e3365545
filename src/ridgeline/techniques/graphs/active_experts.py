"""Fewer active experts, layer by layer, and fewer experts altogether.

Shape letters: L layers with experts, K experts that a token visits, E experts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from ridgeline.errors import PlanError
from ridgeline.facts.records import Fact
from ridgeline.graph.layers import route_op
from ridgeline.graph.model import Block, Graph
from ridgeline.graph.ops import GemmOp, Op, OpRole, Routing, RoutingOp
from ridgeline.seams.graph import GraphRewrite
from ridgeline.seams.setting import Setting
from ridgeline.seams.technique import accuracy, param


@dataclass(frozen=True, kw_only=True)
class _FewerExperts(GraphRewrite):
    kinds: ClassVar[frozenset[str]] = frozenset({"serving"})
    family: ClassVar[str] = "graphs"
    owns: ClassVar[frozenset[str]] = frozenset({"active experts"})

    def axes(self, setting: Setting) -> tuple[str, ...]:
        """None: what a model loses by it hangs on its weights, which are not known here."""
        return ()

    def refusal(self, graph: Graph) -> str:
        """Why it does not apply to a graph, in a phrase; '' where it does."""
        return "" if _layers(graph) else "it has no layer whose tokens visit several experts"


@dataclass(frozen=True, kw_only=True)
class ActiveExperts(_FewerExperts):
    """LExI: each layer's number of active experts, chosen by how much its output changes where tokens visit fewer.

    Of layer j and k experts the loss d_j(k) is the Frobenius norm of the change of the layer's output on random inputs
    (`ridgeline numerics active-experts` measures it on arrays). Of all choices with at most `share` of the visits in
    sum, that of the least total loss is taken, by an exact program where the paper searches by evolution. Without
    `losses` layers are alike, and lose the more the fewer experts are left.

    Fills the seam of graphs: layers with the same number are one kind. Weights stay, so memory does. Checked: every
    choice of small models by enumeration, the paper's evolutionary search and equal numbers on made-up layers
    (benchmarks/active_experts.md). Left out: the model's
    accuracy.
    """

    key: ClassVar[str] = "active-experts"
    source: ClassVar[tuple[str, ...]] = ("lexi",)
    quality: ClassVar[Fact | None] = accuracy(
        "10 % better than expert pruning at its throughput, Qwen1.5-MoE on an H100, abstract", "lexi"
    )
    share: float = param(0.75, "1", "visits of experts that are left, of all layers", low=0.01, high=1.0)
    losses: tuple[float, ...] = param(
        (), "1", "loss of each layer at 1, 2 to K experts, a layer after another; when absent, layers are alike",
        low=0.0, high=1e12,
    )  # fmt: skip

    def rewrite(self, graph: Graph) -> Graph:
        """The graph with as many active experts in each layer as were chosen."""
        places = _layers(graph)
        counts = self.counts([graph.blocks[graph.layers[place]].top_k for place in places])
        blocks, layers = dict(graph.blocks), list(graph.layers)
        for place, count in zip(places, counts, strict=True):
            block = _visiting(graph.blocks[graph.layers[place]], count)
            blocks[block.name], layers[place] = block, block.name
        used = {name: block for name, block in blocks.items() if name in layers}
        return replace(graph, blocks=used, layers=tuple(layers))

    def counts(self, most: Sequence[int]) -> list[int]:
        """Active experts of each layer (L), of which it has up to `most` now [1]; raises `PlanError` for a bad table.

        minimise sum_j d_j(k_j)   subject to   sum_j k_j <= share sum_j K_j,   1 <= k_j <= K_j
        """
        from ridgeline.programs import choose

        budget = max(len(most), int(self.share * sum(most) + 1e-9))
        picked = choose(self._table(most), [[range(1, one + 1) for one in most]], [budget])
        assert picked is not None
        return [1 + one for one in picked]

    def _table(self, most: Sequence[int]) -> list[Sequence[float]]:
        if not self.losses:
            return [[(one - kept) ** 2 / one for kept in range(1, one + 1)] for one in most]
        if len(self.losses) != sum(most):
            raise PlanError(
                f"active-experts: losses has {len(self.losses)} numbers, needs {sum(most)}: one for each of 1 to K"
                f" experts of each of {len(most)} layers"
            )
        rest, table = list(self.losses), list[Sequence[float]]()
        for one in most:
            table.append(rest[:one])
            rest = rest[one:]
        return table


@dataclass(frozen=True, kw_only=True)
class ExpertPruning(_FewerExperts):
    """Expert pruning: a share of each layer's experts is removed, and tokens visit as many of the others as before.

    What NAEE and others do, and LExI is compared with. Weights shrink, the work of a token does not. Fills the seam of
    graphs. Checked: parameters by hand. Left out: which experts, and what that does to the loads of the rest.
    """

    key: ClassVar[str] = "expert-pruning"
    source: ClassVar[tuple[str, ...]] = ("lexi",)
    quality: ClassVar[Fact | None] = accuracy("10 % less than LExI at the same throughput, Qwen1.5-MoE", "lexi")
    share: float = param(0.25, "1", "experts that are removed from each layer", low=0.0, high=0.99)

    def rewrite(self, graph: Graph) -> Graph:
        """The graph with the experts that are left."""
        return replace(graph, blocks={name: self._block(block) for name, block in graph.blocks.items()})

    def _block(self, block: Block) -> Block:
        if not block.experts:
            return block
        left = max(block.top_k, round((1.0 - self.share) * block.experts))
        return replace(block, experts=left, ops=tuple(_routed(op, left) for op in block.ops))


def _layers(graph: Graph) -> list[int]:
    """Places of layers whose tokens visit several experts [1]."""
    return [place for place, name in enumerate(graph.layers) if graph.blocks[name].top_k > 1]


def _visiting(block: Block, count: int) -> Block:
    """The block whose tokens visit `count` experts."""
    if count == block.top_k:
        return block
    share = count / block.top_k

    def moved(op: Op) -> Op:
        if isinstance(op, RoutingOp) and op.step is Routing.DISPATCH:
            return replace(op, read=share * op.read, write=share * op.write, backward_read=share * op.backward_read)
        if isinstance(op, RoutingOp) and op.step is Routing.COMBINE:
            return replace(op, read=share * op.read, backward_read=share * op.backward_read)
        return op

    return replace(block, name=f"{block.name}-visits-{count}", top_k=count, ops=tuple(map(moved, block.ops)))


def _routed(op: Op, experts: int) -> Op:
    if isinstance(op, GemmOp) and op.role is OpRole.ROUTER:
        return replace(op, n=experts, params=op.params // op.n * experts)
    return route_op(experts) if isinstance(op, RoutingOp) and op.step is Routing.ROUTE else op
