"""Vocabulary Parallelism: every stage computes its share of the vocabulary's two ends, in passes of its own.

Shape letters: P stages, s one of them, v chunks of each, m micro-batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from ridgeline.facts.records import Fact
from ridgeline.seams.schedule import Durations, Integers, Order, PipelineSchedule, Shape
from ridgeline.seams.technique import EXACT, param
from ridgeline.techniques.schedules.zero_bubble import VHalf
from ridgeline.training.pipeline import alternating
from ridgeline.training.shared_passes import with_shared_passes
from ridgeline.training.zero_bubble import SLOTS, filled_order, folded_skeletons


@dataclass(frozen=True, kw_only=True)
class _VocabularyPasses(PipelineSchedule):
    """Passes S and T of every stage around barriers; the published algorithm says how many."""

    source: ClassVar[tuple[str, ...]] = ("vocabulary-parallelism-2024",)
    quality: ClassVar[Fact | None] = EXACT
    closed: ClassVar[bool] = False
    owns: ClassVar[frozenset[str]] = frozenset({"vocabulary"})
    algorithm: int = param(
        2, "1", "1: two barriers, T makes both gradients; 2: one, S makes the input's", low=1, high=2
    )

    def barriers(self) -> int:
        """Exchanges between a micro-batch's last forward and first backward [1]: two, or one where S makes more."""
        return 3 - self.algorithm

    def head_in_flight(self, micro_batches: ArrayLike) -> ArrayLike:
        """Micro-batches whose logits wait for their backward at once [1]: one between S and T, one in them."""
        return np.minimum(micro_batches, 2)


@dataclass(frozen=True, kw_only=True)
class VocabularyOneForwardOneBackward(_VocabularyPasses):
    """Vocabulary Parallelism in 1F1B: each stage has 1/P of the embedding and the head, and a pass S and T of each.

    A micro-batch's last forward is broadcast; every stage multiplies it with its share of the vocabulary (S),
    statistics of the softmax are summed, and T makes what gradients are left; exchanges run on streams of their own.
    Each barrier keeps one more micro-batch in flight than 1F1B. The lookups run with each stage's forward. Left out:
    the sum of the looked-up rows and the broadcast of their gradient, which hide, and what algorithm 2 rescales. Norms
    and position tables at the ends are counted on every stage.
    """

    key: ClassVar[str] = "1f1b-vocab"
    claims: ClassVar[tuple[str, ...]] = ("5 to 51 % more throughput than layers spread anew, 32K to 256K words",)

    def in_flight(self, stages: int, micro_batches: ArrayLike, chunks: int, stage: ArrayLike) -> Integers:
        """Most chunk-activations that a stage holds at once [1]: min(m, P - s + barriers)."""
        most = stages + self.barriers() - np.asarray(stage, dtype=np.int64)
        return np.minimum(np.asarray(micro_batches, dtype=np.int64), most)

    def order(self, shape: Shape, durations: Durations, limit: Integers) -> Order:
        """1F1B with a forward more ahead for each barrier, and S and T where they are ready."""
        warm_up = np.arange(shape.stages)[::-1] + self.barriers()
        inner = alternating(self.places(shape.stages, 1), shape.micro_batches, warm_up)
        return with_shared_passes(inner, durations, self.barriers())


@dataclass(frozen=True, kw_only=True)
class VocabularyVHalf(_VocabularyPasses, VHalf):
    """Vocabulary Parallelism in V-Half: memory, work and vocabulary are the same on every stage.

    As `1f1b-vocab`; backwards of a micro-batch begin one repeat of V-Half's block later for each barrier, so that each
    keeps two more chunk-activations.
    """

    key: ClassVar[str] = "v-half-vocab"
    source: ClassVar[tuple[str, ...]] = ("vocabulary-parallelism-2024", "v-schedules-2024")

    def cap(self, stages: int) -> int:
        """Chunk-activations that a stage may hold at once [1]: V-Half's, and two for each barrier."""
        return super().cap(stages) + 2 * self.barriers()

    def order(self, shape: Shape, durations: Durations, limit: Integers) -> Order:
        """V-Half's block with its backwards later, filled with weight parts, and S and T where they are ready."""
        places, (before, turn) = self.places(shape.stages, 2), self.turn_waits(shape.stages)
        waits = (before + SLOTS * self.barriers(), turn)
        skeletons = list(folded_skeletons(self.slopes, waits, places, shape.micro_batches, limit))
        inner = filled_order(skeletons[:2], places, shape.micro_batches, durations, limit)
        return with_shared_passes(inner, durations, self.barriers())
