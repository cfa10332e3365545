"""Zero-bubble schedules: weight parts of backwards fill what would be bubbles.

Shape letters: P stages, s one of them, v chunks of each, m micro-batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from ridgeline.facts.records import Fact
from ridgeline.seams.schedule import Durations, Integers, Order, PipelineSchedule, Shape
from ridgeline.seams.technique import EXACT
from ridgeline.training.zero_bubble import Skeleton, filled_order, folded_skeletons, straight_skeletons


@dataclass(frozen=True, kw_only=True)
class _Filled(PipelineSchedule):
    """Skeletons of forwards and input backwards, filled with weight parts by their real times."""

    source: ClassVar[tuple[str, ...]] = ("zero-bubble-2024",)
    quality: ClassVar[Fact | None] = EXACT
    splits: ClassVar[bool] = True

    def cap(self, stages: int) -> int:
        """Chunk-activations that a stage may hold at once [1]."""
        raise NotImplementedError

    def skeletons(self, shape: Shape, limit: Integers) -> Iterator[Skeleton]:
        """Orders of forwards and input backwards worth filling, each within the limit."""
        raise NotImplementedError

    def in_flight(self, stages: int, micro_batches: ArrayLike, chunks: int, stage: ArrayLike) -> Integers:
        """Most chunk-activations that a stage holds at once [1]: its cap, never more than the m v there are."""
        units = np.asarray(micro_batches, dtype=np.int64) * chunks
        return np.minimum(units, self.cap(stages)) + 0 * np.asarray(stage, dtype=np.int64)

    def order(self, shape: Shape, durations: Durations, limit: Integers) -> Order:
        """The shortest filling of a skeleton."""
        places = self.places(shape.stages, shape.chunks)
        return filled_order(list(self.skeletons(shape, limit)), places, shape.micro_batches, durations, limit)


@dataclass(frozen=True, kw_only=True)
class ZbH1(_Filled):
    """ZB-H1: 1F1B's order and memory, with the weight parts of backwards moved into its bubbles."""

    key: ClassVar[str] = "zb-h1"

    def cap(self, stages: int) -> int:
        """Chunk-activations that a stage may hold at once [1]: P, as 1F1B's first stage."""
        return stages

    def skeletons(self, shape: Shape, limit: Integers) -> Iterator[Skeleton]:
        """P - s forwards of stage s, then in turn."""
        return straight_skeletons(shape.micro_batches, np.arange(shape.stages, 0, -1), limit)


@dataclass(frozen=True, kw_only=True)
class ZbH2(_Filled):
    """ZB-H2: more forwards at the start than 1F1B, which removes nearly all of the bubble for twice its memory."""

    key: ClassVar[str] = "zb-h2"

    def cap(self, stages: int) -> int:
        """Chunk-activations that a stage may hold at once [1]: 2 P - 1."""
        return 2 * stages - 1

    def skeletons(self, shape: Shape, limit: Integers) -> Iterator[Skeleton]:
        """2 (P - s) - 1 forwards of stage s, then in turn."""
        return straight_skeletons(shape.micro_batches, 2 * np.arange(shape.stages, 0, -1) - 1, limit)


@dataclass(frozen=True, kw_only=True)
class _Folded(_Filled):
    """Chunk 0 goes down the stages and chunk 1 comes back up, so that stage 0 holds both ends of the model."""

    source: ClassVar[tuple[str, ...]] = ("v-schedules-2024",)
    chunks_told: ClassVar[str] = "exactly 2 (one down, one up); set chunks = 2"
    slopes: ClassVar[tuple[int, int, int, int]]

    def turn_waits(self, stages: int) -> tuple[int, int]:
        """Slots to wait before the first backward and at its turn, so that no two passes share a slot modulo six."""
        return 0, 0

    def chunk_counts(self, stages: int, most: int) -> tuple[int]:
        """One chunk down, one up."""
        return (2,)

    def places(self, stages: int, chunks: int) -> Integers:
        """Place in the chain of each stage's chunk, (P, 2) [1]: s, and 2 P - 1 - s."""
        down = np.arange(stages)
        return np.stack((down, 2 * stages - 1 - down), axis=1)

    def skeletons(self, shape: Shape, limit: Integers) -> Iterator[Skeleton]:
        """One micro-batch's block of slots, repeated."""
        places = self.places(shape.stages, 2)
        return folded_skeletons(self.slopes, self.turn_waits(shape.stages), places, shape.micro_batches, limit)


@dataclass(frozen=True, kw_only=True)
class ZbV(_Folded):
    """ZB-V: a folded schedule without bubbles where parts are equal, at 1F1B's memory."""

    key: ClassVar[str] = "zb-v"
    slopes: ClassVar[tuple[int, int, int, int]] = (4, 2, 4, 2)

    def cap(self, stages: int) -> int:
        """Chunk-activations that a stage may hold at once [1]: 2 P, each of half a stage."""
        return 2 * stages


@dataclass(frozen=True, kw_only=True)
class VHalf(_Folded):
    """V-Half: a folded schedule at half of 1F1B's memory, with a bubble between those of 1F1B and ZB-V."""

    key: ClassVar[str] = "v-half"
    slopes: ClassVar[tuple[int, int, int, int]] = (2, 1, 2, 1)

    def turn_waits(self, stages: int) -> tuple[int, int]:
        """Slots to wait at the turn of backwards: 1 where P is odd, else 4."""
        return 0, (1 if stages % 2 else 4)

    def cap(self, stages: int) -> int:
        """Chunk-activations that a stage may hold at once [1]: P + 2, the repeated pattern at its worst alignment."""
        return stages + 2


@dataclass(frozen=True, kw_only=True)
class VMin(_Folded):
    """V-Min: a folded schedule at a third of 1F1B's memory, with about its bubble."""

    key: ClassVar[str] = "v-min"
    slopes: ClassVar[tuple[int, int, int, int]] = (1, 1, 1, 1)

    def turn_waits(self, stages: int) -> tuple[int, int]:
        """Slots to wait before the first backward: 2 where three divides P."""
        return (2 if stages % 3 == 0 else 0), 0

    def cap(self, stages: int) -> int:
        """Chunk-activations that a stage may hold at once [1]: 2 P / 3 + 3, the pattern at its worst alignment."""
        return -(-2 * stages // 3) + 3
