"""Logarithms of the modified Bessel functions I and K, where the functions themselves overflow.

Letters: v order, x argument, both arrays; d dimensions of a von Mises-Fisher distribution.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal, localcontext
from functools import cache
from math import factorial, lgamma
from typing import ClassVar

import numpy as np

from ridgeline.numerics.algorithm import ArrayAlgorithm, Arrays, Floats
from ridgeline.seams.technique import param

_DEBYE, _HANKEL, _SERIES = 14, 25, 200
_LARGE_ORDER, _LARGE_ARGUMENT = 13.0, 40.0
_NODES = 600  # of the integral of K


@cache
def _debye() -> tuple[np.polynomial.Polynomial, ...]:
    """u_k(t) of the uniform expansion: u_(k+1) = t^2 (1 - t^2) u_k' / 2 + int_0^t (1 - 5 s^2) u_k ds / 8."""
    found = [np.polynomial.Polynomial([1.0])]
    turn, inside = np.polynomial.Polynomial([0.0, 0.0, 0.5, 0.0, -0.5]), np.polynomial.Polynomial([1.0, 0.0, -5.0])
    for _ in range(_DEBYE):
        found.append(turn * found[-1].deriv() + (inside * found[-1]).integ() / 8.0)
    return tuple(found)


def _uniform(order: Floats, at: Floats, sign: float) -> Floats:
    """log I (sign 1) or log K (-1) by the expansion in 1 / v that is uniform in x / v."""
    root = np.hypot(order, at)
    share = order / root
    eta = root + order * np.log(at / (order + root))
    terms = sum(poly(share) * (sign / order) ** k for k, poly in enumerate(_debye()))
    front = -0.5 * np.log(2.0 * np.pi * root) if sign > 0 else 0.5 * np.log(np.pi / (2.0 * root))
    return np.asarray(sign * eta + front + np.log(terms))


def _far(order: Floats, at: Floats, sign: float) -> Floats:
    """The same by the expansion in 1 / x, whose terms are products of (4 v^2 - odd^2) / (8 k x)."""
    term = total = np.ones_like(at)
    for k in range(1, _HANKEL):
        term = -sign * term * (4.0 * order**2 - (2.0 * k - 1.0) ** 2) / (8.0 * k * at)
        total = total + term
    front = -0.5 * np.log(2.0 * np.pi * at) if sign > 0 else 0.5 * np.log(np.pi / (2.0 * at))
    return np.asarray(sign * at + front + np.log(total))


def _series(order: Floats, at: Floats) -> Floats:
    """log I by its power series, the first term taken out: the rest are products of (x / 2)^2 / (k (k + v))."""
    term = total = np.ones_like(at)
    for k in range(1, _SERIES):
        term = term * (at / 2.0) ** 2 / (k * (k + order))
        total = total + term
    gamma = np.array([lgamma(each + 1.0) for each in order.ravel()]).reshape(order.shape)
    return np.asarray(order * np.log(at / 2.0) - gamma + np.log(total))


def _integral(order: Floats, at: Floats) -> Floats:
    """log K as log of the integral of exp(-x cosh t) cosh(v t), by even nodes up to where it is below rounding."""
    end = np.arcsinh((order + 60.0) / at) + 2.0
    node = np.linspace(0.0, 1.0, _NODES + 1)[:, None] * end
    exponent = -at * np.cosh(node) + order * node + np.log1p(np.exp(-2.0 * order * node)) - np.log(2.0)
    most = exponent.max(axis=0)
    values = np.exp(exponent - most)
    values[0] /= 2.0
    return np.asarray(most + np.log(values.sum(axis=0) * end / _NODES))


def log_bessel(kind: str, order: Floats | float, at: Floats | float) -> Floats:
    """log I_v(x) or log K_v(x) ('i' or 'k') for v >= 0 and x > 0, in the shape of both.

    From v = 13 on by the uniform expansion, else from x = 40 on by that in 1 / x, else by the series (I) or the
    integral (K), all of which work with logarithms and neither overflow nor underflow.
    """
    sign = 1.0 if kind == "i" else -1.0
    v, x = (np.array(each, dtype=np.float64) for each in np.broadcast_arrays(order, at))
    found, large = np.empty(v.shape), v >= _LARGE_ORDER
    far = ~large & (x >= _LARGE_ARGUMENT + v**2 / 2.0)
    near = ~large & ~far
    found[large] = _uniform(v[large], x[large], sign)
    found[far] = _far(v[far], x[far], sign)
    found[near] = _series(v[near], x[near]) if sign > 0 else _integral(v[near], x[near])
    return found


