"""Caches that give way: computed again, or copied to the host and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from ridgeline.seams.serving import Instance, Preemption
from ridgeline.seams.technique import param


@dataclass(frozen=True, kw_only=True)
class Recompute(Preemption):
    """Who must give way is computed again when there is room: the prompt, and the output so far.

    Also where an engine by itself keeps every cache to the end.
    """

    key: ClassVar[str] = "recompute"
    source: ClassVar[tuple[str, ...]] = ("vllm",)

    def numbers(self, instance: Instance, stride: int) -> Mapping[str, float]:
        """That nothing is swapped."""
        return {"swaps": 0}


@dataclass(frozen=True, kw_only=True)
class Swap(Preemption):
    """The cache of who must give way goes to host memory and comes back over the host's link.

    Copies are of neighbouring blocks of one layer; issuing them may take longer than their bytes do. Both ways are
    counted where the request gives way. Host memory is taken to be large enough.
    """

    key: ClassVar[str] = "swap"
    source: ClassVar[tuple[str, ...]] = ("vllm", "fastswitch")
    owns: ClassVar[frozenset[str]] = frozenset({"host copies"})
    blocks: int | None = param(
        None, "blocks", "neighbouring blocks that one copy moves to the host; when absent, the link's rate alone",
        low=1, high=1_000_000, whole=True, word="swap_blocks",
    )  # fmt: skip

    def numbers(self, instance: Instance, stride: int) -> Mapping[str, float]:
        """That caches are swapped, and what moving a token's takes.

        Its bytes over the link, or issuing the copies where that takes longer, one for each layer's keys and one for
        its values in every run of neighbouring blocks (fastswitch, section 2.2).
        """
        from ridgeline.facts.mechanisms import constant

        if self.blocks is None:
            return {"swaps": 1}
        graph = instance.model.graph
        tensors = (1 if graph.latent_attention else 2) * len(graph.layers) / instance.deployment.pp
        copies_s = tensors * constant("launch.host.compiled") / (self.blocks * instance.policy.block_tokens)
        link_s = instance.capacity.token_bytes / instance.machine.cluster.host.device_bytes_per_s
        return {"swaps": 1, "swap_token_s": max(link_s, copies_s)}
