"""How far measurements of an operator lie from answers that do not come from them, from `data/source_spread.tsv`."""

from __future__ import annotations

from functools import cache

from ridgeline.facts.store import read_tsv

_OTHER = "other"


@cache
def _spreads() -> dict[tuple[str, str], tuple[float, float]]:
    return {
        (row["rung"], row["family"]): (float(row["low"]), float(row["high"])) for row in read_tsv("source_spread.tsv")
    }


def source_spread(family: str) -> tuple[float, float]:
    """10 % and 90 % quantile of measured / predicted over other sources [1]: a family's, else of all families."""
    return _spreads().get(("tables", family)) or _spreads()["tables", _OTHER]


def mechanism_spread(family: str) -> tuple[float, float] | None:
    """10 % and 90 % quantile of measured / predicted by the mechanism over devices [1]; None if unknown."""
    return _spreads().get(("mechanism", family))