def half_order(kind: str, whole: int, at: float) -> float:
    """log I or log K of order n + 1/2 by their finite sums in exponentials, in 80 and more decimal digits."""
    with localcontext() as context:
        context.prec = 120 + 10 * whole + int(at)
        x, pi = (
            Decimal(at),
            Decimal("3.14159265358979323846264338327950288419716939937510582097494459230781640628620899"),
        )
        sums = []
        for sign in (1, -1):
            terms = (
                Decimal(sign**k * factorial(whole + k)) / (factorial(k) * factorial(whole - k)) / (2 * x) ** k
                for k in range(whole + 1)
            )
            sums.append(sum(terms, Decimal(0)))
        if kind == "k":
            return float((pi / (2 * x)).ln() / 2 - x + sums[0].ln())
        both = x.exp() * sums[1] - (-1) ** whole * (-x).exp() * sums[0]
        return float(both.ln() - (2 * pi * x).ln() / 2)


def concentration(length: float, dimensions: int) -> float:
    """kappa of a von Mises-Fisher distribution whose mean has this length: I_(d/2) / I_(d/2-1) (kappa) = length.

    By Newton's steps from length (d - length^2) / (1 - length^2), the ratio by logarithms of both.
    """
    kappa = length * (dimensions - length**2) / (1.0 - length**2)
    for _ in range(8):
        over, under = (float(log_bessel("i", dimensions / 2.0 - each, kappa)) for each in (0.0, 1.0))
        ratio = np.exp(over - under)
        slope = 1.0 - ratio**2 - (dimensions - 1.0) / kappa * ratio
        kappa -= (ratio - length) / slope
    return float(kappa)


@dataclass(frozen=True, kw_only=True)
class LogBessel(ArrayAlgorithm):
    """log I_v(x) and log K_v(x) without overflow: an expansion for each region, all in logarithms.

    What the paper adds: expansions for large order and for large argument whose sums are of order 1 and whose large
    factors are added as logarithms, and for the rest a series (I) and an integral (K) in logarithms. Errors are those
    against the finite sums of half-integer orders in 80 digits and more, relative to the logarithm or, near its zero,
    to 1. A von Mises-Fisher distribution of `dimensions` is fitted to a mean of length 1/2: what is left is the
    difference of the ratio of Bessel functions from it.

    Checked: SciPy's scaled functions where they have an answer, the Wronskian of I and K elsewhere. Left out: the
    paper's own borders between regions, its kernels and their time on devices.
    """

    key: ClassVar[str] = "log-bessel"
    source: ClassVar[tuple[str, ...]] = ("log-bessel-2024",)
    dimensions: int = param(2048, "1", "dimensions of the distribution that is fitted", low=3, high=10_000_000)
    highest: int = param(60, "1", "highest order that is compared", low=1, high=300)

    def run(self, arrays: Arrays) -> Mapping[str, float]:
        """Largest relative errors, and what is left of the fit."""
        draw = np.random.default_rng((arrays.seed, 9))
        whole = draw.integers(0, self.highest, 60)
        at = np.exp(draw.uniform(np.log(0.1), np.log(300.0), 60))
        found: dict[str, float] = {}
        for kind in ("i", "k"):
            exact = np.array([half_order(kind, int(n), float(x)) for n, x in zip(whole, at, strict=True)])
            ours = log_bessel(kind, np.asarray(whole + 0.5, dtype=np.float64), at)
            gap = np.abs(ours - exact) / np.maximum(np.abs(exact), 1.0)
            found[f"log_{kind}_error"] = float(gap.max())
        kappa = concentration(0.5, self.dimensions)
        over, under = (float(log_bessel("i", self.dimensions / 2.0 - each, kappa)) for each in (0.0, 1.0))
        return found | {
            "concentration": kappa,
            "fit_error": abs(float(np.exp(over - under)) - 0.5),
            "log_normalizer_finite": float(np.isfinite(under)),
        }
