"""How fast a pipeline step can be at best: proven lower bounds of its simulation, in closed form.

Shape letters: P stages, v chunks per stage, K = P v positions of the chain, m micro-batches. f, b, w: forward,
backward-input and backward-weight time of a position for one micro-batch; where backward is not split, b below
stands for b + w and w for 0. Sends take time on their own links, never on a stage.

Five facts hold for every order that a schedule allows; the bound is the largest of them over the stages s.
head(s) = sum of f and sends before position s: nothing runs on s earlier. tail(s) = sum of b and sends from
position s - 1 to 0: the last input backward on s is always chunk 0's, and all that must still follow it.
first(s): the earliest first backward on s, all forwards and the backwards after its last chunk. work = m (f + b + w)
summed over the chunks of s. cap(s): chunk-activations that s may hold.

1. Work after head:   head + work - m w + tail + w(0), and head + work.
2. Work after first:  before first(s) only forwards run on s, and at most cap(s) of them, so
                      first + (1. without head) - min(m f, cap * largest f).
3. Flow:              the last micro-batch through the slowest position or link still has all others to cross:
                      chain + (m - 1) * slowest.
4. Round trip (v=1):  forward k + cap starts after some backward of an earlier forward j <= k ended, and that
                      trip takes R(s). With m - 1 = q cap + r: head + r f + q R + the last trip + tail.
5. GPipe:             forwards of the last stage all end before its backwards begin, so its two flows add up, exactly.

With equal stages and no sends, 1. on the last stage is (m + (P - 1) / v)(f + b), which 1F1B, interleaved and GPipe
attain. Source: derived; the schedules' own formulas are in Narayanan et al. 2021 (arXiv:2104.04473).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ridgeline.seams.schedule import PipelineSchedule

Floats = NDArray[np.float64]


def over_chunks(table: Floats) -> Floats:
    """Sum of a table (..., P, v) over the chunks of each stage, one after another, in its unit."""
    if table.shape[-1] >= 8:  # in NumPy's own order
        return np.asarray(table.sum(axis=-1))
    return reduce(np.add, (table[..., chunk] for chunk in range(table.shape[-1])))


def by_stage(table: Floats) -> Floats:
    """A table (..., P) with the stages in front, (P, ...), so that NumPy goes over all plans of a stage at once."""
    return np.ascontiguousarray(np.moveaxis(table, -1, 0))


def uneven_bound_s(
    schedule: PipelineSchedule,
    micro_batches: ArrayLike,
    *,
    forward_s: ArrayLike,
    backward_input_s: ArrayLike,
    backward_weight_s: ArrayLike,
    send_forward_s: ArrayLike = 0.0,
    send_backward_s: ArrayLike = 0.0,
) -> Floats:
    """Lower bound of a pipeline's step with any times on any stage [s].

    The times are arrays (..., P, v), where the dots are axes of plans (or nothing); `micro_batches` broadcasts to
    the dots. See the module for the proof.
    """
    m, split = np.asarray(micro_batches, dtype=np.int64), schedule.splits
    times = (forward_s, backward_input_s, backward_weight_s, send_forward_s, send_backward_s)
    f, b, w, onward, homeward = _tables([np.asarray(each, dtype=np.float64) for each in times], m.ndim)
    if not schedule.closed:  # of any order: every stage does its own work
        return np.asarray((m / schedule.copies * by_stage(over_chunks(f + b + w))).max(axis=0))
    b = b if split else b + w
    stages, chunks = f.shape[-2:]
    places = schedule.places(stages, chunks)
    at = np.argsort(places, axis=None)  # the chunk at each position of the chain
    crosses = np.append(np.diff(at // chunks) != 0, False)

    def in_chain(table: Floats) -> Floats:
        """A table (..., P, v) by position of the chain, (P v, ...)."""
        chain = table.reshape(*table.shape[:-2], -1)
        return by_stage(chain if chunks == 1 else np.take(chain, at, axis=-1))

    forward, backward = in_chain(f), in_chain(b)
    onward = by_stage(np.where(crosses, np.moveaxis(in_chain(onward), 0, -1), 0.0))
    homeward = by_stage(np.where(np.roll(crosses, 1), np.moveaxis(in_chain(homeward), 0, -1), 0.0))
    down = _running(forward + onward)
    up = _running((backward + homeward)[::-1])[::-1]
    head = (down - forward - onward)[:stages]
    tail = (up[:1] - up)[:stages] + homeward[:stages]
    deepest = places[:, -1]  # the last chunk of each stage; the first ones are the chain's first P
    first = down[-1:] + (up[deepest] - backward[deepest] - homeward[deepest])

    forwards, inputs = (by_stage(over_chunks(each)) for each in (f, b))
    last_weight = w[..., 0, 0] if split else np.zeros(())
    ending, work = tail, m * (forwards + inputs) + tail
    if split:
        weights = by_stage(over_chunks(w))
        work = np.maximum(work + last_weight, m * (forwards + inputs + weights))
        ending = np.maximum(tail + last_weight, weights)
    cap = schedule.in_flight(stages, m, chunks, np.arange(stages).reshape(-1, *[1] * (f.ndim - 2)))
    before = np.minimum(m * forwards, cap * by_stage(f.max(axis=-1)))
    best = np.maximum(head + work, first + work - before).max(axis=0)
    if chunks == 1:
        turns, rest = np.divmod(m - 1, cap)
        trip = down[-1:] - head + up - homeward  # position s to the end and back, input part on s included
        again = trip + weights if split else trip
        best = np.maximum(best, (head + rest * forwards + turns * again + trip + ending).max(axis=0))

    slowest = (np.maximum(forward, onward).max(axis=0), np.maximum(backward, homeward).max(axis=0))
    each = slowest[0] + slowest[1] if schedule.flows_add else np.maximum(*slowest)
    chain = down[-1] + up[0] + last_weight
    return np.asarray(np.maximum(best, chain + (m - 1) * each))


def _running(chain: Floats) -> Floats:
    """Sum of the positions of a chain (P v, ...) up to each, this one included [s]."""
    if chain.ndim == 1:
        return np.cumsum(chain)
    total = chain.copy()
    for position in range(1, len(total)):  # over all plans of a position at once
        total[position] += total[position - 1]
    return total


def _tables(times: Sequence[Floats], axes: int) -> Iterator[Floats]:
    """Times as tables (..., P, v) of the same stages and chunks, with so many axes of plans at least [s]."""
    shape = np.broadcast_shapes(*(each.shape[-2:] for each in times))
    axes = max(axes, *(each.ndim - 2 for each in times))
    for each in times:
        plans = each.shape[:-2]
        yield np.broadcast_to(each, (*[1] * (axes - len(plans)), *plans, *shape))


def bubble_fraction(makespan_s: ArrayLike, busy_s: ArrayLike) -> Floats:
    """Share of the stages' time in which they wait [1]: 1 - mean over stages of busy / makespan.

    `busy_s` (..., P) [s], `makespan_s` (...) [s].
    """
    working = np.asarray(busy_s, dtype=np.float64).mean(axis=-1)
    idle: Floats = 1.0 - working / np.asarray(makespan_s, dtype=np.float64)
    return idle
