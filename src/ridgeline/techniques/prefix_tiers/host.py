"""Prefix blocks in host memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from ridgeline.seams.prefixes import PrefixTier
from ridgeline.seams.serving import Instance
from ridgeline.seams.technique import param


@dataclass(frozen=True, kw_only=True)
class HostTier(PrefixTier):
    """Prefix blocks that give way on the device go to host memory and come back over its link, not computed again.

    The host has room for `ratio` times the device's cache, as far as its memory reaches, and forgets what was unused
    for longest. Copies out are free beside iterations; an iteration with blocks that come back takes no less than the
    link does.
    """

    key: ClassVar[str] = "kv-host-tier"
    source: ClassVar[tuple[str, ...]] = ("sglang-hicache",)
    ratio: float = param(
        2.0, "1", "room in host memory over that of the device's cache; 2 when absent", low=0.01, high=1e4
    )

    def numbers(self, instance: Instance, stride: int) -> Mapping[str, float]:
        """Blocks of one rank on the host, and that copies run beside iterations."""
        held, host = instance.capacity, instance.machine.cluster.host
        reach = host.dram_bytes / host.devices / max(held.token_bytes, 1.0)  # of each device [token]
        room = min(self.ratio * held.cache_tokens, reach)
        return {"host_blocks": int(room // instance.policy.block_tokens), "beside": 1}

    def told(self) -> str:
        """Its room."""
        return f"prefixes on the host, {self.ratio:g} times the cache"
