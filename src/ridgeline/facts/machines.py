"""Links, hosts and machines of `data/`: what one unit holds, before anyone says how many."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

from ridgeline.errors import UnknownNameError
from ridgeline.facts import store
from ridgeline.facts.records import Accelerator, Evidence, Fact, Host, Tier

_UNREACHED = 10**9  # size of a tier that joins everything; cut to the count when a cluster is built


@dataclass(frozen=True, kw_only=True)
class Link:
    """One kind of link: `bandwidth` [byte/s, one way, per device] and `latency` of one hop [s]."""

    name: str
    bandwidth: Fact
    latency: Fact


@cache
def _links() -> Mapping[str, Link]:
    found = {}
    for row in store.read_tsv("links.tsv"):
        bandwidth = store.fact(float(row["bandwidth_gbs"]) * 1e9, "byte/s", row)
        latency = {name: row[f"latency_{name}"] for name in ("source", "conditions", "evidence")}
        hop = store.fact(float(row["latency_us"]) * 1e-6, "s", row, **latency)
        found[row["name"]] = Link(name=row["name"], bandwidth=bandwidth, latency=hop)
    return found


def link_names() -> tuple[str, ...]:
    """Names of all links, in table order."""
    return tuple(_links())


def link(name: str) -> Link:
    """The link of that name."""
    found = _links().get(name)
    if found is None:
        raise UnknownNameError("link", name, _links())
    return found


@dataclass(frozen=True, kw_only=True)
class MachineType:
    """One unit: `node_devices` under one host, `devices` in the unit, tiers inside and outside.

    The sizes of `outside` are those of full leaf groups; the last one has no size of its own.
    """

    name: str
    accelerator: str
    node_devices: int
    devices: int
    inside: tuple[Tier, ...]
    outside: tuple[Tier, ...]
    host: str


@cache
def machines() -> Mapping[str, store.TableRow]:
    """Rows of the catalog by machine name; a row with several node sizes becomes several."""
    found = {}
    for row in store.read_tsv("clusters.tsv"):
        sizes, hosts = store.listed(row["node_devices"]), store.listed(row["host"])
        for place, size in enumerate(sizes):
            cells = {column: cell.replace("{n}", size) for column, cell in row.items()}
            own = {"node_devices": size, "host": hosts[min(place, len(hosts) - 1)]}
            one = row.with_cells({**cells, **own})
            found[one["name"]] = one
    return found


@cache
def _aliases() -> Mapping[str, str]:
    table = {name.casefold(): name for name in machines()}
    for name, row in machines().items():
        for alias in store.listed(row["aliases"]):
            table.setdefault(alias.casefold(), name)
    return table


def machine_name(text: str) -> str | None:
    """Catalog name of a machine, None when `text` names none."""
    return _aliases().get(text.strip().casefold().replace("_", "-").replace(" ", "-"))


def known_names() -> list[str]:
    """Every name and alias of a machine."""
    return list(_aliases())


@cache
def machine(name: str) -> MachineType:
    """The machine of that catalog name."""
    row = machines().get(name)
    if row is None:
        raise UnknownNameError("machine", name, known_names())
    node = int(row["node_devices"])
    return MachineType(
        name=name,
        accelerator=row["accelerator"],
        node_devices=node,
        devices=int(row["machine_devices"] or node),
        inside=tuple(_inner(part, row) for part in store.listed(row["inner"], " ;; ")),
        outside=_outer(row, node),
        host=row["host"],
    )


def default_machine(accelerator: Accelerator, count: int) -> MachineType:
    """The machine that a plain 'NxNAME' means: the smallest default that holds `count`, else the largest."""
    rows_of = [row for row in machines().values() if accelerator.name in store.listed(row["default_for"])]
    if not rows_of:
        return _generic(accelerator, count)
    by_size = sorted(rows_of, key=lambda row: int(row["node_devices"]))
    chosen = next((row for row in by_size if int(row["node_devices"]) >= count), by_size[-1])
    return machine(chosen["name"])


def resized(found: MachineType, per_node: int) -> MachineType:
    """The same machine with nodes of `per_node` devices."""
    inner = found.inside[-1:] or found.outside[:1]
    return replace(
        found,
        name=f"{found.name} with {per_node} a node",
        node_devices=per_node,
        devices=per_node,
        inside=tuple(_cut(tier, per_node) for tier in inner),
    )


def _cut(tier: Tier, size: int) -> Tier:
    fact = tier.fact
    if fact is not None:
        text = f"{fact.conditions}; as in the whole machine, cut to {size}"
        fact = replace(fact, conditions=text, evidence=min(fact.evidence, Evidence.DERIVED))
    return replace(tier, size=size, fact=fact)


def _inner(text: str, row: store.TableRow) -> Tier:
    topology, link_name, size, *rest = text.split(":")
    kind = link(link_name)
    own = next((float(part) * 1e9 for part in rest if part != "reduction"), None)
    tier = _tier(kind.name, int(size), own or kind.bandwidth.value, kind.latency, row)
    return replace(tier, topology=topology, in_network_reduction="reduction" in rest)


def _outer(row: store.TableRow, node: int) -> tuple[Tier, ...]:
    kind = link(row["fabric"])
    own = store.number(row, "fabric_gbs", 1e9)
    rate = kind.bandwidth.value / node if own is None else own
    over = float(row["oversubscription"])
    whole = _tier(kind.name, _UNREACHED, rate, kind.latency, row)
    shared = kind.bandwidth.value if kind.bandwidth.value > rate else 0.0
    whole = replace(whole, in_network_reduction=row["in_network_reduction"] == "yes", card_bytes_per_s=shared)
    if not row["leaf_devices"]:
        return (replace(whole, oversubscription=over),)
    leaf = replace(whole, name=f"{kind.name} leaf", size=int(row["leaf_devices"]))
    return (leaf, replace(whole, name=f"{kind.name} spine", oversubscription=over))


def _tier(name: str, size: int, rate: float, latency: Fact, row: store.TableRow) -> Tier:
    fact = store.fact(rate, "byte/s", row)
    return Tier(name=name, size=size, bytes_per_s=rate, latency_s=latency.value, topology="switch", fact=fact)


def _generic(accelerator: Accelerator, count: int) -> MachineType:
    """Boards on PCIe slots with one 100 Gb/s port a node, for a device that no row names."""
    node = next((size for size in (1, 2, 4, 8) if size >= count), 8)
    row = store.TableRow(
        {
            "fabric": "ethernet-100",
            "fabric_gbs": "",
            "leaf_devices": "",
            "in_network_reduction": "no",
            "oversubscription": "1",
            "source": "assumed, ordinary parts",
            "conditions": "no public machine is in the catalog: boards on PCIe slots, one 100 Gb/s port a node",
            "evidence": "assumed",
        }
    )
    return MachineType(
        name=f"{accelerator.name.lower()}-generic-{node}",
        accelerator=accelerator.name,
        node_devices=node,
        devices=node,
        inside=() if node == 1 else (_generic_link(accelerator, node, row),),
        outside=_outer(row, node),
        host={1: "desktop-1", 2: "desktop-2", 4: "workstation-4", 8: "server-8"}[node],
    )


def _generic_link(accelerator: Accelerator, node: int, row: store.TableRow) -> Tier:
    """What joins the devices of a node that no row describes: links that the device declares, else its host bus."""
    pcie, own = link("pcie4"), accelerator.link_bytes_per_s
    if own is None:
        rate = accelerator.host_bytes_per_s or pcie.bandwidth.value
        return replace(_tier("pcie", node, rate, pcie.latency, row), topology="bus")
    name = (accelerator.link_name or "device link").casefold()
    latency = next((link(one).latency for one in reversed(link_names()) if one.startswith(name[:4])), pcie.latency)
    said = "links as the device declares them; that a switch joins all of a node is assumed, and their latency"
    return _tier(name, node, own, latency, row.with_cells({**row, "conditions": said}))


def host(name: str, devices: int, accelerator: Accelerator) -> Host:
    """The host of that row of `data/hosts.tsv` for `devices` accelerators."""
    table = {row["name"]: row for row in store.read_tsv("hosts.tsv")}
    row = table.get(name)
    if row is None:
        raise UnknownNameError("host", name, table)
    own = store.number(row, "device_gbs", 1e9)
    return Host(
        devices=devices,
        dram_bytes=float(row["dram_gb"]) * 1e9,
        dram_bytes_per_s=float(row["dram_gbs"]) * 1e9,
        device_bytes_per_s=own or accelerator.host_bytes_per_s or link("pcie4").bandwidth.value,
        nvme_bytes=float(row["nvme_tb"]) * 1e12,
        nvme_bytes_per_s=float(row["nvme_gbs"]) * 1e9,
        idle_w=float(row["idle_w"]),
        processor=row["processor"],
        devices_bytes_per_s=store.number(row, "devices_gbs", 1e9) or 0.0,
        evidence=store.evidence(row["evidence"], file=row.file),
    )
