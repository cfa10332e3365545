"""Schedules that run a forward of one micro-batch and a backward of another as one pass.

Exchanges of experts of either run under products of the other (`cost.paired`).

Shape letters: P stages, s one of them, v chunks of each, m micro-batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from ridgeline.facts.records import Fact
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
from ridgeline.seams.technique import EXACT
from ridgeline.techniques.schedules.alternating import Interleaved
from ridgeline.training.pipeline import alternating

TIERS = frozenset({"weight tier", "optimizer tier", "activation tier"})  # moves beside whole passes are not modelled
Task = tuple[int, int, bool]  # kind, end that the micro-batch came from (-1 whichever waits), first of two as one pass


@dataclass(frozen=True, kw_only=True)
class Combined1F1B(Interleaved):
    """Combined 1F1B: interleaved 1F1B, or one stage alone, whose forward and backward in turn run as one pass.

    One more forward goes ahead on each stage than in interleaved 1F1B, so that the two are of different micro-batches;
    its activations are held as well.
    """

    key: ClassVar[str] = "combined-1f1b"
    export: ClassVar[dict[str, str]] = {"megatron-lm": "--overlap-moe-expert-parallel-comm --delay-wgrad-compute"}
    source: ClassVar[tuple[str, ...]] = ("megatron-lm",)
    alone: ClassVar[bool] = True
    paired: ClassVar[bool] = True
    owns: ClassVar[frozenset[str]] = TIERS
    closed: ClassVar[bool] = False
    chunks_told: ClassVar[str] = ">= 2 on several stages, 1 on one; set chunks = 2"

    def chunk_counts(self, stages: int, most: int) -> Iterable[int]:
        """Two chunks of a stage, or more; one where there is one stage."""
        return super().chunk_counts(stages, most) if stages > 1 else (1,)

    def in_flight(self, stages: int, micro_batches: ArrayLike, chunks: int, stage: ArrayLike) -> Integers:
        """Most chunk-activations that a stage holds at once [1]: one more than interleaved 1F1B, two of one stage."""
        early = 2 * (stages - np.asarray(stage, dtype=np.int64) - 1) + (chunks - 1) * stages + 2
        return np.minimum(np.asarray(micro_batches, dtype=np.int64) * chunks, early)

    def order(self, shape: Shape, durations: Durations, limit: Integers) -> Order:
        """2 (P - 1 - s) + (v - 1) P + 1 forwards of stage s, then passes of both; chunks go round after P."""
        stages, chunks = shape.stages, shape.chunks
        warm_up = 2 * np.arange(stages)[::-1] + (chunks - 1) * stages + 1
        lap = stages if stages > 1 else None
        return alternating(self.places(stages, chunks), shape.micro_batches, warm_up, lap=lap, paired=True)


@dataclass(frozen=True, kw_only=True)
class DualPipe(PipelineSchedule):
    """DualPipe: half of the micro-batches come from each end, and those of the two directions run in one pass.

    A device holds a stage of both copies of the weights.
    """

    key: ClassVar[str] = "dualpipe"
    quality: ClassVar[Fact | None] = EXACT
    source: ClassVar[tuple[str, ...]] = ("dualpipe", "deepseek-v3")
    splits: ClassVar[bool] = True
    copies: ClassVar[int] = 2
    paired: ClassVar[bool] = True
    owns: ClassVar[frozenset[str]] = TIERS
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
        half, turns = shape.stages // 2, shape.micro_batches // 2
        nears = [min(stage, shape.stages - 1 - stage) for stage in range(shape.stages)]
        rows = np.array(
            [_numbered(_steps(half, near, turns), stage >= half) for stage, near in enumerate(nears)], dtype=np.int64
        )
        return _order(self, shape, rows, turns)


@dataclass(frozen=True, kw_only=True)
class DualPipeV(DualPipe):
    """DualPipeV: DualPipe cut in half and folded, so that one copy of the weights goes down the stages and back up."""

    key: ClassVar[str] = "dualpipev"
    source: ClassVar[tuple[str, ...]] = ("dualpipe",)
    copies: ClassVar[int] = 1
    chunks_told: ClassVar[str] = "exactly 2 (one down, one up); set chunks = 2"

    def refusal(self, shape: Shape) -> str:
        """At least two micro-batches for each stage."""
        few = shape.micro_batches < 2 * shape.stages
        told = f"{shape.micro_batches} micro-batches, needs >= 2 x {shape.stages}; nearest: {2 * shape.stages}"
        return told if few else ""

    def in_flight(self, stages: int, micro_batches: ArrayLike, chunks: int, stage: ArrayLike) -> Integers:
        """Most chunk-activations that a stage holds at once [1]: 2 P + 1, each of half a stage."""
        most = np.minimum(2 * np.asarray(micro_batches, dtype=np.int64), 2 * stages + 1)
        return most + 0 * np.asarray(stage, dtype=np.int64)

    def order(self, shape: Shape, durations: Durations, limit: Integers) -> Order:
        """The eight steps of the published program on each stage."""
        steps = (_steps(shape.stages, stage, shape.micro_batches) for stage in range(shape.stages))
        return _order(self, shape, np.array([_numbered(each, False) for each in steps], dtype=np.int64), 0)


def _order(schedule: PipelineSchedule, shape: Shape, rows: Integers, apart: int) -> Order:
    """An order from rows of kind, direction, micro-batch, pairing; those of the other direction count from `apart`."""
    kind, direction, batch, paired = rows.transpose(2, 0, 1)
    return Order(
        places=schedule.places(shape.stages, 2),
        micro_batches=shape.micro_batches,
        kind=kind.astype(np.int8),
        micro_batch=(batch + direction * apart).astype(np.int32),
        chunk=direction.astype(np.int16),
        chains=schedule.copies,
        paired=paired.astype(np.bool_),
    )


def _steps(half: int, near: int, turns: int) -> Iterator[Task]:
    """Tasks of a stage: forwards, backwards or their input parts, the oldest weight part that waits; 0 the near end.

    Source: dualpipe/dualpipe.py and dualpipe/dualpipev.py at 3da1bbe, `step`.
    """
    far = half - near - 1  # stages between this one and the middle
    forward = [(FORWARD, end, False) for end in (0, 1)]
    early = [(BACKWARD_INPUT, end, False) for end in (0, 1)]
    whole = [[early[end], (BACKWARD_WEIGHT, end, False)] for end in (0, 1)]
    both = [[(FORWARD, end, True), *whole[1 - end]] for end in (0, 1)]
    waiting = (BACKWARD_WEIGHT, -1, False)
    yield from [forward[0]] * (2 * far)
    yield from [*forward] * (near + 1)
    yield from [early[1], waiting, forward[1]] * far
    for turn in range(turns - 2 * half + near + 1):
        yield from both[0] if turn or far else [forward[0], *whole[1]]  # in the middle a smaller bubble so
        yield from both[1]
    yield from [*whole[1], *both[1]] * far
    late = 0  # weight parts put off
    for turn in range(near + 1):
        for end in (1, 0):
            later = turn > (near + 1) // 2 or (turn == (near + 1) // 2 and (end == 0 or near % 2 == 1))
            yield from whole[end][: 1 if later else 2]
            late += later
    for _ in range(far):
        yield from [waiting, early[0]]
    yield from [waiting] * late


def _numbered(steps: Iterable[Task], swapped: bool) -> list[tuple[int, int, int, int]]:
    """Kind, direction, micro-batch and pairing of each task; weight parts put off go in their inputs' order."""
    forwards, backwards = [0, 0], [0, 0]
    put_off: list[tuple[int, int]] = []
    rows = []
    for kind, end, paired in steps:
        if kind == BACKWARD_WEIGHT:
            direction, batch = put_off.pop(0 if end < 0 else -1)
        else:
            done = forwards if kind == FORWARD else backwards
            direction, batch = end ^ swapped, done[end]
            done[end] += 1
        if kind == BACKWARD_INPUT:
            put_off.append((direction, batch))
        rows.append((kind, direction, batch, int(paired)))
    assert not put_off
    return rows
