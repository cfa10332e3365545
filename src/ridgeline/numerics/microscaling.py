"""Narrow floating-point formats whose blocks share a scale: MXFP8 and NVFP4, as they are pre-trained in.

Shape letters: m outputs and n inputs of a weight, N samples, B numbers of a block.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ridgeline.numerics.algorithm import ArrayAlgorithm, Arrays, Floats
from ridgeline.numerics.rounding import relative_error
from ridgeline.seams.technique import param


@dataclass(frozen=True, kw_only=True)
class Element:
    """A floating-point format: `mantissa` bits, the `least` exponent of a normal number, and the `largest` number."""

    mantissa: int
    least: int
    largest: float

    def cast(self, values: Floats, draw: np.random.Generator | None = None) -> Floats:
        """Values to the nearest number of the format, ties to even, none beyond the largest [as given].

        With `draw` they go to one of the two numbers beside them, the likelier the nearer, which leaves their mean.
        """
        exponent = np.frexp(np.where(values == 0.0, 1.0, values))[1] - 1
        step = np.ldexp(1.0, np.maximum(exponent, self.least) - self.mantissa)
        code = values / step
        whole = np.rint(code) if draw is None else np.floor(code + draw.random(code.shape))
        return np.asarray(np.clip(whole * step, -self.largest, self.largest))


ELEMENTS = {
    "e4m3": Element(mantissa=3, least=-6, largest=448.0),
    "e5m2": Element(mantissa=2, least=-14, largest=57_344.0),
    "e2m1": Element(mantissa=1, least=0, largest=6.0),
}
"""Formats of 8 and 4 bits. Source: OCP Microscaling Formats v1.0."""
_E8M0 = 127  # largest power of two of a scale, and least below zero
_SCALE_BITS = 8.0
Caster = Callable[[Floats], Floats]
"""Of a matrix whose rows are summed over, what is left of it in a format."""


def blocks(values: Floats, size: int) -> Floats:
    """Rows (r, n) in blocks of `size` numbers (r, ceil(n / size), size), zeros put in for those that lack."""
    rows, columns = values.shape
    return np.pad(values, ((0, 0), (0, -columns % size))).reshape(rows, -1, size)


def power_scaled(values: Floats, element: Element, size: int, *, up: bool) -> tuple[Floats, float]:
    """Rows (r, n) in blocks with a power of two for a scale, and the share of numbers that were beyond the largest [1].

    The scale is 2^ceil(log2(amax / largest)) with `up`, so that nothing is; the OCP specification's rounds down, to
    2^(floor(log2 amax) - floor(log2 largest)).
    """
    parts = blocks(values, size)
    most = np.abs(parts).max(axis=2, keepdims=True)
    most = np.where(most == 0.0, element.largest, most)
    if up:
        part, power = np.frexp(most / element.largest)
        power = power - (part == 0.5)
    else:
        power = np.frexp(most)[1] - np.frexp(element.largest)[1]
    scale = np.ldexp(1.0, np.clip(power, -_E8M0, _E8M0))
    beyond = float(np.mean(np.abs(parts / scale) > element.largest))
    return (element.cast(parts / scale) * scale).reshape(len(values), -1)[:, : values.shape[1]], beyond


def twice_scaled(values: Floats, size: int, *, draw: np.random.Generator | None = None, square: bool = False) -> Floats:
    """Rows (r, n) in E2M1, an E4M3 scale for a block of `size` numbers and an fp32 one for all (NVFP4).

    With g = 6 x 448 / amax of all, a block's scale is E4M3(g amax_B / 6) / g. `square` blocks are `size` rows by `size`
    columns, so that rows and columns see the same numbers.
    """
    four, eight = ELEMENTS["e2m1"], ELEMENTS["e4m3"]
    parts, all_ = blocks(values, size), float(np.abs(values).max(initial=0.0))
    if all_ == 0.0:
        return values
    most = np.abs(parts).max(axis=2)
    if square:
        tall = np.pad(most, ((0, -len(values) % size), (0, 0))).reshape(-1, size, most.shape[1]).max(axis=1)
        most = np.repeat(tall, size, axis=0)[: len(values)]
    outer = four.largest * eight.largest / all_
    scale = eight.cast(most * outer / four.largest)[:, :, None] / outer
    code = four.cast(np.divide(parts, scale, out=np.zeros_like(parts), where=scale > 0.0), draw)
    return (code * scale).reshape(len(values), -1)[:, : values.shape[1]]


def hadamard(values: Floats, size: int, draw: np.random.Generator) -> Floats:
    """Rows (r, n) with each `size` numbers turned by one random Hadamard matrix, diag(signs) H / sqrt(size)."""
    turn = np.ones((1, 1))
    while len(turn) < size:
        turn = np.block([[turn, turn], [turn, -turn]])
    turn = draw.choice((-1.0, 1.0), size)[:, None] * turn / np.sqrt(size)
    return np.asarray((blocks(values, size) @ turn).reshape(len(values), -1))


def product_error(left: Floats, right: Floats, left_cast: Caster, right_cast: Caster) -> float:
    """||A B^T - Q(A) Q(B)^T|| / ||A B^T|| of rows (r, n) and (s, n) that are cast before they are multiplied [1]."""
    return relative_error(left @ right.T, left_cast(left) @ right_cast(right).T)


@dataclass(frozen=True, kw_only=True)
class Mxfp8(ArrayAlgorithm):
    """MXFP8: weights, inputs and gradients in 8 bits, 32 of them with one power of two, rounded up.

    What the paper adds: a scale 2^ceil(log2(amax / 448)), under which no number of a block is beyond the largest, where
    the OCP specification's rounds down and cuts those off whose mantissa is above 1.75; and E4M3 for gradients too.
    The result X W^T is made of blocks along the summed dimension, and its error stands beside that of scales rounded
    down and of E5M2. Numbers go to the nearest, ties to even. Bits of a number: 8 + 8 / `block`.

    Checked: the formats against all their numbers; a block by hand. Left out: accumulation in few bits. The cost is the
    recipe's: `predict --precision mxfp8`; `advise` tells it with the loss that the paper measured.
    """

    key: ClassVar[str] = "mxfp8"
    source: ClassVar[tuple[str, ...]] = ("mxfp8-recipes-2025", "ocp-microscaling-2023")
    block: int = param(32, "numbers", "numbers of one scale", low=1, high=65_536)
    element: str = param("e4m3", "1", "format of a number", choices=("e4m3", "e5m2"))
    up: bool = param(True, "1", "scales rounded up, so that nothing is cut off")

    def run(self, arrays: Arrays) -> Mapping[str, float]:
        """Relative errors of results and weights, beside scales rounded the other way and the other format."""
        other = "e5m2" if self.element == "e4m3" else "e4m3"
        own = self._error(arrays, self.element, self.up)
        turned, wide = self._error(arrays, self.element, not self.up), self._error(arrays, other, self.up)
        found, _ = power_scaled(arrays.weight, ELEMENTS[self.element], self.block, up=self.up)
        beyond = power_scaled(arrays.inputs, ELEMENTS[self.element], self.block, up=False)[1]
        bits = 8.0 + _SCALE_BITS / self.block
        return {
            "result_error": own,
            "weight_error": relative_error(arrays.weight, found),
            "weight_bits": bits,
            "times_smaller": 16.0 / bits,
            "other_rounding_result_error": turned,
            "of_other_rounding": own / turned if turned else 1.0,
            f"{other}_result_error": wide,
            f"of_{other}": own / wide if wide else 1.0,
            "beyond_share_rounded_down": beyond,
        }

    def _error(self, arrays: Arrays, element: str, up: bool) -> float:
        def cast(values: Floats) -> Floats:
            return power_scaled(values, ELEMENTS[element], self.block, up=up)[0]

        return product_error(arrays.inputs, arrays.weight, cast, cast)


@dataclass(frozen=True, kw_only=True)
class Nvfp4(ArrayAlgorithm):
    """NVFP4 training: the three products of a linear layer in 4 bits, each with what keeps its error in bounds.

    What the paper adds to blocks of 16 numbers in E2M1 with E4M3 scales and an fp32 one: weights share a scale in
    squares of 16 x 16, so that forward X W^T and backward G W use the same weights; gradients G are rounded at random,
    which leaves their mean; and the product G^T X of the weight's gradient is made of both sides turned by one random
    Hadamard matrix of 16 along samples. Errors of the three products stand beside those without each of these, of
    MXFP4 (32 numbers with a power of two), and of their mean over `draws` roundings. Gradients are drawn from Student's
    t with `tail` degrees of freedom, whose few large numbers are those that rotations spread (assumed).

    Checked: formats against all their numbers, a turned product against the exact one, means of random roundings.
    Left out: layers kept in 16 bits, which the technique `kept-layers` prices; accumulation in few bits. The cost is
    the recipe's: `predict --precision nvfp4`.
    """

    key: ClassVar[str] = "nvfp4"
    technique: ClassVar[str] = "kept-layers"
    source: ClassVar[tuple[str, ...]] = ("nvfp4-pretraining-2025",)
    block: int = param(16, "numbers", "numbers of one scale", low=1, high=65_536)
    turned: int = param(16, "numbers", "numbers that one Hadamard matrix turns, a power of two", low=1, high=1024)
    draws: int = param(32, "roundings", "random roundings whose mean is measured", low=1, high=10_000)
    tail: float = param(3.0, "1", "degrees of freedom of drawn gradients (assumed)", low=2.1, high=1e6)

    def run(self, arrays: Arrays) -> Mapping[str, float]:
        """Relative errors of the three products, of the rivals of each, and bits of a number."""
        weight, inputs, size = arrays.weight, arrays.inputs, self.block
        draw = np.random.default_rng((arrays.seed, 4))
        gradient = draw.standard_t(self.tail, (len(inputs), len(weight)))
        four = ELEMENTS["e2m1"]
        found = {
            "forward_error": product_error(inputs, weight, self._nearest, self._square),
            "forward_error_by_rows": product_error(inputs, weight, self._nearest, self._nearest),
            "mxfp4_forward_error": product_error(
                inputs, weight, *([lambda each: power_scaled(each, four, 32, up=True)[0]] * 2)
            ),
            "weights_unlike_by_rows": relative_error(self._nearest(weight), self._nearest(weight.T).T),
            "weights_unlike": relative_error(self._square(weight), self._square(weight.T).T),
        } | self._weight_gradient(inputs, gradient, draw)
        exact, back = gradient @ weight, self._square(weight)
        mean = sum(twice_scaled(gradient, size, draw=draw) for _ in range(self.draws)) / self.draws
        found["input_gradient_error"] = relative_error(exact, twice_scaled(gradient, size, draw=draw) @ back)
        found["gradient_bias"] = relative_error(gradient, np.asarray(mean))
        found["gradient_bias_nearest"] = relative_error(gradient, self._nearest(gradient))
        found["of_nearest_bias"] = found["gradient_bias"] / found["gradient_bias_nearest"]
        bits = 4.0 + _SCALE_BITS / size
        return found | {"weight_bits": bits, "times_smaller": 16.0 / bits}

    def _nearest(self, values: Floats) -> Floats:
        return twice_scaled(values, self.block)

    def _square(self, values: Floats) -> Floats:
        return twice_scaled(values, self.block, square=True)

    def _weight_gradient(self, inputs: Floats, gradient: Floats, draw: np.random.Generator) -> dict[str, float]:
        """Errors of G^T X, turned and not [1]."""
        signs = int(draw.integers(2**31))

        def turned(values: Floats) -> Floats:
            return hadamard(values, self.turned, np.random.default_rng(signs))

        def random(values: Floats) -> Floats:
            return twice_scaled(values, self.block, draw=draw)

        plain = product_error(gradient.T, inputs.T, random, self._nearest)
        own = product_error(turned(gradient.T), turned(inputs.T), random, self._nearest)
        return {"weight_gradient_error": own, "weight_gradient_error_unturned": plain, "of_unturned": own / plain}
