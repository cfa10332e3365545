"""The lower bound of one optimizer step in closed form, broadcast over plans; `step` builds what it bounds."""

from __future__ import annotations

from copy import copy
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ridgeline.lower.work import Number
from ridgeline.plan.plan import Schedule
from ridgeline.training.bounds import uneven_bound_s
from ridgeline.training.exchange import SLOWDOWN, Exchange
from ridgeline.training.schedules import SPLIT_BACKWARD
from ridgeline.training.stages import StageTimes

Floats = NDArray[np.float64]
_BY_CHUNK = ("forward_s", "backward_input_s", "backward_weight_s", "gather_s", "reduce_s")


def step_bound_s(schedule: Schedule, micro_batches: Number, times: StageTimes, rules: Exchange) -> Floats:
    """Lower bound of the step, broadcast over plans [s]; see `StepBound`."""
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

    def __init__(self, schedule: Schedule, micro_batches: Number, times: StageTimes) -> None:
        self.schedule, self.times = schedule, times
        self.split = schedule in SPLIT_BACKWARD
        self.m = np.asarray(micro_batches, dtype=np.float64)
        forward, inputs, weights = times.forward_s, times.backward_input_s, times.backward_weight_s
        self.pipeline_s = uneven_bound_s(
            schedule,
            micro_batches,
            forward_s=forward,
            backward_input_s=inputs,
            backward_weight_s=weights,
            send_forward_s=times.send_forward_s,
            send_backward_s=times.send_backward_s,
        )
        self.alone = weights if self.split else inputs + weights  # the task that makes gradients
        self.whole = inputs if self.split else self.alone  # the backward task that needs weights
        self.work_s = (forward + inputs + weights).sum(axis=-1)
        way = forward[..., 0] + times.send_forward_s[..., 0]
        if not self.split:  # split-off weight gradients may fill the way back
            back = np.roll(times.send_backward_s[..., 0], -1, axis=-1)  # from the stage after it
            way = way + self.alone[..., 0] + back
        self.path_s = np.cumsum(way, axis=-1) - way  # head(s), and tail(s) where it must stay empty

    def sharded(self, chosen: NDArray[np.int64]) -> StepBound:
        """The same steps with some of their shardings only: entries of the third leading axis (K, R, Z, O)."""

        def pick(value: Floats, trailing: int) -> Floats:
            return value if value.ndim < 4 + trailing or value.shape[2] == 1 else value[:, :, chosen]

        times = self.times
        part = copy(self)
        part.times = replace(
            times,
            optimizer_s=pick(times.optimizer_s, 1),
            **{name: pick(getattr(times, name), 2) for name in _BY_CHUNK},  # type: ignore[arg-type]
        )
        part.pipeline_s = pick(self.pipeline_s, 0)
        part.alone, part.whole = pick(self.alone, 2), pick(self.whole, 2)
        part.work_s, part.path_s = pick(self.work_s, 1), pick(self.path_s, 1)
        return part

    def seconds(self, rules: Exchange) -> Floats:
        """The bound under some rules, broadcast over plans [s]."""
        times, m = self.times, self.m
        gather_hidden = np.asarray(rules.overlap_gather, dtype=float)
        reduce_hidden = np.asarray(rules.overlap_reduce, dtype=float)
        always, once = np.asarray(rules.gather_always, dtype=float), np.asarray(rules.gather_once, dtype=float)
        often = np.asarray(rules.reduce_always, dtype=float)
        start = gather_hidden * self._delay(always, once)
        end = reduce_hidden * self._spill(often, always * gather_hidden)
        body = self.pipeline_s + start + end
        if np.any(always) or np.any(often):
            longer = self._repeated(always, often, gather_hidden, reduce_hidden)
            work = m[..., None] * (self.work_s + longer)
            body = np.maximum(body, (self.path_s + work).max(axis=-1) + start + end)
        gathers, reduces = times.gather_s.sum(axis=-1), times.reduce_s.sum(axis=-1)
        many = (gather_hidden * (2 * m * always + once))[..., None] * gathers
        many = many + (reduce_hidden * np.where(often > 0, m, 1.0))[..., None] * reduces
        body = np.maximum(body, many.max(axis=-1))
        if not np.all(reduce_hidden):  # reductions after the stage's own work
            late = ((1 - reduce_hidden) * (1 - often))[..., None] * reduces
            body = np.maximum(body, (m[..., None] * self.work_s + late).max(axis=-1))
            body = np.maximum(body, self.pipeline_s + start + self._last(late[..., None]))
        shown = ((1 - gather_hidden) * once)[..., None] * gathers
        return np.asarray(body + (times.optimizer_s + shown).max(axis=-1))

    def _delay(self, always: Floats, once: Floats) -> Floats:
        """What a hidden gather adds before the first forward ends [s]."""
        whole, forward = self.times.gather_s[..., 0, 0], self.times.forward_s[..., 0, 0]
        rest = 1 - 1 / self.times.pieces[0, 0]
        slow = SLOWDOWN() * np.minimum(whole, forward)
        delay = np.maximum(whole * (1 - rest), whole - (forward + slow) * rest)
        return np.asarray(np.where(always > 0, delay, once * (delay + slow)))

    def _spill(self, often: Floats, gathered: Floats) -> Floats:
        """What a hidden reduction adds after the last gradient, whose task hidden gathers may slow too [s]."""
        at = (..., slice(None), slice(None)) if self.split else (..., 0, 0)
        if self.split:
            often, gathered = often[..., None, None], gathered[..., None, None] * 0.0
        reduce, gather, backward = self.times.reduce_s[at], self.times.gather_s[at], self.alone[at]
        rest = 1 - 1 / self.times.pieces[at]
        slow = SLOWDOWN() * np.minimum(reduce, backward)
        longer = backward + slow + gathered * SLOWDOWN() * np.minimum(gather, backward)
        spill = np.maximum(reduce * (1 - rest), reduce - longer * rest) + (1 - often) * slow
        return np.asarray(spill.min(axis=(-1, -2)) if self.split else spill)

    def _repeated(self, always: Floats, often: Floats, gather_hidden: Floats, reduce_hidden: Floats) -> Floats:
        """What exchanges of every micro-batch add to a stage's work per micro-batch, (..., P) [s]."""
        gather, reduce = self.times.gather_s, self.times.reduce_s
        exposed = 2 * gather.sum(axis=-1)
        slowed = np.minimum(gather, self.times.forward_s) + np.minimum(gather, self.whole)
        gathers = np.where(gather_hidden[..., None] > 0, SLOWDOWN() * slowed.sum(axis=-1), exposed)
        beside = SLOWDOWN() * np.minimum(reduce, self.alone).sum(axis=-1)
        reduces = np.where(reduce_hidden[..., None] > 0, beside, reduce.sum(axis=-1))
        return np.asarray(always[..., None] * gathers + often[..., None] * reduces)

    def _last(self, seconds: Floats) -> Floats:
        """What follows the last gradient of a step, from a (..., P, v) table [s].

        The last gradient is position 0's, except where weight gradients are split off and may end on any stage.
        """
        return np.asarray(seconds.min(axis=(-1, -2)) if self.split else seconds[..., 0, 0])
