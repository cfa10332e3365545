"""Adam and AdamW: two moments of every trained number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ridgeline.graph.workload import PRECISIONS
from ridgeline.seams.states import FP32_BYTES, Elementwise

if TYPE_CHECKING:
    from ridgeline.seams.setting import Setting


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

    def axes(self, setting: Setting) -> tuple[str, ...]:
        """None: it keeps and moves what AdamW does."""
        return ()


@dataclass(frozen=True, kw_only=True)
class AdamWInWeightsFormat(AdamW):
    """AdamW with both moments in bf16, as PyTorch keeps them of bf16 weights."""

    key: ClassVar[str] = "adamw-bf16"
    bytes_each: ClassVar[float] = FP32_BYTES

    def applies(self, setting: Setting) -> str:
        """Why it does not apply, in a phrase; '' where it does: moments follow weights that are trained in bf16."""
        said, job = super().applies(setting), setting.job
        if said or job is None or PRECISIONS[job.precision].master_bytes == 0.0:
            return said
        return f"precision {job.precision} keeps fp32 copies of weights, whose moments are fp32; say bf16-pure"
