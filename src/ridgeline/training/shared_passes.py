"""Passes that all stages share, put into a pipeline's order: each stage does its part of the vocabulary's head.

Shape letters: P stages, v chunks per stage, K = P v positions of the chain, m micro-batches, N tasks per stage.

After the last forward of a micro-batch its result goes to all stages (spread); each multiplies it with its share of the
vocabulary (pass S); a first barrier sums the softmax's statistics. With one barrier S has made the gradient of the
input as well, which that barrier sums, and a pass T makes the gradient of weights alone; with two, T makes both and a
second barrier sums the input's. The first backward waits for the last barrier, T for the first (Yeung et al. 2024,
arXiv:2411.05288, algorithms 1 and 2).
"""

from __future__ import annotations

import heapq
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ridgeline.lower.tasks import TaskGraph, dependency_rows
from ridgeline.seams.schedule import (
    BACKWARD,
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    FORWARD,
    SHARED_BACKWARD,
    SHARED_FORWARD,
    Durations,
    Order,
    SharedPasses,
)

NEVER_S = 1e300  # later than any event
SPREAD, BARRIER = 11, 12


def with_shared_passes(inner: Order, durations: Durations, barriers: int) -> Order:
    """The order with S and T of every micro-batch where they are ready: S first, then T, then what stood there.

    `inner` keeps its sequence on each stage; it must hold `barriers` more micro-batches than without the passes. Where
    durations tell no shared passes, each is as long as a forward, and exchanges take nothing.
    """
    shape = (inner.stages,)
    if durations.shared is None:
        each, none = np.asarray(durations.forward_s[:, 0]), np.zeros(())
        shared = SharedPasses(forward_s=each, backward_s=each, spread_s=none, barriers_s=(none,) * barriers)
    else:
        shared = durations.shared
    walk = _Walk(inner, durations, shared)
    walk.run()
    rows = np.array(walk.rows, dtype=np.int64).reshape(*shape, -1, 3)
    return replace(
        inner,
        kind=rows[..., 0].astype(np.int8),
        micro_batch=rows[..., 1].astype(np.int32),
        chunk=rows[..., 2].astype(np.int16),
    )


class _Walk:
    """Runs an order through time, event by event, and writes down what each stage does."""

    def __init__(self, inner: Order, durations: Durations, shared: SharedPasses) -> None:
        stages, chunks, m = inner.stages, inner.chunks, inner.micro_batches
        self.stages, self.last = stages, stages * chunks - 1
        self.todo = np.stack((inner.kind, inner.micro_batch, inner.chunk), axis=2).tolist()
        self.places = inner.places.tolist()
        self.stage_at = [0] * (self.last + 1)
        for stage, row in enumerate(self.places):
            for place in row:
                self.stage_at[place] = stage
        whole = durations.input_s + durations.weight_s
        self.seconds = [t.tolist() for t in (durations.forward_s, whole, durations.input_s, durations.weight_s)]
        self.sends = (durations.onward_s.tolist(), durations.homeward_s.tolist())
        self.passes = (np.asarray(shared.forward_s).tolist(), np.asarray(shared.backward_s).tolist())
        self.spread_s, self.barriers_s = float(shared.spread_s), [float(each) for each in shared.barriers_s]
        self.ready = [[[NEVER_S] * m for _ in range(self.last + 1)] for _ in range(2)]  # forwards, backwards
        self.ready[0][0] = [0.0] * m
        self.due = [[NEVER_S] * m for _ in range(2)]  # S and T of a micro-batch
        self.latest, self.many = [[0.0] * m for _ in range(2)], [[0] * m for _ in range(2)]
        self.ran = [[0] * stages for _ in range(2)]
        self.rows: list[list[tuple[int, int, int]]] = [[] for _ in range(stages)]
        self.free = [0.0] * stages
        self.wake = [(0.0, stage) for stage in range(stages)]

    def run(self) -> None:
        """Until no stage has anything left to do."""
        cursor = [0] * self.stages
        while self.wake:
            now_s, stage = heapq.heappop(self.wake)
            if now_s < self.free[stage]:
                continue  # it looks again when it is free
            part = next((each for each in (0, 1) if self._due(each, stage) <= now_s), None)
            if part is not None:
                micro_batch = self.ran[part][stage]
                self.ran[part][stage] += 1
                end_s = now_s + self.passes[part][stage]
                self.rows[stage].append((SHARED_FORWARD + part, micro_batch, 0))
                self._shared(part, micro_batch, end_s)
            elif cursor[stage] < len(self.todo[stage]):
                kind, micro_batch, chunk = self.todo[stage][cursor[stage]]
                if self._starts(kind, micro_batch, self.places[stage][chunk]) > now_s:
                    continue  # what it waits for wakes it
                cursor[stage] += 1
                end_s = now_s + self.seconds[kind][stage][chunk]
                self.rows[stage].append((kind, micro_batch, chunk))
                self._passed(kind, micro_batch, stage, chunk, end_s)
            else:
                continue
            self.free[stage] = end_s
            heapq.heappush(self.wake, (end_s, stage))

    def _due(self, part: int, stage: int) -> float:
        """When the stage's next S or T may start [s]."""
        micro_batch = self.ran[part][stage]
        return self.due[part][micro_batch] if micro_batch < len(self.due[part]) else NEVER_S

    def _starts(self, kind: int, micro_batch: int, place: int) -> float:
        """When a task of the inner order may start [s]."""
        if kind == BACKWARD_WEIGHT:
            return 0.0
        return self.ready[int(kind != FORWARD)][place][micro_batch]

    def _passed(self, kind: int, micro_batch: int, stage: int, chunk: int, end_s: float) -> None:
        """Hand on what a task of the inner order made."""
        place, way = self.places[stage][chunk], int(kind != FORWARD)
        if kind == BACKWARD_WEIGHT:
            return
        if kind == FORWARD and place == self.last:
            self._all(0, micro_batch, end_s + self.spread_s)
            return
        target = place + (-1 if way else 1)
        if target >= 0:
            other = self.stage_at[target]
            arrival_s = end_s + (self.sends[way][stage][chunk] if other != stage else 0.0)
            self.ready[way][target][micro_batch] = arrival_s
            heapq.heappush(self.wake, (arrival_s, other))

    def _shared(self, part: int, micro_batch: int, end_s: float) -> None:
        """Count a stage's S or T; the last one of a micro-batch meets the barrier."""
        self.latest[part][micro_batch] = max(self.latest[part][micro_batch], end_s)
        self.many[part][micro_batch] += 1
        if self.many[part][micro_batch] < self.stages or part >= len(self.barriers_s):
            return
        after_s = self.latest[part][micro_batch] + self.barriers_s[part]
        if part == 0:
            self._all(1, micro_batch, after_s)
        if part == len(self.barriers_s) - 1:
            self.ready[1][self.last][micro_batch] = after_s
            heapq.heappush(self.wake, (after_s, self.stage_at[self.last]))

    def _all(self, part: int, micro_batch: int, when_s: float) -> None:
        """S or T of a micro-batch may start on every stage."""
        self.due[part][micro_batch] = when_s
        for stage in range(self.stages):
            heapq.heappush(self.wake, (when_s, stage))


