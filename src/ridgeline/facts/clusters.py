"""Clusters from what people type ('64xH100-SXM', 'gb200-nvl72', a TOML file), their prices, grids and buildings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import MappingProxyType

from ridgeline.errors import ClusterError, UnknownNameError
from ridgeline.facts import store
from ridgeline.facts.accelerators import accelerator, accelerator_names, canonical, meant_by, price_keys
from ridgeline.facts.machines import (
    MachineType,
    default_machine,
    host,
    known_names,
    machine,
    machine_name,
    machines,
    resized,
)
from ridgeline.facts.records import OWN_HOST, Accelerator, Cluster, Evidence, Fact, MixedDevices, SecondaryPool, Tier

KG_PER_J = 1e-3 / 3.6e6  # of one gram per kilowatt-hour
WORLD = "world"
MAX_DEVICES = 1_000_000
_TEXT = re.compile(r"^\s*(?:([\d_,]+)\s*[x*×]\s*)?(?:([\d_,]+)\s*[x*×]\s*)?(\S.*?)\s*$", re.IGNORECASE)
_SPACED = re.compile(
    r"^([\d_,]+)\s+(?:nodes?\s+(?:of|with|x|\*|×)?\s*)?(\S.*)$", re.IGNORECASE
)  # 8 H100, 2 nodes x 8 H100
_OWN = re.compile(r"^\s*(?:([\d_,]+)\s*[x*×]\s*)?(?:here|profile:\s*(\S.*?))\s*$", re.IGNORECASE)
_FORMS = (
    "write 64xH100-SXM, 8x8xH100-SXM (nodes x devices), 4xdgx-h100, gb200-nvl72, 8xH100-SXM+8xH20, FILE.toml, here or"
    " profile:PATH"
)


def clusters() -> tuple[str, ...]:
    """Names of all machines of the catalog, in table order."""
    return tuple(machines())


def cluster(text: str) -> Cluster:
    """The cluster that `text` names; a plain device count gets the device's default machine.

    'N x NAME' is N devices, or N units of a catalog machine; 'N x M x NAME' is N nodes of M
    devices; a path that ends in '.toml' is read by `cluster_from_toml`; 'here', 'N x here' and
    'profile:PATH' are a machine that `ridgeline calibrate` measured. '8xH100-SXM+8xH20' are groups of unlike devices.

    >>> c = cluster("64xH100-SXM")
    >>> c.count, [(t.name, t.size) for t in c.tiers]
    (64, [('nvlink4', 8), ('ib-ndr leaf', 64)])
    """
    if "+" in text and not text.strip().casefold().endswith(".toml"):
        return joined(tuple(map(cluster, _parts(text))))
    own = _OWN.match(text)
    if own is not None:
        from ridgeline.facts.profiles import profile_cluster

        return profile_cluster(own[2] or "", _count(own[1], text) or 1)
    if text.strip().casefold().endswith(".toml"):
        return cluster_from_toml(text.strip())
    match = _TEXT.match(text)
    if match is None:
        raise ClusterError(f"'{text}' is no cluster; {_FORMS}")
    whole, words = match[0].strip(), match[3]
    if whole in published_clusters():
        return cluster_from_toml(published_clusters()[whole])
    named = machine_name(whole)
    if named is not None:
        return _of_machine(machine(named), units=1, text=text)
    first, second = (_count(match[1], text), _count(match[2], text))
    named = machine_name(words)
    if named is not None:
        if second is not None:
            raise ClusterError(f"'{text}' gives two counts, but '{named}' is a whole machine; write {first}x{named}")
        return _of_machine(machine(named), units=first or 1, text=text)
    if canonical(words) is None:
        from ridgeline.facts.processor_devices import processor_device

        socket = processor_device(words)
        if socket is not None:
            return _of_devices(socket, first or 1, second, text)
        spaced = _SPACED.match(words) if second is None else None
        if spaced is not None:
            return cluster(f"{first}x{spaced[1]}x{spaced[2]}" if first else f"{spaced[1]}x{spaced[2]}")
        meant = meant_by(words)
        if len(meant) > 1:
            raise ClusterError(f"'{text}' may be {_either(meant)}; write which")
        raise UnknownNameError("cluster", words, _all_names(), hint=_FORMS)
    return _of_devices(accelerator(words), first or 1, second, text)


@cache
def published_clusters() -> Mapping[str, Path]:
    """Files of clusters of publications whose links or devices are not all alike, by name."""
    return {name: store.path_of(f"clusters/{name}.toml") for name in store.names("clusters", ".toml")}


def cluster_from_toml(path: str | Path) -> Cluster:
    """The cluster that a TOML file describes; docs/facts.md shows the fields.

    Raises InputError with file, line and field for any defect of the file.
    """
    from ridgeline.facts.cluster_file import read_cluster

    return read_cluster(path)


def _of_devices(device: Accelerator, first: int, second: int | None, text: str) -> Cluster:
    count = first * (second or 1)
    _bounded(count, text)
    found = default_machine(device, second or count)
    if second is not None and second != found.node_devices:
        limit = found.inside[-1].size if found.inside else found.node_devices
        if second > limit:
            raise ClusterError(f"'{text}' has {second} devices a node, {found.name} holds {limit}; {_FORMS}")
        found = resized(found, second)
    if device.architecture == OWN_HOST:  # its memory is the host's
        found = replace(found, host="soc-board")
    return build(found, count, name=f"{count}x{device.name}", device=device)


def _of_machine(found: MachineType, *, units: int, text: str) -> Cluster:
    count = units * found.devices
    _bounded(count, text)
    return build(found, count, name=f"{units}x{found.name}" if units > 1 else found.name)


def build(found: MachineType, count: int, *, name: str, device: Accelerator | None = None) -> Cluster:
    """`count` devices in as many machines as they need; `device` replaces the catalog's."""
    own = device is not None and device.name not in accelerator_names()
    device = device or accelerator(found.accelerator)
    return Cluster(
        name=name,
        accelerator=device,
        count=count,
        tiers=reach(found.inside, found.outside, count),
        host=host(found.host, found.node_devices, device),
        price_usd_per_device_h=None if own else price(device.name),
        pue=pue(),
        carbon_kg_per_j=carbon_intensity(),
    )


