"""Weights in few bits with the sensitive ones kept in 16: groups of groups, and outliers apart (SpQR).

Shape letters: m rows and n columns of a weight, N samples, b bits, B columns of a group.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ridgeline.numerics.algorithm import ArrayAlgorithm, Arrays, Floats
from ridgeline.numerics.rounding import Gptq, nearest, relative_error, result_error
from ridgeline.seams.technique import param

_OUTLIER_BITS = 32.0  # a value and its column of 16 bits each
_STATISTICS_BITS = 16.0  # of the scale and of the least value of a group's own scales and zeros


@dataclass(frozen=True, kw_only=True)
class Spqr(ArrayAlgorithm):
    """SpQR: small groups whose scales and zeros are rounded too, and sensitive weights kept apart in 16 bits.

    Columns go one after another as in GPTQ. At the first column of a group of `group` columns, a row's weight is an
    outlier where leaving it out of the group's range lowers the group's error most, each square over 2 (H^-1)_jj, its
    own included: the `outliers` share of the group with the largest gain. Scale and zero of what is left are rounded to
    `scale_bits` over `rows` rows that share one 16-bit scale and zero of their own. Outliers carry nothing on. Bits of
    a weight: b + 2 s / B + 64 / (B rows) + 32 for each outlier.

    Checked: with no outliers, whole rows and exact scales it is GPTQ; outliers that are planted are found. Left out: a
    threshold common to all groups in place of a share of each, the order of columns by their curvature, and what
    decoding takes beyond its bits: `predict --serve --weights w3.7a16` prices those alone.
    """

    key: ClassVar[str] = "spqr"
    source: ClassVar[tuple[str, ...]] = ("spqr",)
    bits: int = param(3, "bit", "bits of a weight that is no outlier", low=1, high=8)
    group: int = param(16, "columns", "columns of one scale and zero; 0: a row", low=0, high=1_000_000)
    scale_bits: int = param(3, "bit", "bits of a scale or zero; 16: they are not rounded", low=1, high=16)
    rows: int = param(16, "rows", "rows whose scales and zeros are rounded together", low=1, high=1_000_000)
    outliers: float = param(0.01, "1", "share of weights that are kept in 16 bits", low=0.0, high=0.5)
    damp: float = param(0.01, "1", "share of the mean diagonal of H that is added to it", low=1e-9, high=1e3)

    def rounded(self, arrays: Arrays) -> tuple[Floats, NDArray[np.bool_]]:
        """The weights after rounding, and which are outliers, (m, n) each."""
        weight, columns = arrays.weight.copy(), arrays.weight.shape[1]
        moment = arrays.inputs.T @ arrays.inputs
        moment = moment + np.eye(columns) * max(self.damp * float(np.mean(np.diag(moment))), 1e-300)
        inverse = np.linalg.inv(moment)
        upper = np.linalg.cholesky(inverse).T
        found, kept, width = np.empty_like(weight), np.zeros(weight.shape, dtype=bool), self.group or columns
        for i in range(columns):
            start = i - i % width
            if i == start:
                own = slice(start, start + width)
                kept[:, own] = self._sensitive(weight[:, own], np.diag(inverse)[own])
                scale, least = self._grid(weight[:, own], kept[:, own])
            column = nearest(weight[:, i], scale, least, 2**self.bits - 1)
            found[:, i] = np.where(kept[:, i], weight[:, i].astype(np.float16), column)
            left = (weight[:, i] - found[:, i]) / upper[i, i]
            weight[:, i + 1 :] -= np.outer(left, upper[i, i + 1 :])
        return found, kept

    def _sensitive(self, weight: Floats, inverse: Floats) -> NDArray[np.bool_]:
        """Weights of a group (m, B) whose absence lowers the group's weighted error most."""
        count = round(self.outliers * weight.size)
        gains = np.zeros(weight.shape)
        if not count:
            return gains > 0
        whole = self._errors(weight, np.ones(weight.shape, dtype=bool), inverse)
        for j in range(weight.shape[1]):
            rest = np.ones(weight.shape, dtype=bool)
            rest[:, j] = False
            gains[:, j] = whole.sum(axis=1) - self._errors(weight, rest, inverse).sum(axis=1)
        edge = np.partition(gains, -count, axis=None)[-count]
        return np.asarray((gains >= edge) & (gains > 0))

    def _errors(self, weight: Floats, within: NDArray[np.bool_], inverse: Floats) -> Floats:
        """Squares of what rounding leaves of the weights `within`, over twice the inverse's diagonal (m, B)."""
        scale, least = self._range(weight, ~within)
        left = weight - nearest(weight, scale[:, None], least[:, None], 2**self.bits - 1)
        return np.asarray(np.where(within, left**2, 0.0) / (2.0 * inverse))

    def _range(self, weight: Floats, kept: NDArray[np.bool_]) -> tuple[Floats, Floats]:
        """Scale and least value of each row (m,) over its weights that are no outliers."""
        low = np.minimum(np.where(kept, np.inf, weight).min(axis=1), 0.0)
        high = np.maximum(np.where(kept, -np.inf, weight).max(axis=1), 0.0)
        scale = np.where(high > low, (high - low) / (2**self.bits - 1), 1.0)
        return scale, np.rint(low / scale) * scale

    def _grid(self, weight: Floats, kept: NDArray[np.bool_]) -> tuple[Floats, Floats]:
        """The same after rounding scales and zeros over `rows` rows."""
        scale, least = self._range(weight, kept)
        if self.scale_bits >= _STATISTICS_BITS:
            return scale, least
        zero, steps = -least / scale, 2**self.scale_bits - 1
        for first in range(0, len(scale), self.rows):
            for one in (scale, zero):
                part = one[first : first + self.rows]
                low, high = float(part.min()), float(part.max())
                step = (high - low) / steps if high > low else 1.0
                near = nearest(part, np.full(len(part), step), np.full(len(part), low), steps)
                part[:] = np.maximum(near, 1e-12) if one is scale else near
        return scale, -zero * scale

    def run(self, arrays: Arrays) -> Mapping[str, float]:
        """Relative errors, bits of a weight, and the error of GPTQ by rows in the nearest whole number of bits."""
        found, kept = self.rounded(arrays)
        width, share = self.group or arrays.weight.shape[1], float(kept.mean())
        second = 0.0 if self.scale_bits >= _STATISTICS_BITS else 4 * _STATISTICS_BITS / (width * self.rows)
        each = self.bits + 2 * self.scale_bits / width + second + _OUTLIER_BITS * share
        rival = Gptq(bits=max(1, round(each)))
        theirs, own = result_error(arrays, rival.rounded(arrays)), result_error(arrays, found)
        return {
            "result_error": own,
            "weight_error": relative_error(arrays.weight, found),
            "outlier_share": share,
            "weight_bits": each,
            "times_smaller": 16.0 / each,
            "gptq_bits": float(rival.bits),
            "gptq_result_error": theirs,
            "of_gptq": own / theirs if theirs else 1.0,
        }
