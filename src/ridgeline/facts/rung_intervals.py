"""How far the answers of a rung lie from measured times, from `data/fit_rungs.tsv`: intervals that no one fit has."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property

import numpy as np
from numpy.typing import NDArray

from ridgeline.facts import store
from ridgeline.facts.mechanisms import constant, constants
from ridgeline.facts.rows import numbers


@dataclass(frozen=True, kw_only=True)
class RungInterval:
    """How far measured times lie from a rung's answers: quantiles of measured / predicted per time band [1].

    `shared` is the part of the errors' variance that shapes of one kernel have in common, per time band [1].
    """

    rows: int
    median: float
    p90: float
    low: tuple[float, ...]
    high: tuple[float, ...]
    shared: tuple[float, ...]

    @cached_property
    def ends(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Both ends per time band, as arrays [1]."""
        return np.array(self.low), np.array(self.high)

    def widened(self, factor: float) -> RungInterval:
        """The interval with both ends a factor farther out, all of which is each shape's own.

        Kernels of a vendor that lends nothing are wrong shape by shape, not all alike. On Arc Pro B60 errors shared by
        shapes have standard deviations of 0.18, 0.72, 1.15 and 0.37 (products, prompts, decode, experts), on the
        lenders' own devices, their architecture left out, 0.38, 0.85, 0.87 and 0.54; what is a shape's own has 0.33,
        0.71, 0.64 and 0.34 against 0.21, 0.09, 0.30 and 0.36.
        """
        low, high = tuple(end / factor for end in self.low), tuple(end * factor for end in self.high)
        narrower = (
            (math.log(b / a) / math.log(d / c)) ** 2 if d > c else 1.0
            for a, b, c, d in zip(self.low, self.high, low, high, strict=True)
        )
        shared = tuple(share * part for share, part in zip(self.shared, narrower, strict=True))
        return replace(self, low=low, high=high, shared=shared)


_UNJUDGED = RungInterval(rows=0, median=1.0, p90=1.0, low=(0.5,) * 3, high=(2.0,) * 3, shared=(1.0,) * 3)


ALL_FORMS = "all"  # of those that too few kernels were measured in for a line of their own, and where none is asked


@cache
def _rung_intervals() -> Mapping[tuple[str, str, str], RungInterval]:
    return {
        (row["family"], row["rung"], row["form"]): RungInterval(
            rows=int(row["rows"]),
            median=float(row["median"]),
            p90=float(row["p90"]),
            **{name: numbers(row[name]) for name in ("low", "high", "shared")},
        )
        for row in store.read_tsv("fit_rungs.tsv")
    }


def rung_interval(family: str, rung: str, form: str = ALL_FORMS) -> RungInterval:
    """The interval of a rung whose residuals are a family's, not one fit's: 'table' or 'borrowed'; wide if unjudged.

    That of a number format where enough kernels in it were judged, else of all formats together.
    """
    known = _rung_intervals()
    return known.get((family, rung, form)) or known.get((family, rung, ALL_FORMS), _UNJUDGED)


def foreign_factor(family: str) -> float:
    """How much farther the ends of `common` are for a device whose vendor lends nothing [1].

    Source: rows interval.foreign of the mechanism table, of a family or of all alike.
    """
    own = f"interval.foreign.{family}"
    return constant(own if own in constants() else "interval.foreign")
