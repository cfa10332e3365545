"""The compiled time of iterations against sums step by step and numpy.interp."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.serving import state
from ridgeline.serving.clock import (
    BIN_LOW_S,
    BINS,
    BINS_A_FACTOR,
    NO,
    Lines,
    Times,
    below,
    decode_lines,
    nano_parts,
    padded,
    place_of,
    read,
    read_two,
    run,
    tally,
)
from ridgeline.serving.rule import end_to_end

SEEDS = st.integers(0, 2**32)
RUNNING = 10.0


def laid(**tables: np.ndarray) -> tuple[Times, np.ndarray]:
    """Tables as the clock reads them, with the rule that says where they are."""
    times, places = end_to_end([tables])
    rule = np.zeros(1, dtype=state.RULE).view(np.recarray)
    for name, place in places.items():
        rule[name] = place
    return times, rule


def grid_of(draw: np.random.Generator, size: int) -> np.ndarray:
    return np.cumsum(draw.uniform(0.5, 20.0, size))


@dataclass
class Decode:
    """A table of decode steps and the rule that reads it, drawn at random; times may fall as contexts grow."""

    times: Times
    rule: np.ndarray
    sequences: np.ndarray
    contexts: np.ndarray
    values: np.ndarray
    lines: Lines  # the least, then what is beside attention and the factor of attention, of each line

    def steps_s(self, sequences: float, context: float, steps: int) -> list[float]:
        """Each step by itself, read by numpy.interp [s]."""
        return [self.step_s(sequences, context + float(self.rule["gained"][0]) * step) for step in range(steps)]

    def step_s(self, sequences: float, context: float) -> float:
        rows = [float(np.interp(context, self.contexts, row)) for row in self.values]
        attention_s = float(np.interp(sequences, self.sequences, rows))
        lines = zip(self.lines[1::2], self.lines[2::2], strict=True)
        device_s = max(self.lines[0], *(constant_s + factor * attention_s for constant_s, factor in lines))
        host_s = float(self.rule["step_host_s"][0] + self.rule["seq_host_s"][0] * RUNNING)
        return max(device_s, host_s) if self.rule["overlapped"][0] else device_s + host_s


def decode_of(seed: int, *, gained: float, overlapped: bool, cut: bool) -> Decode:
    draw = np.random.default_rng(seed)
    sequences, contexts = np.array([1.0, 2.0, 5.0, 9.0]), np.concatenate([[1.0], 1.0 + grid_of(draw, 6)])
    contexts[-1] = 1e6  # nothing is read beyond the table here
    values = draw.uniform(0.01, 0.05, (4, 7))
    times, rule = laid(
        sequences=sequences,
        contexts=contexts,
        decode=0.0 * values if cut else values,
        **({"nano_decode": values} if cut else {}),
    )
    rule["gained"], rule["overlapped"] = gained, overlapped
    rule["step_host_s"], rule["seq_host_s"] = draw.uniform(0, 0.06), 0.001
    least = float(draw.choice([0.0, draw.uniform(0.02, 0.1)]))
    lines = [0.02, draw.uniform(0.5, 2.0), NO, 0.0, NO, 0.0, NO, 0.0]
    if cut:
        lines[2:] = [draw.uniform(0.0, 0.04) if place % 2 == 0 else draw.uniform(0.0, 2.0) for place in range(6)]
    return Decode(times, rule, sequences, contexts, values, (least, *lines))  # type: ignore[arg-type]


CASES = {
    "seed": SEEDS,
    "gained": st.sampled_from([1.0, 1.5, 2.25, 3.7]),
    "overlapped": st.booleans(),
    "sequences": st.integers(1, 9),
    "context": st.floats(1.0, 150.0),
    "steps": st.integers(1, 120),
    "cut": st.booleans(),
}


@given(**CASES)
@settings(max_examples=300, deadline=None)
def test_a_run_is_the_sum_of_its_steps(
    seed: int,
    gained: float,
    overlapped: bool,
    sequences: int,
    context: float,
    steps: int,
    cut: bool,
) -> None:
    found = decode_of(seed, gained=gained, overlapped=overlapped, cut=cut)
    histogram = np.zeros(BINS)
    done, elapsed = run(
        found.times, found.rule[0], (sequences, RUNNING, context), found.lines, steps, math.inf, histogram, 3.0
    )
    one_by_one = found.steps_s(sequences, context, steps)
    assert done == steps
    np.testing.assert_allclose(elapsed, math.fsum(one_by_one), rtol=1e-9)
    np.testing.assert_allclose(histogram.sum(), 3.0 * steps, rtol=1e-12)
    places = np.flatnonzero(histogram)
    edges = BIN_LOW_S * np.exp((places + np.array([[0], [1]])) / BINS_A_FACTOR)
    assert (edges[1] > min(one_by_one) * 0.97).all()
    assert (edges[0] < max(one_by_one) * 1.03).all()


@given(limit_s=st.floats(0.0, 6.0), **CASES)
@settings(max_examples=300, deadline=None)
def test_a_run_is_cut_at_the_first_step_that_ends_at_the_limit_or_later(
    limit_s: float,
    seed: int,
    gained: float,
    overlapped: bool,
    sequences: int,
    context: float,
    steps: int,
    cut: bool,
) -> None:
    found = decode_of(seed, gained=gained, overlapped=overlapped, cut=cut)
    done, elapsed = run(
        found.times, found.rule[0], (sequences, RUNNING, context), found.lines, steps, limit_s, np.zeros(BINS), 0.0
    )
    ends = list(itertools.accumulate(found.steps_s(sequences, context, steps)))
    reached = next((place + 1 for place, end in enumerate(ends) if end >= limit_s), steps)
    if limit_s == 0.0:
        assert (done, elapsed) == (0, 0.0)  # nothing fits; the caller takes one step
    elif min(abs(end - limit_s) for end in ends) > 1e-9:
        assert done == reached
        np.testing.assert_allclose(elapsed, ends[reached - 1], rtol=1e-9)


def line(constant_s: float, factor: float, least_s: float) -> Lines:
    """An iteration of one line over attention's time."""
    return (least_s, constant_s, factor, NO, 0.0, NO, 0.0, NO, 0.0)


