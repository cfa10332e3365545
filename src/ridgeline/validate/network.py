"""What interconnect cells say: devices of one node, rate between nodes, TPU slices."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from ridgeline.facts.records import Cluster

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
