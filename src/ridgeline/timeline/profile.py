"""What a timeline holds and how busy it keeps its streams."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ridgeline.errors import PlanError
from ridgeline.lower.tasks import TaskGraph
from ridgeline.timeline.simulate import Timeline


@dataclass(frozen=True, kw_only=True)
class MemoryProfile:
    """Bytes held by the tasks of each device over time.

    `device` (D,) in rising order; `peak_bytes` (D,) [byte]; `steps[d]` is (time [s], bytes held from then on
    [byte]), one entry per moment at which the bytes of device d change hands.
    """

    device: tuple[int, ...]
    peak_bytes: NDArray[np.float64]
    steps: tuple[tuple[NDArray[np.float64], NDArray[np.float64]], ...]


def memory_profile(tasks: TaskGraph, timeline: Timeline) -> MemoryProfile:
    """Bytes held over time and their peak, on each device [byte].

    held(t) = sum of alloc of tasks with start <= t - sum of free of tasks with end <= t. At one moment frees
    come before allocations: a task that starts when another ends may reuse its bytes. Raises `PlanError` where tasks
    carry no bytes.
    """
    if tasks.alloc_bytes is None or tasks.free_bytes is None:
        raise PlanError(
            "memory profile: the tasks carry no alloc_bytes and free_bytes; lower them with activation bytes"
        )
    owner = np.asarray(tasks.stream_device, dtype=np.int64)[tasks.stream]
    takes, gives = np.flatnonzero(tasks.alloc_bytes), np.flatnonzero(tasks.free_bytes)
    time_s = np.concatenate((timeline.end_s[gives], timeline.start_s[takes]))
    change = np.concatenate((-tasks.free_bytes[gives], tasks.alloc_bytes[takes]))
    device = np.concatenate((owner[gives], owner[takes]))
    by_time = np.lexsort((time_s, device))  # stable: gives, listed first, stay first within one moment
    time_s, change, device = time_s[by_time], change[by_time], device[by_time]
    devices = tuple(sorted(set(tasks.stream_device)))
    begin = np.searchsorted(device, devices, side="left")
    end = np.searchsorted(device, devices, side="right")
    steps = []
    for low, high in zip(begin.tolist(), end.tolist(), strict=True):
        held, moment = np.cumsum(change[low:high]), time_s[low:high]
        last = np.append(moment[1:] != moment[:-1], True)[: moment.shape[0]]
        steps.append((moment[last], held[last]))
    peak = np.array([held.max(initial=0.0) for _, held in steps])
    return MemoryProfile(device=devices, peak_bytes=peak, steps=tuple(steps))


@dataclass(frozen=True, kw_only=True)
class Busy:
    """Time that each stream works, waits until the makespan, and takes from first start to last end [s], (R,)."""

    busy_s: NDArray[np.float64]
    idle_s: NDArray[np.float64]
    span_s: NDArray[np.float64]


def busy_s(tasks: TaskGraph, timeline: Timeline) -> Busy:
    """Time that each stream works and waits [s].

    busy = sum of the durations of its tasks; idle = makespan - busy; span = last end - first start. Where steps
    follow each other without a common barrier, the longest span is the time per step, else the makespan is.
    """
    streams = len(tasks.stream_names)
    busy = np.zeros(streams)
    np.add.at(busy, tasks.stream, tasks.duration_s)
    first, last = np.full(streams, np.inf), np.full(streams, -np.inf)
    np.minimum.at(first, tasks.stream, timeline.start_s)
    np.maximum.at(last, tasks.stream, timeline.end_s)
    span = np.where(last >= first, last - first, 0.0)
    return Busy(busy_s=busy, idle_s=timeline.makespan_s - busy, span_s=span)
