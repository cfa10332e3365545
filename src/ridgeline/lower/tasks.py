"""Work bound to resources: the form in which a step reaches the timeline.

A stream is an in-order queue on one resource (a stage's compute engine, one direction of a link,
a host thread), as a CUDA stream is. A task starts when the task before it in its stream and all
tasks it depends on have ended.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


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
