"""The time of an engine's iterations, compiled: tables read between grid points, runs of decode steps in closed form.

Shape letters: T tokens of an iteration on one rank, N decoding sequences, C mean context, Q tokens of a chunk, P cached
before it.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ridgeline.serving.compiling import clocked
from ridgeline.serving.state import Record

Array = NDArray[np.float64]
Times = Array  # tables of all kinds of instances end to end [s]; a rule says where each begins (`serving.rule`)
BINS = 640  # of the histogram of inter-token latencies
LINES, NO = 4, -np.inf  # an iteration that decodes takes the most of so many lines over attention's time; no line
Lines = tuple[float, float, float, float, float, float, float, float, float]  # the least, then constants and factors
Place = tuple[int, float]  # in a grid: the point below [1], and the share of the way to the next [1]
Batch = tuple[float, float, float]  # sequences of the busiest rank, of one scheduler, mean context [1, 1, token]
BIN_LOW_S, BINS_A_FACTOR = 1e-5, 40.0  # 40 bins in each factor of e: 2.5 % wide


@clocked
def below(times: Times, grid: int, size: int, at: float) -> int:
    """Place in a grid of the last point that is not beyond `at`, such that another follows it."""
    low, high = 0, size - 1
    while high - low > 1:
        middle = (low + high) // 2
        if times[grid + middle] <= at:
            low = middle
        else:
            high = middle
    return low


@clocked
def place_of(times: Times, grid: int, size: int, at: float) -> Place:
    """Where a point lies in a grid: the last grid point that is not beyond it, and the share of the way to the next.

    Beyond the last point it goes on, below the first it stays there.
    """
    if at <= times[grid] or size == 1:
        return 0, 0.0
    place = below(times, grid, size, at)
    start, end = times[grid + place], times[grid + place + 1]
    return place, float((at - start) / (end - start))


@clocked
def read(times: Times, table: int, at: Place) -> float:
    """A table at a place of its grid, linear between grid points."""
    place, share = at
    low = times[table + place]
    if share > 0.0:
        low += share * (times[table + place + 1] - low)
    return float(low)


@clocked
def read_two(times: Times, table: int, columns: int, row: Place, column: Place) -> float:
    """A table of rows of so many `columns` at a place of each of its grids, linear in each."""
    place, share = row
    table += place * columns
    low = read(times, table, column)
    if share > 0.0:
        low += share * (read(times, table + columns, column) - low)
    return low


@clocked
def at_tokens(times: Times, rule: Record, tokens: float) -> Place:
    """Where tokens of one attention rank lie in the tables over them."""
    return place_of(times, rule.tokens, rule.tokens_size, tokens)


@clocked
def at_sequences(times: Times, rule: Record, sequences: float) -> Place:
    """Where sequences lie in the tables over them."""
    return place_of(times, rule.sequences, rule.sequences_size, sequences)


@clocked
def chunk_s(times: Times, rule: Record, tokens: float, before: float) -> float:
    """Attention of one chunk of a prompt after what is cached before it [s]."""
    row = place_of(times, rule.chunks, rule.chunks_size, tokens)
    column = place_of(times, rule.pasts, rule.pasts_size, before)
    return read_two(times, rule.first, rule.pasts_size, row, column)


@clocked
def token_s(times: Times, rule: Record, tokens: float) -> float:
    """What the tokens of one attention rank take outside attention [s]."""
    return read(times, rule.lane, at_tokens(times, rule, tokens))


@clocked
def group_s(times: Times, rule: Record, tokens: float, prompts: bool) -> float:
    """What the experts take when each attention rank brings `tokens`, in a step or in an iteration with prompts [s]."""
    return read(times, rule.group + (rule.tokens_size if prompts else 0), at_tokens(times, rule, tokens))


@clocked
def head_s(times: Times, rule: Record, sequences: float) -> float:
    """What sampling so many sequences takes [s]."""
    return read(times, rule.head, at_sequences(times, rule, sequences))


@clocked
def decode_s(times: Times, rule: Record, sequences: float, context: float, cut: bool) -> float:
    """Attention of decoding sequences over their mean context in one iteration, or in both its halves [s]."""
    table = rule.nano_decode if cut else rule.decode
    column = place_of(times, rule.contexts, rule.contexts_size, context)
    return read_two(times, table, rule.contexts_size, at_sequences(times, rule, sequences), column)


@clocked
def padded(times: Times, rule: Record, sequences: float) -> float:
    """Sequences that a captured graph runs for so many [1]; 0 where no graph is large enough."""
    last = rule.graphs_size - 1
    if last < 0 or sequences > times[rule.graphs + last]:
        return 0.0
    place = below(times, rule.graphs, rule.graphs_size, sequences) if last > 0 else 0
    while times[rule.graphs + place] < sequences:
        place += 1
    return float(times[rule.graphs + place])


@clocked
def in_two(rule: Record, tokens: float) -> bool:
    """Whether an iteration of so many tokens a rank, a mean with its rounding, is cut in two nano-batches."""
    return bool(rule.nano_tokens > 0 and tokens >= max(rule.nano_tokens, 2 if rule.chain > 0.0 else 1) - 1e-9)


@clocked
def of_one_host(rule: Record, most: float, total: float) -> float:
    """Sequences that one scheduler sees: of each attention rank there is one, which a pipeline's batches share [1].

    At least the `most` that a batch has, at least its part of the `total` where batches are alike.
    """
    return float(max(most, total * (rule.hops + 1.0) / rule.ranks))


@clocked
def masks_s(rule: Record, sequences: float) -> float:
    """Making the masks of structured output of one iteration [s]."""
    threads = float(rule.mask_threads) if sequences > rule.mask_above else 1.0
    return float(rule.mask_s * sequences / max(threads, 1.0))


@clocked
def hosted(rule: Record, device_s: float, sequences: float) -> float:
    """An iteration with the host's part: beside the device where the engine overlaps it, else after it [s]."""
    host_s = rule.step_host_s + rule.seq_host_s * sequences
    made_s = masks_s(rule, sequences)
    device_s = max(device_s, made_s) if rule.masks_beside else device_s + made_s
    return float(max(device_s, host_s) if rule.overlapped else device_s + host_s)


