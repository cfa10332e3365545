"""Synchronous post-training: generate, score, update, hand the weights on, and again."""

from dataclasses import dataclass
from typing import ClassVar

from ridgeline.seams.rollout import RolloutSchedule


@dataclass(frozen=True, kw_only=True)
class Synchronous(RolloutSchedule):
    """Each iteration generates with the newest weights, waits for its last response, and then trains.

    Roles that share devices take turns; apart, each side idles while the other works.
    """

    key: ClassVar[str] = "synchronous"
    source: ClassVar[tuple[str, ...]] = ("hybridflow-2024",)

    def versions_behind(self) -> int:
        """None [1]."""
        return 0

    def pieces(self) -> int:
        """One: all responses together [1]."""
        return 1
