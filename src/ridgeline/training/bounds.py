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

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ridgeline.plan.plan import Schedule
from ridgeline.training.schedules import SCHEDULE_CODE, SPLIT_BACKWARD, V_SHAPED, codes, in_flight, positions

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class ChunkTimes:
    """Times of one chunk for one micro-batch, each a number or an array over plans [s]."""

    forward_s: ArrayLike
    backward_input_s: ArrayLike
    backward_weight_s: ArrayLike


@dataclass(frozen=True, kw_only=True)
class _Stages:
    """What the bound needs of some stages; arrays (..., stages), and (...) for the whole chain."""

    head_s: Floats
    first_s: Floats
    tail_s: Floats
    trip_s: Floats  # position s to the end and back, input part on s included
    forward_s: Floats
    input_s: Floats
    weight_s: Floats
    largest_forward_s: Floats
    cap: NDArray[np.int64]
    chain_s: Floats
    weight_at_first_s: Floats
    slowest_forward_s: Floats
    slowest_backward_s: Floats


def _largest(view: _Stages, *, code: ArrayLike, micro_batches: ArrayLike, chunks: ArrayLike) -> Floats:
    """The largest of the five facts over the stages of the view [s]."""
    code, v = np.asarray(code), np.asarray(chunks)
    m = np.asarray(micro_batches, dtype=np.int64)[..., None]
    last_weight = view.weight_at_first_s[..., None]
    inputs = m * (view.forward_s + view.input_s) + view.tail_s + last_weight
    work = np.maximum(inputs, m * (view.forward_s + view.input_s + view.weight_s))
    before = np.minimum(m * view.forward_s, view.cap * view.largest_forward_s)
    best = np.maximum(view.head_s + work, view.first_s + work - before).max(axis=-1)

    turns, rest = np.divmod(m - 1, view.cap)
    ending = np.maximum(view.tail_s + last_weight, view.weight_s)
    trips = view.head_s + rest * view.forward_s + turns * (view.trip_s + view.weight_s) + view.trip_s + ending
    best = np.where(v == 1, np.maximum(best, trips.max(axis=-1)), best)

    waits = np.asarray(micro_batches, dtype=np.int64) - 1
    both = view.slowest_forward_s + view.slowest_backward_s
    slowest = np.where(
        code == SCHEDULE_CODE[Schedule.GPIPE], both, np.maximum(view.slowest_forward_s, view.slowest_backward_s)
    )
    bound: Floats = np.maximum(best, view.chain_s + waits * slowest)
    return bound


