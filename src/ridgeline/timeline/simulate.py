"""The exact timeline of a task graph: when every task starts and ends.

A task starts when the task before it in its stream and all tasks it waits for have ended, so the
timeline is the longest path through the graph; nothing is sampled and nothing is rounded beyond
one floating-point addition per task.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.compiled import kernel, run_on_lists
from ridgeline.errors import PlanError
from ridgeline.lower.tasks import TaskGraph

Numbers = Any  # a list or an array, by the way the kernel runs

_TASK_S = 1e-6  # measured: a task and its dependencies in plain Python (benchmarks/bench_schedules.py)


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """Start and end of every task [s], and the end of the last one."""

    start_s: NDArray[np.float64]
    end_s: NDArray[np.float64]
    makespan_s: float


@kernel
def _sweep(
    duration_s: Numbers,
    stream: Numbers,
    dep_start: Numbers,
    dep: Numbers,
    times_s: Numbers,
    of_task: Numbers,
    of_stream: Numbers,
    free_s: Numbers,
) -> int:
    """Fill start and end of every task that can run; return how many did.

    Each stream runs ahead until its head task meets an unfinished dependency, then joins the list
    of streams that wait for it and is made runnable when it ends. Every task and every dependency
    is passed once: O(tasks + dependencies). `times_s` are starts and ends, -1 until known; `of_task` the next
    of its stream, the dependency it looks at and the stream that waits for it; `of_stream` the head task, the next
    stream that waits for the same task and the runnable ones; `free_s` when a stream is free.
    """
    start_s, end_s = times_s[0], times_s[1]
    next_task, cursor, waiter = of_task[0], of_task[1], of_task[2]
    head, next_waiter, runnable = of_stream[0], of_stream[1], of_stream[2]
    streams = len(head)
    for task in range(len(stream) - 1, -1, -1):
        next_task[task] = head[stream[task]]
        head[stream[task]] = task
    for lane in range(streams):
        runnable[lane] = lane
    waiting = streams
    done = 0
    while waiting > 0:
        waiting -= 1
        lane = runnable[waiting]
        task = head[lane]
        while task >= 0:
            ready_s = start_s[task]
            if ready_s < free_s[lane]:
                ready_s = free_s[lane]
            position = cursor[task]
            stop = dep_start[task + 1]
            while position < stop:
                ended_s = end_s[dep[position]]
                if ended_s < 0.0:
                    break
                if ended_s > ready_s:
                    ready_s = ended_s
                position += 1
            start_s[task] = ready_s
            if position < stop:
                cursor[task] = position
                next_waiter[lane] = waiter[dep[position]]
                waiter[dep[position]] = lane
                break
            end_s[task] = ready_s + duration_s[task]
            free_s[lane] = end_s[task]
            done += 1
            lane_waiting = waiter[task]
            while lane_waiting >= 0:
                runnable[waiting] = lane_waiting
                waiting += 1
                lane_waiting = next_waiter[lane_waiting]
            task = next_task[task]
        head[lane] = task
    return done


def simulate(tasks: TaskGraph, *, compiled: bool | None = None) -> Timeline:
    """When every task of the graph starts and ends [s].

    start = max(end of the previous task of its stream, ends of its dependencies); streams start at 0.

    Parameters
    ----------
    tasks : TaskGraph
        Durations >= 0 and finite.
    compiled : bool or None
        Force the compiled or the plain kernel; None chooses by the work asked for. Same bits either way.

    Raises
    ------
    PlanError
        A duration is negative or not finite, or tasks wait for each other in a circle.
    """
    count, streams = tasks.tasks, len(tasks.stream_names)
    duration_s = np.ascontiguousarray(tasks.duration_s, dtype=np.float64)
    if count and not (np.isfinite(duration_s).all() and duration_s.min() >= 0.0):
        _refuse_duration(tasks, duration_s)
    dep_start = np.ascontiguousarray(tasks.dep_start, dtype=np.int64)
    times_s = np.stack((np.zeros(count), np.full(count, -1.0)))
    absent = np.full(count, -1, dtype=np.int64)
    of_stream = np.full((3, streams), -1, dtype=np.int64)
    done = run_on_lists(
        _sweep,
        (
            duration_s,
            np.ascontiguousarray(tasks.stream, dtype=np.int64),
            dep_start,
            np.ascontiguousarray(tasks.dep, dtype=np.int64),
        ),
        (times_s, np.stack((absent, dep_start[:-1], absent)), of_stream, np.zeros(streams)),
        plain_s=count * _TASK_S,
        force=compiled,
    )
    start_s, end_s = times_s
    if done < count:
        _refuse_circle(tasks, end_s, done)
    return Timeline(start_s=start_s, end_s=end_s, makespan_s=float(end_s.max()) if count else 0.0)


def task_name(tasks: TaskGraph, task: int) -> str:
    """A task in words: its label, micro-batch, chunk and stream."""
    return (
        f"'{tasks.label[int(tasks.kind[task])]}' of micro-batch {int(tasks.micro_batch[task])},"
        f" chunk {int(tasks.chunk[task])} on '{tasks.stream_names[int(tasks.stream[task])]}' (task {task})"
    )


def _refuse_duration(tasks: TaskGraph, duration_s: NDArray[np.float64]) -> None:
    task = int(np.flatnonzero(~(np.isfinite(duration_s) & (duration_s >= 0.0)))[0])
    raise PlanError(f"timeline: {task_name(tasks, task)} lasts {duration_s[task]} s; needs a finite time >= 0 s")


def _refuse_circle(tasks: TaskGraph, end_s: NDArray[np.float64], done: int) -> None:
    """Follow unfinished tasks backward until one repeats: it lies on the circle."""
    stuck = int(np.flatnonzero(end_s < 0.0)[0])
    previous = tasks.previous
    seen: set[int] = set()
    while stuck not in seen:
        seen.add(stuck)
        waits_for: Sequence[int] = tasks.dep[tasks.dep_start[stuck] : tasks.dep_start[stuck + 1]].tolist()
        candidates = [*waits_for, int(previous[stuck])]
        stuck = next(task for task in candidates if task >= 0 and end_s[task] < 0.0)
    raise PlanError(
        f"timeline: {tasks.tasks - done} of {tasks.tasks} tasks wait for each other in a circle; one of them is"
        f" {task_name(tasks, stuck)}; list its stream's tasks after those they wait for"
    )


@dataclass(frozen=True, kw_only=True)
class Busy:
    """Time that each stream works, and takes from first start to last end [s], (R,)."""

    busy_s: NDArray[np.float64]
    span_s: NDArray[np.float64]


def busy_s(tasks: TaskGraph, timeline: Timeline) -> Busy:
    """Time that each stream works and spans [s].

    busy = sum of the durations of its tasks; span = last end - first start. Where steps
    follow each other without a common barrier, the longest span is the time per step, else the makespan is.
    """
    streams = len(tasks.stream_names)
    busy = np.zeros(streams)
    np.add.at(busy, tasks.stream, tasks.duration_s)
    first, last = np.full(streams, np.inf), np.full(streams, -np.inf)
    np.minimum.at(first, tasks.stream, timeline.start_s)
    np.maximum.at(last, tasks.stream, timeline.end_s)
    span = np.where(last >= first, last - first, 0.0)
    return Busy(busy_s=busy, span_s=span)
