"""Adam and AdamW: two moments of every trained number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ridgeline.seams.states import FP32_BYTES, Elementwise


@dataclass(frozen=True, kw_only=True)
class AdamW(Elementwise):
    """Adam with decoupled weight decay: two fp32 moments of every trained number."""

    key: ClassVar[str] = "adamw"
    source: ClassVar[tuple[str, ...]] = ("adamw-2019",)
    export: ClassVar[dict[str, str]] = {"Transformers": "optim = 'adamw_torch'"}
    two_moments: ClassVar[bool] = True
    bytes_each: ClassVar[float] = 2 * FP32_BYTES


@dataclass(frozen=True, kw_only=True)
class Adam(AdamW):
    """Adam: two fp32 moments of every trained number."""

    key: ClassVar[str] = "adam"
    source: ClassVar[tuple[str, ...]] = ("adam-2015",)


@dataclass(frozen=True, kw_only=True)
class AdamWInWeightsFormat(AdamW):
    """AdamW with both moments in bf16, as PyTorch keeps them of bf16 weights."""

    key: ClassVar[str] = "adamw-bf16"
    bytes_each: ClassVar[float] = FP32_BYTES
