"""Prompts that all free instances compute together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from ridgeline.seams.serving import ElasticParallel, Instance
from ridgeline.seams.technique import param


@dataclass(frozen=True, kw_only=True)
class ElasticSequenceParallel(ElasticParallel):
    """Long prompts are computed by all instances that are free when their turn comes, and decoded by one.

    As far as that is faster; parts of the cache go round among them.
    """

    key: ClassVar[str] = "elastic-sequence-parallel"
    word: ClassVar[str] = "elastic_tokens"
    source: ClassVar[tuple[str, ...]] = ("wu2024loongserve",)
    tokens: int = param(
        16_384, "tokens", "prompts of so many tokens are computed by all instances that are free", low=1,
        high=10_000_000, word="elastic_tokens",
    )  # fmt: skip

    def unfit(self, instance: Instance) -> str:
        """Engines whose batches start and end together."""
        policy = instance.policy
        if policy.scheduler not in ("mixed", "prefill-first"):
            return f"with {policy.name}, which is {policy.scheduler}; it merges where iterations are formed one by one"
        return ""

    def numbers(self, instance: Instance, stride: int) -> Mapping[str, float]:
        """From how many tokens on, and the latency of a round of parts [s]."""
        from ridgeline.cost.network import send_seconds

        start = float(send_seconds(1.0, stride, instance.machine)) if stride else 0.0
        return {"elastic": float(self.tokens), "ring_start_s": start * len(instance.model.graph.layers)}

    def told(self) -> str:
        """From how many tokens on."""
        return f"merge for prompts from {self.tokens:,} tokens"
