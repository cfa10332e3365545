"""Chimera: two copies of the weights in opposite directions, each of which runs 1F1B in the other's bubbles.

Shape letters: P stages, s one of them, m micro-batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from ridgeline.seams.schedule import BACKWARD, FORWARD, Durations, Integers, Order, PipelineSchedule, Shape

Task = tuple[int, int, int]  # kind, direction, micro-batch of that direction
UNITS = {FORWARD: 1, BACKWARD: 2}  # time of a pass, in forwards


@dataclass(frozen=True, kw_only=True)
class Chimera(PipelineSchedule):
    """Chimera: one half of the micro-batches goes down the stages, the other up, through a copy of the weights each."""

    key: ClassVar[str] = "chimera-stranger"
    source: ClassVar[tuple[str, ...]] = ("https://arxiv.org/abs/2107.06925, sections 3.1 and 3.2",)
    copies: ClassVar[int] = 2
    closed: ClassVar[bool] = False
    chunks_told: ClassVar[str] = "exactly 2 (a stage of each copy); set chunks = 2"

    def chunk_counts(self, stages: int, most: int) -> tuple[int]:
        """A stage of each copy."""
        return (2,)

    def refusal(self, shape: Shape) -> str:
        """An even number of stages, and as many micro-batches or a multiple."""
        if shape.stages % 2:
            return f"{shape.stages} stages, needs an even number; nearest: {shape.stages + 1}"
        if shape.micro_batches % shape.stages:
            nearest = -(-shape.micro_batches // shape.stages) * shape.stages
            return f"{shape.micro_batches} micro-batches, needs a multiple of {shape.stages}; nearest: {nearest}"
        return ""

    def places(self, stages: int, chunks: int) -> Integers:
        """Place in two chains of each stage's chunks, (P, 2) [1]: s, and P + (P - 1 - s)."""
        stage = np.arange(stages)
        return np.stack((stage, 2 * stages - 1 - stage), axis=1)

    def in_flight(self, stages: int, micro_batches: ArrayLike, chunks: int, stage: ArrayLike) -> Integers:
        """Most chunk-activations that a stage holds at once [1]: min(m / 2, P - s) going down, min(m / 2, s + 1) up."""
        down, up = stages - np.asarray(stage, dtype=np.int64), np.asarray(stage, dtype=np.int64) + 1
        most = np.asarray(micro_batches, dtype=np.int64) // 2
        return np.asarray(np.minimum(most, down) + np.minimum(most, up))

    def order(self, shape: Shape, durations: Durations, limit: Integers) -> Order:
        """What a stage does next is what has waited longest of the two directions' 1F1B, backwards before forwards."""
        rows = np.array(_rows(shape.stages, shape.micro_batches // 2))
        kind, direction, batch = rows.transpose(2, 0, 1)
        return Order(
            places=self.places(shape.stages, 2),
            micro_batches=shape.micro_batches,
            kind=kind.astype(np.int8),
            micro_batch=(batch + direction * shape.micro_batches // 2).astype(np.int32),
            chunk=direction.astype(np.int16),
            chains=2,
        )


def _rows(stages: int, batches: int) -> list[list[Task]]:
    """Tasks of each stage in turn, as both directions' 1F1B fall into place with passes of `UNITS`."""
    waiting = [[_alone(stages, batches, place) for place in (stage, stages - 1 - stage)] for stage in range(stages)]
    rows: list[list[Task]] = [[] for _ in range(stages)]
    done: dict[tuple[Task, int], int] = {}
    free = [0] * stages
    while any(any(pair) for pair in waiting):
        starts = [
            (max(free[stage], ready), ready, -pair[way][0], stage, way)
            for stage, pair in enumerate(waiting)
            for way in (0, 1)
            if pair[way] and (ready := _ready(done, stages, stage, (pair[way][0], way, pair[way][1]))) is not None
        ]
        start, _, _, stage, way = min(starts)
        kind, batch = waiting[stage][way][:2]
        del waiting[stage][way][:2]
        rows[stage].append((kind, way, batch))
        free[stage] = done[(kind, way, batch), stage] = start + UNITS[kind]
    return rows


def _alone(stages: int, batches: int, place: int) -> list[int]:
    """1F1B of one direction at a place of its chain: kind and micro-batch, one after the other."""
    ahead = min(batches, stages - place)
    order = [(FORWARD, batch) for batch in range(ahead)]
    for batch in range(batches):
        order += [(BACKWARD, batch), *([(FORWARD, batch + ahead)] if batch + ahead < batches else [])]
    return [part for task in order for part in task]


def _ready(done: dict[tuple[Task, int], int], stages: int, stage: int, task: Task) -> int | None:
    """When what a pass waits for has ended, 0 where it waits for nothing, None where that has not run yet."""
    kind, way, batch = task
    onward = -1 if way else 1
    before = stage + (onward if kind == BACKWARD else -onward)
    if 0 <= before < stages:
        return done.get(((kind, way, batch), before))
    return 0 if kind == FORWARD else done.get(((FORWARD, way, batch), stage))
