"""What one rank does and holds of each layer and of both ends: the same on every machine, so looked up once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ridgeline.graph.model import Graph
from ridgeline.graph.workload import Workload
from ridgeline.lower.chains import Chains
from ridgeline.lower.params import RankParams, rank_params
from ridgeline.lower.shard import Sharder
from ridgeline.lower.work import Layout, Number, Work


class ShardedWork(NamedTuple):
    """One rank's work for one micro-batch, what it holds, and how often each part of the program's Python runs."""

    work: Sequence[Work]
    params: RankParams
    python: Mapping[str, Number]


class ShardedWorks:
    """Shares of one model and workload by layout; those of layouts of plain numbers are kept."""

    def __init__(self, graph: Graph, workload: Workload) -> None:
        self.graph, self.workload = graph, workload
        self._known: dict[Any, Mapping[str, ShardedWork]] = {}

    def layers(self, layout: Layout) -> Mapping[str, ShardedWork]:
        """Those of each block kind."""
        return self._kept(self._layers, layout)

    def ends(self, layout: Layout) -> Mapping[str, ShardedWork]:
        """Those of embedding and head, in this order."""
        return self._kept(self._ends, layout)

    def _kept(self, made: Callable[[Layout], Mapping[str, ShardedWork]], layout: Layout) -> Mapping[str, ShardedWork]:
        key = (made.__name__, *vars(layout).values())
        try:
            if key not in self._known:
                self._known[key] = made(layout)
        except TypeError:  # arrays over plans
            return made(layout)
        return self._known[key]

    def _layers(self, layout: Layout) -> Mapping[str, ShardedWork]:
        sharder, chains = Sharder(self.workload, layout), Chains(self.workload, layout)
        return {
            name: ShardedWork(
                work=sharder.block(block), python=chains.python(block),
                params=rank_params(block.ops, layout, self.workload, experts=block.experts),
            )
            for name, block in self.graph.blocks.items()
        }  # fmt: skip

    def _ends(self, layout: Layout) -> Mapping[str, ShardedWork]:
        sharder, graph = Sharder(self.workload, layout), self.graph
        embedded, headed = (rank_params(ops, layout, self.workload) for ops in (graph.embedding, graph.head))
        return {
            "embedding": ShardedWork(work=sharder.end(graph.embedding), params=embedded, python={"embedding": 1.0}),
            "head": ShardedWork(work=sharder.head(graph.head), params=headed, python={"loss": 1.0}),
        }
