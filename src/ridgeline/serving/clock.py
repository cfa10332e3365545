"""The time of an engine's iterations, compiled: tables read between grid points, runs of decode steps in closed form.

Shape letters: T tokens of an iteration on one rank, N decoding sequences, C mean context, Q tokens of a chunk, P cached
before it.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ridgeline.serving.state import Record

Array = NDArray[np.float64]
BINS = 640  # of the histogram of inter-token latencies
BIN_LOW_S, BINS_A_FACTOR = 1e-5, 40.0  # 40 bins in each factor of e: 2.5 % wide


class Times(NamedTuple):
    """The tables of `serving.step` [s] for each kind of instance X, filled up to the size of the largest."""

    tokens: Array  # (X, T)
    lane: Array
    group: Array
    sequences: Array  # (X, N)
    head: Array
    contexts: Array  # (X, C)
    decode: Array  # (X, N, C)
    chunks: Array  # (X, Q)
    pasts: Array  # (X, P)
    first: Array  # (X, Q, P)
    each: Array  # (X, Q, P)
    graphs: Array  # (X, sizes of captured batches), ascending


@njit(cache=True, error_model="numpy")
def below(grid: Array, at: float) -> int:
    """Place of the last grid point that is not beyond `at`, such that another follows it."""
    low, high = 0, grid.size - 1
    while high - low > 1:
        middle = (low + high) // 2
        if grid[middle] <= at:
            low = middle
        else:
            high = middle
    return low


@njit(cache=True, error_model="numpy")
def between(grid: Array, values: Array, at: float) -> float:
    """A table read at one point: linear between grid points and beyond the last, constant below the first."""
    last = grid.size - 1
    if at <= grid[0] or last == 0:
        return float(values[0])
    index = below(grid, at)
    share = (at - grid[index]) / (grid[index + 1] - grid[index])
    return float(values[index] + share * (values[index + 1] - values[index]))


@njit(cache=True, error_model="numpy")
def between_two(rows: Array, columns: Array, values: Array, row: float, column: float) -> float:
    """A table of two sizes read at one point, linear in each."""
    last = rows.size - 1
    if row <= rows[0] or last == 0:
        return float(between(columns, values[0], column))
    index = below(rows, row)
    share = (row - rows[index]) / (rows[index + 1] - rows[index])
    low = between(columns, values[index], column)
    return float(low + share * (between(columns, values[index + 1], column) - low))


@njit(cache=True, error_model="numpy")
def token_s(times: Times, rule: Record, tokens: float) -> float:
    """What the tokens of one attention rank take outside attention [s]."""
    size = rule.tokens_size
    return float(between(times.tokens[rule.kind, :size], times.lane[rule.kind, :size], tokens))


@njit(cache=True, error_model="numpy")
def group_s(times: Times, rule: Record, tokens: float) -> float:
    """What the experts take when each attention rank brings `tokens` [s]."""
    size = rule.tokens_size
    return between(times.tokens[rule.kind, :size], times.group[rule.kind, :size], tokens)


@njit(cache=True, error_model="numpy")
def head_s(times: Times, rule: Record, sequences: float) -> float:
    """What sampling so many sequences takes [s]."""
    size = rule.sequences_size
    return between(times.sequences[rule.kind, :size], times.head[rule.kind, :size], sequences)


@njit(cache=True, error_model="numpy")
def decode_s(times: Times, rule: Record, sequences: float, context: float) -> float:
    """Attention of decoding sequences over their mean context in one iteration [s]."""
    rows, columns, kind = rule.sequences_size, rule.contexts_size, rule.kind
    return between_two(
        times.sequences[kind, :rows], times.contexts[kind, :columns], times.decode[kind], sequences, context
    )


@njit(cache=True, error_model="numpy")
def padded(times: Times, rule: Record, sequences: float) -> float:
    """Sequences that a captured graph runs for so many [1]; 0 where no graph is large enough."""
    graphs = times.graphs[rule.kind, : rule.graphs_size]
    if rule.graphs_size == 0 or sequences > graphs[rule.graphs_size - 1]:
        return 0.0
    place = below(graphs, sequences) if rule.graphs_size > 1 else 0
    while graphs[place] < sequences:
        place += 1
    return float(graphs[place])


@njit(cache=True, error_model="numpy")
def hosted(rule: Record, device_s: float, sequences: float) -> float:
    """An iteration with the host's part: beside the device where the engine overlaps it, else after it [s]."""
    host_s = rule.step_host_s + rule.seq_host_s * sequences
    return float(max(device_s, host_s) if rule.overlapped else device_s + host_s)


@njit(cache=True, error_model="numpy")
def decode_constant(
    times: Times, rule: Record, busiest: float, mean: float, filled: bool
) -> tuple[float, float, float]:
    """What does not depend on the context in an iteration that only decodes: constant, factor and least [s, 1, s].

    An iteration takes max(constant + factor * attention, least): the least is launching its kernels one by one, where
    no graph was captured.
    """
    captured = padded(times, rule, busiest)
    batch = captured if captured > 0.0 else busiest
    tokens = batch * (1.0 + rule.drafted)
    shared = max(mean, 1.0) * (1.0 + rule.drafted) * (batch / max(busiest, 1.0))
    seconds = token_s(times, rule, tokens) + group_s(times, rule, shared) + head_s(times, rule, batch)
    factor = (rule.balance if filled else 1.0) * (1.0 + rule.draft_share)
    sends = rule.hops * (rule.send_start_s + rule.send_s * tokens)
    return float(seconds * factor + sends), float(factor), 0.0 if captured > 0.0 else float(rule.eager_s)


