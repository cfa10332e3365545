"""Prompts and answers side by side on one device, each on a share of its multiprocessors, both on one memory.

Two streams of iterations: one computes prompts, the other decodes. Kernels that wait for compute take as much longer as
the share is smaller; a part of the multiprocessors keeps memory or a link busy already; and what both streams ask of
memory beyond its rate slows both. Source: Nexus (Shi and others, 2025, arXiv:2507.06608).

Letters: c, m, n times of kernels that wait for compute, memory and links, the stream alone on the device; b busy time
of memory in all of them; x the stream's share of multiprocessors, u of memory's rate that the other stream asks for.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ridgeline.cost.seconds import Seconds
from ridgeline.serving.clock import (
    NO,
    Lines,
    Times,
    at_sequences,
    at_tokens,
    chunks_s,
    decode_s,
    nano_parts,
    padded,
    read,
    with_group,
)
from ridgeline.serving.compiling import clocked
from ridgeline.serving.state import Clock, Record

Stream = tuple[float, float, float, float]  # c, m, n and b of an iteration of one stream [s]
SHARES = 16  # a device is divided in so many parts


@dataclass(frozen=True, kw_only=True)
class SplitTables:
    """An iteration by what each kernel waits for, and how long memory is busy in it [s].

    `compute`, `memory`, `network` and `busy` (3, T) as in `nano.NanoTables`, with `head_` (N,) of sampling.
    """

    compute: Seconds
    memory: Seconds
    network: Seconds
    head_compute: Seconds
    head_memory: Seconds
    head_network: Seconds
    busy: Seconds
    head_busy: Seconds


def memory_only(found: Seconds) -> Seconds:
    """How long kernels keep memory busy, never longer than they take [s]."""
    mid, low, high = (np.minimum(found.memory, end) for end in (found.mid, found.low, found.high))
    return Seconds(mid=mid, low=low, high=high, compute=0.0 * mid, memory=found.memory)


@clocked
def stretch(needed: float, share: float) -> float:
    """How much longer kernels take on a share of the multiprocessors of which `needed` keep them as fast [1]."""
    return max(1.0, needed / share)


@clocked
def alone_s(rule: Record, compute: float, memory: float, network: float, share: float) -> float:
    """A stream's iteration on a share of the multiprocessors, nobody else at memory [s].

    t = c / x + m max(1, s_m / x) + n max(1, s_n / x), with what the host exposes
    """
    slow, linked = stretch(rule.memory_sms, share), stretch(rule.link_sms, share)
    return float(rule.exposed_s + compute / share + memory * slow + network * linked)


@clocked
def beside_s(seconds: float, busy: float, asked: float) -> float:
    """An iteration of `seconds`, memory `busy` in it, beside a stream that asks for a share of memory's rate [s].

    t = max(t, b + u t): where both ask for more than the rate, both take as much longer.
    """
    return max(seconds, busy + asked * seconds)


@clocked
def _busy_s(times: Times, rule: Record, tokens: float, sampled: float, prompts: bool) -> float:
    """How long memory is busy in an iteration, attention apart [s]."""
    rows = at_tokens(times, rule, tokens)
    busy = with_group(times, rule, rule.busy, rows, rows, prompts)
    return busy + read(times, rule.head_busy, at_sequences(times, rule, sampled))


@clocked
def split_lines(times: Times, rule: Record, sequences: float, share: float, asked: float) -> Lines:
    """The lines of a decode step over attention's time, as `clock.decode_lines`: alone on its share, and at memory.

    Attention waits for memory all the time.
    """
    captured = padded(times, rule, sequences)
    batch = captured if captured > 0.0 else sequences
    compute, memory, network = nano_parts(times, rule, batch, batch, batch, False)
    constant = alone_s(rule, compute, memory, network, share)
    slow = stretch(rule.memory_sms, share)
    least = 0.0 if captured > 0.0 else float(rule.eager_s)
    moved = _busy_s(times, rule, batch, batch, False)
    return (least, constant, slow, moved + asked * constant, 1.0 + asked * slow, NO, 0.0, NO, 0.0)


@clocked
def prompt_s(clock: Clock, rule: Record, instance: int) -> tuple[float, float]:
    """An iteration of prompts and how many there are; notes its share and what it asks of memory [s, 1]."""
    rank = clock.instances[instance].first_rank
    tokens, sampled = 0.0, float(clock.ranks[rank].chunks)
    for place in range(clock.ranks[rank].chunks):
        tokens += clock.chunks[rank, place, 1]
    compute, memory, network = nano_parts(clock.times, rule, tokens, tokens, sampled, True)
    compute += chunks_s(clock.times, rule, clock.chunks[rank], clock.ranks[rank].chunks)
    busy = _busy_s(clock.times, rule, tokens, sampled, True)
    share, others = 1.0, 0.0
    if clock.ranks[rank].decoding > 0:
        sequences = float(clock.ranks[rank].decoding)
        captured = padded(clock.times, rule, sequences)
        batch = captured if captured > 0.0 else sequences
        first, second, third = nano_parts(clock.times, rule, batch, batch, batch, False)
        attention = decode_s(clock.times, rule, sequences, clock.ranks[rank].context / sequences, False)
        second += attention
        moved = _busy_s(clock.times, rule, batch, batch, False) + attention
        share = float(rule.split_share)
        if rule.split_slack > 0.0:
            filled = clock.ranks[rank].used >= rule.split_fill * rule.capacity
            share = sided_share(rule, filled, (compute, memory, network, busy), (first, second, third, moved))
        elif share == 0.0:
            share = best_share(rule, (compute, memory, network, busy), (first, second, third, moved))
        others = moved / alone_s(rule, first, second, third, 1.0 - share)
    own = alone_s(rule, compute, memory, network, share)
    clock.instances[instance].share, clock.instances[instance].asks = share, busy / own
    seconds = beside_s(own, busy, others)
    if tokens > rule.prefill_graphs:
        seconds = max(seconds, rule.eager_s)
    return seconds, sampled


@clocked
def best_share(rule: Record, own: Stream, other: Stream) -> float:
    """The share of multiprocessors with which both streams together get on most [1].

    Maximises the sum over both of the time alone on the whole device over that beside the other; 1 is taking turns.
    """
    compute, memory, network, busy = own
    other_compute, other_memory, other_network, other_busy = other
    whole = alone_s(rule, compute, memory, network, 1.0)
    other_whole = alone_s(rule, other_compute, other_memory, other_network, 1.0)
    best, most = 0.5, 0.0
    for part in range(1, SHARES):
        share = part / SHARES
        mine = alone_s(rule, compute, memory, network, share)
        theirs = alone_s(rule, other_compute, other_memory, other_network, 1.0 - share)
        seconds = beside_s(mine, busy, other_busy / theirs)
        other_seconds = beside_s(theirs, other_busy, busy / mine)
        found = whole / seconds + other_whole / other_seconds
        if found > most:
            best, most = share, found
    return best


@clocked
def sided_share(rule: Record, filled: bool, own: Stream, other: Stream) -> float:
    """The share with which one side is shortest while the other takes at most `split_slack` times its time alone [1].

    The favoured side is prompts, or decode steps where the cache is `filled`; where no share keeps the other side to
    its bound, that with which it is shortest.
    """
    compute, memory, network, busy = own
    other_compute, other_memory, other_network, other_busy = other
    whole = alone_s(rule, other_compute, other_memory, other_network, 1.0)
    if filled:
        whole = alone_s(rule, compute, memory, network, 1.0)
    best, shortest = 0.5, np.inf
    kept, least = False, np.inf
    for part in range(1, SHARES):
        share = part / SHARES
        mine = alone_s(rule, compute, memory, network, share)
        theirs = alone_s(rule, other_compute, other_memory, other_network, 1.0 - share)
        favoured, bound = beside_s(mine, busy, other_busy / theirs), beside_s(theirs, other_busy, busy / mine)
        if filled:
            favoured, bound = bound, favoured
        if bound <= rule.split_slack * whole:
            if not kept or favoured < shortest:
                best, shortest, kept = share, favoured, True
        elif not kept and bound < least:
            best, least = share, bound
    return best
