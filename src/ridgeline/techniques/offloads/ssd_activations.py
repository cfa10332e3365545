"""Activations on NVMe drives while later layers compute."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from numpy.typing import ArrayLike

from ridgeline.seams.offload import ACTIVATIONS, DEVICE, Away, TierOffload
from ridgeline.seams.technique import param


@dataclass(frozen=True, kw_only=True)
class SsdActivations(TierOffload):
    """SSDTrain: what forward keeps goes to NVMe drives without passing host memory, and comes back before its backward.

    A layer's activations are written while the next ones compute and read again before its backward; those of the last
    layers before a backward stay. A forward waits where the drives lag behind. `share` of the activations go. What the
    model leaves out: wear of the drives, tensors that are kept twice and forwarding of those not yet written.
    """

    key: ClassVar[str] = "ssdtrain"
    source: ClassVar[tuple[str, ...]] = ("ssdtrain-2024",)
    claims: ClassVar[tuple[str, ...]] = ("peak of activations 47 % lower at negligible overhead",)
    owns: ClassVar[frozenset[str]] = frozenset({"activation tier"})
    direct: ClassVar[bool] = True
    share: float = param(1.0, "1", "share of the activations that goes to the drives", low=0.01, high=1.0)

    def away(self, kind: str, zero: ArrayLike) -> Away:
        """A share of the activations on drives [1]."""
        return Away(nvme=self.share) if kind == ACTIVATIONS else DEVICE
