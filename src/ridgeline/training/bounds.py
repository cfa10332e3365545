"""How fast a step can be at best: lower bounds of its simulation in closed form, broadcast over plans.

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
from copy import copy
from functools import cached_property, reduce

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ridgeline.lower.work import Number
from ridgeline.seams.schedule import PipelineSchedule
from ridgeline.training.exchanges import SLOWDOWN, ShardExchange, beside_delayed
from ridgeline.training.stage_times import StageTimes

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


_TABLES = (
    "forward_s",
    "whole_s",
    "alone_s",
    "gather_s",
    "again_s",
    "reduce_s",
    "first_gather_s",
    "last_reduce_s",
)  # (R, Z, O, K, P, v)


def step_bound_s(schedule: PipelineSchedule, micro_batches: Number, times: StageTimes, rules: ShardExchange) -> Floats:
    """Lower bound of the step, broadcast over plans [s]; see `StepBound`."""
    if np.all(times.forwards_alone):  # every stage does its own work, and updates when all have done theirs
        work = np.asarray(micro_batches)[..., None] / schedule.copies * times.forward_s.sum(axis=-1)
        return np.asarray(work.max(axis=-1) + np.asarray(times.optimizer_s).max(axis=-1))
    return StepBound(schedule, micro_batches, times).seconds(rules)


class StepBound:
    """Lower bounds of steps that share their stage times, for any rules of exchange.

    The pipeline's own bound, with what cannot hide added. Cut into n pieces, a hidden gather G delays its chunk's first
    forward f to max(G / n, G - f (n - 1) / n); a hidden reduction R ends max(R / n, R - b (n - 1) / n) after the last
    backward b. Exchanges of every micro-batch lengthen the work of their stage s: all of them if exposed, what they
    slow the compute beside them if hidden; then the step takes at least head(s) + work(s), and tail(s) where
    backward is whole (fact 1 of `bounds`). A stage's link must carry all its exchanges; then comes the slowest update.
    Every term holds for each order that the schedule allows, so the bound is never above the simulation.
    """

    def __init__(self, schedule: PipelineSchedule, micro_batches: Number, times: StageTimes) -> None:
        times = beside_delayed(times, micro_batches)
        self.schedule = schedule
        self.split = schedule.splits
        self.m = np.asarray(micro_batches, dtype=np.float64) / schedule.copies  # of each chunk
        forward, inputs, weights = times.forward_s, times.backward_input_s, times.backward_weight_s
        worked = weights
        if times.shared is not None:  # passes of each stage's own, here with its first chunk
            passes = times.shared.forward_s + times.shared.backward_s
            worked = weights + passes[..., None] * (np.arange(weights.shape[-1]) == 0)
        least = forward if times.paired_s is None else forward - times.paired_s.max(axis=-1)
        self.pipeline_s = uneven_bound_s(
            schedule,
            micro_batches,
            forward_s=least,
            backward_input_s=inputs,
            backward_weight_s=worked,
            send_forward_s=times.send_forward_s,
            send_backward_s=times.send_backward_s,
        )
        self.forward_s, self.gather_s, self.reduce_s = forward, times.gather_s, times.reduce_s
        self.again_s, self.first_gather_s, self.last_reduce_s = times.again_s, times.first_gather_s, times.last_reduce_s
        self.alone_s = weights if self.split else inputs + weights  # the task that makes gradients
        self.whole_s = inputs if self.split else self.alone_s  # the backward task that needs weights
        self.pieces = times.pieces
        self.gathered_once_s, self.reduced_once_s = (  # beside what is exchanged more often
            by_stage(over_chunks(whole - each)) if whole is not each else None
            for whole, each in ((times.first_gather_s, times.gather_s), (times.last_reduce_s, times.reduce_s))
        )
        self.gathers_s, self.reduces_s = (by_stage(over_chunks(each)) for each in (times.gather_s, times.reduce_s))
        self.agains_s = by_stage(over_chunks(times.again_s)) if times.back_gather_s is not None else self.gathers_s
        self.delayed_s = by_stage(np.asarray(times.delayed_s)) if np.any(times.delayed_s) else None
        self.optimizer_s = by_stage(times.optimizer_s)
        self.work_s = by_stage(over_chunks(least + inputs + worked))
        way = forward[..., 0] + times.send_forward_s[..., 0]
        if not self.split:  # split-off weight gradients may fill the way back
            back = np.roll(times.send_backward_s[..., 0], -1, axis=-1)  # from the stage after it
            way = way + self.alone_s[..., 0] + back
        self.path_s = by_stage(np.cumsum(way, axis=-1) - way)  # head(s), and tail(s) where it must stay empty
        if not schedule.closed:  # chains may begin anywhere
            self.path_s = self.path_s * 0.0

    def sharded(self, chosen: NDArray[np.int64]) -> StepBound:
        """The same steps with some of their shardings only: entries of the second axis of plans (R, Z, O, K)."""
        part = copy(self)
        for name, value in vars(self).items():
            axis = -5 if name in _TABLES else -3
            if isinstance(value, np.ndarray) and value.ndim >= -axis and value.shape[axis] > 1:
                setattr(part, name, np.take(value, chosen, axis=axis))
        return part

    def seconds(self, rules: ShardExchange) -> Floats:
        """The bound under some rules, broadcast over plans [s]."""
        m, gathers, reduces = self.m, self.gathers_s, self.reduces_s
        gather_hidden = np.asarray(rules.overlap_gather, dtype=float)
        reduce_hidden = np.asarray(rules.overlap_reduce, dtype=float)
        always, once = np.asarray(rules.gather_always, dtype=float), np.asarray(rules.gather_once, dtype=float)
        often = np.asarray(rules.reduce_always, dtype=float)
        start = gather_hidden * self._delay(always, once)
        end = reduce_hidden * self._spill(often, always * gather_hidden)
        if self.schedule.paired:  # the first and the last task of a stage may be of either chunk
            start, end = start * 0.0, end * 0.0
        body = self.pipeline_s + start + end
        many = gather_hidden * ((m * always + once) * gathers + m * always * self.agains_s)
        many = many + reduce_hidden * np.where(often > 0, m, 1.0) * reduces
        shown, late = (1 - gather_hidden) * once * gathers, (1 - reduce_hidden) * (1 - often) * reduces
        if self.gathered_once_s is not None:
            many, shown = (
                many + gather_hidden * self.gathered_once_s,
                shown + (1 - gather_hidden) * self.gathered_once_s,
            )
        if self.reduced_once_s is not None:
            many, late = many + reduce_hidden * self.reduced_once_s, late + (1 - reduce_hidden) * self.reduced_once_s
        if (np.any(always) or np.any(often)) and not self.schedule.paired:  # passes of both hide some of it
            longer = self._repeated(always, often, gather_hidden, reduce_hidden)
            work = m * (self.work_s + longer)
            body = np.maximum(body, (self.path_s + work).max(axis=0) + start + end)
            if self.reduced_once_s is not None:
                body = np.maximum(body, (self.path_s + work + late).max(axis=0) + start)
        body = np.maximum(body, many.max(axis=0))
        if self.delayed_s is not None:
            body = np.maximum(body, self.delayed_s.max(axis=0))
        if not np.all(reduce_hidden):  # reductions after the stage's own work
            body = np.maximum(body, (m * self.work_s + late).max(axis=0))
            body = np.maximum(body, self.pipeline_s + start + self._last(late))
        return np.asarray(body + (self.optimizer_s + shown).max(axis=0))

    def _delay(self, always: Floats, once: Floats) -> Floats:
        """What a hidden gather adds before the first forward ends [s]."""
        forward, often = self.forward_s[..., 0, 0], self.gather_s[..., 0, 0]
        whole = often if self.gathered_once_s is None else self.first_gather_s[..., 0, 0]
        rest = 1 - 1 / self.pieces[0, 0]
        slow = SLOWDOWN() * np.minimum(whole, forward)
        delay = np.maximum(whole * (1 - rest), whole - (forward + slow) * rest)
        first = delay if self.gathered_once_s is None else delay + slow - SLOWDOWN() * np.minimum(often, forward)
        return np.asarray(np.where(always > 0, first, once * (delay + slow)))

    def _spill(self, often: Floats, gathered: Floats) -> Floats:
        """What a hidden reduction adds after the last gradient, whose task hidden gathers may slow too [s]."""
        at = (..., slice(None), slice(None)) if self.split else (..., 0, 0)
        if self.split:
            often, gathered = often[..., None, None], gathered[..., None, None] * 0.0
        each, gather, backward = self.reduce_s[at], self.again_s[at], self.alone_s[at]
        reduce = each if self.reduced_once_s is None else self.last_reduce_s[at]
        rest = 1 - 1 / self.pieces[at]
        slow = SLOWDOWN() * np.minimum(reduce, backward)
        longer = backward + slow + gathered * SLOWDOWN() * np.minimum(gather, backward)
        spill = np.maximum(reduce * (1 - rest), reduce - longer * rest) + (1 - often) * slow
        if self.reduced_once_s is not None:
            spill = spill + often * (slow - SLOWDOWN() * np.minimum(each, backward))
        return np.asarray(spill.min(axis=(-1, -2)) if self.split else spill)

    def _repeated(self, always: Floats, often: Floats, gather_hidden: Floats, reduce_hidden: Floats) -> Floats:
        """What exchanges of every micro-batch add to a stage's work per micro-batch, (P, ...) [s]."""
        gathers = _choose(gather_hidden, self._slowed_gathers_s, self.gathers_s + self.agains_s)
        reduces = _choose(reduce_hidden, self._slowed_reduces_s, self.reduces_s)
        return np.asarray(always * gathers + often * reduces)

    @cached_property
    def _slowed_gathers_s(self) -> Floats:
        """What hidden gathers of a micro-batch slow each stage's compute by, (P, ...) [s]."""
        slowed = np.minimum(self.gather_s, self.forward_s) + np.minimum(self.again_s, self.whole_s)
        return np.asarray(SLOWDOWN() * by_stage(over_chunks(slowed)))

    @cached_property
    def _slowed_reduces_s(self) -> Floats:
        """What hidden reductions of a micro-batch slow each stage's compute by, (P, ...) [s]."""
        return np.asarray(SLOWDOWN() * by_stage(over_chunks(np.minimum(self.reduce_s, self.alone_s))))

    def _last(self, seconds: Floats) -> Floats:
        """What follows the last gradient of a step, from a table by stage (P, ...) [s].

        The last gradient is position 0's, except where weight gradients are split off and may end on any stage.
        """
        return np.asarray(seconds.min(axis=0) if self.split else seconds[0])


def _choose(hidden: Floats, slowed_s: Floats, exposed_s: Floats) -> Floats:
    """One or the other by plan; one of them as it is where all plans do the same [s]."""
    return np.where(hidden > 0, slowed_s, exposed_s) if hidden.ndim else slowed_s if hidden > 0 else exposed_s
