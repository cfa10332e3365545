"""The lower bound of one optimizer step in closed form, broadcast over plans; `step` builds what it bounds."""

from __future__ import annotations

from copy import copy
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ridgeline.lower.work import Number
from ridgeline.seams.schedule import PipelineSchedule
from ridgeline.training.bounds import by_stage, over_chunks, uneven_bound_s
from ridgeline.training.exchange import SLOWDOWN, Exchange
from ridgeline.training.stages import StageTimes

Floats = NDArray[np.float64]
_TABLES = ("forward_s", "whole_s", "alone_s", "gather_s", "reduce_s")  # (R, Z, O, K, P, v)


def step_bound_s(schedule: PipelineSchedule, micro_batches: Number, times: StageTimes, rules: Exchange) -> Floats:
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

    def __init__(self, schedule: PipelineSchedule, micro_batches: Number, times: StageTimes) -> None:
        self.schedule, self.times = schedule, times
        self.split = schedule.splits
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
        self.forward_s, self.gather_s, self.reduce_s = forward, times.gather_s, times.reduce_s
        self.alone_s = weights if self.split else inputs + weights  # the task that makes gradients
        self.whole_s = inputs if self.split else self.alone_s  # the backward task that needs weights
        self.pieces = times.pieces
        self.gathers_s, self.reduces_s = (by_stage(over_chunks(each)) for each in (times.gather_s, times.reduce_s))
        self.optimizer_s = by_stage(times.optimizer_s)
        self.work_s = by_stage(over_chunks(forward + inputs + weights))
        way = forward[..., 0] + times.send_forward_s[..., 0]
        if not self.split:  # split-off weight gradients may fill the way back
            back = np.roll(times.send_backward_s[..., 0], -1, axis=-1)  # from the stage after it
            way = way + self.alone_s[..., 0] + back
        self.path_s = by_stage(np.cumsum(way, axis=-1) - way)  # head(s), and tail(s) where it must stay empty

    def sharded(self, chosen: NDArray[np.int64]) -> StepBound:
        """The same steps with some of their shardings only: entries of the second axis of plans (R, Z, O, K)."""
        part = copy(self)
        for name, value in vars(self).items():
            axis = -5 if name in _TABLES else -3
            if isinstance(value, np.ndarray) and value.ndim >= -axis and value.shape[axis] > 1:
                setattr(part, name, np.take(value, chosen, axis=axis))
        return part

    def seconds(self, rules: Exchange) -> Floats:
        """The bound under some rules, broadcast over plans [s]."""
        m, gathers, reduces = self.m, self.gathers_s, self.reduces_s
        gather_hidden = np.asarray(rules.overlap_gather, dtype=float)
        reduce_hidden = np.asarray(rules.overlap_reduce, dtype=float)
        always, once = np.asarray(rules.gather_always, dtype=float), np.asarray(rules.gather_once, dtype=float)
        often = np.asarray(rules.reduce_always, dtype=float)
        start = gather_hidden * self._delay(always, once)
        end = reduce_hidden * self._spill(often, always * gather_hidden)
        body = self.pipeline_s + start + end
        if np.any(always) or np.any(often):
            longer = self._repeated(always, often, gather_hidden, reduce_hidden)
            work = m * (self.work_s + longer)
            body = np.maximum(body, (self.path_s + work).max(axis=0) + start + end)
        many = gather_hidden * (2 * m * always + once) * gathers
        many = many + reduce_hidden * np.where(often > 0, m, 1.0) * reduces
        body = np.maximum(body, many.max(axis=0))
        if not np.all(reduce_hidden):  # reductions after the stage's own work
            late = (1 - reduce_hidden) * (1 - often)
            body = np.maximum(body, (m * self.work_s + late * reduces).max(axis=0))
            body = np.maximum(body, self.pipeline_s + start + self._last(late * reduces))
        shown = (1 - gather_hidden) * once * gathers
        return np.asarray(body + (self.optimizer_s + shown).max(axis=0))

    def _delay(self, always: Floats, once: Floats) -> Floats:
        """What a hidden gather adds before the first forward ends [s]."""
        whole, forward = self.gather_s[..., 0, 0], self.forward_s[..., 0, 0]
        rest = 1 - 1 / self.pieces[0, 0]
        slow = SLOWDOWN() * np.minimum(whole, forward)
        delay = np.maximum(whole * (1 - rest), whole - (forward + slow) * rest)
        return np.asarray(np.where(always > 0, delay, once * (delay + slow)))

    def _spill(self, often: Floats, gathered: Floats) -> Floats:
        """What a hidden reduction adds after the last gradient, whose task hidden gathers may slow too [s]."""
        at = (..., slice(None), slice(None)) if self.split else (..., 0, 0)
        if self.split:
            often, gathered = often[..., None, None], gathered[..., None, None] * 0.0
        reduce, gather, backward = self.reduce_s[at], self.gather_s[at], self.alone_s[at]
        rest = 1 - 1 / self.pieces[at]
        slow = SLOWDOWN() * np.minimum(reduce, backward)
        longer = backward + slow + gathered * SLOWDOWN() * np.minimum(gather, backward)
        spill = np.maximum(reduce * (1 - rest), reduce - longer * rest) + (1 - often) * slow
        return np.asarray(spill.min(axis=(-1, -2)) if self.split else spill)

    def _repeated(self, always: Floats, often: Floats, gather_hidden: Floats, reduce_hidden: Floats) -> Floats:
        """What exchanges of every micro-batch add to a stage's work per micro-batch, (P, ...) [s]."""
        gathers = _choose(gather_hidden, self._slowed_gathers_s, 2 * self.gathers_s)
        reduces = _choose(reduce_hidden, self._slowed_reduces_s, self.reduces_s)
        return np.asarray(always * gathers + often * reduces)

    @cached_property
    def _slowed_gathers_s(self) -> Floats:
        """What hidden gathers of a micro-batch slow each stage's compute by, (P, ...) [s]."""
        slowed = np.minimum(self.gather_s, self.forward_s) + np.minimum(self.gather_s, self.whole_s)
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
