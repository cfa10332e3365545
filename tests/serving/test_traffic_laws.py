"""Arrival processes, length laws and client mixes converge to what they are asked for, and repeat by seed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.errors import WorkloadError
from ridgeline.facts.traces import LEVELS, WINDOW_S, client_mix
from ridgeline.serving.traffic import arrivals
from ridgeline.serving.traffic.asked import asked_traffic, closed_loop, resampled, synthetic
from ridgeline.serving.traffic.lengths import (
    Empirical,
    Fixed,
    LengthLaw,
    LengthQuantiles,
    LogNormal,
    Normal,
    Uniform,
    interpolated,
)
from ridgeline.serving.traffic.mixes import from_mix, servegen
from ridgeline.serving.traffic.named import named_traffic
from ridgeline.serving.traffic.summary import summarize

RATES = st.floats(0.01, 1000)
CVS = st.floats(0.2, 3.0)
SEEDS = st.integers(0, 2**32)


@pytest.mark.parametrize("law", [arrivals.gamma, arrivals.weibull])
@settings(max_examples=30, deadline=None)
@given(rate=RATES, cv=CVS, seed=SEEDS)
def test_gaps_have_the_rate_and_the_cv(law: Callable[..., np.ndarray], rate: float, cv: float, seed: int) -> None:
    count = 40_000
    times = law(rate, cv=cv, requests=count, seed=seed)
    gaps = np.diff(times)
    assert times[0] == 0
    assert len(times) == count
    assert (gaps >= 0).all()
    assert np.mean(gaps) * rate == pytest.approx(1, rel=1e-9)
    # of a CV far more than its standard error: one gap in 40,000 moves that of a long tail by a fifth
    assert np.std(gaps) / np.mean(gaps) == pytest.approx(cv, rel=0.03 + 0.2 * max(cv - 1, 0))
    assert np.array_equal(times, law(rate, cv=cv, requests=count, seed=seed))


@pytest.mark.parametrize("law", [arrivals.gamma, arrivals.weibull])
@given(rate=RATES, cv=st.floats(*arrivals.CV_RANGE), seed=SEEDS, count=st.integers(2, 300))
def test_the_rate_is_the_one_asked_for(
    law: Callable[..., np.ndarray], rate: float, cv: float, seed: int, count: int
) -> None:
    """However few requests and however bursty: 300 at 10/s came at 8.6/s."""
    times = law(rate, cv=cv, requests=count, seed=seed)
    assert (times[0], times[-1]) == (0.0, pytest.approx((count - 1) / rate))
    assert (np.diff(times) >= 0).all()


def test_poisson_arrivals_between_first_and_last_are_uniform() -> None:
    """As a Poisson process of a known count is; the Kolmogorov-Smirnov distance stays below its 99.9 % quantile."""
    inner = np.concatenate([arrivals.poisson(1.0, requests=12, seed=seed)[1:-1] / 11.0 for seed in range(2000)])
    steps = np.arange(1, len(inner) + 1) / len(inner)
    assert np.abs(np.sort(inner) - steps).max() < 1.95 / math.sqrt(len(inner))


@pytest.mark.parametrize("kind", ["poisson", "gamma", "weibull", "constant"])
@pytest.mark.parametrize("extent", [{"requests": 300}, {"duration": 30.0}, {"requests": 500, "duration": 30.0}])
def test_words_of_traffic_give_the_rate_that_they_say(kind: str, extent: dict[str, float]) -> None:
    found, _ = asked_traffic({"rate": 10.0, "arrivals": kind, **extent})
    assert found.requests == 300
    assert summarize(found).rate_per_s == pytest.approx(10.0)


@pytest.mark.parametrize("cv", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("law", [arrivals.gamma, arrivals.weibull])
def test_a_duration_has_rate_times_duration_requests_on_average(law: Callable[..., np.ndarray], cv: float) -> None:
    counts = np.array([len(law(2.0, cv=cv, duration_s=20.0, seed=seed)) for seed in range(2000)])
    assert counts.mean() == pytest.approx(40, abs=4 * counts.std() / math.sqrt(len(counts)))
    times = law(2.0, cv=cv, duration_s=20.0, seed=1)
    assert len(times) == 0 or (times[0] >= 0 and times[-1] < 20)
    assert (np.diff(times) >= 0).all()


def test_poisson_counts_have_the_variance_of_poisson() -> None:
    counts = np.array([len(arrivals.poisson(3.0, duration_s=10.0, seed=seed)) for seed in range(3000)])
    assert counts.var() / counts.mean() == pytest.approx(1, abs=0.12)


def test_constant_and_burst() -> None:
    assert arrivals.constant(4.0, requests=3).tolist() == [0, 0.25, 0.5]
    assert arrivals.constant(4.0, duration_s=0.5).tolist() == [0, 0.25]
    assert arrivals.constant(4.0, duration_s=0.6).tolist() == [0, 0.25, 0.5]
    assert arrivals.burst(3).tolist() == [0, 0, 0]


@pytest.mark.parametrize(("cv", "shape"), [(1.0, 1.0), (math.sqrt(5), 0.5)])
def test_weibull_shapes_that_are_known(cv: float, shape: float) -> None:
    assert arrivals.weibull_shape(cv) == pytest.approx(shape, rel=1e-9)
    assert arrivals.weibull_cv(shape) == pytest.approx(cv, rel=1e-12)


def test_weibull_takes_a_shape() -> None:
    by_shape = arrivals.weibull(1.0, shape=0.5, requests=100, seed=3)
    assert by_shape == pytest.approx(arrivals.weibull(1.0, cv=math.sqrt(5), requests=100, seed=3))


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: arrivals.poisson(0.0, requests=5), "rate 0.0"),
        (lambda: arrivals.poisson(math.nan, requests=5), "rate nan"),
        (lambda: arrivals.poisson(1.0), "not both"),
        (lambda: arrivals.poisson(1.0, requests=5, duration_s=5.0), "not both"),
        (lambda: arrivals.poisson(1.0, requests=0), "0 requests"),
        (lambda: arrivals.poisson(1e9, duration_s=1e9), "limit"),
        (lambda: arrivals.constant(1.0, duration_s=-1.0), "duration"),
        (lambda: arrivals.gamma(1.0, cv=0.0, requests=5), "cv = 0"),
        (lambda: arrivals.weibull(1.0, cv=99.0, requests=5), "cv = 99"),
        (lambda: arrivals.weibull(1.0, requests=5), "cv or shape"),
        (lambda: arrivals.weibull(1.0, shape=0.01, requests=5), "shape = 0.01"),
        (lambda: arrivals.burst(0), "0 requests"),
        (lambda: Fixed(tokens=0), "0 tokens"),
        (lambda: Uniform(low=5, high=4), "5 to 4"),
        (lambda: Normal(mean=math.nan, deviation=1), "mean nan"),
        (lambda: LogNormal(mean=0, cv=1), "mean 0"),
        (lambda: LengthQuantiles(levels=(0.5, 0.1), tokens=(1, 2)), "levels"),
        (lambda: LengthQuantiles(levels=(0.1, 0.5), tokens=(5, 2)), "none below its left"),
        (lambda: Empirical(seen=np.zeros(0, dtype=np.int64)), "at least one"),
        (lambda: servegen(scale=0), "scale 0"),
        (lambda: servegen(scale=1e6), "limit"),
        (lambda: servegen(start_s=9, end_s=9), "start_s < end_s"),
        (lambda: servegen(end_s=1e6), "86400"),
    ],
)
def test_what_no_law_can_do_is_refused(call: Callable[[], object], word: str) -> None:
    with pytest.raises(WorkloadError, match=word):
        call()


@pytest.mark.parametrize(
    ("law", "mean", "deviation", "low", "high"),
    [
        (Fixed(tokens=7), 7, 0, 7, 7),
        (Uniform(low=80, high=100), 90, math.sqrt((21**2 - 1) / 12), 80, 100),
        (Normal(mean=500, deviation=50), 500, 50, 1, 1000),
        (LogNormal(mean=800, cv=0.5), 800, 400, 1, 100_000),
        (Empirical(seen=np.array([10, 30])), 20, 10, 10, 30),
    ],
)
def test_lengths_have_the_moments_of_their_law(
    law: LengthLaw, mean: float, deviation: float, low: int, high: int
) -> None:
    drawn = law.draw(np.random.default_rng(1), 100_000)
    assert drawn.dtype == np.int64
    assert drawn.mean() == pytest.approx(mean, rel=0.01)
    assert drawn.std() == pytest.approx(deviation, rel=0.02, abs=1e-9)
    assert low <= drawn.min() <= drawn.max() <= high


def test_clipped_lengths_stay_within() -> None:
    drawn = Normal(mean=10, deviation=100, low=5, high=20).draw(np.random.default_rng(0), 1000)
    assert (drawn.min(), drawn.max()) == (5, 20)


def test_quantiles_come_back() -> None:
    law = LengthQuantiles(levels=LEVELS, tokens=(10, 40, 90, 200, 500, 900, 4000))
    drawn = law.draw(np.random.default_rng(0), 400_000)
    assert np.quantile(drawn, LEVELS) == pytest.approx(np.array(law.tokens), rel=0.03)
    assert (drawn.min(), drawn.max()) == (10, 4000)


def test_interpolation_is_geometric_between_quantiles() -> None:
    # halfway in probability between 10 and 1000 lies their geometric mean
    assert interpolated(np.array([0.0, 0.3, 1.0]), np.array([0.1, 0.5]), np.array([10.0, 1000.0])).tolist() == [
        10, 100, 1000,
    ]  # fmt: skip


def test_answers_of_another_law_leave_prompts_and_arrivals() -> None:
    times = arrivals.poisson(1.0, requests=50)
    short = synthetic(times, Uniform(low=1, high=99), Fixed(tokens=1))
    long = synthetic(times, Uniform(low=1, high=99), Uniform(low=1, high=9))
    assert np.array_equal(short.prompt_tokens, long.prompt_tokens)
    assert not np.array_equal(
        short.prompt_tokens, synthetic(times, Uniform(low=1, high=99), Fixed(tokens=1), seed=1).prompt_tokens
    )


def test_a_closed_loop_is_all_at_the_start() -> None:
    loop = closed_loop(8, 100, Fixed(tokens=5), Fixed(tokens=6))
    assert (loop.requests, loop.concurrency, loop.arrival_s[-1]) == (100, 8, 0.0)


def test_resampling_keeps_pairs() -> None:
    seen = named_traffic("azure-code")
    drawn = resampled(seen, arrivals.poisson(5.0, requests=20_000))
    pairs = set(zip(seen.prompt_tokens.tolist(), seen.output_tokens.tolist(), strict=True))
    assert set(zip(drawn.prompt_tokens.tolist(), drawn.output_tokens.tolist(), strict=True)) <= pairs
    assert drawn.prompt_tokens.mean() == pytest.approx(seen.prompt_tokens.mean(), rel=0.03)


@settings(max_examples=15, deadline=None)
@given(scale=st.floats(0.05, 3.0), start=st.floats(0, 80_000), seed=SEEDS)
def test_a_mix_sends_what_its_windows_say(scale: float, start: float, seed: int) -> None:
    mix = client_mix()
    first = math.floor(start / WINDOW_S) * WINDOW_S  # whole windows have whole counts
    drawn = servegen(scale=scale, start_s=first, end_s=first + 3600, seed=seed)
    chosen = (mix.window_start_s >= first) & (mix.window_start_s < first + 3600)
    expected = mix.rate_per_s[chosen].sum() * scale * WINDOW_S
    # a window's count is its expectation rounded up or down
    assert abs(drawn.requests - expected) < 0.5 * 6 * math.sqrt(chosen.sum()) + 1
    assert drawn.arrival_s[0] >= 0
    assert drawn.arrival_s[-1] < 3600
    again = servegen(scale=scale, start_s=first, end_s=first + 3600, seed=seed)
    for name in ("arrival_s", "prompt_tokens", "output_tokens", "client"):
        assert np.array_equal(getattr(drawn, name), getattr(again, name)), name


def test_every_client_keeps_its_share_and_its_lengths() -> None:
    mix = client_mix()
    drawn = from_mix(mix, start_s=0, end_s=21_600)
    window = mix.window_start_s < 21_600
    # rates are printed with six digits, and a window of 600 s holds a whole number of requests
    expected = np.bincount(mix.client[window], weights=np.rint(mix.rate_per_s[window] * WINDOW_S), minlength=73)
    counted = np.bincount(drawn.client, minlength=73)
    assert counted.tolist() == expected.tolist()
    biggest = int(counted.argmax())
    row = mix.segment[window & (mix.client == biggest)][0]
    for tokens, quantiles in ((drawn.prompt_tokens, mix.prompt_tokens), (drawn.output_tokens, mix.output_tokens)):
        seen = np.quantile(tokens[drawn.client == biggest], LEVELS[1:-1])
        assert seen == pytest.approx(quantiles[row][1:-1], rel=0.05)


def test_gaps_of_a_window_have_the_fitted_burstiness() -> None:
    mix = client_mix()
    # the fullest window of each kind, at a scale at which the fixed count no longer narrows the gaps
    for weibull in (False, True):
        kind = np.flatnonzero(mix.weibull == weibull)
        row = kind[mix.rate_per_s[kind].argmax()]
        shape = float(mix.shape[row])
        start = float(mix.window_start_s[row])
        drawn = servegen(scale=20, start_s=start, end_s=start + WINDOW_S, seed=5)
        gaps = np.diff(drawn.arrival_s[drawn.client == mix.client[row]])
        cv = arrivals.weibull_cv(shape) if weibull else 1 / math.sqrt(shape)
        assert np.std(gaps) / np.mean(gaps) == pytest.approx(cv, rel=0.1), (weibull, shape)


def test_a_day_of_a_mix_is_drawn_at_once() -> None:
    began = time.perf_counter()
    drawn = servegen(scale=1.0)
    assert time.perf_counter() - began < 10  # under one second on a free core
    assert drawn.requests == pytest.approx(1_383_669, abs=3)