def uneven_bound_s(
    schedule: Schedule,
    micro_batches: ArrayLike,
    *,
    forward_s: ArrayLike,
    backward_input_s: ArrayLike,
    backward_weight_s: ArrayLike,
    send_forward_s: ArrayLike = 0.0,
    send_backward_s: ArrayLike = 0.0,
    memory_limit: ArrayLike | None = None,
) -> Floats:
    """Lower bound of a pipeline's step with any times on any stage [s].

    The times are arrays (..., P, v), where the dots are an axis of plans (or nothing); `micro_batches` broadcasts to
    the dots. `memory_limit` (..., P) as in `orders.order`. See the module for the proof.
    """
    f, b, w = (np.asarray(time, dtype=np.float64) for time in (forward_s, backward_input_s, backward_weight_s))
    f, b, w = np.broadcast_arrays(f, b, w)
    if schedule not in SPLIT_BACKWARD:
        b, w = b + w, np.zeros_like(w)
    stages, chunks = f.shape[-2:]
    place = positions(schedule, stages, chunks)
    stage_at = np.empty(place.size, dtype=np.int64)
    stage_at[place] = np.arange(stages)[:, None]
    crosses = np.append(stage_at[1:] != stage_at[:-1], False)

    def in_chain(times: ArrayLike) -> Floats:
        chain = np.empty((*f.shape[:-2], place.size))
        chain[..., place] = np.broadcast_to(np.asarray(times, dtype=np.float64), f.shape)
        return chain

    forward, backward = in_chain(f), in_chain(b)
    onward = np.where(crosses, in_chain(send_forward_s), 0.0)
    homeward = np.where(np.roll(crosses, 1), in_chain(send_backward_s), 0.0)
    down = np.cumsum(forward + onward, axis=-1)
    head = down - forward - onward
    up = np.cumsum((backward + homeward)[..., ::-1], axis=-1)[..., ::-1]
    after = up - backward - homeward  # backwards and sends of the positions after each one
    lowest, highest = place.min(axis=1), place.max(axis=1)
    m = np.asarray(micro_batches, dtype=np.int64)
    code = SCHEDULE_CODE[schedule]
    cap = in_flight(code, stages, m[..., None], chunks, np.arange(stages)) if memory_limit is None else memory_limit
    view = _Stages(
        head_s=head[..., lowest],
        first_s=down[..., -1:] + after[..., highest],
        tail_s=(up[..., :1] - up)[..., lowest] + homeward[..., lowest],
        trip_s=(down[..., -1:] - head + up - homeward)[..., lowest],
        forward_s=f.sum(axis=-1),
        input_s=b.sum(axis=-1),
        weight_s=w.sum(axis=-1),
        largest_forward_s=f.max(axis=-1),
        cap=np.asarray(cap, dtype=np.int64),
        chain_s=down[..., -1] + up[..., 0] + w[..., 0, 0],
        weight_at_first_s=w[..., 0, 0],
        slowest_forward_s=np.maximum(forward, onward).max(axis=-1),
        slowest_backward_s=np.maximum(backward, homeward).max(axis=-1),
    )
    return _largest(view, code=code, micro_batches=m, chunks=chunks)


@dataclass(frozen=True, kw_only=True)
class _Line:
    """A chain whose first and last positions differ from the others: sums in closed form."""

    first: Floats
    middle: Floats
    last: Floats
    length: NDArray[np.int64]

    @property
    def total(self) -> Floats:
        """Sum over the chain."""
        return self.first + self.last + (self.length - 2) * self.middle

    def before(self, position: NDArray[np.int64]) -> Floats:
        """Sum over the positions before this one."""
        return np.where(position > 0, self.first + (position - 1) * self.middle, 0.0)

    def after(self, position: NDArray[np.int64]) -> Floats:
        """Sum over the positions after this one."""
        return np.where(position < self.length - 1, self.last + (self.length - 2 - position) * self.middle, 0.0)

    def largest(self) -> Floats:
        """Largest position; a chain of one holds what both ends add to a middle."""
        two = np.maximum(self.first, self.last)
        return np.where(self.length == 1, self.total, np.where(self.length == 2, two, np.maximum(two, self.middle)))

    def on(self, chunks: NDArray[np.int64], has_first: NDArray[np.bool_], has_last: NDArray[np.bool_]) -> Floats:
        """Sum over the chunks of a stage that holds the first or the last position, or both, or none."""
        ends = has_first * (self.first - self.middle) + has_last * (self.last - self.middle)
        return chunks * self.middle + ends


