"""What a busy board draws, by device, as shares of its rated power: rows of `data/power.tsv`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from ridgeline.facts import store

NAMES = ("running_", "compute_", "memory_", "wide_flop_", "narrow_flop_", "byte_")
"""Shares of the rated power: running any kernel, units busy, memory busy, 16-bit and narrower FLOP, and bytes, at the
datasheet's rates."""


@dataclass(frozen=True, kw_only=True)
class PowerFit:
    """Shares of one device with how well they hold on shapes that the fit has not seen.

    `low` and `high` are the 10 % and 90 % quantiles of measured / predicted.
    """

    device: str
    shares: Mapping[str, float]
    rows: int
    held_median: float
    held_p90: float
    held_bias: float
    held_covered: float
    low: float
    high: float
    source: str
    date: str


@cache
def power_fits() -> Mapping[str, PowerFit]:
    """The fits of metered devices by name, in the table's order."""
    return {row["device"]: _fit(row) for row in store.read_tsv("power.tsv")}


def _fit(row: Mapping[str, str]) -> PowerFit:
    numbers = {name: float(row[name]) for name in ("held_median", "held_p90", "held_bias", "held_covered")}
    return PowerFit(
        device=row["device"],
        shares={name: float(row[name]) for name in NAMES},
        rows=int(row["rows"]),
        **numbers,
        low=float(row["low"]),
        high=float(row["high"]),
        source=row["source"],
        date=row["date"],
    )


def power_of(device: str) -> PowerFit:
    """A device's own fit, else that of the first device that was metered."""
    known = power_fits()
    return known.get(device) or next(iter(known.values()))
