"""The ledger: published ideas that predictions are held to, a row each of `data/ledger.tsv`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from ridgeline.facts import store

KINDS = ("PLAN", "MODEL", "NUMERICS", "BENCH", "ACCURACY")


@dataclass(frozen=True, kw_only=True)
class LedgerRow:
    """One paper: what it does, what its authors report, on which hardware; `kind` is one of `KINDS`."""

    n: int
    system: str
    title: str
    family: str
    kind: str
    contribution: str
    claims: str
    hardware: str


@cache
def ledger() -> Mapping[int, LedgerRow]:
    """All papers by number; raises `InputError` for a row of an unknown kind, and for a number that is there twice."""
    rows = store.read_tsv("ledger.tsv")
    found: dict[int, LedgerRow] = {}
    for row, one in zip(rows, store.records(LedgerRow, rows), strict=True):
        if one.kind not in KINDS:
            row.fail(f"'{one.kind}' is none of {', '.join(KINDS)}", "kind")
        if found.setdefault(one.n, one) is not one:
            row.fail(f"paper {one.n} has a row above", "n")
    return found
