"""Service times where a load is the highest that keeps to limits: the search on functions, and a queue by hand."""

from __future__ import annotations

import math

import pytest

from ridgeline.cost.machine import machine
from ridgeline.facts.clusters import cluster
from ridgeline.graph.load import load
from ridgeline.plan.deployment import Deployment
from ridgeline.serving.engine import engine
from ridgeline.serving.metrics import Objective, measure
from ridgeline.serving.traffic.arrivals import poisson
from ridgeline.serving.traffic.lengths import Fixed
from ridgeline.serving.traffic.synthetic import synthetic
from ridgeline.validate.serving_limits import FARTHEST, last_place, loaded, nearer, within


@pytest.mark.parametrize("edge", [-1.7, -0.3, 0.4, 1.9])
def test_the_last_place_is_found_to_a_sixtieth(edge: float) -> None:
    found = last_place(lambda place: place <= edge)
    assert found is not None
    assert edge - FARTHEST / 2**7 <= found <= edge


def test_limits_that_always_or_never_hold() -> None:
    assert last_place(lambda _: True) is None
    assert last_place(lambda _: False) == -FARTHEST


def test_times_are_put_where_the_limits_just_hold() -> None:
    """Replays come as near to the limit as results of another round: at the median of them, the least and the most."""
    one = engine(load("llama-3.1-8b"), machine(cluster("1xH100-SXM")), Deployment(engine="vLLM"))
    traffic = synthetic(poisson(20.0, requests=1500), Fixed(tokens=512), Fixed(tokens=64))
    tables = [one.tables(longest_prompt=512, longest=576)]
    limits = Objective(ttft_s=0.5, tpot_s=0.012)
    told = loaded([one], tables, traffic, limits)
    assert told is not None
    low, mid, high = (measure(found, traffic) for found in (told.ends[0], told.replay, told.ends[1]))
    near = [one.tpot.p99 / 0.012 for one in (low, mid, high)]  # 0.761, 0.853 and 0.975 at most, and not far from them
    assert 0.6 < near[0] <= 0.761
    assert 0.75 < near[1] <= 0.853
    assert 0.853 < near[2] <= 0.975
    assert within(mid, nearer(limits))
    assert f"{told.place:+.2f}" in told.said
    assert loaded([one], tables, traffic, Objective(tpot_s=math.inf)) is None


def test_limits_on_tokens_and_on_requests_are_not_as_nearly_reached() -> None:
    assert nearer(Objective(ttft_s=2.0, tpot_s=0.2)) == Objective(ttft_s=1.706, tpot_s=pytest.approx(0.1706))
    assert nearer(Objective(latency_s=20.0), ".high") == Objective(latency_s=pytest.approx(18.68))
