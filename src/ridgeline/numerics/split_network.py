"""A network of images in two: the head on a small device, a compressed tensor over an uplink, the tail on a server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from ridgeline.errors import PlanError
from ridgeline.facts.clusters import cluster
from ridgeline.graph.load import load
from ridgeline.graph.model import Model
from ridgeline.graph.ops import ElementwiseOp, Op
from ridgeline.graph.trunk import Trunk
from ridgeline.graph.vision import IMAGE, Layers, Turned
from ridgeline.graph.workload import Workload
from ridgeline.numerics.algorithm import ArrayAlgorithm, Arrays
from ridgeline.plan.plan import Plan
from ridgeline.predict import predict
from ridgeline.seams.technique import param

_FLOAT_BYTES = 4.0
_STEM, _WIDE, _KERNEL = 64, 512, 2  # channels of the stem and of the decoder, side of the bottleneck's filters


@dataclass(frozen=True, kw_only=True)
class Way:
    """One image by one way: on the device [s], over the uplink [byte], on the server [s]."""

    device_s: float
    sent_bytes: float
    server_s: float


@dataclass(frozen=True, kw_only=True)
class SplitNetwork(ArrayAlgorithm):
    """An image's network is cut in two: its head runs on the device, its tail on a server behind an uplink.

    Four ways are compared: all on the device, the compressed image sent to the server, the best cut between two stages
    of the network as it is (32 bits a number), and BottleFit's bottleneck. That puts an encoder of two convolutions, 64
    channels by 7 x 7 and `channels` by 2 x 2, in place of all that stands before the third stage, sends its output in
    `bits`, and a decoder of four convolutions on the server makes the third stage's input of it. Measured for one
    image: seconds, joules and mean power of the device, and whether the bottleneck is the quickest way.

    Times are those of `predict` on the two machines. A device draws `busy_w` while it computes, `send_w` while it sends
    and `idle_w` while it waits (assumed: a Raspberry Pi 4). Left out: the loss of accuracy, which is learned; what it
    takes to compress the image; answers' way back; errors of the uplink; several devices at one server.
    """

    key: ClassVar[str] = "split-network"
    source: ClassVar[tuple[str, ...]] = ("bottlefit", "bottlefit-code")
    model: str = param("resnet-152", "", "a residual network of the catalog")
    device: str = param("1xBCM2711-4gb", "", "machine of the head")
    server: str = param("1xRTX-2080-Ti", "", "machine of the tail (assumed)")
    uplink_bytes_per_s: float = param(6.25e5, "byte/s", "rate of the uplink", low=1.0, high=1e12)
    image_bytes: float = param(
        44_000.0,
        "byte",
        "an image as it is sent whole (77.1 % more than the bottleneck's, the paper)",
        low=1.0,
        high=1e12,
    )
    channels: int = param(12, "channels", "of the bottleneck", low=1, high=512)
    bits: int = param(8, "bit", "a number of its output", low=1, high=32)
    busy_w: float = param(6.4, "W", "device that computes", low=0.01, high=1e4)
    send_w: float = param(3.3, "W", "device that sends", low=0.01, high=1e4)
    idle_w: float = param(2.7, "W", "device that waits", low=0.01, high=1e4)

    def run(self, arrays: Arrays) -> Mapping[str, float]:
        """Seconds, joules and mean watts of each way, and what the bottleneck saves [1]."""
        found = self.ways()
        told = {f"{name}_{unit}": value for name, way in found.items() for unit, value in self._cost(way).items()}
        local, edge, split = (self._cost(found[name]) for name in ("local", "edge", "bottleneck"))
        sent = found["bottleneck"].sent_bytes
        return {
            **told, "sent_bytes": sent, "sent_share": sent / self.image_bytes,
            **{f"less_{unit}_than_{name}": 1.0 - split[unit] / other[unit]
               for name, other in (("local", local), ("edge", edge)) for unit in ("s", "j", "w")},
            "bottleneck_is_quickest": float(split["s"] <= min(self._cost(way)["s"] for way in found.values())),
        }  # fmt: skip

    def _cost(self, way: Way) -> dict[str, float]:
        """Seconds from image to answer, joules of the device, its mean power [s, J, W]."""
        send_s = way.sent_bytes / self.uplink_bytes_per_s
        seconds = way.device_s + send_s + way.server_s
        joules = way.device_s * self.busy_w + send_s * self.send_w + way.server_s * self.idle_w
        return {"s": seconds, "j": joules, "w": joules / seconds}

    def ways(self) -> dict[str, Way]:
        """The four ways of an image; of the network as it is the quickest cut between two stages."""
        whole = load(self.model)
        order = whole.graph.layers
        if whole.model_type != "residual" or not whole.graph.embedding:
            raise PlanError(f"{self.model} is no residual network; take resnet-50, resnet-101 or resnet-152")
        found = {
            "local": Way(device_s=_seconds(whole, self.device), sent_bytes=0.0, server_s=0.0),
            "edge": Way(device_s=0.0, sent_bytes=self.image_bytes, server_s=_seconds(whole, self.server)),
        }
        third = order.index("stage-3-first")
        cuts = [
            Way(
                device_s=_seconds(_part(whole, 0, place), self.device),
                sent_bytes=_FLOAT_BYTES * _leaves(whole.graph.blocks[order[place - 1]].ops),
                server_s=_seconds(_part(whole, place, len(order)), self.server),
            )
            for place in range(1, len(order))
            if order[place] != order[place - 1]
        ]
        found["cut"] = min(cuts, key=lambda way: self._cost(way)["s"])
        encoder, decoder, sent = self._bottleneck()
        found["bottleneck"] = Way(
            device_s=_seconds(encoder, self.device), sent_bytes=sent,
            server_s=_seconds(decoder, self.server) + _seconds(_part(whole, third, len(order)), self.server),
        )  # fmt: skip
        return found

    def _bottleneck(self) -> tuple[Model, Model, float]:
        """BottleFit's encoder and decoder (custom/model.py, version 2), and the bytes between them."""
        encoder = Trunk(Layers(turned=Turned.NONE, fused=False), IMAGE)
        encoder.unit(_STEM, 7, stride=2)
        encoder.pool()
        encoder.norm()
        encoder.side += 2  # padded by a pixel on each side
        encoder.unit(self.channels, _KERNEL, stride=2, padded=False)
        sent = encoder.elements * self.bits / 8
        decoder = Trunk(Layers(turned=Turned.NONE, fused=False), IMAGE)
        decoder.channels, decoder.side = encoder.channels, encoder.side
        for _ in range(4):
            decoder.unit(_WIDE, _KERNEL)
        return (
            encoder.model("encoder", "convolutional", source="bottlefit-code", head=()),
            decoder.model("decoder", "convolutional", source="bottlefit-code", head=()), sent,
        )  # fmt: skip


def _part(whole: Model, first: int, end: int) -> Model:
    """Layers of a network from one place up to another, with its stem or its head where it has them."""
    graph, last = whole.graph, len(whole.graph.layers)
    layers = graph.layers[first:end]
    return replace(
        whole,
        graph=replace(
            graph, layers=layers, blocks={name: graph.blocks[name] for name in layers},
            embedding=graph.embedding if first == 0 else (), head=graph.head if end == last else (),
        ),
    )  # fmt: skip


def _leaves(ops: Sequence[Op]) -> float:
    """Numbers that leave a block [1]."""
    last = ops[-1]
    assert isinstance(last, ElementwiseOp)
    return float(last.write)


def _seconds(model: Model, machine: str) -> float:
    """One forward of one image [s]."""
    one = Workload(seq_len=1, global_batch=1, optimizer="forward-only", precision="fp32")
    return predict(model, cluster(machine), one, Plan(), changes=False).step_time.value
