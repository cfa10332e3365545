"""A person's own machine from a TOML file; datasheet numbers alone are enough.

The only module of this room, besides profiles, that needs pydantic: imported where a file or table is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Literal, NoReturn, TypeVar

from pydantic import Field, ValidationError

from ridgeline.errors import RidgelineError, nearest_text
from ridgeline.facts.accelerators import accelerator, accelerator_of, accelerators
from ridgeline.facts.cluster_links import FabricTable, GroupTable, LinksTable, fabric_of, links_of
from ridgeline.facts.clusters import MAX_DEVICES, build, carbon_intensity, reach
from ridgeline.facts.file_quantities import (
    Bytes,
    BytesOrNone,
    Carbon,
    Devices,
    Dollars,
    FileTable,
    FlopRate,
    Hertz,
    Name,
    Rate,
    RateOrNone,
    Seconds,
    Watts,
    WattsOrNone,
)
from ridgeline.facts.machines import MachineType, default_machine, known_names, link, machine, machine_name
from ridgeline.facts.records import Accelerator, Cluster, Evidence, Fact, Host, Tier
from ridgeline.facts.user_files import CLUSTER, Toml, read_toml, shortened

_HOST_DEVICES = 16  # the most that a host of the catalog holds; a larger inner tier joins several hosts


class PeakTable(FileTable):
    """Dense matrix rates of the datasheet [FLOP/s], by number format."""

    fp64: FlopRate | None = None
    fp32: FlopRate | None = None
    tf32: FlopRate | None = None
    fp16: FlopRate | None = None
    bf16: FlopRate | None = None
    fp8: FlopRate | None = None
    int8: FlopRate | None = None
    fp4: FlopRate | None = None


class SustainedTable(PeakTable):
    """Rates that the person measured in a long run: matrix formats [FLOP/s] and hbm [byte/s]."""

    hbm: Rate | None = None


class DeviceTable(FileTable):
    """An accelerator by its datasheet."""

    name: Name = "custom"
    vendor: Name = "unknown"
    architecture: Name = "unknown"
    year: Annotated[int, Field(strict=True, ge=1990, le=2100)] | None = None
    peak: PeakTable
    vector: FlopRate | None = None
    memory: Bytes
    memory_bandwidth: Rate
    l2: Bytes | None = None
    sm_count: Annotated[int, Field(strict=True, ge=1, le=10_000_000)] | None = None
    boost: Hertz | None = None
    link: Name | None = None
    link_bandwidth: Rate | None = None
    host_bandwidth: Rate | None = None
    tdp: Watts | None = None
    sustained: SustainedTable = SustainedTable()


class TierTable(FileTable):
    """One level of the network, innermost first."""

    name: Name | None = None
    size: Annotated[int, Field(strict=True, ge=1, le=10**9)] | None = None
    bandwidth: Rate
    latency: Seconds | None = None
    topology: Literal["switch", "ring", "mesh", "torus", "bus"] = "switch"
    oversubscription: Annotated[float, Field(ge=1, le=1000, allow_inf_nan=False)] = 1.0
    in_network_reduction: Annotated[bool, Field(strict=True)] = False


class HostTable(FileTable):
    """The host of one node; what is left out is taken from the default machine."""

    devices: Devices | None = None
    dram: Bytes | None = None
    dram_bandwidth: Rate | None = None
    device_bandwidth: Rate | None = None
    nvme: BytesOrNone | None = None
    nvme_bandwidth: RateOrNone | None = None
    nvme_write_bandwidth: RateOrNone | None = None
    devices_bandwidth: RateOrNone | None = None
    idle: WattsOrNone | None = None


class ClusterTable(FileTable):
    """The whole file, the accelerator left aside."""

    name: Name | None = None
    count: Devices | None = None
    machine: Name | None = None
    price: Dollars | None = None
    pue: Annotated[float, Field(ge=1, le=10, allow_inf_nan=False)] | None = None
    carbon: Carbon | None = None
    region: Name | None = None
    tier: Annotated[list[TierTable], Field(max_length=16)] = Field(default_factory=list)
    group: Annotated[list[GroupTable], Field(max_length=1024)] = Field(default_factory=list)
    links: LinksTable = LinksTable()
    fabric: FabricTable | None = None
    host: HostTable = HostTable()


def read_cluster(path: str | Path) -> Cluster:
    """The cluster that a TOML file describes; every defect of the file is an InputError."""
    file = read_toml(path, CLUSTER)
    return cluster_of(file.tables, file=file.name, text=file.text)


def cluster_of(raw: Mapping[str, Any], *, file: str, text: str = "") -> Cluster:
    """The cluster that the tables of a file describe; `text` lets complaints name a line."""
    source = Toml(name=file, tables=raw, text=text)
    groups = raw.get("group")
    if isinstance(groups, list) and any(isinstance(one, dict) and "accelerator" in one for one in groups):
        from ridgeline.facts.mixed_file import mixed_cluster

        return mixed_cluster(raw, source, lambda schema: _checked(schema, raw, source))
    rest = {key: value for key, value in raw.items() if key != "accelerator"}
    table = _checked(ClusterTable, rest, source, others=("accelerator",))
    device = _device(raw, table, source)
    base = _base(device, table, source)
    built = build(base, 1, name="", device=device)
    host_table = _host(table, built.host)
    tiers, count = _tiers(table, base, host_table, source)
    carbon = built.carbon_kg_per_j
    if table.region is not None:
        carbon = _named(lambda: carbon_intensity(table.region or ""), source, ("region",))
    if table.carbon is not None:
        carbon = source.fact(table.carbon, "kg/J")
    measured = source.fact(tiers[-1].bytes_per_s, "byte/s", Evidence.HERE, "measured, as said")
    links = links_of(table.links, table.group, source, measured, tiers=tiers, count=count)
    fabric, tiers = fabric_of(table.fabric, source, tiers, count, unlike=links is not None)
    return replace(
        built,
        links=links,
        fabric=fabric,
        name=table.name or Path(file).stem,
        count=count,
        tiers=tiers,
        host=host_table,
        price_usd_per_device_h=(
            built.price_usd_per_device_h if table.price is None else source.fact(table.price, "USD/h")
        ),
        pue=built.pue if table.pue is None else source.fact(table.pue, "1"),
        carbon_kg_per_j=carbon,
    )


Checked = TypeVar("Checked", bound=FileTable)


def _checked(
    model: type[Checked], raw: object, source: Toml, place: tuple[str, ...] = (), others: Sequence[str] = ()
) -> Checked:
    """`raw` as a table of the schema, or an InputError about its first defect."""
    try:
        return model.model_validate(raw)
    except ValidationError as caught:
        _complain(model, caught.errors(include_url=False, include_context=False), source, place, others)


def _complain(
    model: type[FileTable], errors: Sequence[Any], source: Toml, place: tuple[str, ...], others: Sequence[str]
) -> NoReturn:
    """Words the defect that explains most: a misspelt key before what it leaves missing."""
    first = next((error for error in errors if error["type"] == "extra_forbidden"), errors[0])
    where = first["loc"]
    if first["type"] == "extra_forbidden":
        known = [*_fields(model, where[:-1]), *(others if len(where) == 1 else ())]
        source.unknown(str(where[-1]), known, (*place, *where[:-1]))
    told = "is required"
    if first["type"] != "missing":
        told = first["msg"].removeprefix("Value error, ").replace("Input should be", "needs to be")
        told += f"; got {shortened(first['input'])}"
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    source.fail(told + more, (*place, *where), value=None if first["type"] == "missing" else first["input"])


def _fields(model: type[FileTable], place: Sequence[str | int]) -> list[str]:
    """Names that the table at `place` of the schema may hold."""
    inner: Mapping[str, type[FileTable]] = {
        "peak": PeakTable,
        "sustained": SustainedTable,
        "tier": TierTable,
        "group": GroupTable,
        "links": LinksTable,
        "fabric": FabricTable,
        "host": HostTable,
        **getattr(model, "parts", {}),
    }
    names = [part for part in place if isinstance(part, str)]
    return list((inner.get(names[-1], model) if names else model).model_fields)


def _named(find: Callable[[], Any], source: Toml, place: tuple[str, ...]) -> Any:
    """What a name stands for; an unknown name becomes a complaint about its line."""
    try:
        return find()
    except RidgelineError as error:
        source.fail(str(error), place)


def _device(raw: Mapping[str, Any], table: ClusterTable, source: Toml) -> Accelerator:
    given = raw.get("accelerator")
    if isinstance(given, str):
        named: Accelerator = _named(lambda: accelerator(given), source, ("accelerator",))
        return named
    if isinstance(given, dict):
        return _own_device(_checked(DeviceTable, given, source, ("accelerator",)), source)
    if given is not None:
        source.fail("wanted a name such as 'H100-SXM' or a table [accelerator]", ("accelerator",))
    if table.machine is None:
        source.fail("needs accelerator = 'NAME', a table [accelerator], or machine = 'NAME'")
    return accelerator(_machine(table.machine, source).accelerator)


def _machine(name: str, source: Toml) -> MachineType:
    found = machine_name(name)
    if found is None:
        near = nearest_text(name, known_names())
        source.fail(f"unknown machine '{name}'" + (f"; {near}" if near else ""), ("machine",))
    return machine(found)


def _base(device: Accelerator, table: ClusterTable, source: Toml) -> MachineType:
    """The machine that fills in what the file leaves out."""
    if table.machine is None:
        return default_machine(device, (table.host.devices or table.count or 1))
    found = _machine(table.machine, source)
    if found.accelerator != device.name:
        source.fail(f"'{found.name}' holds {found.accelerator}, the file says {device.name}", ("machine",))
    return found


def _own_device(table: DeviceTable, source: Toml) -> Accelerator:
    peaks = {fmt: rate for fmt, rate in table.peak.model_dump().items() if rate is not None}
    if not peaks:
        source.fail("needs a rate of at least one format, e.g. bf16 = '989 TFLOP/s'", ("accelerator", "peak"))
    facts = {f"peak_flop_per_s.{fmt}": source.fact(rate, "FLOP/s") for fmt, rate in peaks.items()}
    facts["vector_flop_per_s"] = _vector(table, peaks, source)
    for name, value, unit in (
        ("memory_bytes", table.memory, "byte"),
        ("memory_nominal_bytes", table.memory, "byte"),
        ("memory_bytes_per_s", table.memory_bandwidth, "byte/s"),
        ("l2_bytes", table.l2, "byte"),
        ("sm_count", table.sm_count, "1"),
        ("boost_hz", table.boost, "Hz"),
        ("link_bytes_per_s", table.link_bandwidth, "byte/s"),
        ("host_bytes_per_s", table.host_bandwidth, "byte/s"),
        ("tdp_w", table.tdp, "W"),
        ("year", table.year, "1"),
    ):
        if value is not None:
            facts[name] = source.fact(float(value), unit)
    texts = {"name": table.name, "vendor": table.vendor, "architecture": table.architecture}
    sustained = _own_sustained(table, peaks, source)
    return accelerator_of(facts, {**texts, "notes": f"from {source.name}"}, sustained=sustained, link_name=table.link)


def _vector(table: DeviceTable, peaks: Mapping[str, float], source: Toml) -> Fact:
    """The fp32 rate outside the matrix units: said, else the fp32 peak, else a share of the 16-bit peak."""
    if table.vector is not None:
        return source.fact(table.vector, "FLOP/s")
    if "fp32" in peaks:
        return source.fact(peaks["fp32"], "FLOP/s", Evidence.DERIVED, "the fp32 rate of the file")
    fmt = next((name for name in ("bf16", "fp16", "fp8", "int8", "tf32", "fp4", "fp64") if name in peaks), "bf16")
    known = [a.vector_flop_per_s / a.peak_flop_per_s[fmt] for a in accelerators().values() if fmt in a.peak_flop_per_s]
    share = median(known)
    text = f"{share:.3f} of the {fmt} rate, the median of {len(known)} devices of the catalog"
    return source.fact(peaks[fmt] * share, "FLOP/s", Evidence.DERIVED, text)


def _own_sustained(table: DeviceTable, peaks: Mapping[str, float], source: Toml) -> dict[str, Fact]:
    found = {}
    for fmt, rate in table.sustained.model_dump().items():
        if rate is None:
            continue
        place = ("accelerator", "sustained", fmt)
        peak = table.memory_bandwidth if fmt == "hbm" else peaks.get(fmt)
        if peak is None:
            source.fail(f"has no peak; add accelerator.peak.{fmt}", place)
        if rate > peak:
            source.fail(f"{rate:g} is above the datasheet's {peak:g}", place)
        unit = "byte/s" if fmt == "hbm" else "FLOP/s"
        found["hbm" if fmt == "hbm" else f"matrix.{fmt}"] = source.fact(rate, unit, Evidence.HERE, "measured, as said")
    return found


def _host(table: ClusterTable, base: Host) -> Host:
    """The host of the file over that of the default machine; as well known as what it leaves out."""
    said = table.host
    given: dict[str, Any] = {
        "devices": said.devices,
        "dram_bytes": said.dram,
        "dram_bytes_per_s": said.dram_bandwidth,
        "device_bytes_per_s": said.device_bandwidth,
        "nvme_bytes": said.nvme,
        "nvme_bytes_per_s": said.nvme_bandwidth,
        "idle_w": said.idle,
    }
    inner = table.tier[0].size if table.tier else None
    if said.devices is None and inner is not None and inner <= _HOST_DEVICES:
        given["devices"] = inner
    whole = all(value is not None for value in given.values())
    given |= {"nvme_write_bytes_per_s": said.nvme_write_bandwidth, "devices_bytes_per_s": said.devices_bandwidth}
    known = {name: value for name, value in given.items() if value is not None}
    return replace(base, **known, evidence=Evidence.DATASHEET if whole else base.evidence)


def _tiers(table: ClusterTable, base: MachineType, node: Host, source: Toml) -> tuple[tuple[Tier, ...], int]:
    """The tiers of the file, or of the default machine, and the number of devices."""
    if not table.tier:
        count = table.count or (base.devices if table.machine else node.devices)
        return reach(base.inside, base.outside, count), count
    sizes = [tier.size for tier in table.tier]
    said = table.count or sizes[-1]
    if said is None:
        source.fail("needs count = N, or a size of the last tier", ("tier", len(sizes) - 1))
    count = said
    if count > MAX_DEVICES:
        source.fail(f"{count} devices, at most {MAX_DEVICES}", ("tier", len(sizes) - 1, "size"))
    tiers: list[Tier] = []
    inner = 1
    for place, tier in enumerate(table.tier):
        last = place == len(sizes) - 1
        size = tier.size or (-(-count // inner) * inner if last else None)
        if size is None:
            source.fail("is required for all but the last tier", ("tier", place, "size"))
        if size % inner or (place and size <= inner):
            source.fail(f"{size} is no larger multiple of the {inner} of the tier inside", ("tier", place, "size"))
        if last and size < count:
            source.fail(f"reaches {size} of {count} devices", ("tier", place, "size"))
        tiers.append(_own_tier(tier, place, size, source))
        inner = size
    return tuple(tiers), count


def _own_tier(tier: TierTable, place: int, size: int, source: Toml) -> Tier:
    # What the file leaves out: a hop inside a node as on PCIe, outside as on InfiniBand.
    latency_s = link("pcie4" if place == 0 else "ib-ndr").latency.value if tier.latency is None else tier.latency
    return Tier(
        name=tier.name or f"tier {place}",
        size=size,
        bytes_per_s=tier.bandwidth,
        latency_s=latency_s,
        topology=tier.topology,
        oversubscription=tier.oversubscription,
        in_network_reduction=tier.in_network_reduction,
        fact=source.fact(tier.bandwidth, "byte/s"),
    )