def test_two_batch_overlap_of_several_ranks_by_hand() -> None:
    """The busiest rank has 4 tokens, the mean one 2: what its own 4 wait for, and the experts of 2 a rank.

    Compute 4 x 1 + 2 x 10 in a step, 4 x 1 + 2 x 100 with prompts, and 5 of sampling; memory half of it and links a
    quarter, beside 7 s of attention. Of 4 and 4 tokens experts take twice as much; of a mean below 3 nothing is cut.
    """
    grid = np.array([1.0, 8.0])
    waits = np.stack([grid, 10.0 * grid, 100.0 * grid])
    heads = np.full(2, 5.0)
    times, rules = laid(
        tokens=grid, sequences=grid, lane=1000.0 * grid, group=np.zeros((2, 2)), head=0.0 * grid,
        nano_compute=waits, nano_memory=0.5 * waits, nano_network=0.25 * waits, nano_head_compute=heads,
        nano_head_memory=0.5 * heads, nano_head_network=0.25 * heads, graphs=np.zeros(0),
    )  # fmt: skip
    rule = rules[0]
    rule["gained"], rule["balance"], rule["nano_tokens"], rule["memory_sms"], rule["link_sms"] = 1.0, 1.0, 2, 0.5, 0.2
    rule["chain"], rule["attention_memory"] = 0.5, 1.0
    assert nano_parts(times, rule, 4.0, 2.0, 4.0, False) == (29.0, 14.5, 7.25)
    assert nano_parts(times, rule, 4.0, 2.0, 4.0, True) == (209.0, 104.5, 52.25)
    lines = decode_lines(times, rule, 4.0, 2.0, True, 0.0)
    assert lines[1:3] == pytest.approx((29.0 + 0.5 * 14.5 + 0.2 * 7.25, 0.5))  # multiprocessors
    assert lines[3:] == pytest.approx((14.5, 1.0, 7.25, 0.0, 0.5 * (29.0 + 14.5 + 7.25), 0.5))  # memory, links, a half
    assert decode_lines(times, rule, 4.0, 4.0, True, 0.0)[5] == pytest.approx(0.25 * (4 + 40 + 5))
    rule["nano_tokens"] = 3
    assert decode_lines(times, rule, 4.0, 2.0, True, 0.0)[1:4] == (4000.0, 1.0, NO)


