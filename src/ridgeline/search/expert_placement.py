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
from ridgeline.search.expert_bounds import load_bound, replica_counts, traffic_bound
from ridgeline.search.expert_exchange import Layer, even_out, exchange, fill
from ridgeline.search.programs import Floats, Whole, gap

SWEEPS = 20  # over all layers; each ends early when no exchange helps


@dataclass(frozen=True, kw_only=True)
class Experts:
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
class Placement:
    """Where experts are, what that costs and how far it can be from the best.

    `slots` (L, R, S) holds experts, -1 where a slot is empty; `rank_load` (L, R) the work of each rank.
    """

    slots: Whole
    rank_load: Floats
    traffic_cost: float
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


def evaluate(problem: Experts, slots: Whole) -> Placement:
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
    return Placement(
        slots=slots,
        rank_load=rank_load,
        traffic_cost=traffic,
        objective=objective,
        bound=min(lower_bound(problem), objective),
        elapsed_s=0.0,
    )


def lower_bound(problem: Experts) -> float:
    """What no placement can cost less than: the bounds of `expert_bounds`, added up over layers."""
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


def place(problem: Experts, *, time_limit_s: float = 1.0, exact: bool = False, kicks: int = 20) -> Placement:
    """A placement of little cost, with its proven bound.

    Parameters
    ----------
    time_limit_s : float [s]
        For exchanges that weigh traffic, and once more for the exact program. Reached only by large problems; the
        answer then depends on the machine's speed.
    exact : bool
        Also solve the mixed program of `expert_program`, for small problems; the better placement and the better
        bound are kept.
    kicks : int [1]
        With traffic: how often some slots of the best placement are exchanged at random and it is improved anew.

    Domain: replicas split load evenly; tokens choose among replicas at random. Source: moetuner, exflow.
    Evidence: derived.
    """
    began = time.perf_counter()
    deadline = began + time_limit_s
    starts = [_balanced(problem, np.arange(problem.ranks))]
    if problem.moves:
        for ranks in _rank_sets(problem):
            even = _balanced(problem, ranks)
            starts += [even, _by_affinity(problem, even, ranks)]
        starts = [_descended(problem, start, deadline) for start in starts]
    best = min((evaluate(problem, start) for start in starts), key=lambda one: one.objective)
    draw = np.random.default_rng(0)
    for _ in range(kicks if problem.moves else 0):
        if not best.gap or time.perf_counter() > deadline:
            break
        kicked = _descended(problem, _kicked(best.slots, draw), deadline)
        best = min(best, evaluate(problem, kicked), key=lambda one: one.objective)
    if exact and best.gap:
        from ridgeline.search.expert_program import solve_exactly

        slots, bound = solve_exactly(problem, best.slots, time_limit_s=time_limit_s)
        best = min(best, evaluate(problem, slots), key=lambda one: one.objective)
        best = replace(best, bound=min(best.objective, max(best.bound, bound)))
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


def _rank_sets(problem: Experts) -> list[Whole]:
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


def _balanced(problem: Experts, ranks: Whole) -> Whole:
    """Every layer filled largest expert first on some ranks, then evened out, whatever the traffic (L, R, S)."""
    found = np.full((problem.load.shape[0], problem.ranks, problem.slots_per_rank), -1, dtype=np.int64)
    for number, loads in enumerate(problem.load):
        counts = replica_counts(loads, ranks.size, problem.redundant)
        layer = Layer(loads=loads / counts, ranks=ranks.size, slots_per_rank=problem.slots_per_rank)
        found[number, ranks] = even_out(layer, fill(layer, np.repeat(np.arange(loads.size), counts)))
    return found


def _by_affinity(problem: Experts, start: Whole, ranks: Whole) -> Whole:
    """Every layer but the first filled by where the traffic of the layer before comes from (L, R, S)."""
    experts, found = problem.load.shape[1], start.copy()
    for number in range(1, start.shape[0]):
        members = start[number][start[number] >= 0]
        counts = np.bincount(members, minlength=experts)
        before = shares(found[number - 1 : number], experts)[0]
        cost = problem.flow[number - 1].T @ before @ problem.distance[:, ranks]
        layer = Layer(loads=problem.load[number] / counts, ranks=ranks.size, slots_per_rank=problem.slots_per_rank)
        found[number, ranks] = fill(layer, members, cost=cost)
    return found


def _descended(problem: Experts, start: Whole, deadline: float) -> Whole:
    """Exchanges within one layer after another until none of a whole sweep helps or the time is over (L, R, S)."""
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
            layer = Layer(
                loads=problem.load[number] / counts, ranks=problem.ranks, slots_per_rank=problem.slots_per_rank
            )
            better = exchange(
                layer, slots[number], cost=cost / counts[:, None], load_cost=problem.load_cost, deadline=deadline
            )
            changed |= not np.array_equal(better, slots[number])
            slots[number] = better
        if not changed or time.perf_counter() > deadline:
            break
    return slots
