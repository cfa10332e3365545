"""Experts of host memory computed there, always; those of the device beside them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ridgeline.seams.host_experts import HostedLayer, HostedSeconds, HostExperts


@dataclass(frozen=True, kw_only=True)
class HostComputed(HostExperts):
    """A fixed split: whoever holds an expert computes it, and no weights cross the link.

    Which experts the device holds does not hang on their popularity, so it meets its share of the uses. Processors and
    device work side by side within a layer. What hybrid schedules are compared with.
    """

    key: ClassVar[str] = "host-computed"
    tags: ClassVar[tuple[str, ...]] = ("expert-offloading",)
    source: ClassVar[tuple[str, ...]] = ("ktransformers",)

    def layer(self, one: HostedLayer) -> HostedSeconds:
        """max(host, device): (1 - share) of the touched experts, each with its mean rows [s]."""

        import numpy as np

        away = (1.0 - self.share) * one.touched
        rows = one.top_k * one.tokens / np.maximum(one.touched, 1e-30)
        host, device = away * one.host_s(rows), self.share * one.device_s
        total = np.maximum(host + np.where(away > 0.0, one.start_s, 0.0), device)
        return HostedSeconds(device=device, host=host, link=0.0 * host, total=total)
