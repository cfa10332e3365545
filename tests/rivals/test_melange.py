"""Melange's own example, solved to the cost that its README prints, and what slices cost against any share."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from ridgeline.search.rent import Option, Problem, Rent, rent

EXAMPLE: dict[str, Any] = tomllib.loads(Path(__file__).with_name("published_programs.toml").read_text())["melange"]


def solved(slices: int | None) -> Rent:
    """The example with its load cut in so many slices per bucket, or in any shares."""
    options = tuple(Option(accelerator=row["name"], **row) for row in EXAMPLE["options"])
    return rent(Problem(options=options, rates_per_s=EXAMPLE["rates_per_s"], slices=slices))


def test_the_example_has_the_published_answer() -> None:
    answer = solved(EXAMPLE["slices"])
    assert answer.counts == EXAMPLE["counts"]
    assert answer.cost_usd_per_hour == pytest.approx(EXAMPLE["cost_usd_per_hour"])
    assert answer.gap == 0.0


@pytest.mark.parametrize(
    ("slices", "small", "cost"),
    [(2, 2, 5.69), (3, 1, 4.68), (4, 2, 5.69), (None, 1, 4.68)],
)
def test_finer_shares_are_never_dearer_and_any_share_is_cheapest(slices: int | None, small: int, cost: float) -> None:
    """All load fills 1.125 large machines; a third of bucket three is 0.125 of one, and just one small machine."""
    answer = solved(slices)
    assert answer.counts == {"A10G": small, "A100-80GB": 1}
    assert answer.cost_usd_per_hour == pytest.approx(cost)
