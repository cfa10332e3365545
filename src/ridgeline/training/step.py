"""One optimizer step: pipeline, exchanges of weights and gradients, update. Two routes that must agree.

`step_tasks` builds the exact task graph of one plan; `step_bound.step_bound_s` is its lower bound in closed form,
broadcast over plans. An exchange that is cut into n layer-sized pieces and pipelined with the n layers it serves is
represented exactly by splitting the compute task into its first piece, its middle and its last piece: gathered
pieces arrive before the layer that needs them, reduced pieces leave after it.

Shape letters: P stages, v chunks, m micro-batches, N compute tasks per stage.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ridgeline.lower.tasks import TaskGraph, dependency_rows
from ridgeline.lower.work import Number
from ridgeline.plan.plan import Plan
from ridgeline.seams.schedule import BACKWARD, BACKWARD_WEIGHT, FORWARD, Durations, Order
from ridgeline.training.exchanges import SLOWDOWN, ShardExchange, beside_delayed, exchange_rules
from ridgeline.training.paired import PAIRED, with_pairs
from ridgeline.training.pipeline import LABEL, forwards_of, order, pipeline_schedule, pipeline_tasks
from ridgeline.training.stage_times import StageTimes

GATHER, REDUCE, UPDATE, DELAYED = 8, 9, 10, 13
STEP_LABEL = (*LABEL, "gather", "reduce", "update", "spread", "barrier", "delayed exchange", "F + B")
Floats = NDArray[np.float64]


def step_tasks(plan: Plan, micro_batches: int, times: StageTimes) -> TaskGraph:
    """The exact task graph of one step of one plan; times as (P, v) arrays without a plan axis."""
    times = beside_delayed(times, micro_batches)
    base, sequence = pipeline_step(plan, micro_batches, times)
    return _StepBuilder(base, sequence, times, exchange_rules(plan)).build()


def pipeline_step(plan: Plan, micro_batches: int, times: StageTimes) -> tuple[TaskGraph, Order]:
    """The tasks of a plan's pipeline, without exchanges and update, and their order."""
    sequence = order(
        pipeline_schedule(plan.schedule),
        plan.pp,
        micro_batches,
        plan.chunks,
        durations=Durations(
            forward_s=times.forward_s,
            input_s=times.backward_input_s,
            weight_s=times.backward_weight_s,
            onward_s=times.send_forward_s,
            homeward_s=times.send_backward_s,
            shared=times.shared,
        ),
    )
    if times.forwards_alone:
        sequence = forwards_of(sequence)
    base = pipeline_tasks(
        sequence,
        forward_s=times.forward_s,
        backward_input_s=times.backward_input_s,
        backward_weight_s=times.backward_weight_s,
        send_forward_s=times.send_forward_s,
        send_backward_s=times.send_backward_s,
    )
    if times.shared is not None:
        from ridgeline.training.shared_passes import with_barriers

        base = with_barriers(base, sequence, times.shared)
    if times.paired_s is not None and sequence.paired is not None:
        base = with_pairs(base, sequence, times.paired_s)
    return base, sequence


def with_moved_activations(
    times: StageTimes, kept_bytes: Floats, counts: NDArray[np.int64], *, on: Number, host_bytes_per_s: float
) -> StageTimes:
    """Times when what forward keeps, (..., P) [byte], goes to the host and comes back under the compute [s].

    A chunk's forward takes the longer of its compute and its copy out, its backward the longer of its compute and
    its copy in, at the device's own host link. `on` (...) says which plans do so; counts (P, v, kinds).
    """
    share = counts.sum(axis=-1) / np.maximum(counts.sum(axis=(1, 2)), 1)[:, None]
    copy_s = np.asarray(on)[..., None, None] * kept_bytes[..., None] * share / host_bytes_per_s
    out = np.maximum(0.0, copy_s - times.forward_s)
    back = np.maximum(0.0, copy_s - times.backward_input_s - times.backward_weight_s)
    return replace(
        times,
        forward_s=times.forward_s + out,
        backward_input_s=times.backward_input_s + back,
        host_copy_s=copy_s,
        host_wait_s=out,
        host_back_wait_s=back,
    )


