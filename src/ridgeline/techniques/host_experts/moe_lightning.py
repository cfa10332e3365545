"""MoE-Lightning: batches of padded requests, weights that cross in pages, and processors that attend."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from ridgeline.seams.serving_technique import Instance
from ridgeline.seams.technique import param
from ridgeline.techniques.host_experts.moe_lens import StreamedWeights


@dataclass(frozen=True, kw_only=True)
class MoELightning(StreamedWeights):
    """A batch of requests at a time: all prompts, then steps until the last one ends; the processors attend for all.

    Weights cross the link in pages, between which activations go to and from the processors, so that neither waits for
    the other (CGOPipe): a step is as long as the busiest of device, processors and link. Requests of a batch are padded
    to the longest one, and hold the cache of its prompt and of all tokens that may come from the first: `padding` times
    what their own tokens would. At most `micro_tokens` are on the device at once; it buffers two layers. Left out:
    products with the padding of prompts, and what processors attend to beyond a request's own tokens.
    """

    key: ClassVar[str] = "moe-lightning"
    tags: ClassVar[tuple[str, ...]] = ("expert-offloading",)
    source: ClassVar[tuple[str, ...]] = ("moe-lightning",)
    micro_tokens: int = param(8192, "tokens", "tokens of a micro-batch on the device", low=1, high=10_000_000)
    padding: float = param(1.0, "1", "cache of a padded request over that of its own tokens", low=1.0, high=1e4)

    def cache_bytes(self, left_bytes: float) -> float:
        """As stated, at most what is left, over the padding [byte]."""
        return super().cache_bytes(left_bytes) / self.padding

    def resident_tokens(self, tokens: int) -> int:
        """At most a micro-batch [token]."""
        return min(tokens, self.micro_tokens)

    def numbers(self, instance: Instance, stride: int) -> Mapping[str, float]:
        """One batch after the other, whose outputs have their room from the first."""
        from ridgeline.serving.state import STATIC

        return {**self.sharing(instance), "scheduler": STATIC, "reserve": 1.0}
