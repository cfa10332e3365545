"""Partial rollouts: a response longer than a budget of tokens goes on in the next iteration (Kimi k1.5)."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from ridgeline.facts.records import Fact
from ridgeline.seams.rollout import Generated, Requests, RolloutCollection, Serve
from ridgeline.seams.technique import param


@dataclass(frozen=True, kw_only=True)
class PartialRollouts(RolloutCollection):
    """Cuts every response into segments of at most `budget` tokens, one segment an iteration.

    In the steady state an iteration generates a segment of each response that is under way: as many tokens as those of
    its N responses, none longer than the budget. A later segment reads what the response has so far, whose cache is
    computed again. Left out: detection of repetitions.
    """

    key: ClassVar[str] = "partial-rollouts"
    source: ClassVar[tuple[str, ...]] = ("kimi-k15-2025",)
    quality: ClassVar[Fact | None] = None
    budget: int = param(4096, "token", "tokens that a response may take in one iteration", low=1, high=10**7)

    def collect(self, asked: Requests, serve: Serve) -> Generated:
        """One replay of all segments of an iteration's responses."""
        segments = -(-asked.output // self.budget)
        which = np.repeat(np.arange(len(segments)), segments)
        number = np.arange(len(which)) - np.repeat(np.cumsum(segments) - segments, segments)
        earlier = number * self.budget
        output = np.minimum(asked.output[which] - earlier, self.budget)
        found = serve(Requests(prompt=asked.prompt[which] + earlier, output=output))
        last = number == segments[which] - 1
        total = int(asked.output.sum())
        return replace(
            found, ready_s=np.sort(found.end_s[last]), again_tokens=int(earlier.sum()),
            old_share=float((asked.output - output[last]).sum()) / total,
        )  # fmt: skip
