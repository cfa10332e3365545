"""Intervals from rows in blocks: bands of time, rows that are worth fewer, and the chance to hold a new row."""

from __future__ import annotations

import numpy as np
import pytest

from ridgeline.calibrate.least_squares import effective_rows, residual_bands, shared_moments


def test_intervals_are_told_apart_by_the_time_predicted() -> None:
    """A hundred and one ratios from 0.9 to 1.1 below 10 us, twice that above 100 us, none between."""
    ratios = np.linspace(0.9, 1.1, 101)
    priced = np.concatenate([np.full(101, 5e-6), np.full(101, 1e-3)])
    low, high = residual_bands(np.concatenate([ratios, 2 * ratios]), priced)
    # quantiles 0.1 - 0.9 / 101 = 0.09109 and 0.90891
    assert (low[0], high[0]) == (pytest.approx(0.9182, abs=1e-4), pytest.approx(1.0818, abs=1e-4))
    assert (low[2], high[2]) == (1.0, pytest.approx(2.1636, abs=1e-4))  # the answer itself is always between
    assert (low[1], high[1]) == (pytest.approx(0.94, abs=0.01), pytest.approx(2.12, abs=0.01))  # too few: of all


def test_rows_of_a_block_that_are_all_alike_count_once() -> None:
    assert effective_rows(np.repeat([1.0, 5.0, 2.0], 4), np.repeat([0, 1, 2], 4)) == pytest.approx(3)


def test_rows_whose_block_says_nothing_all_count() -> None:
    assert effective_rows(np.tile([1.0, 2.0, 3.0, 4.0], 3), np.repeat([0, 1, 2], 4)) == pytest.approx(12)
    assert effective_rows(np.arange(5.0), np.arange(5)) == 5
    assert effective_rows(np.arange(5.0), np.zeros(5, dtype=int)) == 1  # one block tells of one


def test_rows_half_alike_count_between() -> None:
    """Two blocks of two: means 1 and 4, each 1 apart: between 9, within 0.5; r = 8.5 / 9.5; 4 / (1 + r)."""
    found = effective_rows(np.array([0.5, 1.5, 3.5, 4.5]), np.array([0, 0, 1, 1]))
    assert found == pytest.approx(4 / (1 + 8.5 / 9.5))


@pytest.mark.parametrize(("blocks", "each"), [(12, 20), (30, 10)])
def test_a_new_block_lies_inside_as_often_as_stated(blocks: int, each: int) -> None:
    """Errors with as much variance between blocks as within: without blocks the intervals are too narrow."""
    rng = np.random.default_rng(7)
    number = np.repeat(np.arange(blocks), each)
    shares: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(300):
        ratios = np.exp(0.2 * (rng.normal(size=blocks)[number] + rng.normal(size=blocks * each)))
        new = np.exp(0.2 * (rng.normal(size=200) + rng.normal(size=200)))
        for known, held in shares.items():
            low, high = residual_bands(ratios, np.full(len(ratios), 1e-3), number if known else None)
            held.append(float(np.mean((new >= low[2]) & (new <= high[2]))))
    assert 0.79 < np.mean(shares[True]) < 0.87
    assert np.mean(shares[False]) < np.mean(shares[True]) - 0.01


def test_rows_drawn_with_unequal_chances_count_for_those_they_stand_for() -> None:
    """A tenth of the drawn rows stands for nine tenths of all, whose errors are ten times smaller."""
    rng = np.random.default_rng(3)
    wide, narrow = np.exp(0.5 * rng.normal(size=9_000)), np.exp(0.05 * rng.normal(size=1_000))
    ratios, weights = np.concatenate([wide, narrow]), np.repeat([1.0, 81.0], [9_000, 1_000])
    population = np.exp(np.concatenate([0.5 * rng.normal(size=9_000), 0.05 * rng.normal(size=81_000)]))
    shares = []
    for each in (None, weights):
        low, high = residual_bands(ratios, np.full(len(ratios), 1e-3), None, each)
        shares.append(np.mean((population >= low[2]) & (population <= high[2])))
    assert shares[1] == pytest.approx(0.8, abs=0.02)
    assert shares[0] > 0.9


def test_equal_weights_are_no_weights() -> None:
    ratios = np.exp(np.random.default_rng(1).normal(size=77))
    priced = np.full(77, 1e-3)
    assert residual_bands(ratios, priced, None, np.full(77, 5.0)) == residual_bands(ratios, priced)


def test_ends_that_are_moved_out_later_are_narrower() -> None:
    """Every row's interval will be moved out by 1.1: what is found, moved out, is what is found without."""
    ratios, priced = np.exp(np.random.default_rng(5).normal(size=4_000)), np.full(4_000, 1e-3)
    (low, high), (inner, outer) = (
        residual_bands(ratios, priced),
        residual_bands(ratios, priced, reach=np.full(4_000, 1.1)),
    )
    assert inner[2] / 1.1 == pytest.approx(low[2], abs=1e-3)
    assert outer[2] * 1.1 == pytest.approx(high[2], abs=1e-3)


def test_what_blocks_beside_each_other_have_in_common() -> None:
    """Two blocks at 8 tokens, 0.3 and 0.1, and one of them alone at 16: one pair, 0.03; squares 0.09, 0.01 and 0.25."""
    found = shared_moments(np.array([0.3, 0.1, 0.5]), np.array([7, 9, 7]), np.array([8, 8, 16]))
    assert found == (pytest.approx(0.03), pytest.approx(0.35 / 3))
    assert shared_moments(np.array([0.3, 0.5]), np.array([7, 7]), np.array([8, 8])) is None  # one block


def test_shared_and_own_errors_are_told_apart() -> None:
    """Errors of 400 kernels: 0.3 shared by their twenty blocks, 0.2 of each block, 0.1 of each row."""
    rng = np.random.default_rng(5)
    block, beside = np.repeat(np.arange(20), 4), np.tile([0, 0, 1, 1], 20)
    found = []
    for _ in range(400):
        each = 0.3 * rng.normal() + 0.2 * rng.normal(size=20)[block] + 0.1 * rng.normal(size=80)
        found.append(shared_moments(each, block, beside))
    shared, whole = np.mean([one for one in found if one is not None], axis=0)
    assert shared == pytest.approx(0.09, rel=0.1)
    assert whole == pytest.approx(0.09 + 0.04 + 0.01, rel=0.1)
