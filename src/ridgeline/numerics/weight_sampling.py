"""Weights with the noise of a narrow format, so that training in 16 bits meets its error (GaussWS).

Shape letters: m outputs and n inputs of a weight, B side of a block, b bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ridgeline.numerics.algorithm import ArrayAlgorithm, Arrays, Floats
from ridgeline.numerics.microscaling import Element, power_scaled
from ridgeline.numerics.rounding import relative_error, result_error
from ridgeline.seams.technique import param

BF16 = Element(mantissa=7, least=-126, largest=float(np.ldexp(2.0 - 2.0**-7, 127)))
FP6 = Element(mantissa=2, least=-2, largest=28.0)  # E3M2, OCP Microscaling Formats v1.0
_MOST_BITS = 16


@dataclass(frozen=True, kw_only=True)
class SampledWeights(ArrayAlgorithm):
    """Gaussian weight sampling: W + R max|W| 2^(1 - b), R a normal number of deviation 1/2 rounded to a whole one.

    What the paper adds: noise that is 0 for two weights in three and a whole number of steps for the others. Steps of b
    bits over the largest weight of each `block` x `block` survive the cast to bf16 down to half its step there, which
    is b = 9; noise spread evenly, as pseudo-quantization had it, is partly lost at any b. Measured: the error of
    results beside that of rounding to the same steps, what casting loses of either noise, the most bits at which it
    loses none, and the error of storing the sampled weights in FP6 with a power of two for 32 numbers.

    Checked: shares of R against the normal distribution; steps and losses of one block by hand. Left out: how bits of
    each block are learned. The cost is the technique's, `predict --technique weight-sampling`.
    """

    key: ClassVar[str] = "weight-sampling"
    technique: ClassVar[str] = "weight-sampling"
    source: ClassVar[tuple[str, ...]] = ("gaussws-2025",)
    bits: int = param(6, "bit", "b: steps of the largest weight of a block", low=2, high=_MOST_BITS)
    block: int = param(32, "numbers", "side of a block with one step", low=1, high=65_536)

    def steps(self, weight: Floats, bits: int | None = None) -> Floats:
        """The step of each weight's block, max|W| 2^(1 - b), (m, n)."""
        rows, columns = weight.shape
        side = self.block
        whole = np.pad(np.abs(weight), ((0, -rows % side), (0, -columns % side)))
        most = whole.reshape(whole.shape[0] // side, side, -1, side).max(axis=(1, 3))
        spread = np.repeat(np.repeat(most, side, axis=0), side, axis=1)[:rows, :columns]
        return np.asarray(spread * 2.0 ** (1 - (self.bits if bits is None else bits)))

    def run(self, arrays: Arrays) -> Mapping[str, float]:
        """Errors of results and weights, and shares of noise that the cast to bf16 loses."""
        draw, weight = np.random.default_rng((arrays.seed, 6)), BF16.cast(arrays.weight)
        noise = np.rint(draw.standard_normal(weight.shape) / 2.0)
        even = draw.random(weight.shape) - 0.5
        step = self.steps(weight)
        sampled = BF16.cast(weight + noise * step)
        rounded = np.rint(weight / np.where(step > 0.0, step, 1.0)) * step
        found, theirs = result_error(arrays, sampled), result_error(arrays, rounded)
        return {
            "result_error": found,
            "rounded_result_error": theirs,
            "of_rounded": found / theirs if theirs else 1.0,
            "untouched_share": float(np.mean(noise == 0.0)),
            "lost_share": lost_share(weight, noise * step),
            "even_noise_lost_share": lost_share(weight, even * step),
            "kept_bits": float(self.kept_bits(weight, noise)),
            "fp6_weight_error": relative_error(sampled, power_scaled(sampled, FP6, 32, up=True)[0]),
        }

    def kept_bits(self, weight: Floats, noise: Floats) -> int:
        """The most bits whose noise the cast to bf16 keeps at each weight [bit]; 0 where there are none."""
        each = range(1, _MOST_BITS + 1)
        return max((bits for bits in each if lost_share(weight, noise * self.steps(weight, bits)) == 0.0), default=0)


def lost_share(weight: Floats, noise: Floats) -> float:
    """Of weights with some noise, the share that the cast to bf16 leaves as they were [1]."""
    some = noise != 0.0
    same = BF16.cast(weight + noise) == weight
    return float(np.mean(same[some])) if some.any() else 0.0
