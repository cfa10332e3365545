"""Intervals from replays at both ends of each pool's times."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.cost.machine import machine
from ridgeline.facts.clusters import cluster
from ridgeline.facts.transfer import joined
from ridgeline.graph.load import load
from ridgeline.scenario.serving_words import deployed
from ridgeline.serving.ends import CAUSES, HIGH, LOW, at_place, replay_ends
from ridgeline.serving.engine import engine
from ridgeline.serving.replay import replay_tables
from ridgeline.serving.traffic.traffic import Traffic, traffic

LLAMA, MACHINE = load("llama-3.1-8b"), machine(cluster("1xH100-SXM"))
FACTORS = st.floats(0.01, 100.0)


@pytest.mark.parametrize(
    ("ends", "low", "high"),
    [
        ([5.0, 20.0], 5.0, 20.0),
        ([20.0, 5.0], 5.0, 20.0),
        ([12.0, 20.0], 10.0, 20.0),  # both ends above: nothing is below the value itself
        ([10.0, 10.0, 9.0, 12.0], 9.0, 12.0),  # one pool does not matter
        ([10.0, 10.0 * math.e**3, 10.0, 10.0 * math.e**4], 10.0, 10.0 * math.e**5),  # 3, 4, 5
        ([0.0, 20.0, 5.0, 10.0], 0.0, 20.0),
    ],
)
def test_pools_are_late_each_in_its_own_way(ends: list[float], low: float, high: float) -> None:
    assert joined(10.0, ends) == pytest.approx((low, high))


@given(FACTORS, st.lists(FACTORS, min_size=4, max_size=4))
def test_an_interval_holds_its_value_and_what_each_pool_alone_does(value: float, ends: list[float]) -> None:
    """It is no wider than if both were at their worst at once, that is than the product of their factors."""
    low, high = joined(value, ends)
    assert low <= value * (1 + 1e-9)
    assert low <= min(ends) * (1 + 1e-9)
    assert high >= max(*ends, value) * (1 - 1e-9)
    worst = math.prod(max(1.0, *(end / value for end in ends[start : start + 2])) for start in (0, 2))
    assert high <= value * worst * (1 + 1e-9)


def batch(count: int, after_s: float = 0.0) -> Traffic:
    """So many requests, the last of which comes later."""
    return traffic([0.0] * (count - 1) + [after_s], [512] * count, [64] * count)


@pytest.mark.parametrize(
    ("requests", "turns"),
    [(batch(8), 3), (batch(8, after_s=1.0), 1), (batch(20), 1), (batch(8).closed(8), 1)],
    ids=["at once", "one comes later", "more than may run", "a closed loop"],
)
def test_causes_have_turns_of_their_own_where_nobody_waits(requests: Traffic, turns: int) -> None:
    one = engine(LLAMA, MACHINE, deployed(max_seqs=16))
    tables = one.tables(longest_prompt=512, longest=1024)
    assert len(replay_ends([one], [tables], requests, router="least-loaded")) == 2 * turns


def test_what_a_cause_adds_to_a_batch_is_what_all_of_them_add_together() -> None:
    """Parts of a sum: each alone at its high end is later by its own part, within what hides behind something else."""
    one = engine(LLAMA, MACHINE, deployed(max_seqs=16), offline=True)
    tables, requests = one.tables(longest_prompt=512, longest=1024), batch(16)

    def span_s(place: float, causes: tuple[str, ...]) -> float:
        made = at_place([one], [tables], [place], causes)
        return replay_tables(*made, requests, router="least-loaded").span_s

    for place in (LOW, HIGH):
        alone = [span_s(place, (cause,)) - span_s(0.0, CAUSES) for cause in CAUSES]
        assert all(part * place >= 0.0 for part in alone)
        assert sum(alone) == pytest.approx(span_s(place, CAUSES) - span_s(0.0, CAUSES), rel=0.1)
