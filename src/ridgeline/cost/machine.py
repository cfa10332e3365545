"""A device and its network, resolved to the rates that the mechanisms use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ridgeline.cost.answer import FITS, Rung
from ridgeline.errors import ClusterError, DomainError
from ridgeline.facts.fits import Fit, own_evidence, own_fits
from ridgeline.facts.mechanisms import constant, constants
from ridgeline.facts.rates import loaded_rate, sustained_rate
from ridgeline.facts.records import Accelerator, Cluster, Evidence, Fabric, Fact, Tier
from ridgeline.facts.transfer import transferred_fits
from ridgeline.graph.workload import instead, without_rate
from ridgeline.seams.power_limit import power_share

if TYPE_CHECKING:
    from ridgeline.seams.routes import FlowRoutes

# Vendors whose devices spread tiles of a product over many independent cores; others have one or two large arrays.
_TILED_VENDORS = frozenset({"NVIDIA", "AMD"})


@dataclass(frozen=True, kw_only=True)
class Device:
    """Rates of one accelerator, in SI, with the evidence behind each.

    `matrix` maps a format to the sustained matrix rate [FLOP/s]; `memory_bytes_per_s` is the
    sustained rate of a long stream, `stream_share` what a layer's kernels get of it. Without
    `sm_count` there is no wave quantization. `loaded` maps a format to the matrix rate that the power limit leaves
    when products follow each other without a pause [FLOP/s], where it is known.
    """

    accelerator: Accelerator
    matrix: Mapping[str, float]
    vector_flop_per_s: float
    memory_bytes_per_s: float
    stream_share: float  # of it that one elementwise kernel of a layer reaches
    l2_bytes: float
    sm_count: int
    clock_hz: float
    evidence: Mapping[str, Evidence] = field(default_factory=dict)
    loaded: Mapping[str, float] = field(default_factory=dict)

    @property
    def exp_per_s(self) -> float:
        """Exponentials per second of the special-function units [1/s]."""
        return self.sm_count * constant("sm.exp_per_cycle") * self.clock_hz

    @property
    def memory_latency_s(self) -> float:
        """Time from a load to its data, from DRAM [s]."""
        return constant("memory.latency") / self.clock_hz

    @property
    def kernel_s(self) -> float:
        """Time of a kernel before and after its bytes: launch and two latencies, or the shortest measured there [s]."""
        return max(constant("launch.device") + 2.0 * self.memory_latency_s, kernel_start_s(self.accelerator))

    def matrix_rate(self, dtype: str) -> float:
        """Sustained dense matrix rate of a number format [FLOP/s]; raises `DomainError` for formats it lacks."""
        rate = self.matrix.get(dtype)
        if rate is None:
            raise DomainError(without_rate(self.accelerator.name, dtype, self.matrix))
        return rate

    @property
    def half_rate(self) -> float:
        """Sustained rate of products of 16-bit inputs [FLOP/s]: in bf16, else in what programs take instead.

        Raises `DomainError` where the device has neither fp16 nor fp32.
        """
        return self.matrix_rate("bf16" if "bf16" in self.matrix else instead("bf16", self.matrix) or "bf16")


def kernel_start_s(part: Accelerator) -> float:
    """Time that the shortest kernel takes on a device, from the end of the one before [s]; 0 where nobody measured it.

    Other devices' kernels start as theirs do, so what is lent to this one takes at least as long.
    """
    known = constants().get(f"launch.start.{part.architecture}")
    return known.value if known is not None else 0.0


def stream_share(accelerator: Accelerator) -> float:
    """Share of the sustained stream rate that one elementwise kernel of a layer reaches [1].

    Measured on the device where it has a profile; else by its kind of memory: graphics memory, and stacked memory as
    slow, is narrow enough for few loads in flight to fill it, other stacked memory is not.
    """
    measured = accelerator.sustained.get("stream.share")
    if measured is not None:
        return measured.value
    table = constants()
    narrow = accelerator.graphics or accelerator.memory_bytes_per_s < constant("stream.slow_stacked")
    key = "gddr" if narrow else accelerator.architecture
    return table.get(f"stream.share.{key}", table["stream.share.other"]).value


def stream_share_range() -> tuple[float, float]:
    """The lowest and the highest share that kernels of layers were measured to reach of the stream rate [1]."""
    measured = [
        fact.value
        for key, fact in constants().items()
        if key.startswith("stream.share.") and fact.evidence >= Evidence.MEASURED
    ]
    return min(measured), max(measured)


def device(accelerator: Accelerator, *, datasheet_only: bool = False) -> Device:
    """The rates of an accelerator: sustained rates that a source measured, or the datasheet alone."""
    evidence: dict[str, Evidence] = {}

    def rate(key: str, peak: float) -> float:
        if datasheet_only:
            evidence[key] = Evidence.DATASHEET
            return peak
        fact: Fact = sustained_rate(accelerator, key)
        evidence[key] = fact.evidence
        return min(fact.value, peak)

    share = power_share(accelerator)
    matrix = {dtype: share * rate(f"matrix.{dtype}", peak) for dtype, peak in accelerator.peak_flop_per_s.items()}
    if matrix and "fp32" not in matrix:
        matrix["fp32"] = accelerator.vector_flop_per_s
    sm_count = (accelerator.sm_count or 1) if accelerator.vendor in _TILED_VENDORS else 1
    clock = share * (accelerator.boost_hz or constant("device.clock"))
    return Device(
        accelerator=accelerator,
        matrix=matrix,
        vector_flop_per_s=share * accelerator.vector_flop_per_s,
        memory_bytes_per_s=rate("hbm", accelerator.memory_bytes_per_s),
        stream_share=1.0 if datasheet_only else stream_share(accelerator),
        l2_bytes=accelerator.l2_bytes or 0.0,
        sm_count=sm_count,
        clock_hz=clock,
        evidence=evidence,
        loaded={} if datasheet_only else _loaded(accelerator),
    )


def _loaded(accelerator: Accelerator) -> dict[str, float]:
    rates = {form: loaded_rate(accelerator, form) for form in accelerator.peak_flop_per_s}
    return {form: fact.value for form, fact in rates.items() if fact is not None}


def link_efficiency(tier: Tier, *, in_network: bool = False) -> Fact:
    """Share of a tier's datasheet bandwidth that large collectives reach [1], with its source.

    The row of the mechanism table whose key is the longest one that begins the link's name.
    """
    table, name = constants(), tier.name.casefold()
    if in_network and name.startswith("nvlink"):
        return table["efficiency.nvlink.in_network"]
    keys = [key.split(".")[1] for key in table if key.startswith("efficiency.") and key.endswith(".ring")]
    found = max((key for key in keys if name.startswith(key)), key=len, default="other")
    return table[f"efficiency.{found}.ring"]


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A cluster's device and network tiers, resolved."""

    cluster: Cluster
    device: Device
    tiers: tuple[Tier, ...]
    efficiency: tuple[float, ...]  # per tier, ring algorithms
    in_network_efficiency: tuple[float, ...]
    link_evidence: Evidence
    collectives: Fit | None = None  # measured behaviour of its collectives, see `collective_fit`
    beside: Machine | None = None  # devices of another kind
    datasheet_only: bool = False  # whether it is taken for one that nobody measured
    routes: FlowRoutes | None = None  # how flows are put on the switches of its outermost tier, where these are told
    groups: dict[Any, Any] = field(init=False, default_factory=dict, repr=False, compare=False)  # known, on its network

    @property
    def part(self) -> Accelerator:
        """The device as its kernels are priced: without rates that anyone measured where the datasheet's are asked."""
        found = self.cluster.accelerator
        return replace(found, sustained={}) if self.datasheet_only else found

    @property
    def host_ranks(self) -> int:
        """Ranks that share one host's memory, drives and links [1]."""
        return max(1, min(self.cluster.host.devices, self.cluster.count))

    @property
    def host_link_bytes_per_s(self) -> float:
        """What one rank's copies to or from its host reach [byte/s]: the measured share of the link, or an equal share
        of what all links have in common. Source: row efficiency.pcie.ring of the mechanism table."""
        host = self.cluster.host
        link = host.device_bytes_per_s * constant("efficiency.pcie.ring")
        return min(link, host.devices_bytes_per_s / self.host_ranks) if host.devices_bytes_per_s else link

    @property
    def host_update_bytes_per_s(self) -> float:
        """Traffic of an optimizer's update by the host's processors, one rank's share of it [byte/s].

        Source: row host.update_share of the mechanism table.
        """
        return self.cluster.host.dram_bytes_per_s * constant("host.update_share") / self.host_ranks

    @property
    def rungs(self) -> tuple[Rung, ...]:
        """Rungs that may answer for its kernels, best first: other devices' alone for one that nobody measured."""
        return FITS[1:] if self.datasheet_only else FITS


