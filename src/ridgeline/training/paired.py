"""A forward of one micro-batch and a backward of another as one pass of a stage.

Shape letters: P stages, v chunks per stage, N tasks of a stage.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ridgeline.lower.tasks import TaskGraph, dependency_rows
from ridgeline.seams.schedule import BACKWARD_INPUT, Order
from ridgeline.training.stage_times import StageLayers

Floats = NDArray[np.float64]
PAIRED = 14  # kind of a task that is a forward and a backward at once


def saved_s(held: StageLayers) -> Floats:
    """What a forward of each chunk and a backward of each take less as one pass, (..., P, v, v) [s].

    Layers of one kind run beside each other, one for one; of different numbers, those that both chunks have.
    """
    total = np.zeros((*held.counts.shape[:2], held.counts.shape[1]))
    edge, pairs = total, total.astype(np.int64)
    for index, name in enumerate(held.names):
        pairing = held.cost.blocks[name].pairing
        if pairing is None:
            continue
        layer, counts = pairing(), held.counts[..., index]
        both = np.minimum(counts[:, :, None], counts[:, None, :])
        each, ends = (np.asarray(seconds)[..., None, None, None] for seconds in (layer.each_s, layer.ends_s))
        total, edge, pairs = total + each * both, edge + ends * both, pairs + both
    return np.asarray(np.maximum(total - edge / np.maximum(pairs, 1), 0.0))


def with_pairs(base: TaskGraph, order: Order, saved: Floats) -> TaskGraph:
    """The same tasks with those that an order pairs as one pass: the forward takes the time of both, less `saved`.

    It starts when both may, and what either hands on is there at its end: the backward behind it takes no time.
    """
    first, seconds, kinds = np.flatnonzero(np.asarray(order.paired).ravel()), base.duration_s.copy(), base.kind.copy()
    chunk = order.chunk.ravel()
    behind = [first + 1]
    if BACKWARD_INPUT in order.kind:  # both parts of it
        behind.append(first + 2)
    for one in behind:
        seconds[first] += seconds[one]
        seconds[one] = 0.0
    seconds[first] -= saved[first // order.kind.shape[1], chunk[first], chunk[first + 1]]
    kinds[first] = PAIRED
    backward = np.zeros(base.tasks, dtype=bool)
    backward[first + 1] = True
    early = backward[base.waiting]  # what the backward waits for, the pass does
    dep_start, dep = dependency_rows(
        np.concatenate((base.waiting, base.waiting[early] - 1)), np.concatenate((base.dep, base.dep[early])), base.tasks
    )
    return replace(base, duration_s=seconds, kind=kinds, dep_start=dep_start, dep=dep)


def hidden_s(order: Order, saved: Floats, stage: int) -> float:
    """What all passes of a stage that are a forward and a backward at once take less in a step [s]."""
    if order.paired is None:
        return 0.0
    first, chunk = np.flatnonzero(order.paired[stage]), order.chunk[stage]
    return float(saved[stage, chunk[first], chunk[first + 1]].sum())
