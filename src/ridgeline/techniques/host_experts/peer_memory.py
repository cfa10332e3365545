"""Layers in the memory of an idle device of the same node, which come over the link between devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ridgeline.plan.deployment import Deployment
from ridgeline.seams.serving_technique import Instance, ServingTechnique
from ridgeline.seams.setting import Setting
from ridgeline.seams.technique import param
from ridgeline.techniques.host_experts.moe_lens import StreamedWeights

_SHARES = (0.9, 0.75, 0.5)


@dataclass(frozen=True, kw_only=True)
class PeerMemory(StreamedWeights):
    """EnergonAI's peer memory pooling: layers that a device cannot hold lie on a peer, and are copied over ahead.

    Every iteration brings the layers beyond `share` over the devices' own link while others are computed, so it takes
    the longer of computing and that link; they arrive in two buffers of a layer, and caches stay on the device. The
    peer computes nothing and is no device of the deployment. Left out: what copies take from the device's memory, and
    the wait for the first layer of an iteration.
    """

    key: ClassVar[str] = "peer-memory"
    source: ClassVar[tuple[str, ...]] = ("energonai",)
    keeps_cache: ClassVar[bool] = True
    elsewhere: ClassVar[str] = "the peers' memory"
    share: float = param(0.75, "1", "share of each layer's weights that the device holds", high=1.0)
    peers: int = param(1, "devices", "devices of the node whose memory is lent", low=1, high=64)

    def applies(self, setting: Setting) -> str:
        """Whatever the model: experts or none."""
        return ServingTechnique.applies(self, setting)

    def axes(self, setting: Setting) -> tuple[str, ...]:
        """Nine tenths to a half of the weights on the device."""
        return tuple(replace(self, share=share).text for share in _SHARES)

    def unfit(self, instance: Instance) -> str:
        """Machines without so many devices beside those that compute."""
        cluster, each = instance.machine.cluster, 1 + self.peers
        most = min(cluster.count, cluster.node_devices) // each * max(1, cluster.count // cluster.node_devices)
        if most >= instance.deployment.instances:
            return ""
        return f"takes {self.peers} idle devices of a node beside each that computes; say at most {most} instances"

    def told_of(self, deployment: Deployment) -> str:
        """The technique and the share of layers on the device."""
        return f"{self.key}: {self.share:.0%} of the weights on the device, the rest on {self.peers} beside it"

    def link_bytes_per_s(self, machine: Any, host: float) -> float:
        """The link between devices of a node [byte/s]."""
        return float(machine.tiers[0].bytes_per_s * machine.efficiency[0])

    def room_bytes(self, machine: Any) -> float:
        """Memory of the peers [byte]."""
        return float(self.peers * machine.cluster.accelerator.memory_bytes)

    def numbers(self, instance: Instance, stride: int) -> Mapping[str, float]:
        """How device and link are busy side by side."""
        return self.sharing(instance)
