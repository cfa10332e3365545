"""Iterations cut in two halves whose kernels overlap."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from ridgeline.seams.serving import Instance, NanoBatches
from ridgeline.seams.technique import param


@dataclass(frozen=True, kw_only=True)
class NanoFlow(NanoBatches):
    """Iterations cut in two nano-batches, whose compute-, memory- and network-bound kernels run side by side."""

    key: ClassVar[str] = "nano-batches"
    word: ClassVar[str] = "nano_tokens"
    source: ClassVar[tuple[str, ...]] = ("zhu2024nanoflow",)
    tokens: int = param(
        2048, "tokens", "iterations of so many tokens a rank are cut in two nano-batches whose kernels overlap", low=1,
        high=10_000_000, word="nano_tokens",
    )  # fmt: skip

    def sharing(self, instance: Instance) -> Mapping[str, float]:
        """From how many tokens on, and what kernels beside products hold of the multiprocessors."""
        from ridgeline.serving.nano import shares

        memory_sms, link_sms = shares(links_only=self.links_only)
        return {"nano_tokens": self.tokens, "memory_sms": memory_sms, "link_sms": link_sms}

    def told(self) -> str:
        """From how many tokens on."""
        return f"nano-batches from {self.tokens:,} tokens"


@dataclass(frozen=True, kw_only=True)
class TwoBatchOverlap(NanoBatches):
    """Two-batch overlap: of two halves of an iteration one's exchange of experts runs beside the other's kernels."""

    key: ClassVar[str] = "two-batch-overlap"
    export: ClassVar[dict[str, str]] = {"sglang": "--enable-two-batch-overlap"}
    word: ClassVar[str] = "two_batch_overlap"
    told_by: ClassVar[str] = "of two halves of an iteration one's exchange alone overlaps the other's kernels"
    source: ClassVar[tuple[str, ...]] = ("sglang",)
    links_only: ClassVar[bool] = True
    tokens: int = param(
        2, "tokens", "tokens a rank from which on iterations are cut", low=1, high=10_000_000, word="nano_tokens"
    )

    def sharing(self, instance: Instance) -> Mapping[str, float]:
        """From how many tokens on, and what kernels beside products hold of the multiprocessors."""
        from ridgeline.serving.nano import shares

        memory_sms, link_sms = shares(links_only=self.links_only)
        return {"nano_tokens": self.tokens, "memory_sms": memory_sms, "link_sms": link_sms}

    def told(self) -> str:
        """From how many tokens on."""
        return f"two-batch overlap from {self.tokens:,} tokens"
