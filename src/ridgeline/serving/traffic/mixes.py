"""Traffic of a service's clients: rates, gaps and lengths by client and time of day, as ServeGen measured them.

Letters: W windows of one client each, N requests.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ridgeline.errors import WorkloadError
from ridgeline.facts.traces import DAY_S, LEVELS, WINDOW_S, ClientMix, client_mix, shipped
from ridgeline.serving.traffic.arrivals import MOST_REQUESTS, SEED
from ridgeline.serving.traffic.lengths import interpolated
from ridgeline.serving.traffic.traffic import Traffic, traffic

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
_DECIMAL, _DIGIT = 1e-6, 6e-6  # definition: rates are printed with six decimals below 1, with six digits above


def servegen(*, scale: float = 1.0, start_s: float = 0.0, end_s: float = DAY_S, seed: int = SEED) -> Traffic:
    """The hours from `start_s` to `end_s` of ServeGen's day of DeepSeek-R1, every client's rate times `scale`."""
    return from_mix(
        client_mix(),
        scale=scale,
        start_s=start_s,
        end_s=end_s,
        seed=seed,
        name="servegen",
        source=shipped()["servegen-rates"].source,
    )


def from_mix(
    mix: ClientMix,
    *,
    scale: float = 1.0,
    start_s: float = 0.0,
    end_s: float = DAY_S,
    seed: int = SEED,
    name: str = "clients",
    source: str = "",
) -> Traffic:
    """Requests of a client mix.

    In each window a client sends n = scale * rate * 600 s requests (a fraction is one more with that probability).
    n gaps of its law are drawn, brought to a sum of 600 s and laid on a circle from a random point. For gamma gaps
    that is the renewal process itself, given n; the mean gap is exact for any law. Lengths come from the client's
    quantiles of the time of day, prompt and answer apart.
    """
    _refuse(scale, start_s, end_s)
    chosen = np.flatnonzero((mix.window_start_s + WINDOW_S > start_s) & (mix.window_start_s < end_s))
    chosen = chosen[np.argsort(mix.segment[chosen], kind="stable")]
    expected = scale * _measured(mix.rate_per_s[chosen])
    if expected.sum() > MOST_REQUESTS:
        raise WorkloadError(f"{expected.sum():.3g} requests, the limit is {MOST_REQUESTS:.3g}; lower scale or end_s")
    times_seed, prompt_seed, output_seed = np.random.SeedSequence(seed).spawn(3)
    rng = np.random.default_rng(times_seed)
    counts = np.floor(expected + rng.random(len(expected))).astype(np.int64)
    times = _times(mix, chosen, counts, rng)
    segments = np.bincount(mix.segment[chosen], weights=counts, minlength=len(mix.prompt_tokens)).astype(np.int64)
    prompt = _lengths(mix.prompt_tokens, segments, np.random.default_rng(prompt_seed))
    output = _lengths(mix.output_tokens, segments, np.random.default_rng(output_seed))
    client = np.repeat(mix.client[chosen], counts)
    order = np.argsort(times, kind="stable")
    order = order[(times[order] >= start_s) & (times[order] < end_s)]
    if not len(order):
        raise WorkloadError(f"no client sends a request from {start_s:g} to {end_s:g} s at scale {scale:g}; widen them")
    return traffic(
        times[order] - start_s,
        prompt[order],
        output[order],
        client=client[order],
        client_names=mix.client_names,
        name=name,
        source=f"{source}; scale {scale:g}, {start_s:g} to {end_s:g} s, seed {seed}",
    )


def _refuse(scale: float, start_s: float, end_s: float) -> None:
    if not (math.isfinite(scale) and scale > 0):
        raise WorkloadError(f"scale {scale}; needs a finite number > 0")
    if not 0 <= start_s < end_s <= DAY_S:
        raise WorkloadError(f"from {start_s} to {end_s} s; needs 0 <= start_s < end_s <= {DAY_S:g}")


def _measured(rate_per_s: Floats) -> Floats:
    """Requests of a window as counted [1]: whole where the printed rate allows it."""
    count = WINDOW_S * rate_per_s
    nearest = np.rint(count)
    printed = np.maximum(WINDOW_S * _DECIMAL, count * _DIGIT)
    return np.where((np.abs(count - nearest) <= printed) & (nearest > 0), nearest, count)


def _times(mix: ClientMix, chosen: Ints, counts: Ints, rng: np.random.Generator) -> Floats:
    """Arrivals of all windows [s], (N,), window after window, in no order within one."""
    window = np.repeat(np.arange(len(chosen)), counts)
    shape = mix.shape[chosen][window]
    weibull = mix.weibull[chosen][window]
    gaps = np.empty(len(window))
    gaps[~weibull] = rng.standard_gamma(shape[~weibull])
    gaps[weibull] = rng.weibull(shape[weibull])
    total = np.bincount(window, weights=gaps, minlength=len(chosen))
    gaps[(total == 0)[window]] = 1.0
    total = np.bincount(window, weights=gaps, minlength=len(chosen))
    ends = np.cumsum(gaps / total[window])  # one turn of the circle per window that has a request
    turns = ends + rng.random(len(chosen))[window]
    return mix.window_start_s[chosen][window] + WINDOW_S * (turns % 1.0)


def _lengths(quantiles: Floats, segments: Ints, rng: np.random.Generator) -> Ints:
    """Lengths of the requests of every segment, segment after segment [token]."""
    levels = np.array(LEVELS)
    drawn = [
        interpolated(rng.random(count), levels, row)
        for row, count in zip(quantiles, segments.tolist(), strict=True)
        if count
    ]
    return np.concatenate(drawn) if drawn else np.zeros(0, dtype=np.int64)