@clocked
def with_group(times: Times, rule: Record, table: int, tokens: Place, shared: Place, prompts: bool) -> float:
    """What `tokens` of one rank take, and the experts when each rank brings `shared`: rows of one table [s]."""
    return read(times, table, tokens) + read(times, table + rule.tokens_size * (2 if prompts else 1), shared)


@clocked
def nano_parts(
    times: Times, rule: Record, tokens: float, shared: float, sampled: float, prompts: bool
) -> tuple[float, float, float]:
    """What both halves of an iteration take outside attention, that waits for compute, memory and links [s]."""
    one = at_tokens(times, rule, tokens)
    all_ranks = at_tokens(times, rule, shared) if shared != tokens else one
    head = at_sequences(times, rule, sampled)
    return (
        with_group(times, rule, rule.nano_compute, one, all_ranks, prompts) + read(times, rule.nano_head_compute, head),
        with_group(times, rule, rule.nano_memory, one, all_ranks, prompts) + read(times, rule.nano_head_memory, head),
        with_group(times, rule, rule.nano_network, one, all_ranks, prompts) + read(times, rule.nano_head_network, head),
    )


@clocked
def nano_s(rule: Record, parts: tuple[float, float, float], attention: float, sampled: float) -> float:
    """Nano-batches side by side, as `nano.overlapped_s` says, with attention of decoding sequences [s]."""
    compute, memory, network = parts
    own = memory + attention
    shared = compute + rule.memory_sms * own + rule.link_sms * network
    chain = rule.chain * (compute + own + network) + chain_host_s(rule, sampled)
    memory, network = memory + rule.attention_memory * attention, network + rule.attention_link * attention
    return float(rule.exposed_s + max(shared, memory, network, chain))


@clocked
def chain_host_s(rule: Record, sampled: float) -> float:
    """What the host of one nano-batch takes before its next iteration, where each has a host of its own [s]."""
    return float(rule.chain_step_s + rule.chain_seq_s * sampled)


@clocked
def last_stage(rule: Record, filled: bool) -> float:
    """How often what the last stage alone computes is waited for: by each batch where stages are filled [1]."""
    return float(rule.hops + 1.0 if filled else 1.0)


@clocked
def decode_lines(times: Times, rule: Record, busiest: float, mean: float, filled: bool, away_s: float) -> Lines:
    """What does not depend on the context in an iteration that only decodes: the least [s], then lines [s, 1].

    An iteration takes max(least, constant + factor * attention) with the constant and factor of every line: one, or of
    nano-batches one for each resource. The least is launching its kernels one by one, where no graph was captured, or
    `away_s`, what is fetched from host memory beside them; drafting comes after either.
    """
    captured = padded(times, rule, busiest)
    batch = captured if captured > 0.0 else busiest
    tokens = batch * (1.0 + rule.drafted)
    shared = max(mean, 1.0) * (1.0 + rule.drafted) * (batch / max(busiest, 1.0))
    drafts = rule.draft_share * last_stage(rule, filled)
    factor = (rule.balance if filled else 1.0) + drafts
    sends = rule.hops * (rule.send_start_s + rule.send_s * tokens)
    least = max(float(away_s), 0.0 if captured > 0.0 else float(rule.eager_s))
    if not in_two(rule, shared):
        seconds = token_s(times, rule, tokens) + group_s(times, rule, shared, False) + head_s(times, rule, batch)
        away = float(away_s + seconds * drafts) if away_s > 0.0 and drafts > 0.0 else NO
        return (least, float(seconds * factor + sends), float(factor), away, float(drafts), NO, 0.0, NO, 0.0)
    compute, memory, network = nano_parts(times, rule, tokens, shared, batch, False)
    extra = float(rule.exposed_s)
    beside = compute + rule.memory_sms * memory + rule.link_sms * network
    chain = rule.chain * (compute + memory + network) + chain_host_s(rule, busiest)
    return (
        least, extra + beside, float(rule.memory_sms), extra + memory, float(rule.attention_memory),
        extra + network, float(rule.attention_link), extra + chain, float(rule.chain),
    )  # fmt: skip


