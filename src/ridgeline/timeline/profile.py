"""How busy a timeline keeps its streams."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ridgeline.lower.tasks import TaskGraph
from ridgeline.timeline.simulate import Timeline


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
