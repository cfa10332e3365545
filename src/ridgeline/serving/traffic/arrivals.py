"""Times at which requests arrive [s]: renewal processes of a given rate and burstiness, bursts, closed loops.

A process asked for N requests is seen under the condition that they come in (N - 1) / rate, the first at 0 and the
last at the end: gaps are independent draws divided by their mean, so that the rate is the one asked for. Proportions
of gamma gaps do not depend on their sum (Lukacs 1955): this is the process itself, and Poisson arrivals between first
and last are sorted uniform draws. Without it 300 requests at 10/s come at 9.4 to 10.6/s in two of three seeds, at
8.6/s with seed 0. Source: vllm, vllm/benchmarks/serve.py (get_request), which scales its delays so. A process asked
for a duration is seen from a random moment of its life: the wait for the first request is the rest of a gap under way
(length-biased gap times a uniform draw), so the mean count over T seconds is rate * T however bursty it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ridgeline.errors import WorkloadError

Floats = NDArray[np.float64]
Draw = Callable[[np.random.Generator, int], Floats]

SEED = 0
MOST_REQUESTS = 50_000_000  # a bound on nonsense: 20 arrays of so many entries are 8e9 bytes
CV_RANGE = (0.02, 40.0)  # bounds of gamma and weibull gaps
_LEAST_SUM = 1e-280  # of gaps drawn: below it their scale to a span leaves the range of floats
SHAPE_RANGE = (0.15, 100.0)  # derived: Weibull shapes whose CV lies in that range


def poisson(
    rate_per_s: float, *, requests: int | None = None, duration_s: float | None = None, seed: int = SEED
) -> Floats:
    """Arrivals of a Poisson process: exponential gaps, CV 1 [s]."""
    return gamma(rate_per_s, cv=1.0, requests=requests, duration_s=duration_s, seed=seed)


def gamma(
    rate_per_s: float, *, cv: float, requests: int | None = None, duration_s: float | None = None, seed: int = SEED
) -> Floats:
    """Arrivals with gamma gaps of shape k = 1 / cv**2 and mean 1 / rate [s]."""
    _bounded("cv", cv, *CV_RANGE)
    k = 1 / cv**2
    return _renewal(
        lambda rng, count: rng.standard_gamma(k, count) / k,
        lambda rng, count: rng.standard_gamma(k + 1, count) / k,
        (rate_per_s, cv),
        (requests, duration_s),
        seed,
    )


def weibull(
    rate_per_s: float,
    *,
    cv: float | None = None,
    shape: float | None = None,
    requests: int | None = None,
    duration_s: float | None = None,
    seed: int = SEED,
) -> Floats:
    """Arrivals with Weibull gaps of the given shape, or of the shape that has this CV, and mean 1 / rate [s].

    CV**2 = G(1 + 2/a) / G(1 + 1/a)**2 - 1, with G the gamma function and a the shape.
    """
    if (cv is None) == (shape is None):
        raise WorkloadError("Weibull gaps need cv or shape, and not both")
    a = weibull_shape(cv) if shape is None else shape  # type: ignore[arg-type]
    _bounded("shape", a, *SHAPE_RANGE)
    mean = math.gamma(1 + 1 / a)
    return _renewal(
        lambda rng, count: rng.weibull(a, count) / mean,
        lambda rng, count: rng.standard_gamma(1 + 1 / a, count) ** (1 / a) / mean,
        (rate_per_s, weibull_cv(a)),
        (requests, duration_s),
        seed,
    )


def constant(rate_per_s: float, *, requests: int | None = None, duration_s: float | None = None) -> Floats:
    """Arrivals at 0, 1/rate, 2/rate, ... [s]."""
    count = _count(rate_per_s, requests, duration_s)
    times = np.arange(count, dtype=np.float64) / rate_per_s
    return times if duration_s is None else times[times < duration_s]


def burst(requests: int) -> Floats:
    """Arrivals all at 0, as of a batch or a closed loop [s]."""
    _count(1.0, requests, None)
    return np.zeros(requests)


def weibull_cv(shape: float) -> float:
    """Coefficient of variation of a Weibull law [1]."""
    return math.sqrt(math.expm1(math.lgamma(1 + 2 / shape) - 2 * math.lgamma(1 + 1 / shape)))


def weibull_shape(cv: float) -> float:
    """Shape of the Weibull law with this coefficient of variation [1].

    >>> round(weibull_shape(1.0), 9)
    1.0
    """
    _bounded("cv", cv, *CV_RANGE)
    low, high = (math.log(bound) for bound in SHAPE_RANGE)
    for _ in range(60):  # CV falls as the shape grows
        middle = (low + high) / 2
        low, high = (middle, high) if weibull_cv(math.exp(middle)) > cv else (low, middle)
    return math.exp((low + high) / 2)


def _renewal(
    gaps: Draw, biased: Draw, rate_and_cv: tuple[float, float], extent: tuple[int | None, float | None], seed: int
) -> Floats:
    """Arrivals of a renewal process whose gaps have mean 1; `biased` draws gaps in proportion to their length."""
    rate, cv = rate_and_cv
    requests, duration = extent
    count = _count(rate, requests, duration)
    rng = np.random.default_rng(seed)
    if requests is not None:
        shares = gaps(rng, requests)
        shares[0] = 0.0
        if requests > 1 and not shares.sum() > _LEAST_SUM:  # all too small for a float: one of them has the whole span
            shares[rng.integers(1, requests)] = 1.0
        times = np.cumsum(shares)
        return np.asarray(times * ((requests - 1) / rate / times[-1] if requests > 1 else 1.0))
    assert duration is not None
    pieces = [biased(rng, 1) * rng.random(1)]
    reached, goal = float(pieces[0][0]), rate * duration
    while reached <= goal:
        piece = reached + np.cumsum(gaps(rng, int((goal - reached) + 3 * cv * math.sqrt(count)) + 16))
        pieces.append(piece)
        reached = float(piece[-1])
    times = np.concatenate(pieces)
    return times[times < goal] / rate


def _count(rate_per_s: float, requests: int | None, duration_s: float | None) -> int:
    """Expected number of requests [1], checked."""
    if not (math.isfinite(rate_per_s) and rate_per_s > 0):
        raise WorkloadError(f"rate {rate_per_s} requests/s; needs a finite number > 0")
    if (requests is None) == (duration_s is None):
        raise WorkloadError("traffic needs a number of requests or a duration, and not both")
    if duration_s is not None and not (math.isfinite(duration_s) and duration_s > 0):
        raise WorkloadError(f"duration {duration_s} s; needs a finite number > 0")
    count = rate_per_s * duration_s if duration_s is not None else float(requests or 0)
    if requests is not None and requests < 1:
        raise WorkloadError(f"{requests} requests; needs >= 1")
    if count > MOST_REQUESTS:
        raise WorkloadError(f"{count:.3g} requests, the limit is {MOST_REQUESTS:.3g}; lower the rate or the duration")
    return math.ceil(count)


def _bounded(name: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise WorkloadError(f"{name} = {value:g} of the gaps, needs {least:g} <= {name} <= {most:g}")
