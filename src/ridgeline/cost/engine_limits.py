"""Which all-reduce kernel of a serving engine a group of devices gets, by size: the engine's rules on one machine."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from ridgeline.cost.families.custom_all_reduce import NEVER_BYTES
from ridgeline.cost.machine import Machine
from ridgeline.cost.network import group_sizes
from ridgeline.facts.engine_all_reduce import AllReduceRule, all_reduce_rules
from ridgeline.facts.mechanisms import constants
from ridgeline.facts.records import Accelerator
from ridgeline.lower.work import Number

_FASTEST_BUS = 150e9  # byte/s one way; PCIe 6 x16 has 126, chip-to-chip links to a Grace host 225 and more


def engine_rules(machine: Machine, engine: str, version: str = "") -> Mapping[int, AllReduceRule]:
    """The rules of an engine inside one node of a machine, by ranks; empty where it has no kernels of its own."""
    part = machine.cluster.accelerator
    joined = "bus" if machine.tiers[0].topology == "bus" else "linked"
    return all_reduce_rules(engine, version, f"{joined} {part.vendor} {part.architecture} {part.name}")


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
    rules = engine_rules(machine, engine, version)
    return {
        "bytes": size_bytes,
        "ranks": ranks,
        "link_bytes_per_s": group_sizes(machine, ranks, stride)["link_bytes_per_s"],
        "two_shot_from_bytes": _next(ranks, {n: rule.two_shot_from_bytes for n, rule in rules.items()}),
        "symmetric_from_bytes": _next(ranks, {n: rule.symmetric_from_bytes for n, rule in rules.items()}),
        "issue_s": np.asarray(eager) * issue_seconds(machine.cluster.accelerator),
    }


def most_bytes(machine: Machine, ranks: Number, stride: Number, engine: str, version: str = "") -> NDArray[np.float64]:
    """The largest buffer that an engine's own kernels take [byte]; 0 for groups that it leaves to the library.

    Groups must lie within a node: devices of one operating system, though links may reach beyond it.
    """
    ranks_a, stride_a = np.broadcast_arrays(np.asarray(ranks, dtype=float), np.asarray(stride, dtype=float))
    node = min(machine.cluster.node_devices, machine.tiers[0].size)
    found = np.zeros(ranks_a.shape)
    for count, rule in engine_rules(machine, engine, version).items():
        found = np.where(ranks_a == count, rule.most_bytes, found)
    return np.where(((ranks_a - 1) * stride_a < node) & (ranks_a > 1), found, 0.0)


def _next(ranks: Number, values: Mapping[int, float]) -> Number:
    if not values:
        return NEVER_BYTES
    known = np.array(list(values))
    chosen = np.array(list(values.values()))[np.clip(np.searchsorted(known, ranks), 0, len(known) - 1)]
    found: Number = np.minimum(chosen, NEVER_BYTES)
    return found


def host_slowness(part: Accelerator) -> float:
    """Time of a call on the hosts that a generation of devices comes with, over that on a DGX H100's [1].

    The ratio of `issue_seconds`: hosts of A100s and of Grace take twice as long. Single-stream steps agree: eager vLLM
    takes 2.2 times as long for a launch on an A800's host as on an H200's.
    """
    return issue_seconds(part) / constants()["collective.issue.hopper"].value


def issue_seconds(part: Accelerator) -> float:
    """Host time to issue one collective outside a graph, in the hosts that a generation of devices comes with [s]."""
    table = constants()
    joined = (part.host_bytes_per_s or 0.0) > _FASTEST_BUS
    key = "grace" if joined and part.vendor == "NVIDIA" else part.architecture
    return table.get(f"collective.issue.{key}", table["collective.issue.other"]).value
