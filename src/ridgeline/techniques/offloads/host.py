"""TierOffload to host memory, counted in closed form: optimizer states, activations, or all model states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from ridgeline.plan.plan import Plan
from ridgeline.seams.offload import ACTIVATIONS, DEVICE, GRADIENTS, OPTIMIZER, Away, TierOffload


@dataclass(frozen=True, kw_only=True)
class HostOptimizer(TierOffload):
    """ZeRO-Offload: optimizer states in host memory, where the processors update them; gradients follow from ZeRO-2 on.

    Gradients and new weights cross the host link before and after the update, at its full rate; processors update at
    the rate of their memory. Both come after the last backward. What the model leaves out: delayed parameter updates.
    """

    key: ClassVar[str] = "host-optimizer"
    source: ClassVar[tuple[str, ...]] = ("zero-offload-2021",)
    export: ClassVar[dict[str, str]] = {"DeepSpeed": 'zero_optimization.offload_optimizer.device = "cpu"'}
    on_lanes: ClassVar[bool] = False
    owns: ClassVar[frozenset[str]] = frozenset({"optimizer tier"})

    def away(self, kind: str, zero: ArrayLike) -> Away:
        """States in DRAM, and reduced gradients where ZeRO shards them [1]."""
        if kind == OPTIMIZER:
            return Away(dram=1.0)
        return Away(dram=np.where(np.asarray(zero) >= 2, 1.0, 0.0)) if kind == GRADIENTS else DEVICE


@dataclass(frozen=True, kw_only=True)
class HostActivations(TierOffload):
    """What forward keeps waits in host memory, and comes back before its backward.

    A chunk's forward takes the longer of its compute and its copy out, its backward the longer of its compute and its
    copy in, at the device's own host link.
    """

    key: ClassVar[str] = "host-activations"
    source: ClassVar[tuple[str, ...]] = ("torchtune",)
    on_lanes: ClassVar[bool] = False
    owns: ClassVar[frozenset[str]] = frozenset({"activation tier"})

    def away(self, kind: str, zero: ArrayLike) -> Away:
        """Activations in DRAM [1]."""
        return Away(dram=1.0) if kind == ACTIVATIONS else DEVICE


@dataclass(frozen=True, kw_only=True)
class HostWeights(TierOffload):
    """FSDP's CPU offload: weights, gradients and optimizer states in host memory, where the processors update them.

    Each rank's shard crosses its host link before it is gathered, and its gradient after it is reduced. It needs
    ZeRO-3, which gathers each layer as it is needed.
    """

    key: ClassVar[str] = "host-weights"
    source: ClassVar[tuple[str, ...]] = ("pytorch",)
    export: ClassVar[dict[str, str]] = {"FSDP": "cpu_offload = CPUOffload(offload_params=True)"}
    on_lanes: ClassVar[bool] = False
    owns: ClassVar[frozenset[str]] = frozenset({"weight tier"})

    def away(self, kind: str, zero: ArrayLike) -> Away:
        """All but activations in DRAM [1]."""
        return DEVICE if kind == ACTIVATIONS else Away(dram=1.0)

    def refusal(self, plan: Plan, *, nvme_bytes: float) -> str:
        """Needs ZeRO-3."""
        return (
            "" if plan.zero == 3 else f"it needs zero 3, which gathers each layer as it is needed; zero is {plan.zero}"
        )
