"""How far other people's measurements of an operator lie from the tables', from `data/source_spread.tsv`."""

from __future__ import annotations

from functools import cache

from ridgeline.facts.store import read_tsv

_OTHER = "other"


@cache
def source_spread(family: str) -> tuple[float, float]:
    """10 % and 90 % quantile of measured / predicted over other sources [1]: a family's, else of all families."""
    rows = {row["family"]: row for row in read_tsv("source_spread.tsv")}
    row = rows.get(family) or rows[_OTHER]
    return float(row["low"]), float(row["high"])
