"""DualPipe: two copies of the weights, whose micro-batches enter at both ends of the pipeline.

Shape letters: P stages, s one of them, m micro-batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from ridgeline.seams.schedule import (
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    FORWARD,
    Durations,
    Integers,
    Order,
    PipelineSchedule,
    Shape,
)

Task = tuple[int, int]  # kind, and the end of the pipeline that the micro-batch came from; -1 whichever waits


@dataclass(frozen=True, kw_only=True)
class DualPipe(PipelineSchedule):
    """DualPipe: half of the micro-batches come from each end, so that bubbles of the two directions fill each other.

    A device holds its stage of both copies. What it hides of an exchange of experts under another micro-batch's compute
    is not in the order, and so not counted here.
    """

    key: ClassVar[str] = "dualpipe-stranger"
    source: ClassVar[tuple[str, ...]] = (
        "https://arxiv.org/abs/2412.19437, section 3.2.1, and github.com/deepseek-ai/DualPipe, dualpipe/dualpipe.py",
    )
    splits: ClassVar[bool] = True
    copies: ClassVar[int] = 2
    closed: ClassVar[bool] = False
    chunks_told: ClassVar[str] = "exactly 2 (a stage of each copy); set chunks = 2"

    def chunk_counts(self, stages: int, most: int) -> tuple[int]:
        """A stage of each copy."""
        return (2,)

    def refusal(self, shape: Shape) -> str:
        """An even number of stages, an even number of micro-batches, at least two for each stage."""
        if shape.stages % 2:
            return f"{shape.stages} stages, needs an even number; nearest: {shape.stages + 1}"
        if shape.micro_batches % 2 or shape.micro_batches < 2 * shape.stages:
            least = max(2 * shape.stages, shape.micro_batches + shape.micro_batches % 2)
            return f"{shape.micro_batches} micro-batches, needs an even number >= 2 x {shape.stages}; nearest: {least}"
        return ""

    def places(self, stages: int, chunks: int) -> Integers:
        """Place in two chains of each stage's chunks, (P, 2) [1]: s, and P + (P - 1 - s)."""
        stage = np.arange(stages)
        return np.stack((stage, 2 * stages - 1 - stage), axis=1)

    def in_flight(self, stages: int, micro_batches: ArrayLike, chunks: int, stage: ArrayLike) -> Integers:
        """Most chunk-activations that a stage holds at once [1]: P + 1."""
        most = np.minimum(np.asarray(micro_batches, dtype=np.int64), stages + 1)
        return most + 0 * np.asarray(stage, dtype=np.int64)

    def order(self, shape: Shape, durations: Durations, limit: Integers) -> Order:
        """The eight steps of the published program on each stage; the farther half of the stages swaps directions."""
        rows = np.array([_numbered(_steps(shape, stage), stage >= shape.stages // 2) for stage in range(shape.stages)])
        kind, direction, batch = rows.transpose(2, 0, 1)
        return Order(
            places=self.places(shape.stages, 2),
            micro_batches=shape.micro_batches,
            kind=kind.astype(np.int8),
            micro_batch=(batch + direction * shape.micro_batches // 2).astype(np.int32),
            chunk=direction.astype(np.int16),
            chains=2,
        )


def _steps(shape: Shape, stage: int) -> Iterator[Task]:
    """Tasks of a stage: F a forward, B a backward's input part, W the oldest weight part that waits; 0 the near end's.

    A whole backward is its two parts, one after the other: it hands on its gradient when the first is done.
    """
    half = shape.stages // 2
    near = min(stage, shape.stages - 1 - stage)
    far = half - near - 1  # stages between this one and the middle
    yield from [(FORWARD, 0)] * (2 * far)
    yield from [(FORWARD, 0), (FORWARD, 1)] * (near + 1)
    yield from [(BACKWARD_INPUT, 1), (BACKWARD_WEIGHT, 1), (FORWARD, 1)] * far
    whole = {end: [(BACKWARD_INPUT, end), (BACKWARD_WEIGHT, end)] for end in (0, 1)}
    main = [(FORWARD, 0), *whole[1], (FORWARD, 1), *whole[0]]
    yield from main * (shape.micro_batches // 2 - shape.stages + near + 1)
    yield from [*whole[1], (FORWARD, 1), *whole[0]] * far
    late = 0  # weight parts put off
    for turn in range(near + 1):
        for end in (1, 0):
            later = turn > (near + 1) // 2 or (turn == (near + 1) // 2 and (end == 0 or near % 2 == 1))
            yield from whole[end][: 1 if later else 2]
            late += later
    for _ in range(far):
        yield from [(BACKWARD_WEIGHT, -1), (BACKWARD_INPUT, 0)]
    yield from [(BACKWARD_WEIGHT, -1)] * late


def _numbered(steps: Iterable[Task], swapped: bool) -> list[tuple[int, int, int]]:
    """Kind, direction and micro-batch of each task, in turn; weight parts put off go in their inputs' order."""
    done = {(kind, end): 0 for kind in (FORWARD, BACKWARD_INPUT) for end in (0, 1)}
    waiting: list[tuple[int, int]] = []
    rows = []
    for kind, end in steps:
        if kind == BACKWARD_WEIGHT:
            direction, batch = waiting.pop(0 if end < 0 else -1)
        else:
            direction, batch = end ^ swapped, done[kind, end]
            done[kind, end] += 1
        if kind == BACKWARD_INPUT:
            waiting.append((direction, batch))
        rows.append((kind, direction, batch))
    assert not waiting
    return rows
