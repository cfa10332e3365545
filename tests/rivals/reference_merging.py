"""Instances of the slow simulator that merge for the prefill of long prompts."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from reference_serving import Instance


@dataclass(eq=False)
class Elastic(Instance):
    """An instance that others help while they have nothing to do."""

    peers: list[Elastic] = field(default_factory=list)
    helpers: list[Elastic] = field(default_factory=list)
    merges: int = 0

    def is_free(self) -> bool:
        """Whether nothing is to do here."""
        return self.at == "idle" and not any(rank.queue or rank.running for rank in self.ranks)

    def begin(self, now_s: float) -> None:
        """Starts the next iteration, with helpers where there are any."""
        for rank in self.ranks:
            rank.helpers = sum(other.is_free() for other in self.peers if other is not self)
        super().begin(now_s)

    def mixed_s(self) -> float:
        """An iteration with prompts, of a long one by as many as are fastest [s]."""
        (rank,), elastic = self.ranks, self.rule["elastic"]
        best, chosen = super().mixed_s(), 1
        if rank.helpers and elastic and rank.chunks[0].chunk >= elastic:
            for self.merged in range(2, rank.helpers + 2):
                seconds = super().mixed_s()
                if seconds < best:
                    best, chosen = seconds, self.merged
            self.merged = 1
            free = [other for other in self.peers if other is not self and other.is_free()]
            self.helpers = free[: chosen - 1]
            self.merges += chosen > 1
            for other in self.helpers:
                other.at, other.end_s = "helps", math.inf
        return best

    def parts(self) -> None:
        """Who helped is free again."""
        for other in self.helpers:
            other.at = "idle"
        self.helpers = []
