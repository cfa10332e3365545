"""H2O: of a prompt's cache the tokens that attention has weighed most stay, and the last ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ridgeline.seams.serving import Instance, KVEviction
from ridgeline.seams.technique import param


@dataclass(frozen=True, kw_only=True)
class HeavyHitters(KVEviction):
    """H2O: a budget of tokens stays of each prompt, its heavy hitters and its last ones.

    New tokens are held besides; the sums of attention that choose are not counted, nor how good answers are.
    """

    key: ClassVar[str] = "h2o"
    source: ClassVar[tuple[str, ...]] = ("https://arxiv.org/abs/2306.14048, algorithm 1",)
    heavy: int = param(512, "tokens", "heavy hitters that stay", low=1, high=1_000_000)
    recent: int = param(512, "tokens", "last tokens that stay", low=1, high=1_000_000)

    def held_tokens(self, instance: Instance, prompt: float) -> float:
        """min(P, heavy + recent)."""
        return min(prompt, float(self.heavy + self.recent))

    def hooks(self) -> Mapping[str, Callable[..., Any]]:
        """Hook `held`: what stays of a prompt."""
        budget = self.heavy + self.recent

        def held(requests: Any, rule: Any, request: int, tokens: int) -> int:
            return min(tokens, budget)

        return {"held": held}
