"""Weights stream from host memory while the processors attend; prompts fill what decode steps leave of the device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from ridgeline.seams.host_experts import HostExperts
from ridgeline.seams.serving_technique import Instance
from ridgeline.seams.setting import Setting
from ridgeline.seams.technique import param


@dataclass(frozen=True, kw_only=True)
class StreamedWeights(HostExperts):
    """Layers and caches in host memory; an iteration is as long as the busiest of device, processors and link.

    Weights of the next layer cross the link while this one is computed, and the batch is two halves: while one is at
    the device, the processors attend for the other, so that all three work side by side.
    """

    streams: ClassVar[bool] = True
    owns: ClassVar[frozenset[str]] = HostExperts.owns | {"host copies", "cache", "contexts", "adapters"}
    share: float = param(0.0, "1", "share of each layer's weights that the device holds", high=1.0)
    cache_gb: float | None = param(
        None, "1e9 byte", "host memory for caches; when absent, what the weights leave", low=0.001, high=1e6
    )

    def axes(self, setting: Setting) -> tuple[str, ...]:
        """As it is."""
        return (self.text,)

    def cache_bytes(self, left_bytes: float) -> float:
        """As stated, at most what is left [byte]."""
        return left_bytes if self.cache_gb is None else min(left_bytes, self.cache_gb * 1e9)

    def sharing(self, instance: Instance) -> Mapping[str, float]:
        """How device, processors and link are busy side by side."""
        from ridgeline.serving.host_experts import streamed_numbers

        return streamed_numbers(instance)

    def numbers(self, instance: Instance, stride: int) -> Mapping[str, float]:
        """How device, processors and link are busy side by side."""
        return self.sharing(instance)


@dataclass(frozen=True, kw_only=True)
class MoELens(StreamedWeights):
    """Every layer's weights cross the link in each iteration, and the processors attend for all that decode.

    Iterations take prompts beside decode steps up to as many tokens as the device computes while the weights cross
    (the paper's profiled batch); more would make them longer, fewer leave the device idle. The device buffers two
    layers. Left out: what reads of caches and copies of weights take from each other at the host's memory.
    """

    key: ClassVar[str] = "moe-lens"
    tags: ClassVar[tuple[str, ...]] = ("expert-offloading",)
    source: ClassVar[tuple[str, ...]] = ("moe-lens",)

    def numbers(self, instance: Instance, stride: int) -> Mapping[str, float]:
        """Prompts beside decode steps, in iterations of the tokens that fill the device while weights cross."""
        import numpy as np

        from ridgeline.serving.host_experts import hosted_cache
        from ridgeline.serving.state import MIXED_BATCHES

        budget = instance.policy.token_budget
        tables = instance.steps.tables(most_tokens=budget, most_sequences=2, most_context=128)
        device = tables.lane.mid + tables.experts(prompts=True).mid
        filled = np.interp(hosted_cache(instance).weights_s, device, tables.tokens)  # the budget where it is less
        return {
            **self.sharing(instance), "scheduler": MIXED_BATCHES, "chunked": 1.0,
            "token_budget": float(min(budget, max(int(filled), 1))),
        }  # fmt: skip
