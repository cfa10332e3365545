"""Samplers of diffusion models on exact scores: exponential integrators of any order (DEIS), DDIM and Euler.

Shape letters: N samples of n numbers, m centres of a mixture, S steps.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ridgeline.numerics.algorithm import ArrayAlgorithm, Arrays, Floats
from ridgeline.numerics.rounding import relative_error
from ridgeline.seams.technique import param

_LOW, _HIGH = 0.1, 20.0  # rates of noise at the ends of the linear schedule (score_sde's VP SDE)
_POINTS, _WEIGHTS = np.polynomial.legendre.leggauss(32)
_FINE = 200  # steps of what errors are measured against
_MOST = 64  # samples
Noise = Callable[[Floats, float], Floats]
"""Of samples (N, n) at a time, the noise that is expected in them (N, n)."""


def log_alpha(time: Floats | float) -> Floats:
    """log of the share of the data's variance at a time of the linear schedule [1]."""
    at = np.asarray(time, dtype=np.float64)
    return np.asarray(-0.5 * at**2 * (_HIGH - _LOW) - at * _LOW)


def schedule(steps: int, last: float, power: float = 2.0) -> Floats:
    """Times from 1 down to `last` (S + 1,), even in their `power`-th root."""
    ends = 1.0, last ** (1.0 / power)
    return np.asarray(np.linspace(*ends, steps + 1) ** power)


def coefficients(times: Floats, step: int, order: int) -> Floats:
    """Weights of the noises at the last order + 1 times, the newest first, for the step from times[step] to the next.

    C_j = int Psi(next, s) (-1/2 dlog alpha / ds) / sqrt(1 - alpha(s)) prod_k (s - t_k) / (t_j - t_k) ds, over the step,
    by Gauss and Legendre's rule in sqrt(s), in which the integrand is smooth; of order 0 it is DDIM's in closed form.
    """
    low, high = np.sqrt(times[step]), np.sqrt(times[step + 1])
    root = (low + high) / 2 + (high - low) / 2 * _POINTS
    at, weight = root**2, (high - low) / 2 * _WEIGHTS * 2.0 * root
    falls = -(at * (_HIGH - _LOW) + _LOW)
    kernel = -0.5 * falls * np.exp((log_alpha(times[step + 1]) - log_alpha(at)) / 2) / np.sqrt(-np.expm1(log_alpha(at)))
    known = times[step - order : step + 1][::-1]
    found = []
    for j, own in enumerate(known):
        others = np.delete(known, j)
        found.append(float(np.sum(weight * kernel * np.prod((at[:, None] - others) / (own - others), axis=1))))
    return np.asarray(found)


def exponential(start: Floats, noise: Noise, times: Floats, order: int) -> Floats:
    """Samples at the last time by an exponential integrator of Adams and Bashforth in time (tAB-DEIS)."""
    found, past = start, list[Floats]()
    for step in range(len(times) - 1):
        past = [noise(found, float(times[step])), *past][: order + 1]
        scale = float(np.exp((log_alpha(times[step + 1]) - log_alpha(times[step])) / 2))
        weights = coefficients(times, step, len(past) - 1)
        found = scale * found + sum(weight * each for weight, each in zip(weights, past, strict=True))
    return np.asarray(found)


def euler(start: Floats, noise: Noise, times: Floats) -> Floats:
    """Samples at the last time by Euler's steps of dx/dt = 1/2 dlog alpha/dt (x - noise / sqrt(1 - alpha))."""
    found = start
    for now, then in itertools.pairwise(times):
        falls = -(now * (_HIGH - _LOW) + _LOW)
        away = noise(found, float(now)) / np.sqrt(-np.expm1(log_alpha(now)))
        found = found + (then - now) * 0.5 * falls * (found - away)
    return found


def mixture_noise(centres: Floats, spread: float) -> Noise:
    """The exact noise of a mixture of normal distributions of equal share and deviation `spread` about centres (m, n).

    At alpha each is normal about sqrt(alpha) c with variance v = alpha spread^2 + 1 - alpha, and the noise is
    sqrt(1 - alpha) / v times the distance to the mean centre, weighted by how likely each is.
    """
    squares = np.sum(centres**2, axis=1)

    def noise(samples: Floats, time: float) -> Floats:
        alpha = float(np.exp(log_alpha(time)))
        variance = alpha * spread**2 + 1.0 - alpha
        near = (2.0 * np.sqrt(alpha) * samples @ centres.T - alpha * squares) / (2.0 * variance)
        near = np.exp(near - near.max(axis=1, keepdims=True))
        mean = (near / near.sum(axis=1, keepdims=True)) @ centres
        return np.asarray(np.sqrt(1.0 - alpha) / variance * (samples - np.sqrt(alpha) * mean))

    return noise


@dataclass(frozen=True, kw_only=True)
class ExponentialSampler(ArrayAlgorithm):
    """DEIS: the probability-flow ODE solved exactly but for the noise, which a polynomial of past noises stands for.

    What the paper adds: the linear part of the ODE of a diffusion model is known, and with it the weight of the noise
    at each moment of a step, so that only the noise itself has to be guessed: constant, which is DDIM, or by the
    polynomial of degree `order` through the last evaluations (tAB-DEIS), which costs no evaluation more. Times are even
    in their square roots. Rows of the weight, scaled to deviation 1, are the centres of a mixture of normal
    distributions whose noise is exact, so errors are the sampler's own: those of samples against 200 steps of order 3.

    Checked: order 0 against DDIM's closed form, orders of convergence, one normal distribution against its exact
    solution. Left out: the error of a trained network's noise, rho and Runge-Kutta variants. The cost is in steps:
    `predict` of a scenario of pictures with `steps = 10`, an evaluation each.
    """

    key: ClassVar[str] = "deis"
    source: ClassVar[tuple[str, ...]] = ("deis-2022",)
    steps: int = param(10, "evaluations", "evaluations of the noise", low=1, high=1000)
    order: int = param(3, "1", "degree of the polynomial", low=0, high=6)
    spread: float = param(0.2, "1", "deviation of each part of the mixture (assumed)", low=1e-3, high=10.0)
    last: float = param(1e-3, "1", "time at which sampling ends", low=1e-5, high=0.5)

    def run(self, arrays: Arrays) -> Mapping[str, float]:
        """Relative errors of samples, of DDIM and Euler in as many evaluations, and DDIM's for the same error."""
        centres = arrays.weight / max(float(arrays.weight.std()), 1e-300)
        count = min(len(arrays.inputs), _MOST)
        start = np.random.default_rng((arrays.seed, 8)).standard_normal((count, centres.shape[1]))
        noise = mixture_noise(centres, self.spread)
        exact = exponential(start, noise, schedule(_FINE, self.last), 3)

        def error(steps: int, order: int) -> float:
            return relative_error(exact, exponential(start, noise, schedule(steps, self.last), order))

        own, plain = error(self.steps, self.order), error(self.steps, 0)
        rough = relative_error(exact, euler(start, noise, schedule(self.steps, self.last)))
        needed = self.steps
        while needed < _FINE and error(needed, 0) > own:
            needed += max(1, needed // 4)
        return {
            "sample_error": own,
            "ddim_error": plain,
            "of_ddim": own / plain if plain else 1.0,
            "euler_error": rough,
            "of_euler": own / rough if rough else 1.0,
            "ddim_evaluations": float(needed),
            "times_fewer": needed / self.steps,
        }
