"""S-STE's continuous 2:4 projection: what is left of each four above their third largest magnitude.

Shape letters: m rows and n columns of a weight.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ridgeline.numerics.algorithm import ArrayAlgorithm, Arrays, Floats
from ridgeline.numerics.rounding import result_error
from ridgeline.numerics.semi_structured import Mask, fitted, groups, masked, row_mask
from ridgeline.seams.technique import param


def soft_threshold(weight: Floats) -> Floats:
    """sign(a) max(|a| - t, 0), t the third largest magnitude of each four along rows (m, n): continuous, 2:4.

    >>> soft_threshold(np.array([[1.0, -5.0, 3.0, 2.0]] * 4))[0].tolist()
    [0.0, -3.0, 1.0, 0.0]
    """
    each = groups(weight)
    third = np.sort(np.abs(each), axis=-1)[..., 1:2]
    return np.asarray((np.sign(each) * np.maximum(np.abs(each) - third, 0.0)).reshape(weight.shape)) + 0.0


def fixed_scale(weight: Floats) -> float:
    """The scale of a tensor that brings its projection nearest to it: <w, s> / <s, s> [1]."""
    found = soft_threshold(weight)
    return float(np.sum(weight * found) / max(float(np.sum(found * found)), 1e-300))


@dataclass(frozen=True, kw_only=True)
class SoftThreshold(ArrayAlgorithm):
    """S-STE: each four loses its third largest magnitude, and a scale found once for the tensor makes up for it.

    Measured: the scale and errors of results of the projected weight, scaled and not, beside the hard threshold's; the
    largest change of each function's results when weights move by `step` of their spread (a continuous one changes no
    more than scale times twice that); then least squares of the layer trained for `steps`, by it and by hard
    thresholds, straight through, with unbiased 2:4 gradients: loss over that of no weight, flip rates.

    Checked: at most two of four are left, by hand and on random weights; continuity at ties; the scale against a
    search. Left out: products in 8 bits (`mxfp8` and its kind have theirs).
    """

    key: ClassVar[str] = "soft-threshold"
    technique: ClassVar[str] = "s-ste"
    source: ClassVar[tuple[str, ...]] = ("s-ste-2024", "sparse-pretraining-code")
    steps: int = param(100, "steps", "steps of training", low=1, high=100_000)
    step: float = param(1e-3, "1", "change of weights over their standard deviation", low=1e-9, high=1.0)

    def run(self, arrays: Arrays) -> Mapping[str, float]:
        """Scale, errors, jumps, losses and flip rates."""
        weight, draw = arrays.weight, np.random.default_rng(arrays.seed)
        scale, hard = fixed_scale(weight), masked(row_mask)
        moved = weight + draw.choice([-1.0, 1.0], weight.shape) * self.step * float(np.std(weight))

        def soft(values: Floats) -> tuple[Floats, Mask]:
            found = scale * soft_threshold(values)
            return found, found != 0.0

        by_soft, by_hard = fitted(arrays, soft, steps=self.steps), fitted(arrays, hard, steps=self.steps)
        most = self.step * float(np.std(weight))
        return {
            "scale": scale,
            "result_error": result_error(arrays, soft(weight)[0]),
            "unscaled_result_error": result_error(arrays, soft_threshold(weight)),
            "hard_result_error": result_error(arrays, hard(weight)[0]),
            "jump": float(np.max(np.abs(soft(moved)[0] - soft(weight)[0]))) / most,
            "hard_jump": float(np.max(np.abs(hard(moved)[0] - hard(weight)[0]))) / most,
            "loss": by_soft.loss,
            "hard_loss": by_hard.loss,
            "flip_rate": by_soft.last_flips,
            "hard_flip_rate": by_hard.last_flips,
        }