@njit(cache=True, error_model="numpy")
def chunks_s(times: Times, rule: Record, chunks: NDArray[np.int64], count: int) -> float:
    """Attention of the chunks of prompts in one iteration: one alone, or many that fill the device together [s]."""
    together, longest = 0.0, 0.0
    kind = rule.kind
    rows, columns = times.chunks[kind, : rule.chunks_size], times.pasts[kind, : rule.pasts_size]
    for index in range(count):
        tokens, before = float(chunks[index, 1]), float(chunks[index, 2])
        longest = max(longest, between_two(rows, columns, times.first[kind], tokens, before))
        if count > 1:
            together += between_two(rows, columns, times.each[kind], tokens, before)
    return max(longest, together)


@njit(cache=True, error_model="numpy")
def run(
    times: Times,
    rule: Record,
    sequences: float,
    running: float,
    context: float,
    constant: tuple[float, float, float],
    steps: int,
    limit_s: float,
    histogram: Array,
    weight: float,
) -> tuple[int, float]:
    """Decode steps that fit and their time [s]: all `steps`, or up to the first that ends at `limit_s` or later.

    Context grows by what is gained each step; between two grid points the steps' times are an arithmetic series.
    With a `weight` above 0 each step's time is counted in the histogram.
    """
    done, elapsed = 0, 0.0
    constant_s, factor, least_s = constant
    counts = times.sequences[rule.kind, : rule.sequences_size]
    row = below(counts, sequences)
    share = max((sequences - counts[row]) / (counts[row + 1] - counts[row]), 0.0)
    grid = times.contexts[rule.kind, : rule.contexts_size]
    lower, upper = times.decode[rule.kind, row], times.decode[rule.kind, row + 1]
    while done < steps and elapsed < limit_s:
        column = below(grid, context)
        width = grid[column + 1] - grid[column]
        low = factor * (lower[column] + share * (upper[column] - lower[column]))
        high = factor * (lower[column + 1] + share * (upper[column + 1] - lower[column + 1]))
        slope = (high - low) / width
        here = constant_s + low + slope * (context - grid[column])
        growth = slope * rule.gained
        inside = 1.0 + math.floor((grid[column + 1] - context) / rule.gained) if column < grid.size - 2 else math.inf
        count = int(min(float(steps - done), max(inside, 1.0)))
        there = here + growth * (count - 1)
        floor = max(least_s, rule.step_host_s + rule.seq_host_s * running if rule.overlapped else 0.0)
        if count > 1 and (here > floor) != (there > floor):  # the floor lies between: such steps are taken one by one
            count, there = 1, here
        first = hosted(rule, max(here, least_s), running)
        last = hosted(rule, max(there, least_s), running)
        step_growth = (last - first) / (count - 1) if count > 1 else 0.0
        total = count * first + step_growth * count * (count - 1) / 2.0
        if elapsed + total >= limit_s:
            count = _fewest(first, step_growth, count, limit_s - elapsed)
            total = count * first + step_growth * count * (count - 1) / 2.0
        if weight > 0.0:
            _tally_series(histogram, first, step_growth, count, weight)
        done += count
        elapsed += total
        context += rule.gained * count
    return done, elapsed


@njit(cache=True, error_model="numpy")
def _fewest(first: float, growth: float, count: int, limit_s: float) -> int:
    """The fewest terms of an arithmetic series whose sum reaches `limit_s`, at most `count` [1]."""
    low, high = 1, count
    while low < high:
        middle = (low + high) // 2
        if middle * first + growth * middle * (middle - 1) / 2.0 >= limit_s:
            high = middle
        else:
            low = middle + 1
    return low


@njit(cache=True, error_model="numpy")
def _tally_series(histogram: Array, first: float, growth: float, count: int, weight: float) -> None:
    """Counts the steps of a series, as many at once as lie within a bin."""
    last = first + growth * (count - 1)
    pieces = min(count, 1 + int(abs(math.log(max(last, BIN_LOW_S) / max(first, BIN_LOW_S))) * BINS_A_FACTOR))
    taken = 0
    for piece in range(pieces):
        until = count * (piece + 1) // pieces
        middle = first + growth * (taken + until - 1) / 2.0
        tally(histogram, middle, weight * (until - taken))
        taken = until


@njit(cache=True, error_model="numpy")
def tally(histogram: Array, seconds: float, weight: float) -> None:
    """Counts `weight` tokens that came `seconds` after the one before."""
    place = int(math.log(max(seconds, BIN_LOW_S) / BIN_LOW_S) * BINS_A_FACTOR)
    histogram[min(max(place, 0), histogram.size - 1)] += weight
