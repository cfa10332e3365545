"""Intervals from replays at both ends of each pool's times."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.serving.ends import interval

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
    assert interval(10.0, ends) == pytest.approx((low, high))


@given(FACTORS, st.lists(FACTORS, min_size=4, max_size=4))
def test_an_interval_holds_its_value_and_what_each_pool_alone_does(value: float, ends: list[float]) -> None:
    """It is no wider than if both were at their worst at once, that is than the product of their factors."""
    low, high = interval(value, ends)
    assert low <= value * (1 + 1e-9)
    assert low <= min(ends) * (1 + 1e-9)
    assert high >= max(*ends, value) * (1 - 1e-9)
    worst = math.prod(max(1.0, *(end / value for end in ends[start : start + 2])) for start in (0, 2))
    assert high <= value * worst * (1 + 1e-9)
