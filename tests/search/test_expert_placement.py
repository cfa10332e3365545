"""Experts on ranks: hand-worked layers, exhaustive search on small ones, bounds that hold, large layers in time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import combinations, count, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.rivals.exact_placement import exactly_placed

from ridgeline.errors import InputError, PlanError
from ridgeline.search.expert_placement import (
    PlacementProblem,
    evaluate,
    load_bound,
    lower_bound,
    place,
    replica_counts,
    traffic_bound,
)

Floats = NDArray[np.float64]


def test_four_experts_pair_the_largest_with_the_smallest() -> None:
    """4 + 1 and 3 + 2: both ranks carry 5, which is the mean."""
    answer = place(PlacementProblem(loads=[[4.0, 3.0, 2.0, 1.0]], ranks=2, slots_per_rank=2))
    assert sorted(answer.rank_load[0]) == [5.0, 5.0]
    assert answer.gap == 0.0
    assert answer.imbalance == 1.0


def test_a_replica_halves_the_largest_expert() -> None:
    """6 of 10 on one expert; with a replica the ranks carry 3 + 2 and 3 + 2."""
    loads = [[6.0, 2.0, 2.0]]
    assert place(PlacementProblem(loads=loads, ranks=2, slots_per_rank=2)).objective == 6.0
    answer = place(PlacementProblem(loads=loads, ranks=2, slots_per_rank=2, redundant=1))
    assert answer.objective == 5.0
    assert np.isin(0, answer.slots[0, 0])
    assert np.isin(0, answer.slots[0, 1])


def test_partners_share_a_rank_when_traffic_costs() -> None:
    """Experts 0 and 1 swap names from layer to layer; each pair can be put together, so nothing crosses."""
    flow = [[[0.0, 5.0], [5.0, 0.0]]]
    answer = place(
        PlacementProblem(loads=np.ones((2, 2)), ranks=2, slots_per_rank=1, traffic=flow, between_cost=1, inside_cost=1)
    )
    assert answer.objective == answer.rank_load.max(axis=1).sum()  # nothing crosses
    assert answer.slots[0, 0, 0] == 1 - answer.slots[1, 0, 0]
    assert answer.gap == 0.0


def test_traffic_is_priced_by_rank_and_node() -> None:
    """Expert i is on rank i in both layers; nodes are ranks 0-1 and 2-3. Each expert sends 1 to each of four.

    Of 16 units 4 stay, 4 cross inside a node at 1, 8 cross nodes at 10: 84. Fullest ranks: 1 + 1.
    """
    problem = PlacementProblem(
        loads=np.ones((2, 4)),
        ranks=4,
        slots_per_rank=1,
        traffic=np.ones((1, 4, 4)),
        nodes=(0, 0, 1, 1),
        inside_cost=1.0,
        between_cost=10.0,
    )
    there = evaluate(problem, np.tile(np.arange(4)[:, None], (2, 1, 1)))
    assert there.objective == 86.0
    assert there.bound == 86.0  # with even traffic any placement is as good


def test_replicas_split_traffic_evenly() -> None:
    """Expert 0 is on both ranks, 1 on the first; 4 units from 0 to 1: half are sent from the second rank."""
    problem = PlacementProblem(
        loads=[[2.0, 1.0], [2.0, 1.0]],
        ranks=2,
        slots_per_rank=2,
        redundant=1,
        traffic=[[[0.0, 4.0], [0.0, 0.0]]],
        inside_cost=1.0,
        between_cost=1.0,
    )
    there = evaluate(problem, np.array([[[0, 1], [0, -1]]] * 2))
    assert there.objective == 2.0 + 4.0
    assert there.rank_load.tolist() == [[2.0, 1.0], [2.0, 1.0]]


def layouts(experts: int, ranks: int, slots: int) -> Iterator[tuple[int, ...]]:
    """The rank of each expert, in every way that overfills none."""
    for ranks_of in product(range(ranks), repeat=experts):
        if max(ranks_of.count(rank) for rank in range(ranks)) <= slots:
            yield ranks_of


@pytest.mark.parametrize("seed", range(8))
def test_exact_loads_are_those_of_exhaustive_search(seed: int) -> None:
    draw = np.random.default_rng(seed)
    experts, ranks, slots = 7, 3, 3
    loads = draw.exponential(1.0, experts)
    best = min(
        max(sum(loads[e] for e in range(experts) if one[e] == rank) for rank in range(ranks))
        for one in layouts(experts, ranks, slots)
    )
    problem = PlacementProblem(loads=loads[None], ranks=ranks, slots_per_rank=slots)
    answer = exactly_placed(problem, time_limit_s=20)
    assert answer.objective == pytest.approx(best)
    assert answer.gap <= 1e-6
    assert load_bound(loads, ranks, slots) <= best + 1e-9
    assert place(problem).objective <= best * 1.1


@pytest.mark.parametrize("seed", range(5))
def test_exact_replicas_are_those_of_exhaustive_search(seed: int) -> None:
    """Every expert on every set of ranks, with at most two replicas in all."""
    draw = np.random.default_rng(40 + seed)
    experts, ranks, slots, redundant = 4, 3, 2, 2
    loads = draw.exponential(1.0, experts)
    sets = [held for size in (1, 2, 3) for held in combinations(range(ranks), size)]
    best = np.inf
    for choice in product(sets, repeat=experts):
        held = [sum(rank in one for one in choice) for rank in range(ranks)]
        if max(held) <= slots and sum(held) <= experts + redundant:
            totals = [sum(loads[e] / len(one) for e, one in enumerate(choice) if rank in one) for rank in range(ranks)]
            best = min(best, max(totals))
    problem = PlacementProblem(loads=loads[None], ranks=ranks, slots_per_rank=slots, redundant=redundant)
    answer = exactly_placed(problem, time_limit_s=20)
    assert answer.objective == pytest.approx(best)
    assert answer.gap <= 1e-6
    assert lower_bound(problem) <= best + 1e-9


@pytest.mark.parametrize("seed", range(5))
def test_exact_traffic_is_that_of_exhaustive_search(seed: int) -> None:
    draw = np.random.default_rng(80 + seed)
    experts, ranks, slots = 4, 4, 2
    problem = PlacementProblem(
        loads=draw.random((2, experts)),
        ranks=ranks,
        slots_per_rank=slots,
        traffic=draw.random((1, experts, experts)),
        nodes=(0, 0, 1, 1),
        load_cost=float(draw.uniform(0, 2)),
        inside_cost=0.5,
        between_cost=2.0,
    )
    best = np.inf
    ways = [np.array(one) for one in layouts(experts, ranks, slots)]
    fullest = [[max(np.bincount(one, weights=loads)) for one in ways] for loads in problem.load]
    for first, one in enumerate(ways):
        for second, other in enumerate(ways):
            crossing = float((problem.flow[0] * problem.distance[np.ix_(one, other)]).sum())
            best = min(best, crossing + problem.load_cost * (fullest[0][first] + fullest[1][second]))
    assert place(problem).objective <= best * 1.02
    answer = exactly_placed(problem, time_limit_s=30)
    assert answer.objective == pytest.approx(best)
    assert answer.gap <= 1e-6
    assert lower_bound(problem) <= best + 1e-9


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    experts=st.integers(1, 20),
    ranks=st.integers(1, 8),
    spare=st.integers(0, 2),
    redundant=st.integers(0, 6),
)
def test_every_placement_is_legal_and_above_its_bound(
    seed: int, experts: int, ranks: int, spare: int, redundant: int
) -> None:
    """`evaluate` refuses a missing or doubled expert, so that answering is itself the proof of legality."""
    draw = np.random.default_rng(seed)
    redundant = min(redundant, experts * (ranks - 1))
    slots = -(-(experts + redundant) // ranks) + spare
    problem = PlacementProblem(
        loads=draw.exponential(1.0, (2, experts)),
        ranks=ranks,
        slots_per_rank=slots,
        redundant=redundant,
        traffic=draw.random((1, experts, experts)),
        nodes=tuple(rank // 2 for rank in range(ranks)),
        inside_cost=0.1,
        between_cost=0.3,
    )
    answer = place(problem)
    assert lower_bound(problem) <= answer.objective + 1e-9
    assert answer.rank_load.sum() == pytest.approx(problem.load.sum())
    assert (answer.slots >= 0).sum() <= 2 * (experts + redundant)


@given(loads=st.lists(st.floats(0.01, 10), min_size=1, max_size=6), ranks=st.integers(1, 4), extra=st.integers(0, 4))
def test_replicas_make_the_largest_as_small_as_any_choice(loads: list[float], ranks: int, extra: int) -> None:
    counts = replica_counts(np.array(loads), ranks, extra)
    least = min(
        max(load / count for load, count in zip(loads, choice, strict=True))
        for choice in product(range(1, ranks + 1), repeat=len(loads))
        if sum(choice) <= len(loads) + extra
    )
    assert max(load / count for load, count in zip(loads, counts, strict=True)) == pytest.approx(least)


def test_traffic_bound_counts_the_partners_that_fit() -> None:
    """Of each row (3 2 1) one partner can stay on a rank and two in a node: 9 of 18 cross ranks, 3 cross nodes."""
    flow = np.array([[3.0, 2.0, 1.0], [1.0, 3.0, 2.0], [2.0, 1.0, 3.0]])
    assert traffic_bound(flow, on_rank=1, on_node=2, inside_cost=1.0, between_cost=5.0) == pytest.approx(9 + 4 * 3)


@pytest.mark.parametrize("redundant", [0, 32])
@pytest.mark.parametrize("skew", [0.0, 0.3, 0.6])
def test_256_experts_on_64_ranks_within_a_second_and_a_few_percent(skew: float, redundant: int) -> None:
    """Loads fall as rank^-skew with a lognormal spread; the gap is against a bound, so the true one is smaller."""
    draw = np.random.default_rng(3)
    loads = draw.permutation(np.arange(1, 257) ** -skew) * draw.lognormal(0, 0.3, 256)
    slots = 4 + (redundant > 0)
    answer = place(PlacementProblem(loads=loads[None], ranks=64, slots_per_rank=slots, redundant=redundant))
    assert answer.elapsed_s < 1.0
    assert answer.gap < 0.03


@pytest.mark.parametrize("seed", range(4))
def test_hidden_groups_are_found(seed: int) -> None:
    """Tokens stay within eight groups of four experts, whose names differ from layer to layer: nothing need cross."""
    draw = np.random.default_rng(seed)
    layers, groups, members = 4, 8, 4
    names = [draw.permutation(groups * members) for _ in range(layers)]
    flow = np.zeros((layers - 1, groups * members, groups * members))
    for layer in range(layers - 1):
        for group in range(groups):
            rows, columns = (names[layer + up][group * members : (group + 1) * members] for up in (0, 1))
            flow[layer][np.ix_(rows, columns)] = draw.uniform(0.5, 1.5, (members, members))
    loads = np.ones((layers, groups * members))
    problem = PlacementProblem(
        loads=loads, ranks=groups, slots_per_rank=members, traffic=flow, inside_cost=1, between_cost=1
    )
    answer = place(problem)
    assert answer.objective == answer.rank_load.max(axis=1).sum()  # nothing crosses
    assert answer.gap == 0.0


def test_effort_is_counted_and_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that is cut short ends with the same placement on a machine where every look at the clock is an hour."""
    draw = np.random.default_rng(5)
    loads, flow = draw.exponential(1.0, (4, 32)), draw.random((3, 32, 32))
    problem = PlacementProblem(loads=loads, ranks=8, slots_per_rank=4, traffic=flow, inside_cost=1, between_cost=1)
    short, longer = place(problem, pairs=3e5), place(problem, pairs=3e6)
    hours = count(step=3600.0)
    monkeypatch.setattr(time, "perf_counter", lambda: next(hours))
    assert np.array_equal(place(problem, pairs=3e5).slots, short.slots)
    assert longer.objective < short.objective