class _StepBuilder:
    """Adds exchanges and the update to a pipeline's tasks."""

    def __init__(self, base: TaskGraph, sequence: Order, times: StageTimes, rules: ShardExchange) -> None:
        self.base, self.times, self.rules = base, times, rules
        self.stages, self.width = sequence.kind.shape
        self.compute = self.stages * self.width
        self.stage = np.repeat(np.arange(self.stages), self.width)
        kind = base.kind[: self.compute]
        self.kind = np.where(kind == PAIRED, sequence.kind.ravel(), kind).astype(np.int64)
        self.chunk = base.chunk[: self.compute].astype(np.int64)
        self.micro = base.micro_batch[: self.compute]
        self.gather_s, self.reduce_s = self._exchanged(sequence)
        self.needs_gather, self.needs_reduce = self.gather_s > 0, self.reduce_s > 0

    def _exchanged(self, sequence: Order) -> tuple[Floats, Floats]:
        """Seconds of the weights that each compute task waits for, and of the gradients reduced after it."""
        is_forward = self.kind == FORWARD
        makes_gradient = (self.kind == BACKWARD) | (self.kind == BACKWARD_WEIGHT)
        uses_weights = self.kind < BACKWARD_WEIGHT
        slot = self.stage * sequence.chunks + self.chunk
        first = np.zeros(self.compute, dtype=bool)
        last = np.zeros(self.compute, dtype=bool)
        if self.rules.overlap_gather:
            first[_first_of_each(np.where(is_forward, slot, -1))] = True
            first &= is_forward
        if self.rules.overlap_reduce:
            reversed_slots = np.where(makes_gradient, slot, -1)[::-1]
            last[self.compute - 1 - _first_of_each(reversed_slots)] = True
            last &= makes_gradient
        gathers = uses_weights if self.rules.gather_always else first & bool(self.rules.gather_once)
        reduces = makes_gradient if self.rules.reduce_always else last
        at, times = (self.stage, self.chunk), self.times
        often = np.where(is_forward, times.gather_s[at], times.again_s[at])
        gather = np.where(first & gathers, times.first_gather_s[at], np.where(gathers, often, 0.0))
        reduce = np.where(last & reduces, times.last_reduce_s[at], np.where(reduces, times.reduce_s[at], 0.0))
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
        waits = [(head[base.waiting], tail[base.dep])]
        extra = _Extra(first=owner.size, stream=len(base.stream_names))
        self._exchanges(extra, waits, head, tail)
        self._update(extra, waits, head, tail)
        return self._assemble(owner, duration, waits, extra)

    def _slowed(self) -> Floats:
        """Durations with what a hidden exchange takes from the compute it runs beside [s]."""
        duration = self.base.duration_s.copy()
        own = self.base.duration_s[: self.compute]
        gather = np.minimum(self.gather_s, own) * bool(self.rules.overlap_gather)
        reduce = np.minimum(self.reduce_s, own) * bool(self.rules.overlap_reduce)
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
                whole = float(self.gather_s[task])
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
                whole = float(self.reduce_s[task])
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
            left_s = times.last_reduce_s - times.reduce_s if rules.reduce_always else times.last_reduce_s
            if not rules.overlap_reduce and float(left_s[stage].sum()) > 0:
                late = extra.add(REDUCE, float(left_s[stage].sum()), stage, 0, 0, stage)
                waits.append(_pair(late, finals[-1]))
                finals.append(late)
        finals += extra.last_reduces()
        finals += self._delayed(extra)
        for stage in range(self.stages):
            update = extra.add(UPDATE, float(times.optimizer_s[stage]), stage, 0, 0, stage)
            waits.append((np.full(len(finals), update), np.asarray(finals)))
            left_s = times.first_gather_s - times.gather_s if rules.gather_always else times.first_gather_s
            if (rules.gather_once or np.any(times.gather_once_s)) and not rules.overlap_gather:
                extra.add(GATHER, float(left_s[stage].sum()), stage, 0, 0, stage)

    def _delayed(self, extra: _Extra) -> list[int]:
        """Exchanges beside the whole step, on links of their own; there when they end."""
        late_s = np.broadcast_to(self.times.delayed_s, self.stages).tolist()
        return [
            extra.add(DELAYED, seconds, extra.link(stage, "delayed link"), 0, 0, stage)
            for stage, seconds in enumerate(late_s)
            if seconds > 0
        ]

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
        waiting, awaited = (np.concatenate(column) for column in zip(*waits, strict=True))
        dep_start, dep = dependency_rows(waiting, awaited, owner.size + len(extra.seconds))
        return TaskGraph(
            duration_s=np.concatenate((duration, np.asarray(extra.seconds, dtype=np.float64))),
            stream=np.concatenate((base.stream[owner], np.asarray(extra.streams, dtype=np.int32))),
            dep_start=dep_start,
            dep=dep,
            stream_names=base.stream_names + tuple(f"{name} {s}" for name, s in extra.links),
            stream_device=base.stream_device + tuple(s for _, s in extra.links),
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
        self.links: dict[tuple[str, int], int] = {}  # name of a link and stage -> its stream
        self.inlined: list[tuple[int, float]] = []
        self._last_reduce: dict[int, int] = {}

    def link(self, stage: int, name: str = "data link") -> int:
        """The stream of a stage's data-parallel link, or of another link of its."""
        return self.links.setdefault((name, stage), self.stream + len(self.links))

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


def _first_of_each(slots: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where each of the numbers from -1 on stands first; `np.unique` would import masked arrays."""
    found = np.full(int(slots.max()) + 2, -1)
    found[slots[::-1]] = np.arange(slots.size)[::-1]  # of several the last written stays
    return found[found >= 0]


def _share(place: NDArray[np.int64], parts: NDArray[np.int64], pieces: Floats) -> Floats:
    """Share of a compute task in its first, middle or last part; an uncut task is one part [1]."""
    edge = np.where(pieces >= 2, 1 / pieces, 0.0)
    last = np.where(pieces >= 2, 1 / pieces, 1.0)
    middle = np.maximum(0.0, 1.0 - edge - last)
    return np.where(parts == 1, 1.0, np.where(place == 0, edge, np.where(place == 1, middle, last)))


def _pair(task: int, waits_for: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    return np.array([task]), np.array([waits_for])