def reach(inside: tuple[Tier, ...], outside: tuple[Tier, ...], count: int) -> tuple[Tier, ...]:
    """The tiers that `count` devices use: sizes rise, each a multiple of the one inside it.

    Tiers inside a unit keep their size, except that a torus is cut to the slice in use. Tiers
    outside shrink to the smallest multiple of the tier inside that holds all devices. Tiers
    beyond the first that reaches every device are dropped.
    """
    kept: list[Tier] = []
    for place, tier in enumerate((*inside, *outside)):
        inner = kept[-1].size if kept else 1
        needed = -(-count // inner) * inner
        size = tier.size - tier.size % inner
        if place >= len(inside) or tier.topology == "torus":
            size = min(size, needed)
        if size > inner or not kept:
            kept.append(replace(tier, size=size))
        if kept[-1].size >= count:
            break
    return tuple(kept)


def outward(found: Cluster) -> Tier:
    """The network that a device of a cluster leaves its node over, to whatever lies beyond all of them.

    The outermost tier of several; of one node, that of the device's default machine.
    """
    if len(found.tiers) > 1:
        return found.tiers[-1]
    outside = default_machine(found.accelerator, found.count).outside
    return outside[-1] if outside else found.tiers[-1]


def with_secondary(first: Cluster, second: Cluster) -> Cluster:
    """The first cluster with the devices of the second, of another kind, beside it; raises `ClusterError` if alike."""
    if first.accelerator.name == second.accelerator.name:
        raise ClusterError(
            f"{second.name} beside {first.name}: both are {first.accelerator.name}; take more of them as one cluster"
        )
    return replace(first, secondary=SecondaryPool(cluster=second, own_link=outward(first), other_link=outward(second)))


def _parts(text: str) -> list[str]:
    """The groups of '8xH100-SXM+8xH20'."""
    parts = [part.strip() for part in text.split("+")]
    if not all(parts):
        raise ClusterError(f"'{text}' has a group without a name; write 8xH100-SXM+8xH20")
    return parts


def joined(groups: tuple[Cluster, ...]) -> Cluster:
    """Groups of unlike devices as one cluster: one job is trained on all, and instances are served on each.

    Between groups each device has the least rate and the longest wait of the networks that their nodes leave over.
    Raises `ClusterError` for groups of one type, or for one that is mixed itself.
    """
    names = [one.accelerator.name for one in groups]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None or any(one.mixed is not None for one in groups):
        said = "+".join(one.name for one in groups)
        raise ClusterError(
            f"'{said}' names {twice or 'a mixed cluster'} {'twice' if twice else 'as one group'};"
            " write one group for each type of device"
        )
    count = sum(one.count for one in groups)
    _bounded(count, "+".join(one.name for one in groups))
    links = [outward(one) for one in groups]
    slowest = min(links, key=lambda one: one.bytes_per_s)
    wait_s = max(one.latency_s for one in links)
    between = replace(slowest, name="between groups", size=count, latency_s=wait_s, topology="switch")
    return replace(
        groups[0], name="+".join(one.name for one in groups), count=count, price_usd_per_device_h=None,
        mixed=MixedDevices(groups=groups, between=between),
    )  # fmt: skip


def side_by_side(found: Cluster) -> Cluster:
    """A cluster as serving sees it: of two groups of unlike devices the second beside the first; else itself.

    Raises `ClusterError` for more groups.
    """
    if found.mixed is None:
        return found
    first, *others = found.mixed.groups
    if len(others) != 1:
        raise ClusterError(f"{found.name} has {len(others) + 1} types of devices; serving takes two at most")
    carbon = replace(others[0], carbon_kg_per_j=found.carbon_kg_per_j)
    return replace(with_secondary(first, carbon), name=found.name, carbon_kg_per_j=found.carbon_kg_per_j)


def _count(text: str | None, whole: str) -> int | None:
    if text is None:
        return None
    digits = text.replace("_", "").replace(",", "")
    if not digits or len(digits) > len(str(MAX_DEVICES)) or not 1 <= int(digits) <= MAX_DEVICES:
        raise ClusterError(f"'{whole}' has the count {text[:24]}; needs 1 to {MAX_DEVICES:,} devices")
    return int(digits)


def _either(names: tuple[str, ...]) -> str:
    """Names with 'or' between the last two; of many the first four."""
    shown = names[:4]
    more = f" or {len(names) - 4} others" if len(names) > 4 else ""
    return ", ".join(shown) + more if more else f"{', '.join(shown[:-1])} or {shown[-1]}"


def _bounded(count: int, text: str) -> None:
    if not 1 <= count <= MAX_DEVICES:
        raise ClusterError(f"'{text}' has {count:,} devices; needs 1 to {MAX_DEVICES:,}")


def _all_names() -> list[str]:
    return [*accelerator_names(), *known_names(), *published_clusters()]


@cache
def price(name: str, *, spot: bool = False) -> Fact | None:
    """Median price of one device for one hour [USD/h], None where no row of `data/prices.tsv` fits.

    On-demand rows of all clouds, or spot rows; the conditions name how many, the range, the
    clouds and the dates.
    """
    keys = price_keys(accelerator(name).name)
    kind = "spot" if spot else "on_demand"
    chosen = [row for row in store.read_tsv("prices.tsv") if row["on_demand_or_spot"] == kind and _fits(row, keys)]
    if not chosen:
        return None
    values = sorted(float(row["usd_per_gpu_hour"]) for row in chosen)
    spread = f"{values[0]:g} to {values[-1]:g}"
    clouds = ", ".join(sorted({row["cloud"] for row in chosen}))
    dates = ", ".join(sorted({row["date"] for row in chosen}))
    return Fact(
        value=(values[(len(values) - 1) // 2] + values[len(values) // 2]) / 2,
        unit="USD/h",
        source="; ".join(sorted({row["source"] for row in chosen})),
        conditions=f"median of {len(values)} {kind.replace('_', '-')} rows, {spread}, {clouds}; {dates}",
        evidence=Evidence.DERIVED if len(values) > 1 else Evidence.DATASHEET,
    )


def _fits(row: Mapping[str, str], keys: tuple[str, ...]) -> bool:
    return f"{row['accelerator']}/{row['mem_gb']}" in keys or f"{row['accelerator']}/" in keys


@cache
def grids() -> Mapping[str, Fact]:
    """Carbon intensity of electricity by region [kg/J], yearly averages."""
    return MappingProxyType({row["region"]: _grid(row) for row in store.read_tsv("grids.tsv")})


def carbon_intensity(region: str = WORLD) -> Fact:
    """Carbon intensity of electricity in a region, by name or code [kg/J].

    >>> round(carbon_intensity("FR").value * 3.6e9)  # g/kWh
    56
    """
    return grids()[region_row(region)["region"]]


def region_row(region: str) -> store.TableRow:
    """The row of a region's grid, by name or code."""
    row = _regions().get(region.strip().casefold())
    if row is None:
        raise UnknownNameError("region", region, _regions())
    return row


@cache
def _regions() -> Mapping[str, store.TableRow]:
    table = {}
    for row in store.read_tsv("grids.tsv"):
        for name in (row["region"], *store.listed(row["aliases"])):
            table[name.casefold()] = row
    return table


def _grid(row: store.TableRow) -> Fact:
    return store.fact(float(row["g_per_kwh"]) * KG_PER_J, "kg/J", row, conditions=f"{row['conditions']}, {row['year']}")


@cache
def _buildings() -> Mapping[str, Fact]:
    return {row["building"]: store.fact(float(row["pue"]), "1", row) for row in store.read_tsv("buildings.tsv")}


def pue(building: str = "survey average") -> Fact:
    """Power usage effectiveness of a building: facility energy over device energy [1]."""
    found = _buildings().get(building.strip().casefold())
    if found is None:
        raise UnknownNameError("building", building, _buildings())
    return found
