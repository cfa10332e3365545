"""One optimizer step: pipeline, exchanges of weights and gradients, update. Two routes that must agree.

`step_tasks` builds the exact task graph of one plan; `step_bound_s` is its lower bound in closed form, broadcast
over plans. An exchange that is cut into n layer-sized pieces and pipelined with the n layers it serves is
represented exactly by splitting the compute task into its first piece, its middle and its last piece: gathered
pieces arrive before the layer that needs them, reduced pieces leave after it.

Shape letters: P stages, v chunks, m micro-batches, N compute tasks per stage.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ridgeline.facts.mechanisms import constant
from ridgeline.lower.tasks import TaskGraph
from ridgeline.lower.work import Number
from ridgeline.plan.plan import Plan, Schedule
from ridgeline.training.bounds import uneven_bound_s
from ridgeline.training.orders import BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD, Order, order
from ridgeline.training.pipeline import LABEL, pipeline_tasks
from ridgeline.training.schedules import SPLIT_BACKWARD
from ridgeline.training.stages import StageTimes

GATHER, REDUCE, UPDATE = 6, 7, 8
SLOWDOWN = partial(constant, "overlap.compute_slowdown")  # share of the shorter of the two by which compute grows
STEP_LABEL = (*LABEL, "gather", "reduce", "update")
Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """When weights are gathered and gradients reduced; each a number or an array over plans (0 or 1)."""

    gather_once: Number  # before the first forward of each chunk (ZeRO 1 and 2)
    gather_always: Number  # before every forward and backward (ZeRO 3)
    reduce_always: Number  # after every backward (ZeRO 2 and 3), else after the last one
    overlap_gather: Number
    overlap_reduce: Number


def exchange_rules(plan: Plan) -> Exchange:
    """The exchanges that a plan's sharding asks for."""
    return Exchange(
        gather_once=int(plan.zero in (1, 2)),
        gather_always=int(plan.zero == 3),
        reduce_always=int(plan.zero >= 2),
        overlap_gather=int(plan.overlap_weights),
        overlap_reduce=int(plan.overlap_gradients),
    )


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
            way = way + self.alone[..., 0] + times.send_backward_s[..., 0]
        self.path_s = np.cumsum(way, axis=-1) - way  # head(s), and tail(s) where it must stay empty

    def sharded(self, chosen: NDArray[np.int64]) -> StepBound:
        """The same steps with some of their shardings only: entries of the third leading axis (K, R, Z, O)."""

        def pick(value: Floats, trailing: int) -> Floats:
            return value if value.ndim < 4 + trailing or value.shape[2] == 1 else value[:, :, chosen]

        times = self.times
        part = copy(self)
        part.times = replace(
            times,
            gather_s=pick(times.gather_s, 2),
            reduce_s=pick(times.reduce_s, 2),
            optimizer_s=pick(times.optimizer_s, 1),
        )
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
            body = np.maximum(body, self.pipeline_s + self._last(late[..., None]))
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


def step_tasks(plan: Plan, micro_batches: int, times: StageTimes) -> TaskGraph:
    """The exact task graph of one step of one plan; times as (P, v) arrays without a plan axis."""
    rules = exchange_rules(plan)
    sequence = order(
        plan.schedule,
        plan.pp,
        micro_batches,
        plan.chunks,
        forward_s=times.forward_s,
        backward_input_s=times.backward_input_s,
        backward_weight_s=times.backward_weight_s,
        send_s=float(times.send_forward_s.max(initial=0.0)),
    )
    base = pipeline_tasks(
        sequence,
        forward_s=times.forward_s,
        backward_input_s=times.backward_input_s,
        backward_weight_s=times.backward_weight_s,
        send_forward_s=times.send_forward_s,
        send_backward_s=times.send_backward_s,
    )
    return _Builder(base, sequence, times, rules).build()


