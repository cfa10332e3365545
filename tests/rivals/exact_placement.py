"""The exact mixed program of expert placement, for small problems.

a_erk = 1 if rank r holds expert e of a layer and the expert has k replicas, y_ek = 1 if it has k:

    sum_k y_ek = 1,  sum_r a_erk = k y_ek,  a_erk <= y_ek,  sum_ek a_erk <= S,  sum_ek (k - 1) y_ek <= redundant,
    M >= sum_ek load_e / k a_erk for every rank r

Traffic from i to j is split over pairs of ranks, g_ijrq >= 0 with sum_q g = a_ir and sum_r g = a_jq of the next layer,
so that a whole placement sends it from where i is to where j is. Without traffic each layer is a program of its own, in
which the loads of the ranks fall, so that no placement is met under other names of its ranks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ridgeline.errors import PlanError
from ridgeline.programs import Draft, Floats, Whole
from ridgeline.search.expert_placement import ExpertPlacement, PlacementProblem, evaluate, place

MOST_VARIABLES = 200_000


@dataclass(frozen=True, kw_only=True)
class _Layer:
    """Where the variables of a layer are: counts of replicas (E, K) and placements (E, R, K)."""

    chosen: Whole
    placed: Whole


def exactly_placed(problem: PlacementProblem, *, time_limit_s: float = 1.0, **more: Any) -> ExpertPlacement:
    """The better placement and the better bound of `place` and of the exact program, begun at its placement."""
    best = place(problem, **more)
    if best.gap:
        slots, bound = solve_exactly(problem, best.slots, time_limit_s=time_limit_s)
        best = min(best, evaluate(problem, slots), key=lambda one: one.objective)
        best = replace(best, bound=min(best.objective, max(best.bound, bound)))
    return best


def solve_exactly(problem: PlacementProblem, start: Whole, *, time_limit_s: float) -> tuple[Whole, float]:
    """The best placement (L, R, S) found from a known one, and a lower bound of all placements.

    Raises
    ------
    PlanError
        Traffic together with replicas, whose product is not linear; or more variables than the solver takes.
    """
    if problem.moves and problem.redundant:
        raise PlanError(
            f"{problem.redundant} replicas together with traffic have no exact program; "
            "set redundant to 0 or use `place` alone"
        )
    copies = 1 + min(problem.ranks - 1, problem.redundant)
    variables = problem.load.shape[1] * (problem.ranks + 1) * copies
    if problem.moves:
        variables = variables * problem.load.shape[0] + int((problem.flow > 0).sum()) * problem.ranks**2
    if variables > MOST_VARIABLES:
        raise PlanError(f"{variables} variables; the exact program takes {MOST_VARIABLES}; use `place` alone")
    if problem.moves:
        return _solved(problem, start, problem.load, time_limit_s)
    found, least = start.copy(), 0.0
    for number in range(start.shape[0]):
        layer = slice(number, number + 1)
        found[layer], bound = _solved(problem, start[layer], problem.load[layer], time_limit_s / start.shape[0])
        least += bound
    return found, least


def _solved(problem: PlacementProblem, start: Whole, loads: Floats, time_limit_s: float) -> tuple[Whole, float]:
    """The program of some layers, begun at a known placement; the slots (L, R, S) found and the bound."""
    draft = Draft()
    layers = [_layer(problem, draft, of_layer) for of_layer in loads]
    if problem.moves:
        _flows(problem, draft, [layer.placed[:, :, 0] for layer in layers])
    known = np.full(draft.variables, np.nan)
    for layer, slots, of_layer in zip(layers, start, loads, strict=True):
        _know(known, layer, slots, of_layer, ordered=not problem.moves)
    answer = draft.solve(time_limit_s=time_limit_s, start=known)
    assert answer is not None  # the start is a solution
    found = np.full(start.shape, -1, dtype=np.int64)
    for number, layer in enumerate(layers):
        held = answer.values[layer.placed].sum(axis=2) > 0.5
        for rank in range(problem.ranks):
            members = np.flatnonzero(held[:, rank])
            found[number, rank, : members.size] = members
    return found, answer.bound


def _layer(problem: PlacementProblem, draft: Draft, loads: Floats) -> _Layer:
    """Adds the variables and rows of one layer."""
    experts, ranks = loads.size, problem.ranks
    copies = np.arange(1, 2 + min(ranks - 1, problem.redundant))
    chosen = draft.variable((experts, copies.size), high=1.0, whole=True)
    placed = draft.variable((experts, ranks, copies.size), high=1.0, whole=True)
    fullest = draft.variable(1, cost=problem.load_cost)
    draft.row((chosen, 1.0), low=1.0, high=1.0)
    draft.row((chosen.ravel(), np.tile(copies - 1, experts)), high=problem.redundant)
    by_copy = placed.transpose(0, 2, 1).reshape(-1, ranks)
    draft.row((by_copy, 1.0), (chosen.reshape(-1, 1), -np.tile(copies, experts)[:, None]), low=0.0, high=0.0)
    if copies.size > 1:
        each = np.broadcast_to(chosen[:, None, :], placed.shape)
        draft.row((placed.reshape(-1, 1), 1.0), (each.reshape(-1, 1), -1.0), high=0.0)
    by_rank = placed.transpose(1, 0, 2).reshape(ranks, -1)
    draft.row((by_rank, 1.0), high=problem.slots_per_rank)
    weights = (loads[:, None] / copies).ravel()
    draft.row((by_rank, weights), (np.full((ranks, 1), fullest[0]), -1.0), high=0.0)
    if not problem.moves and ranks > 1:
        draft.row((by_rank[1:], weights), (by_rank[:-1], -weights), high=0.0)
    return _Layer(chosen=chosen, placed=placed)


def _flows(problem: PlacementProblem, draft: Draft, placed: list[Whole]) -> None:
    """Adds the traffic between neighbouring layers, split over pairs of ranks."""
    ranks = problem.ranks
    for flow, before, after in zip(problem.flow, placed[:-1], placed[1:], strict=True):
        source, target = np.nonzero(flow)
        costs = flow[source, target][:, None, None] * problem.distance
        sent = draft.variable((source.size, ranks, ranks), cost=costs)
        for lines, ends in ((sent, before[source]), (sent.transpose(0, 2, 1), after[target])):
            draft.row((lines.reshape(-1, ranks), 1.0), (ends.reshape(-1, 1), -1.0), low=0.0, high=0.0)


def _know(known: Floats, layer: _Layer, slots: Whole, loads: Floats, *, ordered: bool) -> None:
    """Writes the slots (R, S) of a layer as values of its variables, ranks by falling load where that is asked."""
    copies = np.bincount(slots[slots >= 0], minlength=loads.size)
    if ordered:
        totals = np.append(loads / copies, 0.0)[slots].sum(axis=1)
        slots = slots[np.argsort(-totals, kind="stable")]
    known[layer.placed], known[layer.chosen] = 0.0, 0.0
    for expert, count in enumerate(copies):
        known[layer.chosen[expert, count - 1]] = 1.0
        known[layer.placed[expert, (slots == expert).any(axis=1), count - 1]] = 1.0
