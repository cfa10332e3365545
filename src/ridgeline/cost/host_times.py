"""Time in which hosts issue operators and collectives, and how hosts differ [s]."""

from __future__ import annotations

from functools import cache

from ridgeline.facts.mechanisms import constants
from ridgeline.facts.records import DISPATCH, OWN_HOST, Accelerator, Host

_FASTEST_BUS = 150e9  # byte/s one way; chosen between PCIe 6 x16, 126, and links to a Grace host, 225 and more


def host_slowness(part: Accelerator, host: Host | None = None) -> float:
    """Time of operators on a host, or on those that a generation of devices comes with, over that on a DGX H100's [1].

    Of many operators one after the other, as layers are (`launch.slowness.*`): hosts of Grace and of A100s take half as
    long again. One collective takes longer still, `issue_seconds`. Of a processor that is the device itself the ratio
    of its `dispatch_seconds` to that of an eager chain on a DGX H100's host.
    """
    own = dispatch_seconds(part)
    if own is not None:
        return own / constants()["launch.host.kernel"].value
    return _of_host(part, host, "launch.slowness")


def scheduler_slowness(part: Accelerator) -> float:
    """Time of a scheduler in Python on the hosts that a generation of devices comes with, over that on x86 hosts [1].

    Half calls in Python, half operators on small tensors (`schedule.slowness.*`); compiled ones show no such ratio.
    """
    return _of_host(part, None, "schedule.slowness")


def dispatch_seconds(part: Accelerator) -> float | None:
    """Time in which a processor that is the device itself issues one kernel [s]; None where a host issues ahead.

    Nothing else issues while it computes, so these times add to those of its kernels. Measured by `ridgeline
    calibrate`; a processor without it takes the host time of one more kernel of an eager chain.
    """
    if part.architecture != OWN_HOST:
        return None
    known = part.sustained.get(DISPATCH)
    return known.value if known is not None else constants()["launch.host.kernel"].value


def issue_seconds(part: Accelerator, host: Host | None = None) -> float:
    """Time to issue one collective outside a graph, on a host or on those that such devices come with [s]."""
    return _of_host(part, host, "collective.issue")


def _of_host(part: Accelerator, host: Host | None, name: str) -> float:
    """A constant of the host's processors where they have one, else of the hosts that such devices usually have."""
    table = constants()
    quickness = host.quickness if host is not None else 1.0
    own = table.get(f"{name}.{host.processor}") if host is not None else None
    if own is not None:
        return own.value / quickness
    joined = (part.host_bytes_per_s or 0.0) > _FASTEST_BUS
    key = "grace" if joined and part.vendor == "NVIDIA" else part.architecture
    return table.get(f"{name}.{key}", table[f"{name}.other"]).value / quickness


@cache
def issue_range_s() -> tuple[float, float]:
    """The quickest and the slowest host that was measured to issue one collective outside a graph [s].

    Which host drives a device is rarely told, and its time is not the device's.
    """
    known = [fact.value for key, fact in constants().items() if key.startswith("collective.issue.")]
    return min(known), max(known)


def host_range(part: Accelerator, host: Host | None = None) -> tuple[float, float]:
    """Time of operators on the quickest and the slowest host measured, over that on this one or a device's usual [1].

    Both with what versions of one module differ by: `interval.launch.*`.
    """
    table, own = constants(), _of_host(part, host, "launch.slowness")
    quick, slow = (table[f"launch.slowness.{end}"].value / own for end in ("least", "most"))
    return quick * table["interval.launch.low"].value, slow * table["interval.launch.high"].value
