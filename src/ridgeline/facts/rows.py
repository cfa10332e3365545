"""Cells of the tables as Facts in SI units."""

from __future__ import annotations

from collections.abc import Mapping

from ridgeline.errors import InputError
from ridgeline.facts.records import Evidence, Fact

_EVIDENCE = {
    "measured": Evidence.MEASURED,
    "datasheet": Evidence.DATASHEET,
    "derived": Evidence.DERIVED,
    "assumed": Evidence.ASSUMED,
}


def evidence(label: str, *, file: str) -> Evidence:
    """The rung that a table's label names."""
    found = _EVIDENCE.get(label)
    if found is None:
        raise InputError(f"'{label}' is no evidence; one of {', '.join(_EVIDENCE)}", file=file)
    return found


def number(row: Mapping[str, str], column: str, scale: float = 1.0) -> float | None:
    """A cell times `scale`, None where it is blank [unit of the column after scaling]."""
    cell = row[column]
    return float(cell) * scale if cell else None


def names(cell: str, separator: str = ";") -> tuple[str, ...]:
    """The parts of a cell that holds a list."""
    return tuple(part.strip() for part in cell.split(separator) if part.strip())


def numbers(cell: str) -> tuple[float, ...]:
    """The numbers of a cell that holds several, one space between two."""
    return tuple(float(word) for word in cell.split())


def fact(value: float, unit: str, source: str, conditions: str, rung: str, *, file: str) -> Fact:
    """A Fact, refused when source or evidence is missing."""
    if not source:
        raise InputError(f"value {value:g} {unit} has no source", file=file)
    return Fact(value=value, unit=unit, source=source, conditions=conditions, evidence=evidence(rung, file=file))
