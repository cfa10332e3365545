"""CapacityQuestion questions against plain scans, by hand, and their monotony."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.cost.machine import machine
from ridgeline.errors import NoPlanError
from ridgeline.facts.clusters import cluster
from ridgeline.graph.load import load
from ridgeline.plan.deployment import Deployment, Role
from ridgeline.predict.serving import Operation
from ridgeline.scenario.serving_words import deployed
from ridgeline.search.capacity import (
    STEPS_AN_OCTAVE,
    CapacityQuestion,
    fewest_devices,
    grid_rate,
    highest_rate,
    scaled,
    tightest_objective,
)
from ridgeline.serving.bounds import least_devices, least_work, most_requests_per_s
from ridgeline.serving.engine import engine
from ridgeline.serving.metrics import measure
from ridgeline.serving.objective import Objective
from ridgeline.serving.replay import replay, tables_of
from ridgeline.serving.traffic.arrivals import burst, poisson
from ridgeline.serving.traffic.asked import synthetic
from ridgeline.serving.traffic.lengths import Uniform
from ridgeline.serving.traffic.traffic import Traffic

MODEL, WHERE = load("llama-3.1-8b"), machine(cluster("8xH100-SXM"))
LENGTHS = Uniform(low=500, high=1500), Uniform(low=50, high=150)
GOAL = Objective.of({"ttft_s": 0.3, "percentiles": (("tpot", "p90", 0.03),)})


@cache
def coming(rate: float) -> Traffic:
    return synthetic(poisson(rate, requests=400, seed=1), *LENGTHS)


def capacity(goal: Objective = GOAL) -> CapacityQuestion:
    return CapacityQuestion(
        model=MODEL, machine=WHERE, objective=goal, traffic_at=coming, operation=Operation(router="least-loaded")
    )


def fleet(instances: int = 1, **words: Any) -> tuple[Deployment, ...]:
    return (deployed(engine="vllm", instances=instances, **words),)


def test_the_highest_rate_is_that_of_a_plain_scan() -> None:
    """Every rate of the grid from half the answer to twice it, replayed without early ends."""
    found = highest_rate(capacity(), fleet())
    place = round(np.log2(found.best.rate_per_s) * STEPS_AN_OCTAVE)
    kept = []
    for each in range(place - STEPS_AN_OCTAVE, place + STEPS_AN_OCTAVE, 4):
        line = coming(grid_rate(each))
        metrics = measure(replay([engine(MODEL, WHERE, fleet()[0])], line, router="least-loaded"), line, GOAL)
        if metrics.kept and not metrics.overloaded:
            kept.append(each)
    assert max(kept) <= place < max(kept) + 8
    assert kept == list(range(place - STEPS_AN_OCTAVE, max(kept) + 1, 4))
    assert found.beyond is not None
    assert not found.beyond.kept
    assert found.beyond.missed
    assert found.beyond_per_s / found.best.rate_per_s == pytest.approx(2 ** (1 / STEPS_AN_OCTAVE))
    assert found.best.rate_per_s < found.bound_per_s


@settings(max_examples=8, deadline=None)
@given(st.floats(0.03, 2.0), st.floats(0.012, 0.1), st.floats(0.5, 1.0))
def test_a_tighter_objective_never_finds_a_higher_rate(ttft_s: float, tpot_s: float, factor: float) -> None:
    goal = Objective.of({"percentiles": (("ttft", "p95", ttft_s), ("tpot", "p90", tpot_s))})
    rates = []
    for each in (goal, scaled(goal, factor)):
        try:
            rates.append(highest_rate(capacity(each), fleet()).best.rate_per_s)
        except NoPlanError:
            rates.append(0.0)
    assert rates[0] >= rates[1]


def test_more_devices_never_lower_the_rate() -> None:
    rates = [highest_rate(capacity(), fleet(count)).best.rate_per_s for count in (1, 2, 3, 4, 8)]
    assert rates == sorted(rates)
    assert rates[-1] > 4 * rates[0]


@pytest.mark.parametrize("rate", [10.0, 40.0, 90.0])
def test_the_fewest_devices_are_those_of_trying_all(rate: float) -> None:
    found = fewest_devices(capacity(), fleet(8), rate)
    line, kept = coming(rate), []
    for count in range(1, 9):
        metrics = measure(replay([engine(MODEL, WHERE, fleet(count)[0])], line, router="least-loaded"), line, GOAL)
        kept.append(bool(metrics.kept) and not metrics.overloaded)
    assert found.best.devices == kept.index(True) + 1
    assert found.least_devices <= found.best.devices
    assert all(not one.kept and one.missed for one in found.less)


def test_the_fewest_devices_of_two_pools_are_those_of_trying_all() -> None:
    both = tuple(
        replace(deployed(engine="vllm"), role=role, instances=count)
        for role, count in ((Role.PREFILL, 3), (Role.DECODE, 3))
    )
    rate, on = 30.0, capacity()
    found = fewest_devices(on, both, rate)
    kept = [
        first + second
        for first in (1, 2, 3)
        for second in (1, 2, 3)
        if on.tried((replace(both[0], instances=first), replace(both[1], instances=second)), rate).kept
    ]
    assert found.best.devices == min(kept)


def test_the_tightest_objective_is_kept_and_no_tighter_one() -> None:
    on = capacity()
    found = tightest_objective(on, fleet(), 10.0)
    line = coming(10.0)
    again = replay([engine(MODEL, WHERE, fleet()[0])], line, router="least-loaded")
    assert measure(again, line, scaled(GOAL, found.factor * 1.0001)).kept
    assert not measure(again, line, scaled(GOAL, found.factor * 0.9999)).kept
    first, second = found.bounds
    assert first.alone_s == np.sort(again.first_s - again.came_s)[395]  # 396 of 400 keep to it
    tpot = (again.end_s - again.first_s) / (again.output - 1)
    assert second.alone_s == pytest.approx(float(np.percentile(tpot, 90)))
    assert on.replays == 1


def test_what_nothing_keeps_is_told_with_what_is_missed() -> None:
    with pytest.raises(NoPlanError, match=r"no rate keeps the objective.*p50 of TTFT .* \(at most 0.001 s\)"):
        highest_rate(capacity(Objective.of({"percentiles": (("ttft", "p50", 1e-3),)})), fleet())
    with pytest.raises(NoPlanError, match=r"all 1 devices do not keep the objective at 90 requests/s: "):
        fewest_devices(capacity(), fleet(), 90.0)


@settings(max_examples=12, deadline=None)
@given(
    st.sampled_from([(1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 4)]), st.integers(1, 4000), st.integers(1, 600),
    st.sampled_from(["llama-3.1-8b", "qwen3-30b-a3b"]),
)  # fmt: skip
def test_no_queue_that_never_runs_dry_is_served_faster_than_the_closed_form(
    degrees: tuple[int, int, int], prompt: int, output: int, name: str
) -> None:
    tp, pp, dp = degrees
    one = engine(load(name), WHERE, deployed(engine="vllm", tp=tp, pp=pp, dp=dp, ep=dp if "a3b" in name else 1))
    line = synthetic(burst(600), Uniform(low=1, high=prompt), Uniform(low=1, high=output))
    tables = tables_of([one], line)
    served = measure(replay([one], line), line).requests_per_s
    assert served <= most_requests_per_s([one], tables, line) * (1.0 + 1e-9)


def test_the_least_devices_by_hand() -> None:
    one = engine(MODEL, WHERE, deployed(engine="vllm", tp=2))
    work = least_work(one, tables_of([one], coming(10.0))[0], coming(10.0))
    assert work is not None
    each = 2 * (work.prompt_s + work.output_s)  # seconds of a device for a request
    assert least_devices([(one, work)], 4.5 / each) == 5
    assert least_devices([(one, work)], 0.1 / each) == 2  # one instance
    assert least_devices([(one, None)], 1.0) is None
