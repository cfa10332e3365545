"""Schedules fixed by their shape: forwards alone, then one forward and one backward in turn, then backwards alone.

Shape letters: P stages, s one of them, v chunks of each, m micro-batches.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from ridgeline.facts.records import Fact
from ridgeline.seams.schedule import Durations, Integers, Order, PipelineSchedule, Shape
from ridgeline.seams.technique import EXACT
from ridgeline.training.pipeline import alternating


@dataclass(frozen=True, kw_only=True)
class GPipe(PipelineSchedule):
    """GPipe: all forwards of a step, then all backwards; every micro-batch waits in memory."""

    key: ClassVar[str] = "gpipe"
    quality: ClassVar[Fact | None] = EXACT
    source: ClassVar[tuple[str, ...]] = ("gpipe-2019",)
    alone: ClassVar[bool] = True
    flows_add: ClassVar[bool] = True

    def in_flight(self, stages: int, micro_batches: ArrayLike, chunks: int, stage: ArrayLike) -> Integers:
        """Most chunk-activations that a stage holds at once [1]: m."""
        return np.asarray(micro_batches, dtype=np.int64) + 0 * np.asarray(stage, dtype=np.int64)

    def head_in_flight(self, micro_batches: ArrayLike) -> ArrayLike:
        """Micro-batches whose logits wait for their backward at once [1]: all of them."""
        return micro_batches

    def order(self, shape: Shape, durations: Durations, limit: Integers) -> Order:
        """All m forwards of each stage, then its backwards."""
        warm_up = np.full(shape.stages, shape.micro_batches)
        return alternating(self.places(shape.stages, 1), shape.micro_batches, warm_up)


@dataclass(frozen=True, kw_only=True)
class OneForwardOneBackward(PipelineSchedule):
    """1F1B: a backward follows each forward as soon as it can, so that stage s keeps at most P - s micro-batches."""

    key: ClassVar[str] = "1f1b"
    quality: ClassVar[Fact | None] = EXACT
    source: ClassVar[tuple[str, ...]] = ("pipedream-1f1b-2021",)
    alone: ClassVar[bool] = True

    def in_flight(self, stages: int, micro_batches: ArrayLike, chunks: int, stage: ArrayLike) -> Integers:
        """Most chunk-activations that a stage holds at once [1]: min(m, P - s)."""
        return np.minimum(np.asarray(micro_batches, dtype=np.int64), stages - np.asarray(stage, dtype=np.int64))

    def order(self, shape: Shape, durations: Durations, limit: Integers) -> Order:
        """P - 1 - s forwards of stage s, then one forward and one backward in turn."""
        return alternating(self.places(shape.stages, 1), shape.micro_batches, np.arange(shape.stages)[::-1])


@dataclass(frozen=True, kw_only=True)
class Interleaved(PipelineSchedule):
    """Interleaved 1F1B: each stage holds several chunks of the model, which divides the bubble by their number."""

    key: ClassVar[str] = "interleaved"
    quality: ClassVar[Fact | None] = EXACT
    source: ClassVar[tuple[str, ...]] = ("interleaved-1f1b-2021",)
    chunks_told: ClassVar[str] = ">= 2; set chunks = 2 or schedule = '1f1b'"

    def chunk_counts(self, stages: int, most: int) -> Iterable[int]:
        """Two chunks of a stage, or more."""
        return range(2, most + 1)

    def refusal(self, shape: Shape) -> str:
        """Micro-batches go round in rounds of P."""
        if shape.micro_batches % shape.stages == 0:
            return ""
        nearest = max(1, round(shape.micro_batches / shape.stages)) * shape.stages
        return (
            f"{shape.micro_batches} micro-batches are not a multiple of {shape.stages} stages;"
            f" nearest legal number: {nearest}"
        )

    def in_flight(self, stages: int, micro_batches: ArrayLike, chunks: int, stage: ArrayLike) -> Integers:
        """Most chunk-activations that a stage holds at once [1]: min(m v, 2 (P - s - 1) + (v - 1) P + 1)."""
        early = 2 * (stages - np.asarray(stage, dtype=np.int64) - 1) + (chunks - 1) * stages + 1
        return np.minimum(np.asarray(micro_batches, dtype=np.int64) * chunks, early)

    def order(self, shape: Shape, durations: Durations, limit: Integers) -> Order:
        """2 (P - 1 - s) + (v - 1) P forwards of stage s, then in turn; chunks go round after every P micro-batches."""
        stages, chunks = shape.stages, shape.chunks
        warm_up = 2 * np.arange(stages)[::-1] + (chunks - 1) * stages
        return alternating(self.places(stages, chunks), shape.micro_batches, warm_up, lap=stages)
