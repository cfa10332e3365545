"""Rows that set predicted beside measured, and the comparison that holds them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from ridgeline.facts.records import Cluster
from ridgeline.run.measured import Measured

Told = TypeVar("Told")


@dataclass(frozen=True, kw_only=True)
class Phase:
    """One part of a run: predicted with its 80 % interval, measured with its 10th and 90th percentile, in `unit`.

    `within` says that the row is busy time inside other rows, which overlap may hide; it is no part of the gap.
    """

    name: str
    predicted: float
    low: float
    high: float
    measured: float
    measured_low: float
    measured_high: float
    unit: str = "s"
    within: bool = False

    @property
    def error(self) -> float | None:
        """(predicted - measured) / measured [1]; None where nothing was measured."""
        return (self.predicted - self.measured) / self.measured if self.measured else None

    @property
    def covered(self) -> bool:
        """Whether the measured value lies in the interval."""
        return self.low <= self.measured <= self.high


@dataclass(frozen=True, kw_only=True)
class Comparison(Generic[Told]):
    """What was predicted and run: the report, what was measured, rows by phase, and the phase with the widest gap."""

    report: Told
    measured: Measured
    phases: tuple[Phase, ...]
    gaps: Mapping[str, float]  # absolute differences of the phases that add up to the whole [s]
    remarks: tuple[str, ...] = ()

    @property
    def widest(self) -> str:
        """The phase that explains most of the gap."""
        return max(self.gaps, key=lambda name: self.gaps[name])

    @property
    def widest_share(self) -> float:
        """Its share of all phases' differences [1]."""
        total = sum(self.gaps.values())
        return self.gaps[self.widest] / total if total else 0.0

    def phase(self, name: str) -> Phase:
        """The row of a phase."""
        return next(one for one in self.phases if one.name == name)


def phase_of(
    name: str,
    predicted: float,
    ends: tuple[float, float],
    seen: Sequence[float],
    *,
    unit: str = "s",
    within: bool = False,
) -> Phase:
    """A row: the prediction with the ends of its interval, the median, 10th and 90th percentile of what was seen."""
    low, median, high = (float(value) for value in np.quantile(seen, [0.1, 0.5, 0.9]))
    return Phase(
        name=name,
        predicted=predicted,
        low=ends[0],
        high=ends[1],
        measured=median,
        measured_low=low,
        measured_high=high,
        unit=unit,
        within=within,
    )


def elsewhere(cluster: Cluster, device: str) -> list[str]:
    """A note where the prediction is for a machine that cannot be the one that ran."""
    part = cluster.accelerator
    if (part.architecture == "cpu") == (device == "cpu"):
        return []
    return [f"predicted for {part.name}, run on this machine's {device}: --on here predicts what ran"]
