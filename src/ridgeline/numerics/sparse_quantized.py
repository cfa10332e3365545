"""Weights of which two of four are kept, in 8 or 4 bits (GPUSQ-ViT's form).

Shape letters: m rows and n columns of a weight, b bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ridgeline.numerics.algorithm import ArrayAlgorithm, Arrays, Floats
from ridgeline.numerics.rounding import result_error
from ridgeline.numerics.semi_structured import row_mask
from ridgeline.seams.technique import param

_PLACE_BITS, _SCALE_BITS, _WIDE_BITS = (
    2.0,
    32.0,
    32.0,
)  # of a place among four, a scale of a row, an uncompressed weight
_PAIRS = 4  # bits up to which pairs are kept or left


def symmetric(weight: Floats, bits: int) -> Floats:
    """Each weight to the nearest of 2^b - 1 values evenly spaced around 0, one scale for a row (m, n)."""
    steps = 2 ** (bits - 1) - 1
    scale = np.maximum(np.max(np.abs(weight), axis=1, keepdims=True), 1e-300) / steps
    return np.asarray(np.clip(np.rint(weight / scale), -steps, steps) * scale)


def pair_mask(weight: Floats) -> Floats:
    """Two of each four pairs along rows with the largest magnitude, as 4-bit units skip them (m, n)."""
    pairs = np.abs(weight).reshape(len(weight), -1, 2).sum(axis=2)
    return np.asarray(np.repeat(row_mask(pairs), 2, axis=1))


@dataclass(frozen=True, kw_only=True)
class SparseQuantized(ArrayAlgorithm):
    """2:4 pruning by magnitude, then rounding to `bits`, one symmetric scale for a row, inputs rounded as well.

    Weights of 8 bits keep two of four, those of 4 bits two of four pairs, as the units that multiply them do. Measured:
    error of results after pruning, after rounding weights, and after rounding inputs too; that of rounding without
    pruning; bits of a weight with places and scales, and how many times smaller it is than in 32 bits.

    Checked: bits by hand; kept numbers are 2:4, and rounded to the nearest. Left out: distillation and training with
    the rounding in place, which win back what this loses.
    """

    key: ClassVar[str] = "sparse-quantized"
    technique: ClassVar[str] = "gpusq-vit"
    source: ClassVar[tuple[str, ...]] = ("gpusq-vit-2023",)
    bits: int = param(8, "bit", "bits of a kept weight", low=2, high=8)

    def run(self, arrays: Arrays) -> Mapping[str, float]:
        """Errors of results, bits of a weight and times smaller than 32 bits."""
        weight, pairs = arrays.weight, self.bits <= _PAIRS
        pruned = np.where(pair_mask(weight) if pairs else row_mask(weight), weight, 0.0)
        rounded, inputs = symmetric(pruned, self.bits), symmetric(arrays.inputs, self.bits)
        exact = arrays.inputs @ weight.T
        both = float(np.linalg.norm(inputs @ rounded.T - exact) / np.linalg.norm(exact))
        places = _PLACE_BITS / 2 / (2 if pairs else 1)
        each = self.bits / 2 + places + _SCALE_BITS / weight.shape[1]
        return {
            "pruned_error": result_error(arrays, pruned),
            "result_error": result_error(arrays, rounded),
            "with_inputs_error": both,
            "dense_rounded_error": result_error(arrays, symmetric(weight, self.bits)),
            "weight_bits": each,
            "times_smaller": _WIDE_BITS / each,
        }
