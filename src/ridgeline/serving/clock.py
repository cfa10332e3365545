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
LINES, NO = 4, -np.inf  # an iteration that decodes takes the most of so many lines over attention's time; no line
Lines = tuple[float, float, float, float, float, float, float, float, float]  # the least, then constants and factors
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
    nano_compute: Array  # (X, T) both halves of an iteration that is cut in two, by what their kernels wait for
    nano_memory: Array
    nano_network: Array
    nano_head_compute: Array  # (X, N)
    nano_head_memory: Array
    nano_head_network: Array
    nano_decode: Array  # (X, N, C)
    busy: Array  # (X, T) memory in an iteration of a split device, whose kernels stand in `nano_`, whole
    head_busy: Array  # (X, N)
    send: Array  # (X, T) one micro-batch between attention's devices and the experts', one way


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
def decode_s(times: Times, rule: Record, sequences: float, context: float, cut: bool) -> float:
    """Attention of decoding sequences over their mean context in one iteration, or in both its halves [s]."""
    rows, columns, kind = rule.sequences_size, rule.contexts_size, rule.kind
    table = times.nano_decode[kind] if cut else times.decode[kind]
    return between_two(times.sequences[kind, :rows], times.contexts[kind, :columns], table, sequences, context)


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
def in_two(rule: Record, tokens: float) -> bool:
    """Whether an iteration of so many tokens is cut in two nano-batches."""
    return bool(rule.nano_tokens > 0 and tokens >= max(rule.nano_tokens, 2))


@njit(cache=True, error_model="numpy")
def hosted(rule: Record, device_s: float, sequences: float) -> float:
    """An iteration with the host's part: beside the device where the engine overlaps it, else after it [s]."""
    host_s = rule.step_host_s + rule.seq_host_s * sequences
    return float(max(device_s, host_s) if rule.overlapped else device_s + host_s)


@njit(cache=True, error_model="numpy")
def nano_parts(times: Times, rule: Record, tokens: float, sampled: float) -> tuple[float, float, float]:
    """What both halves of an iteration take outside attention, that waits for compute, memory and links [s]."""
    size, count = rule.tokens_size, rule.sequences_size
    grid, counts = times.tokens[rule.kind, :size], times.sequences[rule.kind, :count]
    return (
        between(grid, times.nano_compute[rule.kind, :size], tokens)
        + between(counts, times.nano_head_compute[rule.kind, :count], sampled),
        between(grid, times.nano_memory[rule.kind, :size], tokens)
        + between(counts, times.nano_head_memory[rule.kind, :count], sampled),
        between(grid, times.nano_network[rule.kind, :size], tokens)
        + between(counts, times.nano_head_network[rule.kind, :count], sampled),
    )


@njit(cache=True, error_model="numpy")
def nano_s(rule: Record, compute: float, memory: float, network: float) -> float:
    """Two nano-batches side by side, as `nano.overlapped_s` says [s]."""
    shared = compute + rule.memory_sms * memory + rule.link_sms * network
    return float(rule.exposed_s + max(shared, memory, network, 0.5 * (compute + memory + network)))


@njit(cache=True, error_model="numpy")
def decode_lines(times: Times, rule: Record, busiest: float, mean: float, filled: bool, away_s: float) -> Lines:
    """What does not depend on the context in an iteration that only decodes: the least [s], then lines [s, 1].

    An iteration takes max(least, constant + factor * attention) with the constant and factor of every line: one, or of
    nano-batches one for each resource. The least is launching its kernels one by one, where no graph was captured, or
    `away_s`, what is fetched from host memory beside them.
    """
    captured = padded(times, rule, busiest)
    batch = captured if captured > 0.0 else busiest
    tokens = batch * (1.0 + rule.drafted)
    shared = max(mean, 1.0) * (1.0 + rule.drafted) * (batch / max(busiest, 1.0))
    seconds = token_s(times, rule, tokens) + group_s(times, rule, shared) + head_s(times, rule, batch)
    factor = (rule.balance if filled else 1.0) * (1.0 + rule.draft_share)
    sends = rule.hops * (rule.send_start_s + rule.send_s * tokens)
    least = max(float(away_s), 0.0 if captured > 0.0 else float(rule.eager_s))
    if not in_two(rule, tokens):
        return (least, float(seconds * factor + sends), float(factor), NO, 0.0, NO, 0.0, NO, 0.0)
    compute, memory, network = nano_parts(times, rule, tokens, batch)
    extra = float(rule.exposed_s)
    shared = compute + rule.memory_sms * memory + rule.link_sms * network
    half = 0.5 * (compute + memory + network)
    return (
        least, extra + shared, float(rule.memory_sms), extra + memory, 1.0, extra + network, 0.0, extra + half, 0.5,
    )  # fmt: skip


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
def line_at(
    lines: Lines, line: int, from_s: float, to_s: float, width: float, past: float, gained: float
) -> tuple[float, float]:
    """One line `past` a grid point of contexts, and its growth in one step [s]."""
    constant_s, factor = lines[1 + 2 * line], lines[2 + 2 * line]
    low, high = factor * from_s, factor * to_s
    slope = (high - low) / width
    return constant_s + low + slope * past, slope * gained


@njit(cache=True, error_model="numpy")
def run(
    times: Times,
    rule: Record,
    sequences: float,
    running: float,
    context: float,
    lines: Lines,
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
    least_s = lines[0]
    cut = lines[3] > NO
    counts = times.sequences[rule.kind, : rule.sequences_size]
    row = below(counts, sequences)
    share = max((sequences - counts[row]) / (counts[row + 1] - counts[row]), 0.0)
    grid = times.contexts[rule.kind, : rule.contexts_size]
    table = times.nano_decode[rule.kind] if cut else times.decode[rule.kind]
    lower, upper = table[row], table[row + 1]
    while done < steps and elapsed < limit_s:
        column = below(grid, context)
        width = grid[column + 1] - grid[column]
        from_s = lower[column] + share * (upper[column] - lower[column])
        to_s = lower[column + 1] + share * (upper[column + 1] - lower[column + 1])
        here, growth = line_at(lines, 0, from_s, to_s, width, context - grid[column], rule.gained)
        for line in range(1, LINES if cut else 1):
            other, other_growth = line_at(lines, line, from_s, to_s, width, context - grid[column], rule.gained)
            if other > here:
                here, growth = other, other_growth
        inside = 1.0 + math.floor((grid[column + 1] - context) / rule.gained) if column < grid.size - 2 else math.inf
        count = int(min(float(steps - done), max(inside, 1.0)))
        there = here + growth * (count - 1)
        for line in range(LINES if cut and count > 1 else 0):  # where another resource binds at the end, step by step
            other, other_growth = line_at(lines, line, from_s, to_s, width, context - grid[column], rule.gained)
            if other + other_growth * (count - 1) > there:
                count, there = 1, here
                break
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
