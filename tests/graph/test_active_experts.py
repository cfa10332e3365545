"""Active experts by layer: against every choice, by hand, and what is refused (active-experts, expert-pruning)."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.errors import PlanError
from ridgeline.graph.load import load
from ridgeline.graph.ops import OpRole
from ridgeline.programs import choose
from ridgeline.scenario.serving_words import deployed
from ridgeline.seams.deployment_slots import check_techniques
from ridgeline.techniques.graphs.active_experts import ActiveExperts, ExpertPruning

QWEN = load("qwen1.5-moe-a2.7b")  # 24 layers of 60 experts, 4 of which a token visits
NUMBERS = st.floats(0.0, 10.0).map(lambda one: round(one, 3))


@settings(deadline=None, max_examples=40)
@given(table=st.lists(st.lists(NUMBERS, min_size=3, max_size=3), min_size=1, max_size=4), limit=st.integers(1, 12))
def test_no_choice_within_the_limit_loses_less(table: list[list[float]], limit: int) -> None:
    cost = [[1, 2, 3]] * len(table)
    every = [
        sum(row[one] for row, one in zip(table, picks, strict=True))
        for picks in product(range(3), repeat=len(table))
        if sum(one + 1 for one in picks) <= limit
    ]
    found = choose(table, [cost], [limit])
    if not every:
        assert found is None
        return
    assert found is not None
    assert sum(one + 1 for one in found) <= limit
    assert sum(row[one] for row, one in zip(table, found, strict=True)) == pytest.approx(min(every))


def test_the_layer_that_loses_most_keeps_its_experts() -> None:
    """Two layers of 3: losses of (9, 5, 0) and (2, 1, 0); of 4 visits the first keeps 3 and the second 1."""
    one = ActiveExperts(share=4 / 6, losses=(9.0, 5.0, 0.0, 2.0, 1.0, 0.0))
    assert one.counts([3, 3]) == [3, 1]
    assert ActiveExperts(share=0.5).counts([4, 4, 4]) == [2, 2, 2]
    assert ActiveExperts(share=0.01).counts([4, 4]) == [1, 1]  # a token visits one at least


def test_layers_of_a_model_visit_what_was_chosen() -> None:
    losses = tuple(float((place + 1) * (4 - kept)) for place in range(24) for kept in range(1, 5))
    graph = ActiveExperts(share=0.5, losses=losses).rewrite(QWEN.graph)
    visits = [graph.blocks[name].top_k for name in graph.layers]
    assert sum(visits) == 48
    assert visits == sorted(visits)  # later layers lose more
    assert set(visits) == {1, 4}  # losses in a line: all or nothing, but for one layer at most
    assert graph.params == QWEN.graph.params
    assert graph.active_params < QWEN.graph.active_params


def test_all_visits_change_nothing() -> None:
    assert ActiveExperts(share=1.0).rewrite(QWEN.graph) == QWEN.graph


def test_pruning_removes_weights_and_no_work() -> None:
    graph = ExpertPruning(share=0.5).rewrite(QWEN.graph)
    (block,) = graph.blocks.values()
    assert (block.experts, block.top_k) == (30, 4)
    router = block.gemm(OpRole.ROUTER)
    assert router is not None
    assert (router.n, router.params) == (30, 30 * 2048)
    expert = 3 * 2048 * 1408
    assert QWEN.graph.params - graph.params == 24 * 30 * (expert + 2048)
    assert QWEN.graph.active_params - graph.active_params == 24 * 30 * 2048  # the router's alone


def test_what_is_refused() -> None:
    assert "experts" in ActiveExperts().refusal(load("llama-3.1-8b").graph)
    with pytest.raises(PlanError, match="needs 96"):
        ActiveExperts(losses=(1.0, 2.0)).rewrite(QWEN.graph)
    with pytest.raises(PlanError, match="active experts"):
        check_techniques(deployed(technique=("active-experts", "expert-pruning")))
