"""Intervals for the draw of a replay's requests: by hand, and by how often they hold."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.facts.transfer import joined
from ridgeline.serving.metrics import Metrics, measure
from ridgeline.serving.objective import Objective
from ridgeline.serving.sampling import SamplingBands, half_width, sampling, widened, widened_share
from ridgeline.serving.traffic.traffic import Traffic, traffic


def done(latency_s: Any, output: Any, line: Traffic) -> Any:
    """A replay of which only latencies are known; first tokens come after half of them."""
    count = line.requests
    return SimpleNamespace(
        came_s=line.arrival_s, first_s=line.arrival_s + latency_s / 2, end_s=line.arrival_s + latency_s,
        prompt=np.ones(count), output=np.asarray(output), done=np.ones(count, dtype=bool),
        refused=np.zeros(count, dtype=bool), hit_tokens=np.zeros(count), itl_quantile=lambda _: 0.0,
        span_s=float(np.max(line.arrival_s + latency_s)),
    )  # fmt: skip


def drawn(latency_s: Any, output: Any, line: Traffic, objective: Objective) -> tuple[Metrics, SamplingBands | None]:
    found = done(latency_s, output, line)
    metrics = measure(found, line, objective)
    return metrics, sampling(found, line, metrics, objective)


def line_of(count: int, rate: float = 10.0) -> Traffic:
    return traffic(np.arange(count) / rate, np.ones(count, dtype=int), np.ones(count, dtype=int))


def test_half_a_width_by_hand() -> None:
    """Five sections say 0, five say 2, all together 1: the standard error is 1 / 3, times 1.383."""
    assert half_width(np.repeat([0.0, 2.0], 5), 1.0) == pytest.approx(1.383 / 3)


@pytest.mark.parametrize("follow", [0.0, 0.8])
def test_intervals_hold_for_four_of_five_runs(follow: float) -> None:
    """Latencies that follow each other, as those of one queue do: v' = f v + noise, of mean 1."""
    held = 0
    for seed in range(200):
        noise = np.random.default_rng(seed).exponential(1.0 - follow, 1000)
        latency = np.empty(1000)
        latency[0] = 1.0
        for place in range(1, 1000):
            latency[place] = follow * latency[place - 1] + noise[place]
        metrics, found = drawn(latency, np.full(1000, 5), line_of(1000), Objective())
        assert found is not None
        held += abs(metrics.latency.mean - 1.0) <= found.latency.mean
    assert 140 <= held <= 180


def test_more_requests_tell_more() -> None:
    def width(count: int) -> float:
        draw = np.random.default_rng(3)
        _, found = drawn(draw.exponential(1.0, count), draw.integers(1, 99, count), line_of(count), Objective())
        assert found is not None
        return found.latency.p50

    assert width(20_000) < 0.3 * width(200)


def test_a_steady_load_has_the_rate_that_was_asked() -> None:
    """Its tokens a second are uncertain as the length of answers is: 50 or 150 of them, by turns in each section."""
    line = line_of(400)
    metrics, found = drawn(np.full(400, 0.5), np.tile([50, 150], 200), line, Objective(ttft_s=1.0))
    assert metrics.steady
    assert found is not None
    assert (found.requests_per_s, found.output_tokens_per_s, found.attained) == (0.0, 0.0, 0.0)
    _, uneven = drawn(np.full(400, 0.5), np.repeat([50, 150], 200), line, Objective())
    assert uneven is not None
    assert uneven.output_tokens_per_s == pytest.approx(1.383 * 50.0 / 3 * 10.0)


def test_rates_of_what_is_not_steady_come_from_the_times_between_ends() -> None:
    """A closed loop that ends 10 requests each second in its first half, and 20 in its second."""
    ends = np.concatenate([np.arange(1, 201) / 10.0, 20.0 + np.arange(1, 201) / 20.0])
    line = traffic(np.zeros(400), np.ones(400, dtype=int), np.full(400, 3), concurrency=400)
    metrics, found = drawn(ends, np.full(400, 3), line, Objective())
    assert found is not None
    rate = metrics.requests_per_s
    expected = 1.383 * np.sqrt(5 * ((10.0 - rate) ** 2 + (20.0 - rate) ** 2) / 90)
    assert found.requests_per_s == pytest.approx(expected)
    assert found.output_tokens_per_s == pytest.approx(3 * expected)


def test_of_a_burst_or_a_handful_nothing_is_drawn() -> None:
    burst = traffic(np.zeros(100), np.ones(100, dtype=int), np.ones(100, dtype=int))
    assert drawn(np.linspace(1, 2, 100), np.full(100, 2), burst, Objective())[1] is None
    assert drawn(np.linspace(1, 2, 19), np.full(19, 2), line_of(19), Objective())[1] is None


@given(value=st.floats(1e-3, 1e3), up=st.floats(1, 5), down=st.floats(0.2, 1), half=st.floats(0, 1e3))
def test_a_draw_widens_an_interval(value: float, up: float, down: float, half: float) -> None:
    ends = joined(value, [value * up, value * down])
    low, high = widened(value, ends, half)
    assert 0.0 < low <= ends[0] * (1 + 1e-9)
    assert ends[1] * (1 - 1e-9) <= high
    assert high >= (value + half) * (1 - 1e-9)


def test_a_share_stays_a_share() -> None:
    assert widened_share(0.99, (0.9, 1.0), 0.05) == (pytest.approx(0.99 - np.hypot(0.09, 0.05)), 1.0)
    assert widened_share(0.0, (0.0, 0.0), 0.1) == (0.0, pytest.approx(0.1))