class _Builder:
    """Adds exchanges and the update to a pipeline's tasks."""

    def __init__(self, base: TaskGraph, sequence: Order, times: StageTimes, rules: Exchange) -> None:
        self.base, self.times, self.rules = base, times, rules
        self.stages, self.width = sequence.kind.shape
        self.compute = self.stages * self.width
        self.stage = np.repeat(np.arange(self.stages), self.width)
        self.kind = base.kind[: self.compute].astype(np.int64)
        self.chunk = base.chunk[: self.compute].astype(np.int64)
        self.micro = base.micro_batch[: self.compute]
        self.needs_gather, self.needs_reduce = self._flags(sequence)

    def _flags(self, sequence: Order) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Which compute tasks wait for weights, and which are followed by a reduction."""
        is_forward = self.kind == FORWARD
        makes_gradient = ~is_forward & (self.kind != BACKWARD_INPUT)
        uses_weights = self.kind != BACKWARD_WEIGHT
        slot = self.stage * sequence.chunks + self.chunk
        gather = np.zeros(self.compute, dtype=bool)
        reduce = np.zeros(self.compute, dtype=bool)
        if self.rules.gather_always:
            gather = uses_weights
        elif self.rules.gather_once and self.rules.overlap_gather:
            gather[np.unique(np.where(is_forward, slot, -1), return_index=True)[1]] = True
            gather &= is_forward
        if self.rules.reduce_always:
            reduce = makes_gradient
        elif self.rules.overlap_reduce:
            reversed_slots = np.where(makes_gradient, slot, -1)[::-1]
            reduce[self.compute - 1 - np.unique(reversed_slots, return_index=True)[1]] = True
            reduce &= makes_gradient
        gather &= self.times.gather_s[self.stage, self.chunk] > 0
        reduce &= self.times.reduce_s[self.stage, self.chunk] > 0
        return gather, reduce

    def build(self) -> TaskGraph:
        """The whole step."""
        base, split = self.base, self.needs_gather | self.needs_reduce
        parts = np.ones(base.tasks, dtype=np.int64)
        parts[: self.compute] = np.where(split, 3, 1)
        start = np.concatenate(([0], np.cumsum(parts)))
        head, tail = start[:-1], start[1:] - 1
        owner = np.repeat(np.arange(base.tasks), parts)
        place = np.arange(owner.size) - head[owner]
        pieces = np.ones(base.tasks)
        pieces[: self.compute] = self.times.pieces[self.stage, self.chunk]
        duration = self._slowed()[owner] * _share(place, parts[owner], pieces[owner])
        waits = [(head[np.repeat(np.arange(base.tasks), np.diff(base.dep_start))], tail[base.dep])]
        extra = _Extra(first=owner.size, stream=len(base.stream_names))
        self._exchanges(extra, waits, head, tail)
        self._update(extra, waits, head, tail)
        return self._assemble(owner, duration, waits, extra)

    def _slowed(self) -> Floats:
        """Durations with what a hidden exchange takes from the compute it runs beside [s]."""
        duration = self.base.duration_s.copy()
        own = self.base.duration_s[: self.compute]
        gather = np.minimum(self.times.gather_s[self.stage, self.chunk], own) * (
            self.needs_gather & bool(self.rules.overlap_gather)
        )
        reduce = np.minimum(self.times.reduce_s[self.stage, self.chunk], own) * (
            self.needs_reduce & bool(self.rules.overlap_reduce)
        )
        duration[: self.compute] += SLOWDOWN() * (gather + reduce)
        return duration

    def _exchanges(
        self,
        extra: _Extra,
        waits: list[tuple[NDArray[np.int64], NDArray[np.int64]]],
        head: NDArray[np.int64],
        tail: NDArray[np.int64],
    ) -> None:
        """Per compute task, in the stage's order: gather first piece, the rest, reduce all but the last, the last."""
        wanted = np.flatnonzero(self.needs_gather | self.needs_reduce)
        previous: dict[int, int] = {}
        pending: dict[int, tuple[float, int, int, int]] = {}  # a stage's final piece yields to the next gather

        def flush(stage: int) -> None:
            if stage in pending:
                seconds, micro, chunk, after = pending.pop(stage)
                waits.append(_pair(extra.add(REDUCE, seconds, extra.link(stage), micro, chunk, stage), after))

        for task in wanted.tolist():
            stage, chunk = int(self.stage[task]), int(self.chunk[task])
            count = float(self.times.pieces[stage, chunk])
            micro = int(self.micro[task])
            if self.needs_gather[task]:
                whole = float(self.times.gather_s[stage, chunk])
                on = stage if not self.rules.overlap_gather else extra.link(stage)
                if on == stage:
                    extra.inline(whole, int(head[task]))
                else:
                    early = extra.add(GATHER, whole / count, on, micro, chunk, stage)
                    if stage in previous:
                        waits.append(_pair(early, previous[stage]))
                    flush(stage)
                    rest = extra.add(GATHER, whole * (count - 1) / count, on, micro, chunk, stage)
                    waits += [_pair(int(head[task]), early), _pair(int(tail[task]), rest)]
            if self.needs_reduce[task]:
                whole = float(self.times.reduce_s[stage, chunk])
                if not self.rules.overlap_reduce:
                    extra.inline(whole, int(tail[task]))
                else:
                    flush(stage)
                    body = extra.add(REDUCE, whole * (count - 1) / count, extra.link(stage), micro, chunk, stage)
                    waits.append(_pair(body, int(head[task])))
                    pending[stage] = (whole / count, micro, chunk, int(tail[task]))
            previous[stage] = int(tail[task]) - 1
        for stage in list(pending):
            flush(stage)

    def _update(
        self,
        extra: _Extra,
        waits: list[tuple[NDArray[np.int64], NDArray[np.int64]]],
        head: NDArray[np.int64],
        tail: NDArray[np.int64],
    ) -> None:
        """After every stage's gradients are complete (their norm is global): update, then gather if not hidden."""
        rules, times = self.rules, self.times
        finals: list[int] = []
        for stage in range(self.stages):
            finals.append(int(tail[(stage + 1) * self.width - 1]))
            if not rules.overlap_reduce and not rules.reduce_always and float(times.reduce_s[stage].sum()) > 0:
                late = extra.add(REDUCE, float(times.reduce_s[stage].sum()), stage, 0, 0, stage)
                waits.append(_pair(late, finals[-1]))
                finals.append(late)
        finals += extra.last_reduces()
        for stage in range(self.stages):
            update = extra.add(UPDATE, float(times.optimizer_s[stage]), stage, 0, 0, stage)
            waits.append((np.full(len(finals), update), np.asarray(finals)))
            if rules.gather_once and not rules.overlap_gather:
                extra.add(GATHER, float(times.gather_s[stage].sum()), stage, 0, 0, stage)

    def _assemble(
        self,
        owner: NDArray[np.int64],
        duration: Floats,
        waits: list[tuple[NDArray[np.int64], NDArray[np.int64]]],
        extra: _Extra,
    ) -> TaskGraph:
        base = self.base
        for task, seconds in extra.inlined:
            duration[task] += seconds
        waiting = np.concatenate([pair[0] for pair in waits])
        awaited = np.concatenate([pair[1] for pair in waits])
        by_task = np.argsort(waiting, kind="stable")
        total = owner.size + len(extra.seconds)
        dep_start = np.concatenate(([0], np.cumsum(np.bincount(waiting, minlength=total))))
        return TaskGraph(
            duration_s=np.concatenate((duration, np.asarray(extra.seconds, dtype=np.float64))),
            stream=np.concatenate((base.stream[owner], np.asarray(extra.streams, dtype=np.int32))),
            dep_start=dep_start.astype(np.int64),
            dep=awaited[by_task].astype(np.int64),
            stream_names=base.stream_names + tuple(f"data link {s}" for s in extra.links),
            stream_device=base.stream_device + tuple(extra.links),
            kind=np.concatenate((base.kind[owner], np.asarray(extra.kinds, dtype=np.int16))),
            label=STEP_LABEL,
            micro_batch=np.concatenate((base.micro_batch[owner], np.asarray(extra.micros, dtype=np.int32))),
            chunk=np.concatenate((base.chunk[owner], np.asarray(extra.chunks, dtype=np.int16))),
        )


