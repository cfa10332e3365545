"""Where the experts of a served model lie, by how much the fullest rank exceeds the mean there, and what passes on.

A token that stays with its experts does not go back to where its request came from: it is next wherever its expert was,
attends there to a cache that every rank holds, and goes on from there (ExFlow, Yao and others 2024, arXiv:2401.08383).
Letters: L layers with experts, E experts, R ranks, S slots of a rank, K experts of a token, D hidden.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from ridgeline.errors import PlanError
from ridgeline.facts.records import Cluster
from ridgeline.graph.model import Model
from ridgeline.graph.ops import GroupedGemmOp
from ridgeline.plan.deployment import Deployment
from ridgeline.programs import Floats, Whole
from ridgeline.scenario.serving_words import replaced
from ridgeline.seams.serving import Placement, expert_ranks, of
from ridgeline.search.expert_placement import ExpertPlacement, PlacementProblem, evaluate, place, shares

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
        for tier, mask in enumerate((near, far)):
            total[tier] += routes.top_k * _busiest(passed * mask) + (routes.top_k - 1) * _busiest(joined * mask)
    inside, between = (float(value) for value in ranks * total / layers)
    return inside, between


def _busiest(rows: Floats) -> float:
    """The most that any rank sends or takes in [1]."""
    return float(max(rows.sum(axis=1).max(), rows.sum(axis=0).max()))


LINEAR, BALANCED, AFFINITY = PLACEMENTS = ("linear", "balanced", "affinity")
_MOST_FLOWS = 10**8  # numbers of a traffic's array; 61 layers of 256 experts have 4e6


@dataclass(frozen=True, kw_only=True, eq=False)
class Loads:
    """Loads of experts (L, E) in any unit, and how experts are placed for them.

    `how` is 'linear', the experts of a layer in order, 'balanced' for these loads, with `redundant` replicas in each
    layer, or by 'affinity' for these loads and for `flow` (L - 1, E, E), what passes from each expert to the next's.
    """

    loads: Floats
    how: str = BALANCED
    redundant: int = 0
    flow: Floats | None = None

    def __post_init__(self) -> None:
        layers, experts = self.loads.shape
        if self.flow is not None and self.flow.shape != (layers - 1, experts, experts):
            raise PlanError(
                f"traffic between {self.flow.shape[0] + 1} layers of {self.flow.shape[1]} experts is given, loads of"
                f" {layers} layers of {experts}; needs the same of both"
            )
        if self.how == AFFINITY and self.flow is None:
            raise PlanError("deployment: placed by affinity, but nothing says what passes on; give expert_traffic")
        if self.how == LINEAR and self.redundant:
            raise PlanError("deployment: expert_redundant says replicas, which a linear placement has none of")


def imbalance(asked: Loads, ranks: int) -> float:
    """Load of the fullest of R ranks over the mean, on average over layers by what they carry [1].

    (sum over layers of max_r load_lr) / (sum of the mean): each layer waits for its own fullest rank.
    """
    return 1.0 if ranks == 1 else lies(asked, ranks).imbalance


def lies(asked: Loads, ranks: int, routes: Routes | None = None) -> ExpertPlacement:
    """Where the experts lie on R ranks; by affinity, with the time of a row on its `routes` against that in an expert.

    Traffic counts the time of all ranks' rows over the ranks, a load that of the fullest rank's. Raises `PlanError`
    where ranks do not divide the experts of a linear placement.
    """
    loads = asked.loads
    slots = -(-(loads.shape[1] + asked.redundant) // ranks)
    problem = PlacementProblem(loads=loads, ranks=ranks, slots_per_rank=slots, redundant=asked.redundant)
    if asked.how == LINEAR:
        if loads.shape[1] % ranks:
            raise PlanError(
                f"deployment: {ranks} ranks do not divide {loads.shape[1]} experts; a linear placement needs it"
            )
        return evaluate(problem, np.tile(np.arange(loads.shape[1]).reshape(ranks, slots), (loads.shape[0], 1, 1)))
    if asked.how == AFFINITY and routes is not None:
        weighed = replace(
            problem, traffic=asked.flow, nodes=routes.nodes(ranks), load_cost=routes.row_s,
            inside_cost=routes.inside_s / ranks, between_cost=max(routes.inside_s, routes.between_s) / ranks,
        )  # fmt: skip
        return place(weighed)
    return place(problem)


Known = dict[tuple[int, bool], tuple[float, float | None, float | None]]  # imbalance and rows, by ranks and staying


def placed(
    one: Deployment, asked: Loads, experts: int, *, routes: Routes | None = None, known: Known | None = None
) -> Deployment:
    """The deployment with the imbalance of its placement, and what its tokens send where they stay with experts.

    `known` keeps both between calls. Raises `PlanError` where the loads are those of another number of experts than the
    model has.
    """
    if asked.loads.shape[1] != experts:
        raise PlanError(f"loads of {asked.loads.shape[1]} experts are given; the model has {experts}")
    ranks, stays = expert_ranks(one), of(one, Placement).stay
    if ranks == 1:
        return one
    found = known if known is not None else {}
    key = (ranks, stays)
    if key not in found:
        where = lies(asked, ranks, routes if stays else None)
        rows: tuple[float | None, float | None] = (None, None)
        if stays and routes is not None:
            rows = crossing(where.slots, asked.loads, asked.flow, routes)
        found[key] = (where.imbalance, *rows)
    uneven, inside, between = found[key]
    return replaced(
        one, expert_imbalance=uneven, expert_redundant=asked.redundant, expert_inside=inside, expert_between=between
    )


def flow_of(rows: Mapping[tuple[int, int, int], float], layers: int, experts: int) -> Floats:
    """Traffic (L - 1, E, E) of (layer, expert, expert of the next layer), in their unit; what is not named is none.

    Raises `PlanError` for a layer or an expert that the loads have not.
    """
    if (layers - 1) * experts**2 > _MOST_FLOWS:
        told = f"traffic between {experts} experts over {layers} layers"
        raise PlanError(f"{told} is more than {_MOST_FLOWS:.0e} numbers; give the loads of fewer layers")
    found = np.zeros((layers - 1, experts, experts))
    for (layer, one, other), amount in rows.items():
        if layer >= layers - 1 or max(one, other) >= experts:
            raise PlanError(
                f"traffic from expert {one} of layer {layer} to expert {other}; loads are those of {experts} experts in"
                f" {layers} layers, the last of which has no next one"
            )
        found[layer, one, other] += amount
    return found
