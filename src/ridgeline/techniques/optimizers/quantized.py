"""Adam's moments in 8 bits, and states that the driver pages to host memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ridgeline.facts.records import Fact
from ridgeline.seams.states import FP32_BYTES, Elementwise
from ridgeline.seams.technique import EXACT, accuracy


@dataclass(frozen=True, kw_only=True)
class EightBitAdamW(Elementwise):
    """AdamW with both moments in 8 bits, quantized in blocks."""

    key: ClassVar[str] = "adamw-8bit"
    quality: ClassVar[Fact | None] = accuracy(
        "that of 32-bit states, language models of 1.5B, GLUE, ImageNet and WMT'14, abstract",
        "eight-bit-optimizers-2022",
    )
    source: ClassVar[tuple[str, ...]] = ("eight-bit-optimizers-2022",)
    export: ClassVar[dict[str, str]] = {"Transformers": "optim = 'adamw_bnb_8bit'"}
    bytes_each: ClassVar[float] = 2.0


@dataclass(frozen=True, kw_only=True)
class FourBitAdamW(Elementwise):
    """AdamW with both moments in 4 bits, quantized in blocks of 128."""

    key: ClassVar[str] = "adamw-4bit"
    quality: ClassVar[Fact | None] = accuracy(
        "that of 32-bit states, language models, translation and images, abstract", "four-bit-optimizers-2023"
    )
    source: ClassVar[tuple[str, ...]] = ("four-bit-optimizers-2023",)
    bytes_each: ClassVar[float] = 2 * (0.5 + FP32_BYTES / 128)


@dataclass(frozen=True, kw_only=True)
class PagedAdamW(Elementwise):
    """AdamW whose states the driver moves to host memory where the device is full (unified memory)."""

    key: ClassVar[str] = "paged-adamw"
    quality: ClassVar[Fact | None] = EXACT
    source: ClassVar[tuple[str, ...]] = ("qlora-2023",)
    export: ClassVar[dict[str, str]] = {"Transformers": "optim = 'paged_adamw_32bit'"}
    bytes_each: ClassVar[float] = 2 * FP32_BYTES
    paged: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class PagedEightBitAdamW(EightBitAdamW):
    """AdamW with both moments in 8 bits, which the driver moves to host memory where the device is full."""

    key: ClassVar[str] = "paged-adamw-8bit"
    source: ClassVar[tuple[str, ...]] = ("eight-bit-optimizers-2022", "qlora-2023")
    export: ClassVar[dict[str, str]] = {"Transformers": "optim = 'paged_adamw_8bit'"}
    paged: ClassVar[bool] = True
