"""Recompute of nothing, of unfused attention's core, of every second matrix product, and of whole layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ridgeline.seams.recompute import ATTENTION, GATHER, MEMORY, PRODUCT, RESULTS, RecomputeRule


@dataclass(frozen=True, kw_only=True)
class KeepAll(RecomputeRule):
    """No recompute: all that autograd saves of a forward waits for its backward."""

    key: ClassVar[str] = "none"
    source: ClassVar[tuple[str, ...]] = ("pytorch",)

    def stays(self, role: str) -> float:
        """Share of the tensors of a role that waits for backward [1]: all that is saved, no other result."""
        return 0.0 if role in RESULTS else 1.0

    def again(self, work: str) -> float:
        """Share of a kind of forward work that backward does again [1]: none."""
        return 0.0


@dataclass(frozen=True, kw_only=True)
class CoreAttention(KeepAll):
    """Selective recompute of attention's core: scores are computed again where attention is not fused (Megatron-LM)."""

    key: ClassVar[str] = "core-attention"
    source: ClassVar[tuple[str, ...]] = ("selective-recompute-2022",)
    export: ClassVar[dict[str, str]] = {"Megatron-LM": "--recompute-granularity selective"}

    def stays(self, role: str) -> float:
        """Share of the tensors of a role that waits for backward [1]: all that is saved but scores."""
        return 0.0 if role == "core" else super().stays(role)

    def again(self, work: str) -> float:
        """Share of a kind of forward work that backward does again [1]: unfused attention."""
        return float(work == ATTENTION)


@dataclass(frozen=True, kw_only=True)
class EverySecondMatmul(RecomputeRule):
    """Selective recompute that keeps the results of every second matrix product and of attention (torchtitan).

    Neither fused nor unfused attention is done again, nor the reduction of a product's parts.
    """

    key: ClassVar[str] = "every-second-matmul"
    source: ClassVar[tuple[str, ...]] = ("torchtitan",)

    def stays(self, role: str) -> float:
        """Share of the tensors of a role that waits for backward [1]: a layer's input, attention's and half of the
        products' results."""
        return {"input": 1.0, "attention": 1.0, "product": 0.5}.get(role, 0.0)

    def again(self, work: str) -> float:
        """Share of a kind of forward work that backward does again [1]: half the products, and what is between."""
        return {PRODUCT: 0.5, MEMORY: 1.0, GATHER: 1.0}.get(work, 0.0)


@dataclass(frozen=True, kw_only=True)
class WholeLayers(RecomputeRule):
    """Full recompute: each layer's input waits, and backward runs the layer's forward again."""

    key: ClassVar[str] = "full"
    source: ClassVar[tuple[str, ...]] = ("sublinear-memory-2016",)
    export: ClassVar[dict[str, str]] = {"Megatron-LM": "--recompute-granularity full"}
    by_layer: ClassVar[bool] = True

    def stays(self, role: str) -> float:
        """Share of the tensors of a role that waits for backward [1]: each layer's input."""
        return float(role == "input")

    def again(self, work: str) -> float:
        """Share of a kind of forward work that backward does again [1]: all of it."""
        return 1.0
