"""What the formulas of operator families read: their sizes, and the parameters that a fit moves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ridgeline.facts import store


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """One physical parameter: a fit moves it between `low` and `high`, starting and shrunk to `start`."""

    name: str  # ends in '_': a fitted number
    unit: str
    low: float
    high: float
    start: float
    meaning: str
    grid: tuple[float, ...] = ()  # more starts, for a switch point: it has no gradient
    others: tuple[float, ...] = ()  # more starts of what has a gradient only where it decides


@dataclass(frozen=True, kw_only=True)
class Signature:
    """Sizes in the order in which a formula reads them, those that may be left out, and its parameters in its order."""

    sizes: tuple[str, ...]
    defaults: Mapping[str, float]
    selectors: tuple[str, ...]
    parameters: tuple[Parameter, ...]


def signature(formula: str) -> Signature:
    """What a formula reads, by its name in `data/formulas.tsv` and `data/fit_parameters.tsv`."""
    row = next(row for row in store.read_tsv("formulas.tsv") if row["formula"] == formula)
    sizes = [word.partition("=") for word in row["sizes"].split()]
    return Signature(
        sizes=tuple(name for name, _, _ in sizes),
        defaults={name: float(value) for name, _, value in sizes if value},
        selectors=tuple(row["selectors"].split()),
        parameters=store.records(
            Parameter, (row for row in store.read_tsv("fit_parameters.tsv") if row["formula"] == formula)
        ),
    )