class _Extra:
    """Tasks added behind the pipeline's own, and the streams they need."""

    def __init__(self, *, first: int, stream: int) -> None:
        self.first, self.stream = first, stream
        self.kinds: list[int] = []
        self.seconds: list[float] = []
        self.streams: list[int] = []
        self.micros: list[int] = []
        self.chunks: list[int] = []
        self.links: dict[int, int] = {}  # stage -> its data-parallel link's stream
        self.inlined: list[tuple[int, float]] = []
        self._last_reduce: dict[int, int] = {}

    def link(self, stage: int) -> int:
        """The stream of a stage's data-parallel link."""
        return self.links.setdefault(stage, self.stream + len(self.links))

    def add(self, kind: int, seconds: float, stream: int, micro: int, chunk: int, stage: int) -> int:
        """Append a task; its index."""
        for column, value in ((self.kinds, kind), (self.streams, stream), (self.micros, micro), (self.chunks, chunk)):
            column.append(value)
        self.seconds.append(seconds)
        index = self.first + len(self.seconds) - 1
        if kind == REDUCE:
            self._last_reduce[stage] = index
        return index

    def inline(self, seconds: float, task: int) -> None:
        """An exposed exchange: it holds the compute engine, as part of the task it belongs to."""
        self.inlined.append((task, seconds))

    def last_reduces(self) -> list[int]:
        """The last reduction of every stage that has one."""
        return list(self._last_reduce.values())


def _share(place: NDArray[np.int64], parts: NDArray[np.int64], pieces: Floats) -> Floats:
    """Share of a compute task in its first, middle or last part; an uncut task is one part [1]."""
    edge = np.where(pieces >= 2, 1 / pieces, 0.0)
    last = np.where(pieces >= 2, 1 / pieces, 1.0)
    middle = np.maximum(0.0, 1.0 - edge - last)
    return np.where(parts == 1, 1.0, np.where(place == 0, edge, np.where(place == 1, middle, last)))


def _pair(task: int, waits_for: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    return np.array([task]), np.array([waits_for])
