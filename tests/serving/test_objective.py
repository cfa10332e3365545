"""Objectives at percentiles: by hand, and early ends that are certain."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.serving.metrics import at_percentile, measure
from ridgeline.serving.objective import Objective, Percentile, objective_text
from ridgeline.serving.sampling import probability_kept, student_9
from ridgeline.serving.traffic.traffic import traffic


def found(latency_s: Any, *, refused: int = 0, output: int = 3) -> Any:
    """A replay of requests that come a second apart; first tokens after half, the last of them refused."""
    latency = np.asarray(latency_s, dtype=float)
    came, size = np.arange(len(latency)) * 1.0, len(latency)
    no = np.arange(size) >= size - refused
    return SimpleNamespace(
        came_s=came, first_s=np.where(no, np.nan, came + latency / 2), end_s=np.where(no, np.nan, came + latency),
        prompt=np.ones(size, dtype=int), output=np.full(size, output), done=~no, refused=no,
        hit_tokens=np.zeros(size), itl_quantile=lambda share: share, span_s=float(came[-1] + latency[-1]),
    )  # fmt: skip


def statistic(metric: str, name: str) -> Percentile:
    return Percentile(metric=metric, statistic=name, most_s=1.0)


def test_percentiles_by_hand() -> None:
    """Latencies 1..5 s: the median is 3, p90 lies at rank 3.6: 4.6; TTFT is half, TPOT a quarter of each."""
    one = found([1, 2, 3, 4, 5])
    assert at_percentile(one, statistic("latency", "p50")) == 3.0
    assert at_percentile(one, statistic("latency", "p90")) == pytest.approx(4.6)
    assert at_percentile(one, statistic("ttft", "mean")) == 1.5
    assert at_percentile(one, statistic("tpot", "p50")) == 0.75
    assert at_percentile(one, statistic("itl", "p99.9")) == pytest.approx(0.999)


def test_who_is_refused_is_infinitely_late() -> None:
    one = found([1, 2, 3, 4, 5], refused=1)
    assert at_percentile(one, statistic("latency", "p75")) == 4.0
    assert at_percentile(one, statistic("latency", "p76")) == np.inf
    assert at_percentile(one, statistic("latency", "mean")) == np.inf


def test_everything_that_is_asked_must_hold() -> None:
    one, line = found([1, 2, 3, 4, 5]), traffic(np.arange(5.0), np.ones(5, int), np.full(5, 3))
    goal = Objective.of({"latency_s": 4.5, "least_share": 0.8, "percentiles": (("ttft", "p50", 1.5),)})
    kept = measure(one, line, goal)
    assert (kept.kept, kept.attained, kept.at_percentiles) == (True, 0.8, (1.5,))
    assert measure(one, line, replace(goal, least_share=0.81)).kept is False
    assert measure(one, line, replace(goal, percentiles=(statistic("ttft", "p50"),))).kept is False
    assert measure(one, line, replace(goal, least_goodput_rps=4 / 9)).kept is True  # 4 of 5 within 9 s
    assert measure(one, line, replace(goal, least_goodput_rps=0.45)).kept is False
    assert measure(one, line).kept is None


def test_an_objective_in_words() -> None:
    goal = Objective.of({"ttft_s": 1.0, "percentiles": (("itl", "p99", 0.08),), "least_goodput_rps": 4.0})
    assert objective_text(goal) == "TTFT <= 1 s, p99 of ITL <= 80 ms, goodput >= 4/s"


@given(
    st.lists(st.floats(0.1, 10.0), min_size=2, max_size=40),
    st.sampled_from(["p50", "p90", "p99"]), st.floats(0.1, 10.0), st.floats(0.1, 10.0),
    st.sampled_from([0.5, 0.9, 1.0]),
)  # fmt: skip
def test_what_is_kept_leaves_no_more_misses_than_the_certain_share(
    latency: list[float], name: str, most_s: float, bound_s: float, share: float
) -> None:
    """A replay may end once fewer than that share keep to the tightest bounds: then the objective is missed."""
    one, size = found(latency), len(latency)
    line = traffic(one.came_s, one.prompt, one.output)
    goal = Objective.of({"ttft_s": bound_s, "least_share": share, "percentiles": (("latency", name, most_s),)})
    within = (one.end_s - one.came_s <= most_s) & (one.first_s - one.came_s <= bound_s)
    if measure(one, line, goal).kept:
        assert within.mean() >= goal.certain_share(size) - 1e-9
    assert goal.tightest() == {"ttft_s": bound_s, "latency_s": most_s}


def test_the_law_of_student_by_its_table() -> None:
    assert student_9(1.383) == pytest.approx(0.9, abs=1e-4)
    assert student_9(2.821) == pytest.approx(0.99, abs=1e-4)
    assert student_9(-2.821) == pytest.approx(0.01, abs=1e-4)


def test_the_probability_of_keeping_an_objective_by_hand() -> None:
    """All 98 of 98 within: s' = 99 / 100, the error sqrt(0.99 0.01 / 101), the share of 0.9 is 9.09 of it below."""
    goal = Objective(latency_s=2.0, least_share=0.9)
    assert probability_kept(found(np.ones(98)), goal) == pytest.approx(student_9(0.09 / np.sqrt(0.0099 / 101)))
    half = probability_kept(found(np.tile([1.0, 3.0], 50)), replace(goal, least_share=0.5))
    assert half == pytest.approx(0.5)
    assert probability_kept(found(np.ones(19)), goal) is None
