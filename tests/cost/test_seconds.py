"""Times with intervals: what shapes share of their errors adds up, what is each shape's own adds as squares."""

from __future__ import annotations

import numpy as np
import pytest

from ridgeline.cost.seconds import Seconds


def _time(mid: float, low: float, high: float, below: float = 0.0, above: float = 0.0) -> Seconds:
    one = np.array([1.0])
    return Seconds(
        mid=mid * one, low=low * one, high=high * one, compute=0.0 * one, memory=0.0 * one, below=below, above=above
    )


def test_errors_that_are_all_shared_add_up() -> None:
    found = _time(10.0, 7.0, 15.0) + _time(2.0, 1.0, 4.0)
    assert (found.mid[0], found.low[0], found.high[0]) == (12.0, 8.0, 19.0)


def test_own_errors_add_as_squares_and_shared_ones_as_they_are() -> None:
    """Below: 5 of which 4 own, 3 shared, twice: 6 shared and 4 sqrt 2 own; above: 13 = 12 own and 5 shared."""
    one = _time(20.0, 15.0, 33.0, below=4.0, above=12.0)
    found = one + one
    assert found.low[0] == pytest.approx(40.0 - np.sqrt(36.0 + 32.0))
    assert found.high[0] == pytest.approx(40.0 + np.sqrt(100.0 + 288.0))
    third = found + _time(5.0, 4.0, 7.0)  # of a kind whose errors are all shared: 1 and 2 more
    assert third.low[0] == pytest.approx(45.0 - np.sqrt(49.0 + 32.0))
    assert third.high[0] == pytest.approx(45.0 + np.sqrt(144.0 + 288.0))


def test_one_shape_many_times_is_as_wrong_each_time() -> None:
    one = _time(20.0, 15.0, 33.0, below=4.0, above=12.0)
    found = one.times(3.0)
    assert (found.low[0], found.high[0], found.below[0]) == (45.0, 99.0, 12.0)
    assert (found + _time(0.0, 0.0, 0.0)).low[0] == pytest.approx(45.0)


def test_what_comes_again_in_the_next_iteration_is_shared() -> None:
    one = _time(20.0, 15.0, 33.0, below=4.0, above=12.0).alike
    assert (one + one).low[0] == 30.0


def test_operators_side_by_side_take_as_long_as_the_slowest_of_compute_memory_and_links() -> None:
    """12 s one after the other, 3 of them on links; busy 5 (compute) and 7 (memory): 7, with links of 9 s 9."""
    one = np.array([1.0])
    kernels = Seconds(mid=9.0 * one, low=6.0 * one, high=18.0 * one, compute=5.0 * one, memory=7.0 * one)
    links = _time(3.0, 2.0, 6.0)
    found = kernels.streamed(links)
    assert (found.mid[0], found.low[0], found.high[0]) == (7.0, pytest.approx(7.0 * 8 / 12), pytest.approx(14.0))
    assert kernels.streamed(_time(9.0, 9.0, 9.0)).mid[0] == 9.0
    assert kernels.streamed().mid[0] == 7.0


def test_a_table_is_read_between_its_points_as_numpy_does() -> None:
    rows, columns = np.array([1.0, 2.0, 8.0]), np.array([0.0, 10.0, 15.0, 40.0])
    values = np.arange(12.0).reshape(3, 4) ** 1.7
    table = Seconds(mid=values, low=values, high=values, compute=values, memory=values)
    up, across = np.array([0.5, 1.0, 1.5, 2.0, 7.0, 8.0, 9.0]), np.array([-1.0, 3.0, 10.0, 12.0, 39.0, 40.0, 50.0])
    expected = [np.interp(r, rows, [np.interp(c, columns, v) for v in values]) for r, c in zip(up, across, strict=True)]
    assert table.at_two(rows, columns, up, across).mid.tolist() == expected
    assert table.at_two(rows, columns, 1.5, 10.0).mid == expected[2]
    one = Seconds(
        mid=values[:1, :1], low=values[:1, :1], high=values[:1, :1], compute=values[:1, :1], memory=values[:1, :1]
    )
    assert one.at_two(rows[:1], columns[:1], 3.0, 3.0).mid == values[0, 0]
