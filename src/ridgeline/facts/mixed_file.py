"""A machine's file whose tables `[[group]]` are devices of unlike types: one job is trained on all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field

from ridgeline.errors import RidgelineError
from ridgeline.facts.accelerators import accelerator
from ridgeline.facts.clusters import MAX_DEVICES, build, carbon_intensity
from ridgeline.facts.file_quantities import Dollars, FileTable, Name, Rate, Seconds
from ridgeline.facts.machines import default_machine, resized
from ridgeline.facts.records import Cluster, Fact, MixedDevices, Tier
from ridgeline.facts.user_files import Toml

_LATENCY_S = 5e-6  # of a hop between nodes where the file says none: as of Ethernet, assumed


class DeviceGroupTable(FileTable):
    """Nodes with devices of one type: `nodes` of `devices` each, joined at `bandwidth`, a device's share, one way."""

    accelerator: Name
    nodes: Annotated[int, Field(strict=True, ge=1, le=1_000_000)] = 1
    devices: Annotated[int, Field(strict=True, ge=1, le=1024)] = 1
    bandwidth: Rate | None = None
    inside: Rate | None = None
    latency: Seconds | None = None
    price: Dollars | None = None


class BetweenTable(FileTable):
    """What joins the groups: a device's share of it, one way."""

    name: Name = "between groups"
    bandwidth: Rate
    latency: Seconds | None = None


class MixedTable(FileTable):
    """The whole file."""

    parts: ClassVar[Mapping[str, type[FileTable]]] = {"group": DeviceGroupTable, "between": BetweenTable}

    name: Name | None = None
    region: Name | None = None
    group: Annotated[list[DeviceGroupTable], Field(min_length=2, max_length=64)]
    between: BetweenTable


def mixed_cluster(raw: Mapping[str, Any], source: Toml, read: Callable[[type[MixedTable]], MixedTable]) -> Cluster:
    """The cluster that a file of unlike groups describes; raises `InputError` with the place of a defect."""
    table = read(MixedTable)
    fact = source.fact(table.between.bandwidth, "byte/s")
    found = []
    for place, said in enumerate(table.group):
        try:
            found.append(_group(said, table.between, fact))
        except RidgelineError as error:
            source.fail(str(error), ("group", place, "accelerator"))
    count = sum(one.count for one in found)
    if count > MAX_DEVICES:
        source.fail(f"{count} devices, at most {MAX_DEVICES}", ("group",))
    region = carbon_intensity(table.region) if table.region else found[0].carbon_kg_per_j
    between = _tier(table.between.name, count, table.between.bandwidth, table.between.latency, fact)
    return replace(
        found[0], name=table.name or Path(source.name).stem, count=count, price_usd_per_device_h=None,
        carbon_kg_per_j=region, mixed=MixedDevices(groups=tuple(found), between=between),
    )  # fmt: skip


def _tier(name: str, size: int, rate: float, latency_s: float | None, fact: Fact) -> Tier:
    wait = _LATENCY_S if latency_s is None else latency_s
    return Tier(name=name, size=size, bytes_per_s=rate, latency_s=wait, topology="switch", fact=fact)


def _group(said: DeviceGroupTable, between: BetweenTable, fact: Fact) -> Cluster:
    """One group as a cluster of its own; nodes of a group are joined as the groups are where it says nothing else."""
    device, count = accelerator(said.accelerator), said.nodes * said.devices
    base = default_machine(device, said.devices)
    if base.node_devices != said.devices:
        base = resized(base, said.devices)
    built = build(base, said.devices, name=f"{count}x{device.name}")
    tiers = built.tiers if said.inside is None else tuple(replace(t, bytes_per_s=said.inside) for t in built.tiers)
    if said.nodes > 1:
        rate = between.bandwidth if said.bandwidth is None else said.bandwidth
        wait = between.latency if said.latency is None else said.latency
        tiers = (*tiers, _tier(f"between nodes of {device.name}", count, rate, wait, fact))
    price = built.price_usd_per_device_h if said.price is None else replace(fact, value=said.price, unit="USD/h")
    return replace(built, count=count, tiers=tiers, price_usd_per_device_h=price)


def as_if_alike(cluster: Cluster) -> tuple[Cluster, ...]:
    """For each group, the cluster with as many devices as if all were of its type, its own network and that between."""
    assert cluster.mixed is not None
    found = []
    for group in cluster.mixed.groups:
        size = -(-cluster.count // group.count) * group.count
        between = replace(cluster.mixed.between, size=size)
        found.append(replace(group, count=cluster.count, tiers=(*group.tiers, between)))
    return tuple(found)
