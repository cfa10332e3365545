"""Weights rounded to few bits: to the nearest, and column by column with what is left carried on (GPTQ).

Shape letters: m rows and n columns of a weight, N samples, b bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ridgeline.numerics.algorithm import ArrayAlgorithm, Arrays, Floats
from ridgeline.seams.technique import param

_SCALE_BITS = 16.0  # of a scale; a zero has as many bits as a weight


@dataclass(frozen=True, kw_only=True)
class RoundToNearest(ArrayAlgorithm):
    """Each weight to the nearest of 2^b evenly spaced values between the least and the largest of its group.

    A group is `group` columns of a row, 0 the whole row. Errors are those of the layer's results, ||(W - Q) X|| over
    ||W X||, and of its weights. Bits of a weight count a 16-bit scale and a zero for each group.
    """

    key: ClassVar[str] = "round-to-nearest"
    source: ClassVar[tuple[str, ...]] = ("gptq",)
    bits: int = param(4, "bit", "bits of a weight", low=1, high=16)
    group: int = param(0, "columns", "columns of one scale; 0: a row", low=0, high=1_000_000)

    def rounded(self, arrays: Arrays) -> Floats:
        """The weights after rounding (m, n)."""
        return nearest(arrays.weight, *self.grid(arrays.weight), 2**self.bits - 1)

    def grid(self, weight: Floats) -> tuple[Floats, Floats]:
        """Scale and least value of each weight's group, (m, n) each."""
        columns = weight.shape[1]
        starts = np.arange(0, columns, self.group or columns)
        low, high = (of.reduceat(weight, starts, axis=1) for of in (np.minimum, np.maximum))
        low, high = np.minimum(low, 0.0), np.maximum(high, 0.0)  # zero is one of the values
        scale = np.where(high > low, (high - low) / (2**self.bits - 1), 1.0)
        least = np.rint(low / scale) * scale
        sizes = np.diff(np.append(starts, columns))
        return np.repeat(scale, sizes, axis=1), np.repeat(least, sizes, axis=1)

    def run(self, arrays: Arrays) -> Mapping[str, float]:
        """Relative errors of results and of weights, and bits of a weight."""
        found = self.rounded(arrays)
        each = self.bits + (_SCALE_BITS + self.bits) / (self.group or arrays.weight.shape[1])
        return {
            "result_error": result_error(arrays, found),
            "weight_error": relative_error(arrays.weight, found),
            "weight_bits": each,
            "times_smaller": 16.0 / each,
        }


@dataclass(frozen=True, kw_only=True)
class Gptq(RoundToNearest):
    """GPTQ: columns are rounded one after another, and what rounding leaves is carried to the columns to come.

    With H = X X^T + damp mean(diag) I and U the upper Cholesky factor of its inverse, column i is rounded to the
    nearest, and (w_i - q_i) / U_ii times the rest of row i of U is taken from the columns after it, which makes the
    least squared error of results that they can still make up for. Scales of a group are found when its first column
    is reached. With `order` columns go by falling diagonal of H. Errors are beside those of rounding to the nearest.

    Checked: against eliminating one column after another from the inverse, as Optimal Brain Quantization does. Left
    out: the order in which layers of a model see each other's errors; the time it takes.
    """

    key: ClassVar[str] = "gptq"
    damp: float = param(0.01, "1", "share of the mean diagonal of H that is added to it", low=1e-9, high=1e3)
    order: bool = param(False, "1", "columns in order of the diagonal of H, the largest first")

    def rounded(self, arrays: Arrays) -> Floats:
        """The weights after rounding (m, n)."""
        weight, columns = arrays.weight.copy(), arrays.weight.shape[1]
        moment = arrays.inputs.T @ arrays.inputs
        order = np.argsort(-np.diag(moment), kind="stable") if self.order else np.arange(columns)
        weight, moment = weight[:, order], moment[np.ix_(order, order)]
        moment = moment + np.eye(columns) * max(self.damp * float(np.mean(np.diag(moment))), 1e-300)
        upper = np.linalg.cholesky(np.linalg.inv(moment)).T
        found, width = np.empty_like(weight), self.group or columns
        scale, least = self.grid(weight)
        for i in range(columns):
            if i % width == 0 and i:  # of what the columns have become by now
                own = slice(i, i + width)
                scale[:, own], least[:, own] = self.grid(weight[:, own])
            found[:, i] = nearest(weight[:, i], scale[:, i], least[:, i], 2**self.bits - 1)
            left = (weight[:, i] - found[:, i]) / upper[i, i]
            weight[:, i + 1 :] -= np.outer(left, upper[i, i + 1 :])
        back = np.argsort(order)
        return found[:, back]

    def run(self, arrays: Arrays) -> Mapping[str, float]:
        """Relative errors, bits of a weight, and the error of results of rounding to the nearest in as many bits."""
        rival = RoundToNearest(bits=self.bits, group=self.group).rounded(arrays)
        found, theirs = dict(super().run(arrays)), result_error(arrays, rival)
        return found | {"nearest_result_error": theirs, "of_nearest": found["result_error"] / theirs if theirs else 1.0}


def nearest(weight: Floats, scale: Floats, least: Floats, steps: int) -> Floats:
    """Each weight to the nearest of `steps` + 1 values that are `scale` apart from `least` on."""
    code: NDArray[np.float64] = np.clip(np.rint((weight - least) / scale), 0, steps)
    return np.asarray(code * scale + least)


def result_error(arrays: Arrays, found: Floats) -> float:
    """||(W - Q) X|| / ||W X|| over the samples [1]."""
    return relative_error(arrays.inputs @ arrays.weight.T, arrays.inputs @ found.T)


def relative_error(exact: Floats, found: Floats) -> float:
    """||A - Q|| / ||A|| [1]."""
    return float(np.linalg.norm(exact - found) / max(float(np.linalg.norm(exact)), 1e-300))