def collective_fit(cluster: Cluster) -> Fit | None:
    """How collectives behave on the links of a cluster: fitted to its device, else to devices with the same link.

    Fits of public tables are of devices that a switch joins; one measured here is of the links that are here.
    """
    part = cluster.accelerator
    here = own_evidence("collective", part.name) is Evidence.HERE
    if cluster.count < 2 or not (here or cluster.tiers[0].topology == "switch"):
        return None
    found = own_fits("collective", part.name, form="any") or transferred_fits("collective", part, form="any")
    return found[0] if found else None


def link_evidence(tiers: Sequence[Tier], efficiencies: Sequence[Fact]) -> Evidence:
    """How well links are known: by the lowest rung of their own facts (topology, bandwidth) and of their efficiencies.

    The datasheet's at best, which says their bandwidth; links that nobody described are assumed.
    """
    own = [Evidence.ASSUMED if tier.fact is None else tier.fact.evidence for tier in tiers]
    return min([Evidence.DATASHEET, *own, *(fact.evidence for fact in efficiencies)])


def assumed_facts(found: Machine, dtype: str) -> tuple[str, ...]:
    """What is assumed of a machine's links, and of the rates of its device in a format, in words."""
    told = [
        f"{tier.name}, {tier.bytes_per_s / 1e9:,.4g} GB/s, {tier.topology}: {tier.fact.conditions}"
        for tier in found.tiers
        if tier.fact is not None and tier.fact.evidence is Evidence.ASSUMED
    ]
    for key, name in ((f"matrix.{dtype}", f"{dtype} matrix rate"), ("hbm", "memory rate")):
        if found.device.evidence.get(key) is Evidence.ASSUMED:
            rate = sustained_rate(found.part, key)  # its lenders are too many to name
            told.append(f"{name} of {found.cluster.accelerator.name}: {rate.conditions.split(':')[0]}")
    return tuple(dict.fromkeys(told))