@clocked
def longest_prompt(rule: Record, chunks: NDArray[np.int64], count: int) -> int:
    """Tokens to which each of an iteration's prompts is padded: its longest or what is compiled, 0 where none is."""
    longest = int(rule.padded) if rule.padded > 1 else 0
    if rule.padded > 0:
        for index in range(count):
            longest = max(longest, int(chunks[index, 1]))
    return longest


@clocked
def chunks_s(times: Times, rule: Record, chunks: NDArray[np.int64], count: int) -> float:
    """Attention of the chunks of prompts in one iteration: one alone, or many that fill the device together [s]."""
    least = longest_prompt(rule, chunks, count)
    together, longest = 0.0, 0.0
    for index in range(count):
        row = place_of(times, rule.chunks, rule.chunks_size, float(max(chunks[index, 1], least)))
        column = place_of(times, rule.pasts, rule.pasts_size, float(chunks[index, 2]))
        longest = max(longest, read_two(times, rule.first, rule.pasts_size, row, column))
        if count > 1:
            together += read_two(times, rule.each, rule.pasts_size, row, column)
    return max(longest, together)


@clocked
def line_at(
    lines: Lines, line: int, from_s: float, to_s: float, width: float, past: float, gained: float
) -> tuple[float, float]:
    """One line `past` a grid point of contexts, and its growth in one step [s]."""
    constant_s, factor = lines[1 + 2 * line], lines[2 + 2 * line]
    low, high = factor * from_s, factor * to_s
    slope = (high - low) / width
    return constant_s + low + slope * past, slope * gained


@clocked
def run(
    times: Times, rule: Record, batch: Batch, lines: Lines, steps: int, limit_s: float, histogram: Array, weight: float
) -> tuple[int, float]:
    """Decode steps that fit and their time [s]: all `steps`, or up to the first that ends at `limit_s` or later.

    Context grows by what is gained each step; between two grid points the steps' times are an arithmetic series.
    With a `weight` above 0 each step's time is counted in the histogram.
    """
    sequences, running, context = batch
    done, elapsed = 0, 0.0
    least_s = lines[0]
    cut = lines[3] > NO
    row = below(times, rule.sequences, rule.sequences_size, sequences)
    few, more = times[rule.sequences + row], times[rule.sequences + row + 1]
    share = max((sequences - few) / (more - few), 0.0)
    lower = (rule.nano_decode if cut and rule.draft_share <= 0.0 else rule.decode) + row * rule.contexts_size
    upper = lower + rule.contexts_size
    while done < steps and elapsed < limit_s:
        column = below(times, rule.contexts, rule.contexts_size, context)
        start, end = times[rule.contexts + column], times[rule.contexts + column + 1]
        width, past = end - start, context - start
        from_s = times[lower + column] + share * (times[upper + column] - times[lower + column])
        to_s = times[lower + column + 1] + share * (times[upper + column + 1] - times[lower + column + 1])
        here, growth = line_at(lines, 0, from_s, to_s, width, past, rule.gained)
        for line in range(1, LINES if cut else 1):
            other, other_growth = line_at(lines, line, from_s, to_s, width, past, rule.gained)
            if other > here:
                here, growth = other, other_growth
        inside = 1.0 + math.floor((end - context) / rule.gained) if column < rule.contexts_size - 2 else math.inf
        count = int(min(float(steps - done), max(inside, 1.0)))
        there = here + growth * (count - 1)
        for line in range(LINES if cut and count > 1 else 0):  # where another resource binds at the end, step by step
            other, other_growth = line_at(lines, line, from_s, to_s, width, past, rule.gained)
            if other + other_growth * (count - 1) > there:
                count, there = 1, here
                break
        made_s = masks_s(rule, running)
        floor = max(least_s, made_s if rule.masks_beside else 0.0)
        if rule.overlapped:
            floor = max(floor, rule.step_host_s + rule.seq_host_s * running - (0.0 if rule.masks_beside else made_s))
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


@clocked
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


@clocked
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


@clocked
def tally(histogram: Array, seconds: float, weight: float) -> None:
    """Counts `weight` tokens that came `seconds` after the one before."""
    place = int(math.log(max(seconds, BIN_LOW_S) / BIN_LOW_S) * BINS_A_FACTOR)
    histogram[min(max(place, 0), histogram.size - 1)] += weight
