"""What a pipeline's tasks hold over time: the rival of each schedule's own count of activations in flight."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ridgeline.lower.tasks import TaskGraph
from ridgeline.seams.schedule import BACKWARD, BACKWARD_WEIGHT, FORWARD
from ridgeline.timeline.simulate import Timeline


@dataclass(frozen=True, kw_only=True)
class MemoryProfile:
    """Activations of chunks that each stage holds: the peak (P,), and at each moment (time [s], held from then on)."""

    peak: NDArray[np.float64]
    steps: tuple[tuple[NDArray[np.float64], NDArray[np.float64]], ...]


def held_chunks(tasks: TaskGraph, timeline: Timeline) -> MemoryProfile:
    """Activations held from the start of a chunk's forward to the end of its backward, of its weight part if split [1].

    At one moment what ends comes before what starts: a task that starts when another ends may reuse its memory.
    """
    stage = np.asarray(tasks.stream_device)[tasks.stream]
    takes = np.flatnonzero(tasks.kind == FORWARD)
    gives = np.flatnonzero((tasks.kind == BACKWARD) | (tasks.kind == BACKWARD_WEIGHT))
    assert takes.size == gives.size
    time_s = np.concatenate((timeline.end_s[gives], timeline.start_s[takes]))
    change = np.concatenate((-np.ones(gives.size), np.ones(takes.size)))
    owner = np.concatenate((stage[gives], stage[takes]))
    by_time = np.lexsort((time_s, owner))  # stable: gives, listed first, stay first within one moment
    time_s, change, owner = time_s[by_time], change[by_time], owner[by_time]
    steps = []
    for one in sorted(set(tasks.stream_device)):
        mine = owner == one
        moment, held = time_s[mine], np.cumsum(change[mine])
        last = np.append(moment[1:] != moment[:-1], True)[: moment.size]
        steps.append((moment[last], held[last]))
    return MemoryProfile(peak=np.array([held.max(initial=0.0) for _, held in steps]), steps=tuple(steps))