def test_what_cannot_be_placed_is_refused() -> None:
    with pytest.raises(
        PlanError, match=r"9 experts and 0 replicas on 4 ranks of 2 slots: 8 slots, 9 needed; give .* 3"
    ):
        PlacementProblem(loads=np.ones((1, 9)), ranks=4, slots_per_rank=2)
    with pytest.raises(InputError, match="loads"):
        PlacementProblem(loads=[[1.0, -1.0]], ranks=2, slots_per_rank=1)
    with pytest.raises(InputError, match=r"traffic is \(1, 2, 2\); needs \(0, 2, 2\)"):
        PlacementProblem(loads=[[1.0, 1.0]], ranks=2, slots_per_rank=1, traffic=np.ones((1, 2, 2)))
    with pytest.raises(InputError, match="3 nodes for 2 ranks"):
        PlacementProblem(loads=[[1.0, 1.0]], ranks=2, slots_per_rank=1, nodes=(0, 0, 1))
    with pytest.raises(PlanError, match="expert 1 of layer 0 has no slot"):
        evaluate(PlacementProblem(loads=[[1.0, 1.0]], ranks=2, slots_per_rank=1), np.array([[[0], [-1]]]))
    with pytest.raises(PlanError, match="twice on a rank"):
        evaluate(PlacementProblem(loads=[[1.0, 1.0]], ranks=2, slots_per_rank=2), np.array([[[0, 0], [1, -1]]]))
    both = PlacementProblem(
        loads=np.ones((2, 3)),
        ranks=2,
        slots_per_rank=2,
        redundant=1,
        traffic=np.random.default_rng(0).random((1, 3, 3)),
        inside_cost=1.0,
        between_cost=1.0,
    )
    with pytest.raises(PlanError, match="no exact program"):
        exactly_placed(both)
