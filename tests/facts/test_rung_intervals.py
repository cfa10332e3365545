"""Intervals of rungs whose residuals are a family's: what is shared of their variance, and how far they are widened."""

from __future__ import annotations

import pytest

from ridgeline.cost.families.registry import FAMILIES
from ridgeline.facts.transfer import RungInterval, rung_interval


@pytest.mark.parametrize("family", FAMILIES)
def test_borrowed_answers_have_an_interval_that_holds_them(family: str) -> None:
    known = rung_interval(family, "borrowed")
    assert known.rows > (200 if family == "hyper_connection" else 1000)  # whose tables hold 3,035 rows in all
    assert known.median < known.p90
    assert max(known.low) <= 1 <= min(known.high)


def test_a_rung_that_nobody_judged_is_wide() -> None:
    found = rung_interval("frobnicate", "table")
    assert (found.rows, found.low, found.high) == (0, (0.5,) * 3, (2.0,) * 3)


def test_what_a_stranger_adds_is_each_shapes_own() -> None:
    """From 1/2..2 to 1/4..4 logarithms double: of four times the variance a quarter of the half is shared."""
    known = RungInterval(rows=9, median=0.1, p90=0.2, low=(0.5,) * 3, high=(2.0,) * 3, shared=(0.5,) * 3)
    found = known.widened(2.0)
    assert (found.low, found.high) == ((0.25,) * 3, (4.0,) * 3)
    assert found.shared == pytest.approx((0.125,) * 3)
    assert known.widened(1.0) == known


@pytest.mark.parametrize("family", ["gemm", "decode", "prefill", "experts"])
def test_a_stranger_to_its_lenders_shares_more_than_a_relative(family: str) -> None:
    """Kernels of one architecture lie together from what the others have in common, whatever their shape."""
    common, borrowed = rung_interval(family, "common").shared, rung_interval(family, "borrowed").shared
    assert all(0.0 <= share <= 1.0 for share in (*common, *borrowed))
    assert common[2] > 0.5
    assert common[2] > borrowed[2] or family == "experts"
