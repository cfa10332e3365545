"""LoRA adapters that are served together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from ridgeline.errors import PlanError
from ridgeline.seams.serving import Adapters, Instance
from ridgeline.seams.setting import Setting
from ridgeline.seams.technique import param


@dataclass(frozen=True, kw_only=True)
class LoraAdapters(Adapters):
    """Requests are for one of many LoRA adapters, the i-th with a share that falls as i^-skew.

    Every product of attention (or of all but experts) has a shrink and an expand beside it, each row with the matrices
    of its own adapter; those that are not on the device are loaded from host memory.
    """

    key: ClassVar[str] = "lora-adapters"
    word: ClassVar[str] = "adapters"
    off: ClassVar[object] = 0
    source: ClassVar[tuple[str, ...]] = ("chen2023punica", "sheng2023slora")
    count: int = param(8, "adapters", "LoRA adapters that are served together", low=1, high=100_000, word="adapters")

    def axes(self, setting: Setting) -> tuple[str, ...]:
        """None: adapters are what requests ask for, not a way to serve them."""
        return ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.on_device is not None and self.on_device > self.count:
            raise PlanError(
                f"{self.key}: on_device = {self.on_device}, needs 1 to the number of adapters, {self.count}"
            )

    def numbers(self, instance: Instance, stride: int) -> Mapping[str, float]:
        """Adapters that a rank holds, and the time to load one from host memory, every device its part [s]."""
        from ridgeline.serving.adapters import adapter_bytes

        each = adapter_bytes(instance.steps.served, self) / instance.deployment.pp
        return {"slots": self.on_device or 0, "load_s": each / instance.machine.cluster.host.device_bytes_per_s}

    def told(self) -> str:
        """Their number, rank and slots."""
        slots = f", {self.on_device:,} at once" if self.on_device else ""
        return f"{self.count:,} adapter{'' if self.count == 1 else 's'} of rank {self.rank}{slots}"
