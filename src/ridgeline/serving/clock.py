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

Array = NDArray[np.float64]
BINS = 640  # of the histogram of inter-token latencies
BIN_LOW_S, BINS_A_FACTOR = 1e-5, 40.0  # 40 bins in each factor of e: 2.5 % wide


class Times(NamedTuple):
    """The tables of `serving.step` as the compiled loop reads them [s], and the engine's host."""

    tokens: Array
    lane: Array
    group: Array
    sequences: Array
    head: Array
    contexts: Array
    decode: Array  # (N, C)
    chunks: Array
    pasts: Array
    first: Array  # (Q, P)
    each: Array  # (Q, P)
    graphs: Array  # sizes of captured batches, ascending; empty: none
    eager_s: float  # host time to launch one iteration kernel by kernel
    step_host_s: float
    seq_host_s: float
    overlapped: bool  # the host prepares the next iteration while the device runs
    prefill_graphs: float  # tokens up to which iterations with prompts replay captured pieces
    balance: float  # cycle of a full pipeline over its latency, at least 1
    hops: float  # sends of one iteration
    send_start_s: float
    send_s: float  # a token
    ranks: int  # attention ranks whose tokens the experts see together
    drafted: float  # further tokens that each sequence verifies in an iteration
    gained: float  # tokens that a sequence gains in an iteration
    draft_share: float  # of a decode iteration that drafting adds


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
def padded(times: Times, sequences: float) -> float:
    """Sequences that a captured graph runs for so many [1]; as many where none is large enough."""
    place = np.searchsorted(times.graphs, sequences)
    return float(times.graphs[place]) if place < times.graphs.size else sequences


@njit(cache=True, error_model="numpy")
def hosted(times: Times, device_s: float, sequences: float) -> float:
    """An iteration with the host's part: beside the device where the engine overlaps it, else after it [s]."""
    host_s = times.step_host_s + times.seq_host_s * sequences
    return max(device_s, host_s) if times.overlapped else device_s + host_s


@njit(cache=True, error_model="numpy")
def decode_constant(times: Times, busiest: float, mean: float, filled: bool) -> float:
    """What does not depend on the context in an iteration that only decodes, captured in a graph or launched [s]."""
    captured = times.graphs.size > 0 and busiest <= times.graphs[-1]
    run = padded(times, busiest) if captured else busiest
    tokens = run * (1.0 + times.drafted)
    shared = max(mean, 1.0) * (1.0 + times.drafted) * (run / max(busiest, 1.0))
    seconds = between(times.tokens, times.lane, tokens) + between(times.tokens, times.group, shared)
    seconds += between(times.sequences, times.head, run)
    if not captured:
        seconds = max(seconds, times.eager_s)
    if filled:
        seconds *= times.balance
    return seconds * (1.0 + times.draft_share) + times.hops * (times.send_start_s + times.send_s * tokens)


@njit(cache=True, error_model="numpy")
def chunks_s(times: Times, chunks: NDArray[np.int64], pasts: NDArray[np.int64], count: int) -> float:
    """Attention of the chunks of prompts in one iteration: one alone, or many that fill the device together [s]."""
    together, longest = 0.0, 0.0
    for index in range(count):
        q, p = float(chunks[index]), float(pasts[index])
        longest = max(longest, between_two(times.chunks, times.pasts, times.first, q, p))
        if count > 1:
            together += between_two(times.chunks, times.pasts, times.each, q, p)
    return max(longest, together)


@njit(cache=True, error_model="numpy")
def run(
    times: Times,
    sequences: float,
    running: float,
    context: float,
    constant_s: float,
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
    row = below(times.sequences, sequences)
    share = (sequences - times.sequences[row]) / (times.sequences[row + 1] - times.sequences[row])
    share = max(share, 0.0)
    grid = times.contexts
    while done < steps and elapsed < limit_s:
        column = below(grid, context)
        width = grid[column + 1] - grid[column]
        low = times.decode[row, column] + share * (times.decode[row + 1, column] - times.decode[row, column])
        high = times.decode[row, column + 1]
        high += share * (times.decode[row + 1, column + 1] - times.decode[row, column + 1])
        slope = (high - low) / width
        here = constant_s + low + slope * (context - grid[column])
        growth = slope * times.gained
        inside = 1.0 + math.floor((grid[column + 1] - context) / times.gained) if column < grid.size - 2 else math.inf
        count = int(min(float(steps - done), max(inside, 1.0)))
        first, last = hosted(times, here, running), hosted(times, here + growth * (count - 1), running)
        if times.overlapped and count > 1:
            # the host may be the longer part at one end only: such steps are taken one by one
            by_host = times.step_host_s + times.seq_host_s * running
            if (here > by_host) != (here + growth * (count - 1) > by_host):
                count, last = 1, first
        step_growth = (last - first) / (count - 1) if count > 1 else 0.0
        total = count * first + step_growth * count * (count - 1) / 2.0
        if elapsed + total >= limit_s:
            count = _fewest(first, step_growth, count, limit_s - elapsed)
            total = count * first + step_growth * count * (count - 1) / 2.0
        if weight > 0.0:
            _tally_series(histogram, first, step_growth, count, weight)
        done += count
        elapsed += total
        context += times.gained * count
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
