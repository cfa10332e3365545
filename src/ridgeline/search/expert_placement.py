"""Which rank holds which expert: even load, little traffic, and a proven bound.

minimise  load_cost sum_l max_r load_lr + sum_l sum_ij traffic_lij cost(rank of i, rank of j)

The first term is MoETuner's (Go and Mahajan 2025): a layer takes as long as its fullest rank. The second is ExFlow's
(Yao et al. 2024): tokens that go from expert i of a layer to expert j of the next stay where they are if both are on
one rank. An expert may have replicas, which split its load and its traffic evenly.

Ranks are filled largest expert first (Graham 1969), then improved by exchanging two slots while that helps. Letters:
L layers, E experts, R ranks, S slots of a rank.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from ridgeline.errors import InputError, PlanError
from ridgeline.programs import Floats, Whole, gap
from ridgeline.search.expert_exchange import Effort, LayerSlots, even_out, exchange, fill


def replica_counts(loads: Floats, ranks: int, redundant: int) -> Whole:
    """Replicas of each expert (E) [1]: each further one goes to the expert whose replicas carry most.

    No other choice makes the largest replica smaller. An expert has no more replicas than there are ranks.

    >>> replica_counts(np.array([6.0, 3.0, 1.0]), 4, 2).tolist()
    [3, 1, 1]
    """
    counts = np.ones(loads.size, dtype=np.int64)
    for _ in range(redundant):
        each = np.where(counts < ranks, loads / counts, -1.0)
        most = int(each.argmax())
        if each[most] <= 0.0:
            break
        counts[most] += 1
    return counts


def load_bound(loads: Floats, ranks: int, slots_per_rank: int, redundant: int = 0) -> float:
    """Load that the fullest rank carries at least [1].

    The largest of: the mean over ranks; the largest replica when replicas are given out best; and, without replicas,
    for every k the k + 1 smallest of the k R + 1 largest experts (some rank holds k + 1 of them), and the largest
    expert beside the S - 1 smallest where no slot stays empty.

    >>> load_bound(np.array([5.0, 4.0, 3.0]), 2, 2)  # one rank holds two of three: at least 3 + 4
    7.0
    """
    best = max(float(loads.sum()) / ranks, float((loads / replica_counts(loads, ranks, redundant)).max()))
    if redundant:
        return best
    falling = np.sort(loads)[::-1]
    for held in range(1, (loads.size - 1) // ranks + 1):
        best = max(best, float(falling[held * ranks - held : held * ranks + 1].sum()))
    if loads.size == ranks * slots_per_rank:
        best = max(best, float(falling[0] + falling[loads.size - slots_per_rank + 1 :].sum()))
    return best


def traffic_bound(flow: Floats, *, on_rank: int, on_node: int, inside_cost: float, between_cost: float) -> float:
    """What the traffic of one pair of layers costs at least, in the unit of the costs.

    An expert shares its rank with at most `on_rank` experts of the other layer, so no more of its traffic can stay
    than that of its largest partners; the same holds for nodes.

    >>> flow = np.array([[2.0, 1.0], [1.0, 2.0]])
    >>> float(traffic_bound(flow, on_rank=1, on_node=2, inside_cost=1.0, between_cost=9.0))
    2.0
    """
    crossing = [float(flow.sum()) - _kept(flow, partners) for partners in (on_rank, on_node)]
    return inside_cost * crossing[0] + (between_cost - inside_cost) * crossing[1]


def _kept(flow: Floats, partners: int) -> float:
    """The most that can stay together when each expert is beside at most so many of the other layer."""
    if partners >= flow.shape[0]:
        return float(flow.sum())
    first = flow.shape[0] - partners
    return min(float(np.sort(side, axis=1)[:, first:].sum()) for side in (flow, flow.T))


SWEEPS = 20  # over all layers; each ends early when no exchange helps
PAIRS = 2.5e7  # of slots compared, about a second of one core


@dataclass(frozen=True, kw_only=True)
class PlacementProblem:
    """What is to be placed: loads, ranks and what traffic costs.

    `loads` (L, E) holds the work of each expert, `traffic` (L - 1, E, E) what passes from each expert to each of the
    next layer, `nodes` (R) the node of each rank (absent: one node). A unit of traffic costs 0 on a rank,
    `inside_cost` between ranks of a node and `between_cost` between nodes; a unit of the fullest rank's load costs
    `load_cost`. `redundant` replicas may be added in every layer.
    """

    loads: ArrayLike
    ranks: int
    slots_per_rank: int
    redundant: int = 0
    traffic: ArrayLike | None = None
    nodes: tuple[int, ...] | None = None
    load_cost: float = 1.0
    inside_cost: float = 0.0
    between_cost: float = 0.0

    def __post_init__(self) -> None:
        load = self.load
        if load.ndim != 2 or not load.size or not np.isfinite(load).all() or (load < 0).any():
            raise InputError("loads are layers by experts, finite and at least 0", field="loads")
        needed, slots = load.shape[1] + self.redundant, self.ranks * self.slots_per_rank
        if self.ranks < 1 or self.redundant < 0 or needed > slots:
            raise PlanError(
                f"{load.shape[1]} experts and {self.redundant} replicas on {self.ranks} ranks of {self.slots_per_rank} "
                f"slots: {slots} slots, {needed} needed; give a rank {-(-needed // max(self.ranks, 1))} slots"
            )
        if self.nodes is not None and len(self.nodes) != self.ranks:
            raise InputError(f"{len(self.nodes)} nodes for {self.ranks} ranks; name one for each", field="nodes")
        if not 0.0 <= self.inside_cost <= self.between_cost and self.traffic is not None:
            raise InputError(
                f"traffic costs {self.inside_cost:g} inside and {self.between_cost:g} between nodes; "
                "needs 0 <= inside <= between"
            )
        wanted = (load.shape[0] - 1, load.shape[1], load.shape[1])
        if self.traffic is not None and (self.flow.shape != wanted or not (self.flow >= 0).all()):
            raise InputError(f"traffic is {self.flow.shape}; needs {wanted}, at least 0", field="traffic")

    @cached_property
    def load(self) -> Floats:
        """Work of each expert (L, E) [1]."""
        return np.asarray(self.loads, dtype=np.float64)

    @cached_property
    def flow(self) -> Floats:
        """Traffic between the experts of neighbouring layers (L - 1, E, E) [1]; zeros when none is given."""
        if self.traffic is None:
            return np.zeros((self.load.shape[0] - 1, self.load.shape[1], self.load.shape[1]))
        return np.asarray(self.traffic, dtype=np.float64)

    @cached_property
    def distance(self) -> Floats:
        """What a unit of traffic costs from rank to rank (R, R), in the unit of the costs."""
        node = np.asarray(self.nodes if self.nodes is not None else [0] * self.ranks)
        costs = np.where(node[:, None] == node, self.inside_cost, self.between_cost)
        return np.where(np.eye(self.ranks, dtype=bool), 0.0, costs)

    @cached_property
    def moves(self) -> bool:
        """Whether any traffic costs anything."""
        return bool(self.flow.any()) and bool(self.distance.any())


@dataclass(frozen=True, kw_only=True)
class ExpertPlacement:
    """Where experts are, what that costs and how far it can be from the best.

    `slots` (L, R, S) holds experts, -1 where a slot is empty; `rank_load` (L, R) the work of each rank.
    """

    slots: Whole
    rank_load: Floats
    objective: float
    bound: float
    elapsed_s: float

    @property
    def gap(self) -> float:
        """How far the objective can be from the least one, as a share of it [1]."""
        return gap(self.objective, self.bound)

    @property
    def imbalance(self) -> float:
        """Load of the fullest rank over the mean, summed over layers [1]; 1 is even."""
        return float(self.rank_load.max(axis=1).sum() / self.rank_load.mean(axis=1).sum())


def shares(slots: Whole, experts: int) -> Floats:
    """Share of each expert on each rank (L, E, R) [1]: its replicas there over all of its replicas."""
    layers, ranks, _ = slots.shape
    held = np.zeros((layers, experts + 1, ranks))
    layer, rank, _ = np.indices(slots.shape)
    np.add.at(held, (layer, slots, rank), 1.0)  # -1 falls into the last row
    found: Floats = held[:, :experts] / np.maximum(held[:, :experts].sum(axis=2, keepdims=True), 1.0)
    return found


def evaluate(problem: PlacementProblem, slots: Whole) -> ExpertPlacement:
    """Cost of a given placement, with the bound of `lower_bound`.

    Raises
    ------
    PlanError
        An expert without a slot, or one that is twice on a rank.
    """
    held = shares(slots, problem.load.shape[1])
    missing = np.argwhere(held.sum(axis=2) < 0.5)
    if missing.size:
        raise PlanError(f"expert {missing[0][1]} of layer {missing[0][0]} has no slot; place each at least once")
    ordered = np.sort(slots, axis=2)
    if ((ordered[:, :, 1:] == ordered[:, :, :-1]) & (ordered[:, :, 1:] >= 0)).any():
        raise PlanError("an expert is twice on a rank; its replicas go to different ranks")
    rank_load = np.einsum("le,ler->lr", problem.load, held)
    traffic = 0.0
    if problem.moves:
        for layer, flow in enumerate(problem.flow):
            traffic += float((held[layer].T @ flow @ held[layer + 1] * problem.distance).sum())
    objective = problem.load_cost * float(rank_load.max(axis=1).sum()) + traffic
    return ExpertPlacement(
        slots=slots, rank_load=rank_load, objective=objective, bound=min(lower_bound(problem), objective), elapsed_s=0.0
    )


def lower_bound(problem: PlacementProblem) -> float:
    """What no placement can cost less than: `load_bound` and `traffic_bound`, added up over layers."""
    least = problem.load_cost * sum(
        load_bound(loads, problem.ranks, problem.slots_per_rank, problem.redundant) for loads in problem.load
    )
    if problem.moves:
        node = np.asarray(problem.nodes if problem.nodes is not None else [0] * problem.ranks)
        together = int(np.unique(node, return_counts=True)[1].max()) * problem.slots_per_rank
        for flow in problem.flow:
            least += traffic_bound(
                flow,
                on_rank=problem.slots_per_rank,
                on_node=together,
                inside_cost=problem.inside_cost,
                between_cost=problem.between_cost,
            )
    return least


def place(problem: PlacementProblem, *, pairs: float = PAIRS, kicks: int = 20) -> ExpertPlacement:
    """A placement of little cost, with its proven bound.

    Parameters
    ----------
    pairs : float [1]
        Pairs of slots that exchanges may compare where traffic is weighed; only large problems reach the limit. What
        is counted is work, not time, so that the answer is the same on every machine.
    kicks : int [1]
        With traffic: how often some slots of the best placement are exchanged at random and it is improved anew.

    Domain: replicas split load evenly; tokens choose among replicas at random. Source: moetuner, exflow.
    Evidence: derived.
    """
    began = time.perf_counter()
    effort = Effort(pairs)
    starts = [_balanced(problem, np.arange(problem.ranks))]
    if problem.moves:
        for ranks in _rank_sets(problem):
            even = _balanced(problem, ranks)
            starts += [even, _by_affinity(problem, even, ranks)]
        starts = [_descended(problem, start, effort) for start in starts]
    best = min((evaluate(problem, start) for start in starts), key=lambda one: one.objective)
    draw = np.random.default_rng(0)
    for _ in range(kicks if problem.moves else 0):
        if not best.gap or effort.spent:
            break
        kicked = _descended(problem, _kicked(best.slots, draw), effort)
        best = min(best, evaluate(problem, kicked), key=lambda one: one.objective)
    return replace(best, elapsed_s=time.perf_counter() - began)


def _kicked(slots: Whole, draw: np.random.Generator) -> Whole:
    """A placement in which some slots of every layer are exchanged with slots of other ranks (L, R, S)."""
    new = slots.copy()
    layers, ranks, width = new.shape
    for layer in range(layers):
        for _ in range(1 + ranks * width // 16):
            one, other = draw.integers(ranks, size=2)
            here, there = draw.integers(width, size=2)
            moved, back = new[layer, one, here], new[layer, other, there]
            doubled = (moved >= 0 and moved in new[layer, other]) or (back >= 0 and back in new[layer, one])
            if one != other and not doubled:
                new[layer, one, here], new[layer, other, there] = back, moved
    return new


def _rank_sets(problem: PlacementProblem) -> list[Whole]:
    """Ranks to begin with: the fewest that have room, then those of the fewest nodes, of twice as many, and so on."""
    node = np.asarray(problem.nodes if problem.nodes is not None else [0] * problem.ranks)
    names, counts = np.unique(node, return_counts=True)
    by_size = {int(name): place for place, name in enumerate(names[np.argsort(-counts, kind="stable")])}
    order = np.argsort([by_size[int(name)] for name in node], kind="stable")
    fewest = -(-(problem.load.shape[1] + problem.redundant) // problem.slots_per_rank)
    ends = np.cumsum(np.sort(counts)[::-1])
    first = int(np.searchsorted(ends, fewest))
    chosen = {min(first + 2**step, len(ends)) for step in range(len(ends).bit_length() + 1)} | {first + 1}
    return [np.sort(order[:size]) for size in sorted({fewest} | {int(ends[count - 1]) for count in chosen})]


def _balanced(problem: PlacementProblem, ranks: Whole) -> Whole:
    """Every layer filled largest expert first on some ranks, then evened out, whatever the traffic (L, R, S)."""
    found = np.full((problem.load.shape[0], problem.ranks, problem.slots_per_rank), -1, dtype=np.int64)
    for number, loads in enumerate(problem.load):
        counts = replica_counts(loads, ranks.size, problem.redundant)
        layer = LayerSlots(loads=loads / counts, ranks=ranks.size, slots_per_rank=problem.slots_per_rank)
        found[number, ranks] = even_out(layer, fill(layer, np.repeat(np.arange(loads.size), counts)))
    return found


def _by_affinity(problem: PlacementProblem, start: Whole, ranks: Whole) -> Whole:
    """Every layer but the first filled by where the traffic of the layer before comes from (L, R, S)."""
    experts, found = problem.load.shape[1], start.copy()
    for number in range(1, start.shape[0]):
        members = start[number][start[number] >= 0]
        counts = np.bincount(members, minlength=experts)
        before = shares(found[number - 1 : number], experts)[0]
        cost = problem.flow[number - 1].T @ before @ problem.distance[:, ranks]
        layer = LayerSlots(loads=problem.load[number] / counts, ranks=ranks.size, slots_per_rank=problem.slots_per_rank)
        found[number, ranks] = fill(layer, members, cost=cost)
    return found


def _descended(problem: PlacementProblem, start: Whole, effort: Effort) -> Whole:
    """Exchanges within one layer after another until none of a whole sweep helps or the effort is spent (L, R, S)."""
    slots, experts = start.copy(), problem.load.shape[1]
    for _ in range(SWEEPS):
        changed = False
        for number in range(slots.shape[0]):
            cost = np.zeros((experts, problem.ranks))
            if number > 0:
                before = shares(slots[number - 1 : number], experts)[0]
                cost += problem.flow[number - 1].T @ before @ problem.distance
            if number + 1 < slots.shape[0]:
                after = shares(slots[number + 1 : number + 2], experts)[0]
                cost += problem.flow[number] @ after @ problem.distance.T
            counts = np.maximum(np.bincount(slots[number][slots[number] >= 0], minlength=experts), 1)
            layer = LayerSlots(
                loads=problem.load[number] / counts, ranks=problem.ranks, slots_per_rank=problem.slots_per_rank
            )
            better = exchange(
                layer, slots[number], cost=cost / counts[:, None], load_cost=problem.load_cost, effort=effort
            )
            changed |= not np.array_equal(better, slots[number])
            slots[number] = better
        if not changed or effort.spent:
            break
    return slots
