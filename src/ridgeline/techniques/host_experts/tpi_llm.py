"""Ranks of tensor parallelism on hosts: a window of layers streams from each one's drive, sums meet at a hub."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from ridgeline.seams.host_experts import HostExperts, StreamedBlocks
from ridgeline.seams.serving_technique import Instance, ServingTechnique
from ridgeline.seams.setting import Setting
from ridgeline.seams.technique import param

if TYPE_CHECKING:
    from ridgeline.plan.deployment import Deployment
    from ridgeline.seams.host_experts import Array

_WINDOWS = (2, 4, 8)


@dataclass(frozen=True, kw_only=True)
class SlidingWindow(HostExperts):
    """TPI-LLM: hosts share each layer and hold a few of its blocks, which are read ahead from their own drives.

    Blocks are the embedding, attention and feed-forward of each layer, and the head. A thread reads them in order, one
    at a time, and waits while `window` of them are in memory; a block leaves when the next one begins. So with l read
    and c compute of a block, in the steady state of token after token,

        read(i) = max(read(i - 1), done(i - window)) + l(i)      done(i) = max(done(i - 1), read(i)) + c(i)

    c includes the sums of a layer's two halves over the ranks: at a hub to which all send and which answers all, 2 (a +
    (N - 1) B / W) with latency a of a message (`star`), or in a ring, 2 (N - 1) (a + B / N W). The first rank, which
    holds embedding and head as well, is the slowest and fullest. Files have 16 bits, memory 32. For `predict --serve
    --offload disk --tp N`; left out: Python's own memory, reads that other processes disturb, unlike hosts.
    """

    key: ClassVar[str] = "tpi-llm"
    source: ClassVar[tuple[str, ...]] = ("tpi-llm", "tpi-llm-code")
    in_blocks: ClassVar[bool] = True
    element_bytes: ClassVar[float | None] = 4.0
    window: int = param(
        2, "blocks", "blocks that a rank holds at most, the one it computes among them", low=2, high=4096
    )
    all_reduce: str = param("star", "", "how sums go over the network", choices=("star", "ring"))

    def applies(self, setting: Setting) -> str:
        """Whatever the model: experts or none."""
        return ServingTechnique.applies(self, setting)

    def axes(self, setting: Setting) -> tuple[str, ...]:
        """Windows of one to four layers."""
        return tuple(replace(self, window=blocks).text for blocks in _WINDOWS)

    def refusal(self, deployment: Deployment) -> str:
        """Nothing: it is of ranks."""
        return ""

    def unfit(self, instance: Instance) -> str:
        """Devices: its ranks are processors."""
        return "is of processors and their drives: ask predict --serve --offload disk"

    def window_s(self, one: StreamedBlocks) -> Array:
        """The second of two iterations, whose first blocks were read while the one before ended (I,) [s]."""
        import numpy as np

        blocks, first = len(one.load_s), 0.0 * one.compute_s[0]
        read, done = first, [first] * self.window
        for block in range(2 * blocks):
            place = block % blocks
            read = np.maximum(read, done[-self.window]) + one.load_s[place]
            done.append(np.maximum(done[-1], read) + one.compute_s[place])
        return np.asarray(done[-1] - done[-1 - blocks])

    def window_bytes(self, one: StreamedBlocks) -> float:
        """The fullest run of `window` blocks, the last of which lies there in its file's format as well [byte]."""
        blocks = len(one.held_bytes)
        runs = ([(last - back) % blocks for back in range(min(self.window, blocks))] for last in range(blocks))
        return float(max(one.held_bytes[run].sum() + one.file_bytes[run[0]] for run in runs))

    def exchange_s(self, size_bytes: Array, ranks: int, hop_s: float, bytes_per_s: float) -> Array:
        """All send to a hub, which answers all over its one link; or a ring [s]."""
        if self.all_reduce == "ring":
            return super().exchange_s(size_bytes, ranks, hop_s, bytes_per_s)
        return 2.0 * (hop_s + (ranks - 1) * size_bytes / bytes_per_s)

    def told_of(self, deployment: Deployment) -> str:
        """The technique and its window."""
        return f"{self.key}: a window of {self.window} blocks"
