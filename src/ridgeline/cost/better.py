"""The same machine with more of one thing: what to ask how an answer hangs on each of its rates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from ridgeline.cost.host_times import dispatch_seconds
from ridgeline.cost.machine import Machine
from ridgeline.facts.records import DISPATCH, DIVIDED, Accelerator, Evidence, Fact

MATRIX, CLOCK, MEMORY = "matrix rate", "vector rate and clock", "memory bandwidth"
HOST_LINK, HOST_MEMORY, HOST_TIME = "host link bandwidth", "host memory and disk bandwidth", "host speed"
_LINK = "link "


def resources(machine: Machine) -> tuple[str, ...]:
    """What of a machine may be better, each by itself: its device's rates, each tier of its network, its host."""
    tiers = tuple(f"{_LINK}{place}" for place in range(len(machine.tiers)))
    return (MATRIX, CLOCK, MEMORY, *tiers, HOST_LINK, HOST_MEMORY, HOST_TIME)


def resource_text(machine: Machine, what: str) -> str:
    """A resource in people's words; tiers by the name of their link."""
    if not what.startswith(_LINK):
        return what
    place = int(what.removeprefix(_LINK))
    reach = "inside the node" if machine.tiers[place].size <= machine.cluster.node_devices else "between nodes"
    return f"link bandwidth {reach} ({machine.tiers[place].name})"


def is_link(text: str) -> bool:
    """Whether a resource in people's words is a link of the network."""
    return text.startswith(_LINK)


def better(machine: Machine, what: str, factor: float) -> Machine:
    """A machine with `factor` times of one of its `resources`; latencies and host times are as much shorter.

    Rates alone change: number formats, memory sizes and the facts behind them stay.
    """
    if what.startswith(_LINK):
        tiers = list(machine.tiers)
        place = int(what.removeprefix(_LINK))
        tier = tiers[place]
        tiers[place] = replace(tier, bytes_per_s=tier.bytes_per_s * factor, latency_s=tier.latency_s / factor)
        return replace(machine, tiers=tuple(tiers))
    if what in (HOST_LINK, HOST_MEMORY, HOST_TIME):
        return _hosted(machine, what, factor)
    return _device(machine, what, factor)


def all_better(machine: Machine, factor: float) -> Machine:
    """A machine with `factor` times of each of its `resources`."""
    for what in resources(machine):
        machine = better(machine, what, factor)
    return machine


def _device(machine: Machine, what: str, factor: float) -> Machine:
    device, part = machine.device, machine.cluster.accelerator
    more: Callable[[Mapping[str, float]], dict[str, float]] = lambda rates: {k: v * factor for k, v in rates.items()}  # noqa: E731
    if what == MATRIX:
        part = replace(part, peak_flop_per_s=more(part.peak_flop_per_s))
        device = replace(device, matrix=more(device.matrix), loaded=more(device.loaded))
    elif what == CLOCK:
        boost = None if part.boost_hz is None else part.boost_hz * factor
        part = replace(part, vector_flop_per_s=part.vector_flop_per_s * factor, boost_hz=boost)
        clock = device.clock_hz * factor
        device = replace(device, vector_flop_per_s=device.vector_flop_per_s * factor, clock_hz=clock)
    else:
        part = replace(part, memory_bytes_per_s=part.memory_bytes_per_s * factor)
        device = replace(device, memory_bytes_per_s=device.memory_bytes_per_s * factor)
    return _with_part(replace(machine, device=device), part)


def _hosted(machine: Machine, what: str, factor: float) -> Machine:
    host, part = machine.cluster.host, machine.cluster.accelerator
    if what == HOST_LINK:
        host = replace(host, device_bytes_per_s=host.device_bytes_per_s * factor)
    elif what == HOST_MEMORY:
        dram, disk = host.dram_bytes_per_s * factor, host.nvme_bytes_per_s * factor
        host = replace(host, dram_bytes_per_s=dram, nvme_bytes_per_s=disk)
    else:
        host = replace(host, quickness=host.quickness * factor)
        part = _quicker(part, factor)
    found = _with_part(replace(machine, cluster=replace(machine.cluster, host=host)), part)
    if part is machine.cluster.accelerator:
        found.groups.update(machine.groups)  # no host is on the network
    return found


def _quicker(part: Accelerator, factor: float) -> Accelerator:
    """A processor that is the device itself issues its own kernels."""
    own_s = dispatch_seconds(part)
    if own_s is None:
        return part
    rates = {**part.sustained}
    rates.setdefault(DISPATCH, Fact(value=own_s, unit="s", source="", conditions="", evidence=Evidence.ASSUMED))
    for name in (DISPATCH, DIVIDED, f"{DIVIDED}.backward"):
        if name in rates:
            rates[name] = replace(rates[name], value=rates[name].value / factor)
    return replace(part, sustained=rates)


def _with_part(machine: Machine, part: Accelerator) -> Machine:
    cluster = replace(machine.cluster, accelerator=part)
    return replace(machine, cluster=cluster, device=replace(machine.device, accelerator=part))
