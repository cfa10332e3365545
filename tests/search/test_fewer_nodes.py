"""Plans on fewer whole nodes: taken where the link between nodes costs more than the other nodes bring."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.facts.clusters import cluster
from ridgeline.facts.records import Cluster, Tier
from ridgeline.graph.build import from_dims
from ridgeline.graph.workload import Workload
from ridgeline.predict import Predictor
from ridgeline.report.as_json import search_as_dict
from ridgeline.search.search import Searcher, search
from ridgeline.search.space import Space, fewer_nodes

MODEL = from_dims(name="small", layers=8, hidden=2048, heads=8, vocab=32000, max_positions=2048)
JOB = Workload(seq_len=2048, global_batch=32)
SPACE = Space(max_micro_batch=2)


def boxes(count: int, *, bytes_per_s: float = 1.25e9, latency_s: float = 5e-5) -> Cluster:
    """Boxes of four devices, joined by a link."""
    one = cluster("4xRTX-4090")
    inside = Tier(name="pcie", size=4, bytes_per_s=16e9, latency_s=5e-6, topology="bus")
    between = Tier(name="ethernet", size=4 * count, bytes_per_s=bytes_per_s, latency_s=latency_s, topology="switch")
    tiers = (inside, between)[: 1 if count == 1 else 2]
    return replace(one, count=4 * count, host=replace(one.host, devices=4), tiers=tiers)


def step_s(where: Cluster, space: Space = SPACE) -> float:
    return search(MODEL, where, JOB, limits=space, top=1).best[0].step_time.value


@pytest.mark.parametrize("count", [2, 3])
def test_behind_a_slow_link_one_box_works_and_the_answer_says_why(count: int) -> None:
    found = search(MODEL, boxes(count, bytes_per_s=1.25e5), JOB, limits=SPACE, top=3)
    best = found.best[0]
    assert best.idle_devices == 4 * (count - 1)
    assert best.step_time.value == step_s(boxes(1))
    assert [one.step_time.value for one in found.best] == sorted(one.step_time.value for one in found.best)
    assert f"{4 * (count - 1)} of {4 * count} devices are idle" in str(found)
    assert "the link between nodes, 0.001 Gb/s, limits" in best.idle_why
    assert search_as_dict(found)["best"][0]["idle_why"] == best.idle_why
    assert found.bound_gap == 0.0
    assert found.covered == found.legal + sum(item.plans for item in found.infeasible if "memory" not in item.reason)


@settings(max_examples=8, deadline=None)
@given(exponent=st.floats(4.0, 10.0), latency_s=st.floats(0.0, 0.05))
def test_another_box_never_makes_the_best_plan_slower(exponent: float, latency_s: float) -> None:
    assert step_s(boxes(2, bytes_per_s=10**exponent, latency_s=latency_s)) <= step_s(boxes(1))


def test_behind_an_ordinary_link_nothing_more_is_searched() -> None:
    where = cluster("16xH100-SXM")
    whole = Searcher(Predictor(MODEL, where, replace(JOB, global_batch=512)), SPACE).run(top=1)
    found = search(MODEL, where, replace(JOB, global_batch=512), limits=SPACE, top=1)
    assert (found.covered, found.simulated) == (whole.covered, whole.simulated)
    assert found.best[0].idle_why == ""


def test_a_degree_that_is_stated_is_kept_on_all_nodes() -> None:
    best = search(MODEL, boxes(2, bytes_per_s=1.25e5), JOB, limits=replace(SPACE, fixed={"dp": 8}), top=1).best[0]
    assert (best.plan.dp, best.idle_why) == (8, "")


@pytest.mark.parametrize("devices", [4, 8])
def test_what_the_cheapest_layout_computes_bounds_every_plan(devices: int) -> None:
    predictor = Predictor(MODEL, boxes(2), JOB)
    it = Searcher(predictor, replace(SPACE, devices=devices))
    found = it.run(top=40)
    assert all(plan.devices <= devices for _, plan in found.plans)
    assert all(it.device_s <= devices * seconds for seconds, _ in found.plans)
    assert it.device_s > 0.2 * devices * found.plans[0][0]  # and is no empty bound


def test_nodes_that_are_tried_are_divisors_and_half() -> None:
    assert fewer_nodes(boxes(1)) == []
    assert fewer_nodes(boxes(2)) == [4]
    assert fewer_nodes(boxes(7)) == [12, 4]
    assert fewer_nodes(boxes(12)) == [24, 16, 12, 8, 4]
