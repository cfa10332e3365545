"""The clock that a power limit leaves, by hand: idle 0.2 of the limit, products at the cube of the clock."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.cost.clocks import clock_share

TIMES = st.floats(1e-6, 1.0)


def share(t: float, h: float, other: float, other_power: float = 0.6) -> float:
    found = clock_share(np.array([[t]]), np.array([[h / t]]), np.array([other]), other_power=other_power)
    return float(found[0])


def test_products_alone_run_at_their_loaded_rate() -> None:
    assert share(0.8, 1.0, 0.0) == pytest.approx(0.8, rel=1e-5)  # t / c = h


def test_cool_products_keep_their_clock() -> None:
    assert share(1.0, 0.9, 0.0) == share(1.0, 0.5, 3.0) == 1.0


def test_time_among_products_gives_them_power() -> None:
    """c = 1 where 0.8 (h^3 - 1) = o (1 - 0.6): h = 1.1 asks for o = 0.662 s a second of products."""
    assert share(1.0, 1.1, 0.663) == 1.0
    assert 0.99 < share(1.0, 1.1, 0.6) < 1.0


@given(t=TIMES, heat=st.floats(1.0, 2.0), other=st.floats(0.0, 1.0), other_power=st.floats(0.2, 0.95))
def test_the_mean_power_of_a_pass_is_the_limit_or_below(
    t: float, heat: float, other: float, other_power: float
) -> None:
    c = share(t, heat * t, other, other_power)
    power = max(other_power, 0.2 + 0.8 * (c * heat) ** 3)
    mean = (power * t / c + other_power * other) / (t / c + other)
    assert mean <= 1.0 + 1e-9
    assert c == 1.0 or mean == pytest.approx(1.0, abs=1e-4)
    assert 1.0 / heat - 1e-6 <= c <= 1.0


@given(heat=st.floats(1.0, 2.0), cool=st.floats(0.3, 1.0), other=st.floats(0.0, 2.0))
def test_what_cools_never_slows(heat: float, cool: float, other: float) -> None:
    """Other work, cooler products and a lower draw of other work all leave as high a clock or a higher one."""
    base = share(1.0, heat, other)
    assert share(1.0, heat, other + 0.5) >= base - 1e-6
    assert share(1.0, heat, other, other_power=0.5) >= base - 1e-6
    two = clock_share(np.array([[1.0], [1.0]]), np.array([[heat], [cool]]), np.array([other]), other_power=0.6)
    assert float(two[0]) >= base - 1e-6


def test_each_pass_of_an_array_is_its_own() -> None:
    t, q, other = np.array([[1.0, 1.0, 1.0]]), np.array([[1.2, 1.2, 0.9]]), np.array([0.0, 0.5, 0.0])
    found = clock_share(t, q, other, other_power=0.6)
    assert found.tolist() == [share(1.0, 1.2, 0.0), share(1.0, 1.2, 0.5), 1.0]
