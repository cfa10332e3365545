"""Experts of host memory computed there, always; those of the device beside them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ridgeline.seams.host_experts import HostedLayer, HostedSeconds, HostExperts
from ridgeline.seams.technique import param


@dataclass(frozen=True, kw_only=True)
class HostComputed(HostExperts):
    """A fixed split: whoever holds an expert computes it, and no weights cross the link.

    Which experts the device holds does not hang on their popularity, so it meets its share of the uses. Processors and
    device work side by side within a layer. What hybrid schedules are compared with. Iterations of `device_tokens` and
    more are computed by the device alone: the experts that it does not hold cross the link when the router has spoken,
    and are computed when they are there (prefill_device of KTransformers' rules).
    """

    key: ClassVar[str] = "host-computed"
    tags: ClassVar[tuple[str, ...]] = ("expert-offloading",)
    source: ClassVar[tuple[str, ...]] = ("ktransformers", "hybrimoe-code")
    device_tokens: int | None = param(
        None, "tokens", "tokens of an iteration from which the device computes all experts; when absent, never", low=1,
        high=10_000_000,
    )  # fmt: skip

    def layer(self, one: HostedLayer) -> HostedSeconds:
        """max(host, device): (1 - share) of the touched experts, each with its mean rows; else link + device [s]."""

        import numpy as np

        away = (1.0 - self.share) * one.touched
        rows = one.top_k * one.tokens / np.maximum(one.touched, 1e-30)
        host, device = away * one.host_s(rows), self.share * one.device_s
        total = np.maximum(host + np.where(away > 0.0, one.start_s, 0.0), device)
        there = one.tokens >= (self.device_tokens or np.inf)
        link = np.where(there, away * one.fetch_s, 0.0)
        return HostedSeconds(
            device=np.where(there, one.device_s, device), host=np.where(there, 0.0, host), link=link,
            total=np.where(there, link + one.device_s, total),
        )  # fmt: skip
