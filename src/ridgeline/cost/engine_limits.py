"""Which all-reduce kernel of a serving engine a group of devices gets, by size: the engine's rules on one machine."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import numpy as np
from numpy.typing import NDArray

from ridgeline.cost.machine import Machine
from ridgeline.cost.network import group_sizes
from ridgeline.facts.engine_kernels import NEVER_BYTES, AllReduceRule, all_reduce_rules
from ridgeline.facts.mechanisms import constants
from ridgeline.facts.records import DISPATCH, OWN_HOST, Accelerator, Host
from ridgeline.lower.work import Number

_FASTEST_BUS = 150e9  # byte/s one way; chosen between PCIe 6 x16, 126, and links to a Grace host, 225 and more


def engine_rules(
    machine: Machine, engine: str, version: str = "", *, beyond: bool = False
) -> Mapping[int, AllReduceRule]:
    """The rules of an engine by ranks, inside one node of a machine or `beyond` it on the links of a node.

    Empty where the engine has no kernels of its own.
    """
    part = machine.cluster.accelerator
    joined = "domain" if beyond else "bus" if machine.tiers[0].topology == "bus" else "linked"
    return all_reduce_rules(engine, version, f"{joined} {part.vendor} {part.architecture} {part.name}")


def _reach(machine: Machine, ranks: Number, stride: Number) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Whether groups lie inside one node, devices of one operating system, or beyond it on the links of a node."""
    span = (np.asarray(ranks, dtype=float) - 1) * np.asarray(stride, dtype=float)
    inside = span < min(machine.cluster.node_devices, machine.tiers[0].size)
    return inside, ~inside & (span < machine.tiers[0].size)


def kernel_sizes(
    machine: Machine,
    size_bytes: Number,
    ranks: Number,
    engine: str,
    version: str = "",
    *,
    stride: Number = 1,
    eager: Number = 0.0,
) -> dict[str, Number]:
    """The sizes of the mechanism `custom_all_reduce`; groups that an engine has no rule for take the next larger's.

    `eager` is 1 for calls that the host issues one by one, 0 for those replayed from a graph.
    """
    near, far = (engine_rules(machine, engine, version, beyond=beyond) for beyond in (False, True))
    _, beyond_node = _reach(machine, ranks, stride)

    def starts(name: str) -> Number:
        inside, outside = (_next(ranks, {n: getattr(rule, name) for n, rule in rules.items()}) for rules in (near, far))
        return np.where(beyond_node, outside, inside) if np.any(beyond_node) else inside

    return {
        "bytes": size_bytes,
        "ranks": ranks,
        "link_bytes_per_s": group_sizes(machine, ranks, stride)["link_bytes_per_s"],
        "two_shot_from_bytes": starts("two_shot_from_bytes"),
        "symmetric_from_bytes": starts("symmetric_from_bytes"),
        "issue_s": np.asarray(eager) * issue_seconds(machine.cluster.accelerator, machine.cluster.host),
    }


def most_bytes(machine: Machine, ranks: Number, stride: Number, engine: str, version: str = "") -> NDArray[np.float64]:
    """The largest buffer that an engine's own kernels take [byte]; 0 for groups that it leaves to the library.

    Most kernels share buffers within a node: devices of one operating system, though links may reach beyond it.
    """
    ranks_a, stride_a = np.broadcast_arrays(np.asarray(ranks, dtype=float), np.asarray(stride, dtype=float))
    found = np.zeros(ranks_a.shape)
    for beyond, here in zip((False, True), _reach(machine, ranks_a, stride_a), strict=True):
        for count, rule in engine_rules(machine, engine, version, beyond=beyond).items():
            found = np.where(here & (ranks_a == count) & (ranks_a > 1), rule.most_bytes, found)
    return found


def _next(ranks: Number, values: Mapping[int, float]) -> Number:
    if not values:
        return NEVER_BYTES
    known = np.array(list(values))
    chosen = np.array(list(values.values()))[np.clip(np.searchsorted(known, ranks), 0, len(known) - 1)]
    found: Number = np.minimum(chosen, NEVER_BYTES)
    return found


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
