"""Intervals of rungs whose residuals are a family's."""

from __future__ import annotations

import pytest

from ridgeline.cost.families.registry import FAMILIES
from ridgeline.facts.rung_intervals import rung_interval


@pytest.mark.parametrize("family", FAMILIES)
def test_borrowed_answers_have_an_interval_that_holds_them(family: str) -> None:
    known = rung_interval(family, "borrowed")
    assert known.rows > (200 if family == "hyper_connection" else 1000)  # whose tables hold 3,035 rows in all
    assert known.median < known.p90
    assert max(known.low) <= 1 <= min(known.high)


def test_a_rung_that_nobody_judged_is_wide() -> None:
    found = rung_interval("frobnicate", "table")
    assert (found.rows, found.low, found.high) == (0, (0.5,) * 3, (2.0,) * 3)