def machine(cluster: Cluster, *, datasheet_only: bool = False, techniques: Sequence[str] = ()) -> Machine:
    """Resolve a cluster; with `datasheet_only` no rate that anyone measured is used.

    Of a plan's `techniques` those count that say how flows go over switches.
    Raises `ClusterError` for one of unlike devices, of which each group is a machine.
    """
    if cluster.mixed is not None:
        kinds = ", ".join(dict.fromkeys(one.name for one in cluster.accelerators))
        raise ClusterError(
            f"{cluster.name} has devices of unlike types ({kinds}), which predict and plan of training take alone;"
            " name one of its groups, as 8xV100-SXM2-16GB"
        )
    accelerator = cluster.accelerator
    fit = None if datasheet_only else collective_fit(cluster)
    facts = [link_efficiency(tier) for tier in cluster.tiers]
    in_network = [link_efficiency(tier, in_network=True) for tier in cluster.tiers]
    return Machine(
        cluster=cluster,
        device=device(accelerator, datasheet_only=datasheet_only),
        tiers=cluster.tiers,
        efficiency=tuple(1.0 if datasheet_only else fact.value for fact in facts),
        in_network_efficiency=tuple(1.0 if datasheet_only else fact.value for fact in in_network),
        link_evidence=link_evidence(cluster.tiers, [] if datasheet_only or fit is not None else facts),
        collectives=fit,
        beside=None if cluster.secondary is None else machine(cluster.secondary.cluster, datasheet_only=datasheet_only),
        datasheet_only=datasheet_only,
        routes=_routes(techniques, cluster.fabric),
    )


def _routes(techniques: Sequence[str], fabric: Fabric | None) -> FlowRoutes | None:
    """How flows go over switches; loads what says so only where it may be needed."""
    if fabric is None and not techniques:
        return None
    from ridgeline.seams.routes import routes_of

    return routes_of(techniques, fabric)


def of_kind(found: Machine, kind: str) -> Machine:
    """The same machine seen from its devices of a kind, as `Cluster.of_kind`."""
    if found.beside is None or found.cluster.of_kind(kind) is found.cluster:
        return found
    return replace(found.beside, cluster=found.cluster.of_kind(kind), beside=replace(found, beside=None))


def outside(found: Machine) -> Machine:
    """A machine as its devices see those of another kind beside it: beyond their node, over the link between both.

    Raises `DomainError` where there are none.
    """
    other = found.cluster.secondary
    if other is None:
        raise DomainError(f"{found.cluster.name} has no devices of another kind beside it")
    link = replace(other.own_link, latency_s=max(other.own_link.latency_s, other.other_link.latency_s))
    efficiency, reduced = (link_efficiency(link, in_network=one).value for one in (False, True))
    return replace(
        found, routes=None, tiers=(found.tiers[0], link), efficiency=(found.efficiency[0], efficiency),
        in_network_efficiency=(found.in_network_efficiency[0], reduced),
    )  # fmt: skip