def test_a_run_of_known_series() -> None:
    """Steps of 2, 3, 4, ... s: 14 s after four; a limit of 9 is reached by the third exactly."""
    grid, slope = np.array([1.0, 2.0]), np.array([[1.0, 2.0], [1.0, 2.0]])
    times, rule = laid(sequences=grid, contexts=grid, decode=slope, nano_decode=2.0 * slope)
    rule["gained"] = 1.0
    nobody = np.zeros(BINS)
    assert run(times, rule[0], (1.0, 1.0, 1.0), line(1.0, 1.0, 0.0), 4, math.inf, nobody, 0.0) == (4, 14.0)
    assert run(times, rule[0], (1.0, 1.0, 1.0), line(1.0, 1.0, 0.0), 100, 9.0, nobody, 0.0) == (3, 9.0)
    assert run(times, rule[0], (1.0, 1.0, 1.0), line(1.0, 1.0, 0.0), 100, 9.001, nobody, 0.0) == (4, 14.0)
    assert run(times, rule[0], (1.0, 1.0, 1.0), line(1.0, 2.0, 0.0), 3, math.inf, nobody, 0.0) == (3, 15.0)  # 3, 5, 7
    assert run(times, rule[0], (1.0, 1.0, 1.0), line(1.0, 1.0, 3.5), 4, math.inf, nobody, 0.0) == (
        4,
        16.0,
    )  # 3.5, 3.5, 4, 5
    rule["step_host_s"] = 0.5
    assert run(times, rule[0], (1.0, 1.0, 1.0), line(1.0, 1.0, 3.5), 4, math.inf, nobody, 0.0) == (4, 18.0)
    rule["overlapped"] = 1
    assert run(times, rule[0], (1.0, 1.0, 1.0), line(1.0, 1.0, 3.5), 4, math.inf, nobody, 0.0) == (4, 16.0)
    rule["step_host_s"] = 4.5
    assert run(times, rule[0], (1.0, 1.0, 1.0), line(1.0, 1.0, 3.5), 4, math.inf, nobody, 0.0) == (
        4,
        18.5,
    )  # 4.5 thrice, 5
    assert nobody.sum() == 0.0


def test_a_run_of_nano_batches_changes_what_binds() -> None:
    """Attention of 2, 4, 6, ... s in both halves: 5 s bind until attention alone does: 5, 5, 6, 8 s.

    Of the others, 1 s and half of attention's time, and three quarters of it, are never the most.
    """
    grid, slope = np.array([1.0, 2.0]), np.array([[1.0, 2.0], [1.0, 2.0]])
    times, rule = laid(sequences=grid, contexts=grid, decode=slope, nano_decode=2.0 * slope)
    rule["gained"] = 1.0
    lines = (0.0, 1.0, 0.5, 0.0, 1.0, 5.0, 0.0, 0.0, 0.75)
    nobody = np.zeros(BINS)
    assert run(times, rule[0], (1.0, 1.0, 1.0), lines, 4, math.inf, nobody, 0.0) == (4, 24.0)
    assert run(times, rule[0], (1.0, 1.0, 1.0), lines, 4, 10.0, nobody, 0.0) == (2, 10.0)
    assert run(times, rule[0], (1.0, 1.0, 1.0), line(1.0, 1.0, 0.0), 4, math.inf, nobody, 0.0) == (4, 14.0)


