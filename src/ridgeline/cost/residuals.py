"""The 80 % interval of a fit: its residuals at a length of time, wider outside the sizes that it was measured in."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ridgeline.cost.mechanism import Array, Mechanism, places_of
from ridgeline.facts.fits import BANDS_S, Fit
from ridgeline.facts.mechanisms import constant


@dataclass(frozen=True, kw_only=True)
class Residuals:
    """The sizes that a fit was measured in, each by its place in the formula, and the ends of its residuals [1].

    Sizes below 1 count as 1. Keys before a prompt (`ahead`, the places of keys and tokens), where none were measured,
    are as far outside as keys are more than queries.
    """

    places: NDArray[np.int64]
    least: Array
    most: Array
    ahead: tuple[int, int] | None
    low: Array
    high: Array

    @classmethod
    def of(cls, fit: Fit, model: Mechanism) -> Residuals:
        """That of a fit of a mechanism's kernels."""
        known = places_of(model.sizes)
        names = [name for name in fit.span if name in known]
        none_ahead = "cached" in names and fit.span["cached"][1] < 1.0 and "tokens" in known
        names = [name for name in names if not (none_ahead and name == "cached")]
        return cls(
            places=np.array([known[name] for name in names], dtype=np.int64),
            least=np.array([max(fit.span[name][0], 1.0) for name in names]),
            most=np.array([max(fit.span[name][1], 1.0) for name in names]),
            ahead=(known["cached"], known["tokens"]) if none_ahead else None,
            low=np.array(fit.low),
            high=np.array(fit.high),
        )

    def factors(self, table: Array, seconds: Array) -> tuple[Array, Array]:
        """Factors of the ends of the 80 % interval [1]: residuals at this length, wider outside the sizes."""
        sizes = np.maximum(table[:, self.places], 1.0)
        beyond = np.maximum(np.maximum(sizes / self.most, self.least / sizes), 1.0)
        outside = np.log(beyond).sum(axis=1)
        if self.ahead is not None:
            keys, tokens = self.ahead
            outside = outside + np.log(1.0 + table[:, keys] / np.maximum(table[:, tokens], 1.0))
        reach = constant("fit.reach") ** outside
        band = BANDS_S.searchsorted(seconds, side="right")
        return self.low[band] / reach, self.high[band] * reach
