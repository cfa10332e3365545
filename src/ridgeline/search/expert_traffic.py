"""What tokens that stay with their experts send: rows from rank to rank, layer after layer, under a placement.

A token does not go back to where its request came from: it is next wherever its expert was, attends there to a cache
that every rank holds, and goes on from there (ExFlow, Yao and others 2024, arXiv:2401.08383). Letters: L layers with
experts, E experts, R ranks, K experts of a token, D hidden.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ridgeline.facts.records import Cluster
from ridgeline.graph.model import Model
from ridgeline.graph.ops import GroupedGemmOp
from ridgeline.search.expert_placement import shares
from ridgeline.search.programs import Floats, Whole

_BYTES = 2.0  # of a number that is sent


@dataclass(frozen=True, kw_only=True)
class Routes:
    """What a placement weighs: `node` ranks that share a node [1], and times of one row of a token [s].

    `row_s` through an expert, `inside_s` and `between_s` over a rank's link within a node and beyond it.
    """

    node: int
    top_k: int
    row_s: float
    inside_s: float
    between_s: float

    def nodes(self, ranks: int) -> tuple[int, ...]:
        """The node of each rank."""
        return tuple(rank // self.node for rank in range(ranks))


def routes_of(model: Model, cluster: Cluster) -> Routes:
    """The routes of a model's tokens on a cluster, at datasheet rates: only their ratios matter.

    An expert's row takes 2 n k / peak of each of its products, a row on its way 2 D / rate.
    """
    block = max(model.graph.blocks.values(), key=lambda one: one.experts)
    products = [op for op in block.ops if isinstance(op, GroupedGemmOp)]
    peak = cluster.accelerator.peak_flop_per_s
    inside, outside = cluster.tiers[0], cluster.tiers[-1]
    row_bytes = _BYTES * model.graph.hidden
    return Routes(
        node=inside.size,
        top_k=block.top_k,
        row_s=sum(2.0 * op.n * op.k for op in products) / peak.get("bf16", max(peak.values())),
        inside_s=row_bytes / inside.bytes_per_s,
        between_s=row_bytes * outside.oversubscription / min(outside.bytes_per_s, inside.bytes_per_s),
    )


def crossing(slots: Whole, loads: Floats, flow: Floats | None, routes: Routes) -> tuple[float, float]:
    """Rows that the busiest rank sends or takes in, of each token of the mean rank in a layer [1]: in a node, beyond.

    K rows go out to experts, from where each token was; K - 1 results come together where it stays. From layer to layer
    tokens pass as `flow` (L - 1, E, E) says; without it as if experts were chosen independently, as are those of one
    token and those of the first layer.

    Parameters
    ----------
    slots : (L, R, S)
        The placement.
    loads : (L, E)
        What each expert carries, in any unit.

    Returns
    -------
    (float, float) [1]
        Means over layers; of R ranks alike in nodes of m: (2 K - 1) (m - 1) / R and (2 K - 1) (R - m) / R.
    """
    layers, ranks, _ = slots.shape
    held = shares(slots, loads.shape[1])
    part = np.einsum("le,ler->lr", loads, held)
    part = part / np.maximum(part.sum(axis=1, keepdims=True), 1e-300)
    node = np.asarray(routes.nodes(ranks))
    far = node[:, None] != node
    near = ~far & ~np.eye(ranks, dtype=bool)
    total = np.zeros(2)
    for layer in range(layers):
        passed = np.outer(part[layer - 1], part[layer])  # the first layer's tokens were at the last one's experts
        if flow is not None and layer:
            passed = held[layer - 1].T @ flow[layer - 1] @ held[layer]
            passed = passed / max(float(passed.sum()), 1e-300)
        joined = np.outer(part[layer], part[layer])
        for place, mask in enumerate((near, far)):
            total[place] += routes.top_k * _busiest(passed * mask) + (routes.top_k - 1) * _busiest(joined * mask)
    inside, between = (float(value) for value in ranks * total / layers)
    return inside, between


def _busiest(rows: Floats) -> float:
    """The most that any rank sends or takes in [1]."""
    return float(max(rows.sum(axis=1).max(), rows.sum(axis=0).max()))
