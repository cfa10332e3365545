"""What a fact is, and the machines made of facts. Pure data; nothing here reads a file."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ridgeline.facts.measured_links import MeasuredLinks


class Evidence(enum.IntEnum):
    """How a number is known; higher is better. Reports show the lowest rung they rest on."""

    ASSUMED = 0
    DERIVED = 1
    DATASHEET = 2
    MEASURED = 3  # measured elsewhere, by the named source
    HERE = 4  # measured on this machine

    @property
    def label(self) -> str:
        """The rung in people's words."""
        return {4: "measured here", 3: "measured elsewhere"}.get(int(self), self.name.lower())


@dataclass(frozen=True, kw_only=True)
class Fact:
    """A value with unit, source, conditions and evidence; the loader refuses less."""

    value: float
    unit: str
    source: str
    conditions: str
    evidence: Evidence


SPARSE = "-2:4"  # ends the name of a format of which two of each four numbers of one operand are zeros and skipped
OWN_HOST = "cpu"  # architecture of a processor whose programs run on itself: what issues a kernel then runs it
SHARE = "share"  # among `sustained`, of 'product' and 'triad' by ranks: one rank's part while all compute [1]
DISPATCH = "dispatch"  # among `sustained`: time in which such a processor issues one kernel [s]
DRIFT = "drift"  # among `sustained`: the longest over the shortest time of one product while it was calibrated [1]
DIVIDED = "dispatch.divided"  # among `sustained`: what dividing a linear layer over ranks adds to its issue [s]


@dataclass(frozen=True, kw_only=True)
class Accelerator:
    """One device: what its datasheet says and what others have measured on it.

    `peak_flop_per_s` maps a number format (fp64, fp32, tf32, fp16, bf16, fp8, int8, int4, fp4) to the datasheet's dense
    matrix rate, and one that ends in `SPARSE` to its rate with skipped zeros counted [FLOP/s]; `sustained` maps
    'matrix.<dtype>', 'hbm' to the best rate that a named source measured in a long run [FLOP/s or byte/s].
    """

    name: str
    vendor: str
    architecture: str  # volta, turing, ampere, ada, hopper, blackwell, cdna2, cdna3, tpu, ...
    year: int | None
    peak_flop_per_s: Mapping[str, float]
    vector_flop_per_s: float  # non-matrix fp32 rate
    memory_bytes: float
    memory_bytes_per_s: float
    l2_bytes: float | None
    sm_count: int | None
    boost_hz: float | None
    link_name: str | None
    link_bytes_per_s: float | None  # one way, per device
    host_bytes_per_s: float | None  # PCIe or C2C, one way
    tdp_w: float | None
    memory_type: str = ""  # HBM3e, GDDR6, LPDDR5, ...; '' not told
    sustained: Mapping[str, Fact] = field(default_factory=dict)
    facts: Mapping[str, Fact] = field(default_factory=dict)  # every field above with its source
    notes: str = ""

    @property
    def graphics(self) -> bool:
        """Whether its memory is a graphics card's or a portable's: neither stacked nor on the wafer."""
        return self.memory_type.startswith(("GDDR", "LPDDR"))


@dataclass(frozen=True, kw_only=True)
class Tier:
    """One level of a cluster's network: groups of `size` devices joined by `link`.

    `topology` is 'switch', 'ring', 'mesh' (fully connected, the link's bandwidth shared by the
    peers), 'torus' or 'bus' (one shared host bridge). `bytes_per_s` is one way, per device, when all send at once; a
    device that sends alone has its network card's `card_bytes_per_s`, where several share one (0: the same).
    `oversubscription` divides it for traffic that crosses the tier above its first switch.
    """

    name: str
    size: int  # devices in one group of this tier, counted from the device up
    bytes_per_s: float
    latency_s: float
    topology: str
    oversubscription: float = 1.0
    in_network_reduction: bool = False
    fact: Fact | None = None
    card_bytes_per_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Fabric:
    """The switches of a cluster's outermost tier: leaves, each with one link to each of `spines` others.

    A group of `leaf_devices` devices stands under `rails` x `ports` leaf switches: the devices of a node are spread
    over the rails, the ports of a device's interface have a leaf switch each. Two leaves reach each other over any
    spine. Parallel links between a leaf and a spine count as spines of their own.
    """

    leaf_devices: int
    spines: int
    uplink_bytes_per_s: float  # of one link between a leaf and a spine, one way
    rails: int = 1
    ports: int = 1

    def oversubscription(self, device_bytes_per_s: float) -> float:
        """What devices may send into a leaf switch over what its links to spines carry [1]."""
        into = device_bytes_per_s * self.leaf_devices / (self.rails * self.ports)
        return into / (self.spines * self.uplink_bytes_per_s)


@dataclass(frozen=True, kw_only=True)
class Host:
    """What feeds the devices of one node."""

    devices: int
    dram_bytes: float
    dram_bytes_per_s: float
    device_bytes_per_s: float  # one device's own host link, one way
    nvme_bytes: float
    nvme_bytes_per_s: float  # node total, read
    idle_w: float  # node power without the accelerators
    processor: str = ""  # generation of its processors, where their launches are known
    evidence: Evidence = Evidence.ASSUMED
    quickness: float = 1.0  # of what it does itself, over what such hosts take for it [1]
    devices_bytes_per_s: float = 0.0  # all devices' host links at once, one way; 0: as fast as one by one
    nvme_write_bytes_per_s: float = 0.0  # node total; 0: the usual share of reads


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """`count` devices of one type, their network tiers (innermost first) and their host."""

    name: str
    accelerator: Accelerator
    count: int
    tiers: tuple[Tier, ...]  # the last one reaches every device: tiers[-1].size >= count
    host: Host
    price_usd_per_device_h: Fact | None = None
    pue: Fact | None = None  # power usage effectiveness of the building
    carbon_kg_per_j: Fact | None = None
    water_l_per_j: Fact | None = None  # of its electricity, where it is said in which region it stands
    secondary: SecondaryPool | None = None
    links: MeasuredLinks | None = None  # of each pair of groups of the innermost tier, where they differ
    fabric: Fabric | None = None  # switches of the outermost tier, where they are told
    mixed: MixedDevices | None = None  # where they are not all of one type: `accelerator` is then the first group's

    @property
    def node_devices(self) -> int:
        """Devices under one host [1]."""
        return self.host.devices

    @property
    def accelerators(self) -> tuple[Accelerator, ...]:
        """The types of its devices, group by group; one where all are alike."""
        return (self.accelerator,) if self.mixed is None else tuple(one.accelerator for one in self.mixed.groups)

    def of_kind(self, kind: str) -> Cluster:
        """The same devices seen from those of a kind: the cluster itself, but for the name of those beside it."""
        there = self.secondary
        if there is None or kind != there.cluster.accelerator.name:
            return self
        back = SecondaryPool(
            cluster=replace(self, secondary=None), own_link=there.other_link, other_link=there.own_link
        )
        return replace(there.cluster, secondary=back)


@dataclass(frozen=True, kw_only=True)
class MixedDevices:
    """Groups of devices of unlike types that train one job, in the order of ranks; groups are joined by `between`."""

    groups: tuple[Cluster, ...]
    between: Tier


@dataclass(frozen=True, kw_only=True)
class SecondaryPool:
    """Devices of another kind beside those of a cluster.

    A device of one kind reaches those of the other over the network of its own nodes, `own_link`, and theirs,
    `other_link`: each end carries what it sends or takes in at its own rate.
    """

    cluster: Cluster
    own_link: Tier
    other_link: Tier