@given(seed=SEEDS, size=st.integers(2, 12))
@settings(max_examples=100, deadline=None)
def test_tables_read_as_numpy_interp_within_and_in_a_line_beyond(seed: int, size: int) -> None:
    draw = np.random.default_rng(seed)
    grid, values = grid_of(draw, size), draw.uniform(0, 1, size)
    times = np.concatenate([np.zeros(3), grid, values])

    def read_at(at: float) -> float:
        return read(times, 3 + size, place_of(times, 3, size, at))

    for at in draw.uniform(grid[0] - 5, grid[-1], 20):
        np.testing.assert_allclose(read_at(at), np.interp(at, grid, values), rtol=1e-12)
        place = below(times, 3, size, at)
        assert 0 <= place <= size - 2
        assert at < grid[0] or grid[place] <= at <= grid[place + 1]
    for at in grid:
        np.testing.assert_allclose(read_at(at), np.interp(at, grid, values), rtol=1e-12)
    slope = (values[-1] - values[-2]) / (grid[-1] - grid[-2])
    np.testing.assert_allclose(read_at(grid[-1] + 3.0), values[-1] + 3.0 * slope, rtol=1e-9)


@given(seed=SEEDS, rows=st.integers(1, 6), columns=st.integers(2, 6))
@settings(max_examples=100, deadline=None)
def test_two_sizes_read_as_interp_of_interps(seed: int, rows: int, columns: int) -> None:
    draw = np.random.default_rng(seed)
    row_grid, column_grid, values = grid_of(draw, rows), grid_of(draw, columns), draw.uniform(0, 1, (rows, columns))
    times = np.concatenate([row_grid, column_grid, np.ravel(values)])
    for _ in range(10):
        row, column = draw.uniform(row_grid[0] - 3, row_grid[-1]), draw.uniform(column_grid[0] - 3, column_grid[-1])
        inner = [np.interp(column, column_grid, line) for line in values]
        expected = np.interp(row, row_grid, inner)
        at = place_of(times, 0, rows, row), place_of(times, rows, columns, column)
        found = read_two(times, rows + columns, columns, *at)
        np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_batches_are_padded_to_the_next_graph() -> None:
    times, rule = laid(tokens=np.ones(5), graphs=np.array([1.0, 4.0, 8.0]))
    assert [padded(times, rule[0], float(size)) for size in (1, 2, 4, 5, 8, 9)] == [1.0, 4.0, 4.0, 8.0, 8.0, 0.0]
    rule["graphs_size"] = 1
    assert [padded(times, rule[0], float(size)) for size in (1, 2)] == [1.0, 0.0]
    rule["graphs_size"] = 0
    assert padded(times, rule[0], 1.0) == 0.0


@given(seconds=st.floats(0.0, 1e6), weight=st.floats(0.1, 100))
@settings(max_examples=100, deadline=None)
def test_a_latency_is_counted_in_the_bin_that_holds_it(seconds: float, weight: float) -> None:
    histogram = np.zeros(BINS)
    tally(histogram, seconds, weight)
    (place,) = np.flatnonzero(histogram)
    assert histogram[place] == weight
    if BIN_LOW_S < seconds < BIN_LOW_S * math.exp((BINS - 1) / BINS_A_FACTOR):
        low = BIN_LOW_S * math.exp(place / BINS_A_FACTOR)
        assert low * (1 - 1e-9) <= seconds <= low * math.exp(1 / BINS_A_FACTOR) * (1 + 1e-9)


def test_tables_of_several_kinds_lie_one_behind_the_other() -> None:
    """Two of tokens and two of lane, then three of each and nothing of send for the first, one for the second."""
    one = {"tokens": np.array([1.0, 2.0]), "lane": np.array([5.0, 6.0])}
    two = {"tokens": np.array([1.0, 4.0, 9.0]), "lane": np.array([7.0, 8.0, 9.0]), "send": np.array([3.0])}
    times, places = end_to_end([one, two])
    assert times.tolist() == [1.0, 2.0, 5.0, 6.0, 1.0, 4.0, 9.0, 7.0, 8.0, 9.0, 3.0]
    assert places == {"tokens": [0, 4], "lane": [2, 7], "send": [4, 10], "tokens_size": [2, 3]}
