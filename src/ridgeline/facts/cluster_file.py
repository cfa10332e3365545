"""A person's own machine from a TOML file; datasheet numbers alone are enough."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NoReturn, TypeGuard

from ridgeline.errors import InputError, RidgelineError
from ridgeline.facts.accelerators import accelerator, accelerators
from ridgeline.facts.clusters import MAX_DEVICES, build, reach
from ridgeline.facts.links import link
from ridgeline.facts.machines import Machine, default_machine, known_names, machine, machine_name
from ridgeline.facts.prices import carbon_intensity
from ridgeline.facts.records import Accelerator, Cluster, Evidence, Fact, Host, Tier
from ridgeline.facts.toml_text import line_of, parse_toml
from ridgeline.facts.user_files import CLUSTER, read_user_file

if TYPE_CHECKING:
    from ridgeline.facts.cluster_schema import ClusterTable, Device, TierTable

_SAID = "as the file says"
_HOST_DEVICES = 16  # the most that a host of the catalog holds; a larger inner tier joins several hosts


@dataclass(frozen=True, kw_only=True)
class _Source:
    """Where a complaint belongs."""

    file: str
    text: str

    def fail(self, message: str, place: Sequence[str | int] = (), *, value: object = None) -> NoReturn:
        field = ".".join(str(part) for part in place) or None
        line = line_of(self.text, place) if place else None
        raise InputError(message, file=self.file, line=line, field=field, value=value)

    def fact(self, value: float, unit: str, rung: Evidence = Evidence.DATASHEET, conditions: str = _SAID) -> Fact:
        source = Path(self.file).name  # the same answer wherever the file lies
        return Fact(value=value, unit=unit, source=source, conditions=conditions, evidence=rung)


def read_cluster(path: str | Path) -> Cluster:
    """The cluster that a TOML file describes; every defect of the file is an InputError."""
    raw, text = parse_toml(read_user_file(path, CLUSTER).raw, file=str(path))
    return cluster_of(raw, file=str(path), text=text)


def cluster_of(raw: Mapping[str, Any], *, file: str, text: str = "") -> Cluster:
    """The cluster that the tables of a file describe; `text` lets complaints name a line."""
    from ridgeline.facts.cluster_schema import ClusterTable

    source = _Source(file=file, text=text)
    rest = {key: value for key, value in raw.items() if key != "accelerator"}
    table = _checked(ClusterTable, rest, source, (), ("accelerator",))
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
    return replace(
        built,
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


def _checked(model: Any, raw: object, source: _Source, place: tuple[str, ...], others: Sequence[str] = ()) -> Any:
    """`raw` as a model of the schema, or an InputError about its first defect."""
    from pydantic import ValidationError

    try:
        return model.model_validate(raw)
    except ValidationError as caught:
        _complain(model, caught.errors(include_url=False, include_context=False), source, place, others)


def _complain(
    model: Any, errors: Sequence[Any], source: _Source, place: tuple[str, ...], others: Sequence[str]
) -> NoReturn:
    """Words the defect that explains most: a misspelt key before what it leaves missing."""
    first = next((error for error in errors if error["type"] == "extra_forbidden"), errors[0])
    where, value = (*place, *first["loc"]), None
    if first["type"] == "extra_forbidden":
        known = [*_fields(model, first["loc"][:-1]), *(others if len(first["loc"]) == 1 else ())]
        near = get_close_matches(str(where[-1]), known, n=1, cutoff=0.5)
        message = "unknown field; " + (f"nearest: {near[0]}" if near else f"known: {', '.join(known)}")
    elif first["type"] == "missing":
        message = "is required"
    else:
        value, given = first["input"], _short(first["input"])
        message = f"{first['msg'].removeprefix('Value error, ').replace('Input should be', 'needs to be')}; got {given}"
    if len(errors) > 1:
        message += f" (and {len(errors) - 1} more)"
    source.fail(message, where, value=value)


def _short(given: object) -> str:
    """What the file says, cut to a length that fits a message."""
    text = f"a whole number of {given.bit_length()} bits" if _is_long(given) else repr(given)
    return text if len(text) <= 60 else text[:57] + "..."


def _is_long(given: object) -> TypeGuard[int]:
    return isinstance(given, int) and given.bit_length() > 128


def _fields(model: Any, place: Sequence[str | int]) -> list[str]:
    """Names that the table at `place` of the schema may hold."""
    from ridgeline.facts import cluster_schema as schema

    inner = {"peak": schema.Peak, "sustained": schema.Sustained, "tier": schema.TierTable, "host": schema.HostTable}
    names = [part for part in place if isinstance(part, str)]
    return list((inner.get(names[-1], model) if names else model).model_fields)


def _named(find: Callable[[], Any], source: _Source, place: tuple[str, ...]) -> Any:
    """What a name stands for; an unknown name becomes a complaint about its line."""
    try:
        return find()
    except RidgelineError as error:
        source.fail(str(error), place)


def _device(raw: Mapping[str, Any], table: ClusterTable, source: _Source) -> Accelerator:
    from ridgeline.facts.cluster_schema import Device

    given = raw.get("accelerator")
    if isinstance(given, str):
        named: Accelerator = _named(lambda: accelerator(given), source, ("accelerator",))
        return named
    if isinstance(given, dict):
        return _own_device(_checked(Device, given, source, ("accelerator",)), source)
    if given is not None:
        source.fail("wanted a name such as 'H100-SXM' or a table [accelerator]", ("accelerator",))
    if table.machine is None:
        source.fail("needs accelerator = 'NAME', a table [accelerator], or machine = 'NAME'")
    return accelerator(_machine(table.machine, source).accelerator)


def _machine(name: str, source: _Source) -> Machine:
    found = machine_name(name)
    if found is None:
        near = get_close_matches(name.casefold(), known_names(), n=3, cutoff=0.5)
        source.fail(f"unknown machine '{name}'" + (f"; nearest: {', '.join(near)}" if near else ""), ("machine",))
    return machine(found)


def _base(device: Accelerator, table: ClusterTable, source: _Source) -> Machine:
    """The machine that fills in what the file leaves out."""
    if table.machine is None:
        return default_machine(device, (table.host.devices or table.count or 1))
    found = _machine(table.machine, source)
    if found.accelerator != device.name:
        source.fail(f"'{found.name}' holds {found.accelerator}, the file says {device.name}", ("machine",))
    return found


def _own_device(table: Device, source: _Source) -> Accelerator:
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
    return Accelerator(
        name=table.name,
        vendor=table.vendor,
        architecture=table.architecture,
        year=table.year,
        peak_flop_per_s=peaks,
        vector_flop_per_s=facts["vector_flop_per_s"].value,
        memory_bytes=table.memory,
        memory_bytes_per_s=table.memory_bandwidth,
        l2_bytes=table.l2,
        sm_count=table.sm_count,
        boost_hz=table.boost,
        link_name=table.link,
        link_bytes_per_s=table.link_bandwidth,
        host_bytes_per_s=table.host_bandwidth,
        tdp_w=table.tdp,
        sustained=_own_sustained(table, peaks, source),
        facts=facts,
        notes=f"from {source.file}",
    )


def _vector(table: Device, peaks: Mapping[str, float], source: _Source) -> Fact:
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


def _own_sustained(table: Device, peaks: Mapping[str, float], source: _Source) -> dict[str, Fact]:
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
    known = {name: value for name, value in given.items() if value is not None}
    whole = len(known) == len(given)
    return replace(base, **known, evidence=Evidence.DATASHEET if whole else base.evidence)


def _tiers(table: ClusterTable, base: Machine, node: Host, source: _Source) -> tuple[tuple[Tier, ...], int]:
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


def _own_tier(tier: TierTable, place: int, size: int, source: _Source) -> Tier:
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
