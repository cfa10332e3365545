"""Quantiles, goodput, overload and intervals by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.cost.machine import machine
from ridgeline.facts.clusters import cluster
from ridgeline.graph.load import load
from ridgeline.scenario.serving_words import deployed
from ridgeline.serving.engine import Engine, engine
from ridgeline.serving.metrics import (
    decode_band,
    decode_parts,
    measure,
    overload,
    prefill_band,
    prefill_parts,
    quantiles,
)
from ridgeline.serving.objective import Objective
from ridgeline.serving.replay import Replay
from ridgeline.serving.step import StepTables
from ridgeline.serving.traffic.traffic import Traffic, traffic

NAN = float("nan")
FOUR = traffic([0.0, 1.0, 2.0, 3.0], [10, 20, 30, 40], [3, 1, 5, 2])


@pytest.fixture
def four(replayed: Callable[..., Replay]) -> Replay:
    """Three requests that ended, first tokens after 0.5, 0.2 and 2 s, and one that was refused."""
    return replace(
        replayed(FOUR, lane_s=0.1),
        came_s=np.array([0.0, 1.0, 2.0, 3.0]),
        first_s=np.array([0.5, 1.2, 4.0, NAN]),
        end_s=np.array([1.5, 1.2, 8.0, 3.0]),
        done=np.array([True, True, True, False]),
        refused=np.array([False, False, False, True]),
        hit_tokens=np.array([0, 5, 20, 0]),
        span_s=8.0,
    )


def test_quantiles_by_hand() -> None:
    """Of 0, 1 ... 100 with two gaps: each quantile is its own number."""
    found = quantiles(np.array([*range(101), NAN, np.inf], dtype=float))
    assert (found.mean, found.p50, found.p90, found.p99) == (50.0, 50.0, 90.0, 99.0)


def test_quantiles_of_nothing_are_not_numbers() -> None:
    assert all(np.isnan(value) for value in vars(quantiles(np.array([NAN]))).values())


def test_latencies_by_hand(four: Replay) -> None:
    found = measure(four, FOUR)
    ttft = found.ttft  # 0.2, 0.5, 2
    assert (ttft.mean, ttft.p50) == (pytest.approx(0.9), 0.5)
    assert (ttft.p90, ttft.p99) == (pytest.approx(0.5 + 0.8 * 1.5), pytest.approx(0.5 + 0.98 * 1.5))
    assert found.tpot.mean == pytest.approx((1.0 / 2 + 4.0 / 4) / 2)  # one request has no second token
    assert found.itl.mean == pytest.approx((1.0 + 4.0) / (2 + 4))
    assert found.latency.p50 == pytest.approx(1.5)


def test_rates_by_hand(four: Replay) -> None:
    """Three requests of 9 answer and 60 prompt tokens in the 8 s from the first arrival to the last token."""
    found = measure(four, FOUR)
    assert found.requests_per_s == pytest.approx(3 / 8)
    assert found.output_tokens_per_s == pytest.approx(9 / 8)
    assert found.total_tokens_per_s == pytest.approx(69 / 8)
    assert (found.refused, found.hit_share) == (1, pytest.approx(25 / 100))
    assert (found.attained, found.goodput_rps) == (None, None)


@pytest.mark.parametrize(
    ("bounds", "kept"),
    [
        ({"ttft_s": 1.0}, 2),
        ({"ttft_s": 0.2}, 1),
        ({"tpot_s": 0.6}, 2),  # who has no second token keeps to any
        ({"latency_s": 100.0}, 3),  # who is refused keeps to none
        ({"ttft_s": 1.0, "tpot_s": 0.4}, 1),
        ({"ttft_s": 0.1}, 0),
    ],
)
def test_goodput_by_hand(four: Replay, bounds: dict[str, float], kept: int) -> None:
    """Of four requests in 8 s: over the time of all rates, so that no more keep to the objective than end."""
    found = measure(four, FOUR, Objective(**bounds))
    assert (found.attained, found.goodput_rps) == (kept / 4, pytest.approx(kept / 8.0))
    assert (found.goodput_rps or 0.0) <= found.requests_per_s


def test_goodput_of_a_closed_loop_is_over_all_of_its_time(four: Replay) -> None:
    closed = replace(FOUR, arrival_s=np.zeros(4), concurrency=2)
    assert measure(four, closed, Objective(ttft_s=1.0)).goodput_rps == pytest.approx(2 / 8.0)


def test_a_steady_load_is_judged_on_the_time_in_which_it_comes(replayed: Callable[..., Replay]) -> None:
    """20 requests a second, each of 2 s beside the others: the last answer ends at 5 s, the load is 20/s anyway."""
    line = traffic(np.arange(60) / 20.0, np.ones(60, dtype=int), np.full(60, 20))
    found = replayed(line, lane_s=0.1, max_seqs=100)
    metrics = measure(found, line, Objective(ttft_s=1.0))
    assert found.span_s > 4.5
    assert (metrics.steady, metrics.window_s, metrics.attained) == (True, pytest.approx(3.0), 1.0)
    assert (metrics.requests_per_s, metrics.goodput_rps) == (pytest.approx(20.0), pytest.approx(20.0))
    assert metrics.output_tokens_per_s == pytest.approx(400.0)


@pytest.mark.parametrize("case", ["burst", "closed", "overloaded", "shorter than its answers", "turns"])
def test_what_is_no_steady_load_is_judged_until_its_last_token(replayed: Callable[..., Replay], case: str) -> None:
    """60 requests of 2 s, or of 2 s one after the other."""
    arrival = {"burst": np.zeros(60), "closed": np.zeros(60), "shorter than its answers": np.arange(60) / 60.0}
    line = traffic(
        arrival.get(case, np.arange(60) / 10.0), np.ones(60, dtype=int), np.full(60, 20),
        concurrency=60 if case == "closed" else None, after=np.arange(-1, 59) if case == "turns" else None,
    )  # fmt: skip
    found = replayed(line, lane_s=0.1, max_seqs=1 if case == "overloaded" else 100)
    metrics = measure(found, line, Objective(ttft_s=1.0))
    assert (metrics.steady, metrics.window_s) == (False, pytest.approx(found.span_s))
    assert metrics.requests_per_s == pytest.approx(60.0 / found.span_s)
    assert (metrics.goodput_rps or 0.0) <= metrics.requests_per_s


def test_goodput_of_a_tiny_replay(replayed: Callable[..., Replay]) -> None:
    """One place, iterations of 1 s, answers of 2 tokens, a request each second: first tokens after 1, 2, 3, 4 s."""
    line = traffic([0.0, 1.0, 2.0, 3.0], [1] * 4, [2] * 4)
    found = replayed(line, lane_s=1.0, max_seqs=1)
    np.testing.assert_allclose(found.first_s - found.came_s, [1.0, 2.0, 3.0, 4.0])
    metrics = measure(found, line, Objective(ttft_s=2.5, tpot_s=1.0 + 1e-9))
    assert (metrics.attained, metrics.goodput_rps) == (0.5, pytest.approx(2 / 8))
    assert metrics.tpot.p99 == pytest.approx(1.0)
    assert metrics.requests_per_s == pytest.approx(4 / 8)


@given(bound=st.floats(0.01, 10), more=st.floats(0, 10))
def test_a_looser_objective_is_kept_by_no_fewer(bound: float, more: float) -> None:
    times = np.random.default_rng(5).exponential(1.0, 50)
    found: Any = SimpleNamespace(
        came_s=np.zeros(50), first_s=times, end_s=2 * times, prompt=np.ones(50), output=np.full(50, 3),
        done=np.ones(50, dtype=bool), refused=np.zeros(50, dtype=bool), hit_tokens=np.zeros(50), span_s=20.0,
        itl_quantile=lambda share: NAN,
    )  # fmt: skip
    at_once = traffic(np.zeros(50), np.ones(50), np.full(50, 3))
    kept = [measure(found, at_once, Objective(ttft_s=one)).attained or 0.0 for one in (bound, bound + more)]
    assert kept[0] <= kept[1]
    assert kept[0] == pytest.approx(float((times <= bound).mean()))


# overload --------------------------------------------------------------------------------------------


def even(rate: float, count: int = 200) -> Traffic:
    return traffic(np.arange(count) / rate, np.ones(count, dtype=int), np.ones(count, dtype=int))


def rising(load: float) -> Traffic:
    """110 requests at a tenth of what 0.1 s each allow, then 90 at `load` times it."""
    arrival = np.cumsum(np.repeat([1.0, 0.1 / load], [110, 90])) - 1.0
    return traffic(arrival, np.ones(200, dtype=int), np.ones(200, dtype=int))


@pytest.mark.parametrize("load", [0.5, 0.99, 1.02])
def test_a_fleet_that_keeps_up_is_not_overloaded(replayed: Callable[..., Replay], load: float) -> None:
    """One place, 0.1 s each; 2 % too much grows a queue of 4 in 200 requests, which empties at once."""
    line = even(10 * load)
    assert overload(replayed(line, lane_s=0.1, max_seqs=1), line) == ""


@pytest.mark.parametrize("load", [50.0, 1000.0])
def test_overload_is_told_where_the_queue_grows(replayed: Callable[..., Replay], load: float) -> None:
    """Nobody waits when half have come; nearly all of the last 90 do when the last comes, 13.5 s of work."""
    line = rising(load)
    found = overload(replayed(line, lane_s=0.15, max_seqs=1), line)
    waiting, halfway = int(found.split()[0]), int(found.split(", ")[1].split()[0])
    assert (waiting, halfway) == (pytest.approx(90 * (1 - 1 / load), abs=2), 0)
    assert "requests wait when the last arrives" in found
    drain_s = float(found.rsplit(" s more", 1)[0].rsplit(" ", 1)[1])
    assert drain_s == pytest.approx(90 * (0.15 - 0.1 / load), abs=1)


def test_a_queue_that_is_emptied_soon_is_no_overload(replayed: Callable[..., Replay]) -> None:
    """The same burst at the end of a longer time: a tenth of it is enough to serve it."""
    line = rising(50.0)
    assert overload(replayed(line, lane_s=0.1, max_seqs=1), line) == ""  # 9 s after 109 s


def test_an_even_load_of_thrice_what_can_be_served_is_told(replayed: Callable[..., Replay]) -> None:
    line = even(30.0)
    assert overload(replayed(line, lane_s=0.1, max_seqs=1), line)


def test_users_who_wait_are_no_overload(replayed: Callable[..., Replay]) -> None:
    crowd = replace(even(40.0), arrival_s=np.zeros(200), concurrency=50)
    assert overload(replayed(crowd, lane_s=0.1, max_seqs=1), crowd) == ""


# intervals -------------------------------------------------------------------------------------------


@cache
def made(model: str, on: str, words: tuple[tuple[str, int], ...] = ()) -> tuple[Engine, StepTables]:
    one = engine(load(model), machine(cluster(on)), deployed(**dict(words)))  # type: ignore[arg-type]
    return one, one.tables(longest_prompt=2048, longest=4096)


@pytest.mark.parametrize(
    ("model", "on", "words"),
    [
        ("llama-3.1-8b", "1xH100-SXM", ()),
        ("llama-3.1-8b", "1xRTX-4090", (("max_seqs", 8),)),
        ("mixtral-8x7b", "8xA100-SXM-80GB", (("tp", 8),)),
        ("llama-3.1-70b", "8xMI300X", (("tp", 4), ("pp", 2))),
    ],
)
def test_intervals_hold_the_value(model: str, on: str, words: tuple[tuple[str, int], ...]) -> None:
    one, tables = made(model, on, words)
    for band in (decode_band(one, tables, 16.0, 1000.0), prefill_band(one, tables, 1000.0)):
        assert 0.0 < band.low < 1.0 < band.high < 4.0
        assert 0.0 < band.compute <= 1.0
        assert 0.0 < band.memory <= 1.0


def test_parts_of_an_iteration_add_up() -> None:
    """Decode is bound by memory, a long prompt by the matrix units; the host is the policy's own."""
    one, tables = made("llama-3.1-8b", "1xH100-SXM")
    decode, prefill = decode_parts(one, tables, 16.0, 1000.0), prefill_parts(one, tables, 2048.0)
    assert list(decode) == ["weights and links", "experts", "sampling", "attention", "host"]
    assert list(prefill) == ["weights and links", "experts", "attention", "host"]
    assert decode["experts"] == prefill["experts"] == 0.0
    assert decode["host"] == one.policy.exposed_host_s
    assert decode_band(one, tables, 16.0, 1000.0).memory > decode_band(one, tables, 16.0, 1000.0).compute
    assert prefill_band(one, tables, 2048.0).compute > prefill_band(one, tables, 2048.0).memory
    read_s = one.capacity.weights_bytes / one.machine.cluster.accelerator.memory_bytes_per_s
    assert read_s < decode["weights and links"] + decode["sampling"] < 2 * read_s


def test_a_prompt_beyond_the_budget_is_as_many_iterations_as_it_takes() -> None:
    """3,000 tokens at 1,024 an iteration: 1,024 and 1,024 after 1,024 and 952 after 2,048; three times the host."""
    one, tables = made("llama-3.1-8b", "1xH100-SXM", (("token_budget", 1024), ("chunked", True)))
    parts = prefill_parts(one, tables, 3000.0)
    lane = [float(np.interp(tokens, tables.tokens, tables.lane.mid)) for tokens in (1024.0, 1024.0, 952.0)]
    assert parts["weights and links"] == pytest.approx(sum(lane))
    assert parts["host"] == pytest.approx(3 * prefill_parts(one, tables, 900.0)["host"])
    alone = prefill_parts(one, tables, 1024.0)["attention"]
    assert parts["attention"] > 2 * alone + prefill_parts(one, tables, 952.0)["attention"]
    band = prefill_band(one, tables, 3000.0)
    assert 0.0 < band.low < 1.0 < band.high
