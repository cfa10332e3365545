"""Constants of mechanisms, each a sourced row of `data/mechanisms.tsv`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from ridgeline.facts.records import Evidence, Fact
from ridgeline.facts.store import read_tsv


@cache
def constants() -> Mapping[str, Fact]:
    """Every mechanism constant by key, with unit, source and evidence."""
    return {
        row["key"]: Fact(
            value=float(row["value"]),
            unit=row["unit"],
            source=row["source"],
            conditions=row["conditions"],
            evidence=Evidence[row["evidence"].upper()],
        )
        for row in read_tsv("mechanisms.tsv")
    }


def constant(key: str) -> float:
    """The value of one mechanism constant, in its row's unit."""
    return constants()[key].value
