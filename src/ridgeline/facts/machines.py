"""Machines of `data/clusters.tsv`: what one unit holds, before anyone says how many."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

from ridgeline.errors import UnknownNameError
from ridgeline.facts import rows, store
from ridgeline.facts.links import link, link_names
from ridgeline.facts.records import Accelerator, Evidence, Fact, Host, Tier

FILE = "data/clusters.tsv"
_UNREACHED = 10**9  # size of a tier that joins everything; cut to the count when a cluster is built


@dataclass(frozen=True, kw_only=True)
class Machine:
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
def machines() -> Mapping[str, dict[str, str]]:
    """Rows of the catalog by machine name; a row with several node sizes becomes several."""
    found = {}
    for row in store.read_tsv("clusters.tsv"):
        sizes, hosts = rows.names(row["node_devices"]), rows.names(row["host"])
        for place, size in enumerate(sizes):
            one = {column: cell.replace("{n}", size) for column, cell in row.items()}
            one["node_devices"], one["host"] = size, hosts[min(place, len(hosts) - 1)]
            found[one["name"]] = one
    return found


@cache
def _aliases() -> Mapping[str, str]:
    table = {name.casefold(): name for name in machines()}
    for name, row in machines().items():
        for alias in rows.names(row["aliases"]):
            table.setdefault(alias.casefold(), name)
    return table


def machine_name(text: str) -> str | None:
    """Catalog name of a machine, None when `text` names none."""
    return _aliases().get(text.strip().casefold().replace("_", "-").replace(" ", "-"))


def known_names() -> list[str]:
    """Every name and alias of a machine."""
    return list(_aliases())


@cache
def machine(name: str) -> Machine:
    """The machine of that catalog name."""
    row = machines().get(name)
    if row is None:
        raise UnknownNameError("machine", name, known_names())
    node = int(row["node_devices"])
    return Machine(
        name=name,
        accelerator=row["accelerator"],
        node_devices=node,
        devices=int(row["machine_devices"] or node),
        inside=tuple(_inner(part, row) for part in rows.names(row["inner"], " ;; ")),
        outside=_outer(row, node),
        host=row["host"],
    )


def default_machine(accelerator: Accelerator, count: int) -> Machine:
    """The machine that a plain 'NxNAME' means: the smallest default that holds `count`, else the largest."""
    rows_of = [row for row in machines().values() if accelerator.name in rows.names(row["default_for"])]
    if not rows_of:
        return _generic(accelerator, count)
    by_size = sorted(rows_of, key=lambda row: int(row["node_devices"]))
    chosen = next((row for row in by_size if int(row["node_devices"]) >= count), by_size[-1])
    return machine(chosen["name"])


def resized(found: Machine, per_node: int) -> Machine:
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


def _inner(text: str, row: Mapping[str, str]) -> Tier:
    topology, link_name, size, *rest = text.split(":")
    kind = link(link_name)
    own = next((float(part) * 1e9 for part in rest if part != "reduction"), None)
    return _tier(
        kind.name, int(size), own or kind.bandwidth.value, kind.latency, topology, row, reduction="reduction" in rest
    )


def _outer(row: Mapping[str, str], node: int) -> tuple[Tier, ...]:
    kind = link(row["fabric"])
    own = rows.number(row, "fabric_gbs", 1e9)
    rate = kind.bandwidth.value / node if own is None else own
    reduction, over = row["in_network_reduction"] == "yes", float(row["oversubscription"])
    whole = _tier(kind.name, _UNREACHED, rate, kind.latency, "switch", row, reduction=reduction)
    if not row["leaf_devices"]:
        return (replace(whole, oversubscription=over),)
    leaf = replace(whole, name=f"{kind.name} leaf", size=int(row["leaf_devices"]))
    spine = replace(whole, name=f"{kind.name} spine", oversubscription=over)
    return (leaf, spine)


def _tier(
    name: str,
    size: int,
    rate: float,
    latency: Fact,
    topology: str,
    row: Mapping[str, str],
    *,
    reduction: bool,
) -> Tier:
    fact = rows.fact(rate, "byte/s", row["source"], row["conditions"], row["evidence"], file=FILE)
    return Tier(
        name=name,
        size=size,
        bytes_per_s=rate,
        latency_s=latency.value,
        topology=topology,
        in_network_reduction=reduction,
        fact=fact,
    )


def _generic(accelerator: Accelerator, count: int) -> Machine:
    """Boards on PCIe slots with one 100 Gb/s port a node, for a device that no row names."""
    node = next((size for size in (1, 2, 4, 8) if size >= count), 8)
    row = {
        "fabric": "ethernet-100",
        "fabric_gbs": "",
        "leaf_devices": "",
        "in_network_reduction": "no",
        "oversubscription": "1",
        "source": "assumed, ordinary parts",
        "conditions": "no public machine is in the catalog: boards on PCIe slots, one 100 Gb/s port a node",
        "evidence": "assumed",
    }
    return Machine(
        name=f"{accelerator.name.lower()}-generic-{node}",
        accelerator=accelerator.name,
        node_devices=node,
        devices=node,
        inside=() if node == 1 else (_generic_link(accelerator, node, row),),
        outside=_outer(row, node),
        host={1: "desktop-1", 2: "desktop-2", 4: "workstation-4", 8: "server-8"}[node],
    )


def _generic_link(accelerator: Accelerator, node: int, row: Mapping[str, str]) -> Tier:
    """What joins the devices of a node that no row describes: links that the device declares, else its host bus."""
    pcie, own = link("pcie4"), accelerator.link_bytes_per_s
    if own is None:
        rate = accelerator.host_bytes_per_s or pcie.bandwidth.value
        return _tier("pcie", node, rate, pcie.latency, "bus", row, reduction=False)
    name = (accelerator.link_name or "device link").casefold()
    latency = next((link(one).latency for one in reversed(link_names()) if one.startswith(name[:4])), pcie.latency)
    said = "links as the device declares them; that a switch joins all of a node is assumed, and their latency"
    return _tier(name, node, own, latency, "switch", {**row, "conditions": said}, reduction=False)


def host(name: str, devices: int, accelerator: Accelerator) -> Host:
    """The host of that row of `data/hosts.tsv` for `devices` accelerators."""
    table = {row["name"]: row for row in store.read_tsv("hosts.tsv")}
    row = table.get(name)
    if row is None:
        raise UnknownNameError("host", name, table)
    own = rows.number(row, "device_gbs", 1e9)
    return Host(
        devices=devices,
        dram_bytes=float(row["dram_gb"]) * 1e9,
        dram_bytes_per_s=float(row["dram_gbs"]) * 1e9,
        device_bytes_per_s=own or accelerator.host_bytes_per_s or link("pcie4").bandwidth.value,
        nvme_bytes=float(row["nvme_tb"]) * 1e12,
        nvme_bytes_per_s=float(row["nvme_gbs"]) * 1e9,
        idle_w=float(row["idle_w"]),
        processor=row["processor"],
        evidence=rows.evidence(row["evidence"], file="data/hosts.tsv"),
    )
