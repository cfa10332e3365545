"""Checkpoints in the memory of other hosts."""

from dataclasses import dataclass
from typing import ClassVar

from ridgeline.seams.checkpoint import CheckpointRule, SavedStates
from ridgeline.seams.technique import param

EDIT_S = 1.0  # communicators are edited in place within it; source: elaswave2025, abstract


@dataclass(frozen=True, kw_only=True)
class InMemoryCheckpoint(CheckpointRule):
    """Each device's states go to the host memory of other hosts, in the gaps of the network's traffic.

    Gemini's idea: `copies` hosts hold each shard, one of them its own. Nothing stops for a save, which lasts as long as
    the network and the host link carry the copies; saves follow each other, at most one a step. After a failure states
    come from a peer's memory. Left out: failures that take all copies at once, after which storage is read, and traffic
    of training that leaves no gaps.
    """

    key: ClassVar[str] = "memory-checkpoint"
    source: ClassVar[tuple[str, ...]] = ("gemini2023",)
    copies: int = param(2, "1", "hosts that hold each shard, its own among them", low=1, high=8)

    def stops_s(self, saved: SavedStates) -> float:
        """None [s]."""
        return 0.0

    def lasts_s(self, saved: SavedStates) -> float:
        """Time to carry the copies [s], at least a step."""
        sent = saved.device_bytes * (self.copies - 1) / saved.network_bytes_per_s
        return max(saved.step_s, sent, saved.device_bytes / saved.host_bytes_per_s)

    def load_s(self, saved: SavedStates) -> float:
        """Time to fetch one host's shards from a peer [s]."""
        return saved.device_bytes / min(saved.network_bytes_per_s, saved.host_bytes_per_s)


@dataclass(frozen=True, kw_only=True)
class ElasticReplanning(CheckpointRule):
    """After a failure the remaining devices take over its layers and micro-batches, and training goes on at once.

    ElasWave's idea: a snapshot in memory each step; communicators are edited in place, weights and states of lost ranks
    move rank to rank, layers and micro-batches are planned again for what remains, with the same global batch. No job
    restarts: a failure costs detection, the edit (a second), the move and half a step. Until a host is repaired the job
    runs with one less: with layers balanced anew, throughput is the share of devices that work; `whole_replicas` says
    that a data-parallel replica with a lost device stops as a whole (TorchFT), which `replicas` there are. Left out:
    clocks that are raised to fill bubbles, and what an uneven division leaves idle.
    """

    key: ClassVar[str] = "elastic-replanning"
    source: ClassVar[tuple[str, ...]] = ("elaswave2025",)
    whole_replicas: bool = param(False, "1", "a replica with a lost device stops as a whole")
    replicas: int = param(1, "1", "data-parallel replicas, for whole_replicas", low=1, high=100_000)
    detected_s: float = param(30.0, "s", "until a failure is known: a heartbeat that is missed", low=0.0, high=1e4)

    def stops_s(self, saved: SavedStates) -> float:
        """None [s]."""
        return 0.0

    def lasts_s(self, saved: SavedStates) -> float:
        """A step [s]: each sends what changed."""
        return saved.step_s

    def load_s(self, saved: SavedStates) -> float:
        """Time to move the lost host's states to those that take over [s]."""
        lost = saved.state_bytes / saved.hosts
        return lost / (saved.network_bytes_per_s * saved.devices / saved.hosts)

    def restarts_s(self, detection_s: float, restart_s: float) -> float:
        """Time to know of the failure and to edit communicators [s]."""
        return self.detected_s + EDIT_S

    def throughput(self, saved: SavedStates, broken_hosts: float) -> float:
        """Share of the devices that work [1]; of the replicas, where these stop as a whole."""
        parts = self.replicas if self.whole_replicas else saved.hosts
        return max(0.0, 1.0 - min(1.0, broken_hosts / parts))
