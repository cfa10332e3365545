"""How far the answers of a rung lie from measured times, from `data/fit_rungs.tsv`: intervals that no one fit has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from ridgeline.facts import store
from ridgeline.facts.rows import numbers


@dataclass(frozen=True, kw_only=True)
class RungInterval:
    """How far measured times lie from a rung's answers: quantiles of measured / predicted per time band [1]."""

    rows: int
    median: float
    p90: float
    low: tuple[float, ...]
    high: tuple[float, ...]


_UNJUDGED = RungInterval(rows=0, median=1.0, p90=1.0, low=(0.5,) * 3, high=(2.0,) * 3)


@cache
def _rung_intervals() -> Mapping[tuple[str, str], RungInterval]:
    return {
        (row["family"], row["rung"]): RungInterval(
            rows=int(row["rows"]),
            median=float(row["median"]),
            p90=float(row["p90"]),
            low=numbers(row["low"]),
            high=numbers(row["high"]),
        )
        for row in store.read_tsv("fit_rungs.tsv")
    }


def rung_interval(family: str, rung: str) -> RungInterval:
    """The interval of a rung whose residuals are a family's, not one fit's: 'table' or 'borrowed'; wide if unjudged."""
    return _rung_intervals().get((family, rung), _UNJUDGED)