def pipeline_bound_s(
    schedule_code: ArrayLike,
    stages: ArrayLike,
    micro_batches: ArrayLike,
    chunks: ArrayLike,
    *,
    first: ChunkTimes,
    middle: ChunkTimes,
    last: ChunkTimes,
    send_s: ArrayLike = 0.0,
) -> Floats:
    """Lower bound of a pipeline's step for many plans at once [s]; every argument is a number or (plans,).

    `schedule_code` from `schedules.SCHEDULE_CODE`. The chunk with the embedding is `first`, the one with the head
    `last`, all others `middle`; a chain of one chunk takes first + last - middle. Shapes must be legal for their
    schedule (`schedules.check_shape`). Evaluates the facts of the module on stages 0, 1, P - 2 and P - 1,
    where facts 1 and 2 are largest; fact 4 could be larger elsewhere, so this may lie under `uneven_bound_s`.
    """
    code, p, m, v, hop = np.broadcast_arrays(
        schedule_code, stages, micro_batches, chunks, np.asarray(send_s, dtype=np.float64)
    )
    split, folded = np.isin(code, codes(SPLIT_BACKWARD)), np.isin(code, codes(V_SHAPED))
    length = (p * v)[..., None]
    stage = np.clip(np.stack((0 * p, 1 + 0 * p, p - 2, p - 1), axis=-1), 0, (p - 1)[..., None])

    def line(first_s: ArrayLike, middle_s: ArrayLike, last_s: ArrayLike) -> _Line:
        ends = [
            np.broadcast_to(np.asarray(time, dtype=np.float64), p.shape)[..., None]
            for time in (first_s, middle_s, last_s)
        ]
        return _Line(first=ends[0], middle=ends[1], last=ends[2], length=length)

    def backward_parts(times: ChunkTimes) -> tuple[Floats, Floats]:
        b = np.asarray(times.backward_input_s, dtype=np.float64)
        w = np.asarray(times.backward_weight_s, dtype=np.float64)
        return np.where(split, b, b + w), np.where(split, w, 0.0)

    parts = [backward_parts(times) for times in (first, middle, last)]
    forward = line(first.forward_s, middle.forward_s, last.forward_s)
    backward, weight = line(*(b for b, _ in parts)), line(*(w for _, w in parts))
    hop = np.where(p > 1, hop, 0.0)[..., None]
    turn = folded[..., None]
    highest = np.where(turn, length - 1 - stage, length - p[..., None] + stage)
    sends = length - 1 - turn  # of the whole chain one way; the fold needs none
    is_first = stage == 0
    is_last = np.where(turn, is_first, stage == p[..., None] - 1)
    held = v[..., None]
    lone = np.where(length == 1, forward.total, forward.middle)
    ends = np.maximum(np.where(is_first, forward.first, 0.0), np.where(is_last, forward.last, 0.0))
    inner = held > 1 * is_first + 1 * is_last
    largest = np.where(length == 1, lone, np.maximum(ends, np.where(inner, forward.middle, 0.0)))
    on_stage = {
        name: each.on(held, is_first, is_last) for name, each in (("f", forward), ("b", backward), ("w", weight))
    }
    weight_at_first = np.where(length == 1, weight.total, weight.first)[..., 0]
    view = _Stages(
        head_s=forward.before(stage) + stage * hop,
        first_s=forward.total + sends * hop + backward.after(highest) + (length - 1 - highest) * hop,
        tail_s=backward.before(stage) + stage * hop,
        trip_s=forward.total
        - forward.before(stage)
        + backward.total
        - backward.before(stage)
        + 2 * (sends - stage) * hop,
        forward_s=on_stage["f"],
        input_s=on_stage["b"],
        weight_s=on_stage["w"],
        largest_forward_s=largest,
        cap=in_flight(code[..., None], p[..., None], m[..., None], held, stage),
        chain_s=(forward.total + backward.total + 2 * sends * hop)[..., 0] + weight_at_first,
        weight_at_first_s=weight_at_first,
        slowest_forward_s=np.maximum(forward.largest(), hop)[..., 0],
        slowest_backward_s=np.maximum(backward.largest(), hop)[..., 0],
    )
    return _largest(view, code=code, micro_batches=m, chunks=v)


def bubble_fraction(makespan_s: ArrayLike, busy_s: ArrayLike) -> Floats:
    """Share of the stages' time in which they wait [1]: 1 - mean over stages of busy / makespan.

    `busy_s` (..., P) [s], `makespan_s` (...) [s].
    """
    working = np.asarray(busy_s, dtype=np.float64).mean(axis=-1)
    idle: Floats = 1.0 - working / np.asarray(makespan_s, dtype=np.float64)
    return idle
