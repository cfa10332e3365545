"""Work bound to resources: the form in which a step reaches the timeline.

A stream is an in-order queue on one resource (a stage's compute engine, one direction of a link,
a host thread), as a CUDA stream is. A task starts when the task before it in its stream and all
tasks it depends on have ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True, kw_only=True)
class TaskGraph:
    """Tasks as arrays, N tasks and R streams.

    `duration_s` (N,) [s]; `stream` (N,) index of the task's stream, tasks of one stream run in the
    order in which they are listed; dependencies in compressed rows: task i waits for
    `dep[dep_start[i]:dep_start[i + 1]]`. `name` and `label` are for people: `label[kind[i]]` with
    `micro_batch[i]` and `chunk[i]`.
    """

    duration_s: NDArray[np.float64]
    stream: NDArray[np.int32]
    dep_start: NDArray[np.int64]
    dep: NDArray[np.int64]
    stream_names: tuple[str, ...]
    stream_device: tuple[int, ...]
    kind: NDArray[np.int16]
    label: tuple[str, ...]
    micro_batch: NDArray[np.int32]
    chunk: NDArray[np.int16]
    notes: tuple[str, ...] = field(default=())

    @property
    def tasks(self) -> int:
        """Number of tasks N [1]."""
        return int(self.duration_s.shape[0])

    @property
    def waiting(self) -> NDArray[np.int64]:
        """The task that waits, for each entry of `dep` [1]."""
        return np.repeat(np.arange(self.tasks), np.diff(self.dep_start))

    @property
    def previous(self) -> NDArray[np.int64]:
        """The task before each one in its stream, -1 for the first [1]."""
        by_stream = np.argsort(self.stream, kind="stable")
        previous = np.full(self.tasks, -1, dtype=np.int64)
        same = self.stream[by_stream[1:]] == self.stream[by_stream[:-1]]
        previous[by_stream[1:][same]] = by_stream[:-1][same]
        return previous


def dependency_rows(waiting: ArrayLike, awaited: ArrayLike, tasks: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """`dep_start` and `dep` of pairs of a task that waits and one that it waits for."""
    wait = np.asarray(waiting, dtype=np.int64)
    starts = np.concatenate(([0], np.cumsum(np.bincount(wait, minlength=tasks)))).astype(np.int64)
    return starts, np.asarray(awaited, dtype=np.int64)[np.argsort(wait, kind="stable")]


def listed_rows(waits: Sequence[Sequence[int]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """`dep_start` and `dep` of what each task waits for."""
    starts = np.concatenate(([0], np.cumsum([len(one) for one in waits]))).astype(np.int64)
    return starts, np.array([task for one in waits for task in one], dtype=np.int64)