def with_barriers(base: TaskGraph, order: Order, shared: SharedPasses) -> TaskGraph:
    """A pipeline's tasks with the times of S and T, and what all stages exchange around them.

    The exchanges are tasks of streams of their own, one for each kind, in the order of micro-batches.
    """
    (stages, width), m = order.kind.shape, order.micro_batches
    kind, batch = order.kind.ravel(), order.micro_batch.ravel()
    stage = np.repeat(np.arange(stages), width)
    place = order.places[stage, order.chunk.ravel()]
    duration = base.duration_s.copy()
    for part, seconds in ((SHARED_FORWARD, shared.forward_s), (SHARED_BACKWARD, shared.backward_s)):
        mine = np.flatnonzero(kind == part)
        duration[mine] = np.asarray(seconds)[stage[mine]]
    passes = [np.flatnonzero(kind == part) for part in (SHARED_FORWARD, SHARED_BACKWARD)]
    ends = place == order.places.max()
    last = np.flatnonzero(ends & (kind == FORWARD))
    first = np.flatnonzero(ends & ((kind == BACKWARD) | (kind == BACKWARD_INPUT)))
    times = [shared.spread_s, *shared.barriers_s]
    meets = base.tasks + np.arange(len(times) * m).reshape(-1, m)  # spread, then barriers
    waiting = [meets[0][batch[last]], passes[0], meets[1][batch[passes[0]]], passes[1]]
    awaited = [last, meets[0][batch[passes[0]]], passes[0], meets[1][batch[passes[1]]]]
    for meet in meets[2:]:
        waiting.append(meet[batch[passes[1]]])
        awaited.append(passes[1])
    waiting.append(first)
    awaited.append(meets[-1][batch[first]])
    names = tuple(f"vocabulary {what}" for what in ("spread", "statistics", "gradient")[: len(times)])
    return _extended(
        replace(base, duration_s=duration),
        seconds=np.concatenate([np.full(m, float(each)) for each in times]),
        names=names,
        device=stages - 1,
        waits=(np.concatenate(waiting), np.concatenate(awaited)),
    )


def _extended(
    base: TaskGraph, *, seconds: NDArray[np.float64], names: tuple[str, ...], device: int,
    waits: tuple[NDArray[np.int64], NDArray[np.int64]],
) -> TaskGraph:  # fmt: skip
    """The tasks with so many more on new streams, and with more to wait for."""
    each = seconds.size // len(names)
    waiting, awaited = np.concatenate((base.waiting, waits[0])), np.concatenate((base.dep, waits[1]))
    dep_start, dep = dependency_rows(waiting, awaited, base.tasks + seconds.size)
    kinds = np.where(np.arange(seconds.size) < each, SPREAD, BARRIER)
    none = np.zeros(seconds.size)
    return replace(
        base,
        duration_s=np.concatenate((base.duration_s, seconds)),
        stream=np.concatenate((base.stream, np.repeat(np.arange(len(names)), each) + len(base.stream_names))).astype(
            np.int32
        ),
        dep_start=dep_start,
        dep=dep,
        stream_names=base.stream_names + names,
        stream_device=base.stream_device + (device,) * len(names),
        kind=np.concatenate((base.kind, kinds)).astype(np.int16),
        micro_batch=np.concatenate((base.micro_batch, np.tile(np.arange(each), len(names)))).astype(np.int32),
        chunk=np.concatenate((base.chunk, none)).astype(np.int16),
    )
