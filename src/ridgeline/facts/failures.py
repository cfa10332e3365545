"""Failures of published training runs and clusters, and what it takes to come back from one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from statistics import median

from ridgeline.facts import store
from ridgeline.facts.records import Fact

_DAY_S = 86_400.0


@dataclass(frozen=True, kw_only=True)
class FailureRow:
    """How many `failures` a run or a cluster had on so many devices in so many days.

    `effective` is the share of time that it tells to have trained [1].
    """

    name: str
    accelerator: str
    devices: int
    days: float
    failures: float
    effective: float | None
    conditions: str
    source: str
    evidence: str

    @property
    def device_mtbf_s(self) -> float:
        """Mean time between failures of one device: devices x time / failures [s]."""
        return self.devices * self.days * _DAY_S / self.failures


@cache
def failure_rows() -> Mapping[str, FailureRow]:
    """All rows by name."""
    return {one.name: one for one in store.records(FailureRow, store.read_tsv("failures.tsv"))}


def device_mtbf_s(*, without: str = "") -> tuple[float, float, float]:
    """Mean time between failures of one device: the median of all rows, the shortest and the longest [s].

    `without` leaves out the row that is predicted.
    """
    known = [one.device_mtbf_s for one in failure_rows().values() if one.name != without]
    return median(known), min(known), max(known)


@cache
def recovery() -> Mapping[str, Fact]:
    """Times of recovery and rates of storage by key."""
    return store.facts("recovery.tsv")
