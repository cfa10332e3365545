"""The cluster a row ran on: the device that a cell means, and the catalog's machine with what a row states of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache

from ridgeline.errors import ClusterError, InputError
from ridgeline.facts.accelerators import accelerators, canonical
from ridgeline.facts.clusters import cluster, clusters, reach
from ridgeline.facts.machines import default_machine, machine
from ridgeline.facts.readings import reading, readings
from ridgeline.facts.records import Accelerator, Cluster
from ridgeline.validate.hardware import NamedDevice, family_keys, find_device, read_device

BIT_PER_BYTE = 8
GIGABIT = 1e9 / BIT_PER_BYTE  # bytes

_UNIT = r"[Gg](?:bps|bit|bE|be|b)(?:\s*/?\s*[Ss](?:ec)?)?"
_CARDS = re.compile(rf"(?<!\w)(\d+)\s*x\s*[^,;]*?(?<![\d.-])(?<![A-WYZa-wyz])(\d+(?:\.\d+)?)\s*{_UNIT}")
_RATE = re.compile(rf"(?<![\w.-])(\d+(?:\.\d+)?)\s*(?:{_UNIT}|G (?=Ethernet))")
_NETWORK = re.compile(
    r"infiniband|\bib\b|ethernet|gbe\b|roce|rdma|connectx|cx-?\d|\bndr\b|\bhdr\b|\bedr\b|opa\b|omni-?path|slingshot|efa\b"
    r"|node-node|bf3|bluefield|\bnic\b|\bnet\b",
    re.IGNORECASE,
)
_OTHER_DUTY = re.compile(r"^\s*(?:storage|management)(?:\s*\+\s*(?:storage|management))?\s*:", re.IGNORECASE)
_NODE = (
    re.compile(r"(\d+)\s*(?:GPUs?|devices|chips)?\s*(?:/|per)\s*node", re.IGNORECASE),
    re.compile(r"servers? x (\d+)", re.IGNORECASE),
)
_SYSTEMS = {"dgx-2": 16, "dgx-1": 8, "dgx-h100": 8, "dgx-a100": 8, "dgx a100": 8}
"""Devices of one node of named systems. Source: NVIDIA DGX data sheets."""
_SLICES = re.compile(r"(?:(\d+)\s*slices?(?:\(s\))?\s*of\s*)?v(\d)(e|p)?-(\d+)", re.IGNORECASE)
_PER_DEVICE = re.compile(r"per (?:GPU|device|chip)", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class NetworkText:
    """What cells say of the network; None where they are silent.

    `node_devices` devices under one host [1]; `node_bytes_per_s` one way between nodes, whole node;
    `device_bytes_per_s` the same for one device; `slice_devices` chips of one TPU slice [1].
    """

    node_devices: int | None = None
    node_bytes_per_s: float | None = None
    device_bytes_per_s: float | None = None
    slice_devices: int | None = None


def read_network(interconnect: str, *others: str) -> NetworkText:
    """Node size and rates from an interconnect cell; `others` (notes, hardware) may state the node too.

    >>> read_network("NVLink3+NVSwitch 8/node; 8x HDR 200Gb/s IB per node").node_bytes_per_s
    200000000000.0
    """
    said = "; ".join((interconnect, *others))
    per_node, per_device = _between_nodes(interconnect)
    if per_node is None and per_device is None:
        for other in others:
            per_node = per_node or _between_nodes(other)[0]
    return NetworkText(
        node_devices=_node_devices(said),
        node_bytes_per_s=per_node,
        device_bytes_per_s=per_device,
        slice_devices=_slice_devices(said),
    )


def _node_devices(text: str) -> int | None:
    for pattern in _NODE:
        match = pattern.search(text)
        if match and 1 <= int(match[1]) <= 1024:
            return int(match[1])
    return next((size for name, size in _SYSTEMS.items() if name in text.casefold()), None)


def _slice_devices(text: str) -> int | None:
    """Chips of one slice: names of v2 to v4 and v5p count TensorCores, two a chip; v5e and v6e count chips.

    Source: cloud.google.com/tpu/docs/system-architecture-tpu-vm, 'TPU versions'.
    """
    match = _SLICES.search(text)
    if match is None:
        return None
    cores_per_chip = 1 if (match[3] or "").casefold() == "e" else 2
    return max(1, int(match[4]) // cores_per_chip)


def _between_nodes(text: str) -> tuple[float | None, float | None]:
    """Rate between nodes of a whole node and of one device [byte/s], storage and management cards left out."""
    best: float | None = None
    for part in re.split(r"[;,](?!\d)", text):
        if _OTHER_DUTY.match(part) or not _NETWORK.search(part):
            continue
        total = _cards_bytes_per_s(part)
        if total is not None and _PER_DEVICE.search(part):
            return None, total
        if total is not None:
            best = max(best or 0.0, total)
    return best, None


def _cards_bytes_per_s(part: str) -> float | None:
    part = part.replace(" / ", "/").replace(" - ", "-")
    cards = _CARDS.search(part)
    if cards:
        return int(cards[1]) * float(cards[2]) * GIGABIT
    rate = _RATE.search(part)
    return float(rate[1]) * GIGABIT if rate else None


def rewire(cluster: Cluster, said: NetworkText) -> tuple[Cluster, tuple[str, ...]]:
    """A cluster with the rate between nodes that a row states in place of the default's.

    The accelerators' own links keep theirs, also where they reach beyond a node (NVL72, TPU slices).
    """
    rate = said.device_bytes_per_s
    if rate is None and said.node_bytes_per_s is not None:
        rate = said.node_bytes_per_s / min(cluster.node_devices, cluster.count)
    if rate is None or cluster.count <= cluster.node_devices:
        return cluster, ()
    own = cluster.tiers[0]
    tiers = tuple(
        replace(tier, bytes_per_s=rate) if tier is not own and tier.size > cluster.node_devices else tier
        for tier in cluster.tiers
    )
    if len(cluster.tiers) == 1 and cluster.node_devices == 1:
        tiers = (replace(own, bytes_per_s=rate),)
    if tiers == cluster.tiers:
        return cluster, ()
    note = f"{rate * BIT_PER_BYTE / 1e9:g} Gb/s a device between nodes as stated"
    return replace(cluster, tiers=tiers), (note,)


_OWN = re.compile(r"^(here|profile:\S.*?)(?: \(([^()]*)\))?$")
"""A machine that `ridgeline calibrate` measured, as `ridgeline measure --append` writes it: 'here (its name)'."""


@dataclass(frozen=True, kw_only=True)
class Machines:
    """Where machines come from: the accelerators known, clusters by text, and clusters cut into slices.

    `usual(name)` is the catalog name that a bare name such as 'h100' stands for.
    `sliced(name, count, slice)` is `count` chips in slices of `slice` joined by the outer network.
    """

    accelerators: Callable[[], Sequence[Accelerator]]
    usual: Callable[[str], str | None]
    cluster: Callable[[str], Cluster]
    systems: Callable[[], Sequence[tuple[str, str, int]]]  # name, accelerator, devices of one unit
    sliced: Callable[[str, int, int], Cluster]


@cache
def machines() -> Machines:
    """The machines that ship with the package."""
    return Machines(
        accelerators=cache(lambda: tuple(accelerators().values())),
        usual=canonical,
        cluster=cache(cluster),
        systems=cache(lambda: tuple(_system(name) for name in clusters())),
        sliced=cache(_sliced),
    )


def _system(name: str) -> tuple[str, str, int]:
    found = machine(name)
    return found.name, found.accelerator, found.devices


def _sliced(name: str, count: int, size: int) -> Cluster:
    default = cluster(f"{count}x{name}")
    unit = default_machine(default.accelerator, count)
    inside = tuple(replace(tier, size=min(tier.size, size)) for tier in unit.inside)
    return replace(default, tiers=reach(inside, unit.outside, count))


def place(part: Accelerator, count: int, texts: Sequence[str], source: Machines) -> tuple[Cluster, tuple[str, ...]]:
    """`count` devices in the machine that the cells name or imply, else the accelerator's default machine.

    `texts` are the interconnect cell and others that may speak of the network. `part` replaces the
    catalog's accelerator, for rows that state their own memory or power cap.
    """
    said = read_network(*texts)
    found, notes = _base(_wired(part, source), count, said, " ".join(texts), source)
    found, more = rewire(found, said)
    if found.accelerator != part:
        found = replace(found, accelerator=part)
    return found, (*notes, *more)


def own_cluster(text: str, count: int, source: Machines) -> Cluster | None:
    """`count` devices of the machine whose profile a hardware cell names; None for cells that name none.

    Raises InputError where the profile is of another machine than the cell says.
    """
    named = _OWN.match(text)
    if named is None:
        return None
    word, name = named.groups()
    found = source.cluster(f"{count}x{word}")
    if name is not None and not found.accelerator.name.startswith(name):
        raise InputError(f"measured on '{name}', the profile '{word}' is of {found.accelerator.name}", field="hardware")
    return found


def _wired(part: Accelerator, source: Machines) -> str:
    """The name under which the catalog has a machine with the part's own link: its own, or a sibling's.

    'H100-SXM-96GB' has no row of machines, 'H100-SXM' has: the same board with other memory.
    """
    if part.link_name is None or source.cluster(f"2x{part.name}").tiers[0].topology != "bus":
        return part.name
    keys, form = family_keys(part.name), read_device(part.name).form
    for other in source.accelerators():
        same = family_keys(other.name) & keys and read_device(other.name).form == form
        linked = same and other.link_name == part.link_name
        if linked and source.cluster(f"2x{other.name}").tiers[0].topology != "bus":
            return other.name
    return part.name


def _base(name: str, count: int, said: NetworkText, text: str, source: Machines) -> tuple[Cluster, tuple[str, ...]]:
    for known in readings("system", words=text):
        for system, part, devices in source.systems():
            if part == name and system.startswith(known.text):
                units = -(-count // devices)
                return _counted(source.cluster(f"{units}x{system}"), count), (f"machine: {system}",)
    if said.slice_devices is not None and said.slice_devices < count:
        note = f"slices of {said.slice_devices} chips as stated, joined by the outer network"
        return source.sliced(name, count, said.slice_devices), (note,)
    default = source.cluster(f"{count}x{name}")
    node = said.node_devices
    if node is None or node == default.node_devices or count <= min(node, default.node_devices):
        return default, ()
    try:
        nodes = source.cluster(f"{-(-count // node)}x{node}x{name}")
    except ClusterError:
        return default, (f"{node} devices a node as stated do not fit the catalog's {name} machine: default kept",)
    return _counted(nodes, count), (f"{node} devices a node as stated",)


def _counted(found: Cluster, count: int) -> Cluster:
    """The cluster with `count` devices in use; the last node or unit may be part empty."""
    return found if found.count == count else replace(found, count=count)


_CARD = re.compile(r"\(\s*((?:nvidia|amd|intel arc|radeon|geforce|rtx|rx|quadro|tesla)\b[^()]*)\)", re.IGNORECASE)

HALF_PARTS = re.compile(r"one (?:gcd|die|tile|stack)", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class PlacedDevice:
    """The device of a row, the cluster it stands in, and what was assumed."""

    part: Accelerator
    cluster: Cluster
    assumptions: tuple[str, ...]


def without_accelerator(cell: str) -> bool:
    """Whether a cell names a computer and no card in it."""
    card = _CARD.search(cell)
    named = card[1] if card else cell
    known = card is not None or reading("card", words=named) is not None
    return not known and reading("no_accelerator", words=cell.strip()) is not None


def find(cell: str, source: Machines) -> NamedDevice:
    """The accelerator that a cell means; raises `InputError` when it names none."""
    text = cell.strip()
    card = _CARD.search(text)
    named = card[1] if card else text
    known = reading("card", words=named)
    if known is not None:
        found = next((part for part in source.accelerators() if part.name == known.text), None)
        if found is not None:
            return _narrowed(NamedDevice(accelerator=found, assumptions=_said(text, found.name)), text)
    if card is None and reading("no_accelerator", words=text) is not None:
        raise InputError(f"'{text[:60]}' has no accelerator: serving on a CPU is not predicted", field="hardware")
    device = find_device(named, source.accelerators(), source.usual)
    if HALF_PARTS.search(text):
        device = _halved(device)
    return _narrowed(device, text) if card else device


def meant(code: str, engine: str, cell: str) -> tuple[str, int, tuple[str, ...]]:
    """The device that a source means by a hardware cell, how many are one of its own [1], and words that say so."""
    cells = {"runs": code, "program": engine, "device": cell}
    found, dies = reading("served_device", **cells), reading("dies", **cells)
    count = 1 if dies is None else int(dies.number)
    return (cell, 1, ()) if found is None else (found.text, count, (found.told,))


def put(cell: str, count: int, texts: Sequence[str], source: Machines) -> PlacedDevice:
    """`count` devices of the cell in the machine that `texts` name or imply."""
    if re.search(r"\bcluster\b", cell, re.IGNORECASE):
        raise InputError(f"'{cell[:60]}': a cluster of small computers, its network is not known", field="hardware")
    device = find(cell, source)
    cluster, notes = place(device.accelerator, count, texts, source)
    return PlacedDevice(part=device.accelerator, cluster=cluster, assumptions=(*device.assumptions, *notes))


def _said(text: str, name: str) -> tuple[str, ...]:
    return () if name.replace("-", " ").casefold() in text.replace("-", " ").casefold() else (f"{name} in '{text}'",)


def _halved(device: NamedDevice) -> NamedDevice:
    """One of two dies of a package: half of everything."""
    part = device.accelerator
    half = replace(
        part,
        peak_flop_per_s={name: rate / 2 for name, rate in part.peak_flop_per_s.items()},
        vector_flop_per_s=part.vector_flop_per_s / 2,
        memory_bytes=part.memory_bytes / 2,
        memory_bytes_per_s=part.memory_bytes_per_s / 2,
        l2_bytes=None if part.l2_bytes is None else part.l2_bytes / 2,
        sm_count=None if part.sm_count is None else part.sm_count // 2,
        tdp_w=None if part.tdp_w is None else part.tdp_w / 2,
    )
    return NamedDevice(accelerator=half, assumptions=(*device.assumptions, f"one of the two dies of {part.name}"))


def _narrowed(device: NamedDevice, text: str) -> NamedDevice:
    slot = reading("slot_bytes_per_s", words=text)
    if slot is None:
        return device
    part = replace(device.accelerator, host_bytes_per_s=slot.number)
    return NamedDevice(accelerator=part, assumptions=(*device.assumptions, slot.told))
