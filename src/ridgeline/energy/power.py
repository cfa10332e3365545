"""Joules and watts of a training step, from what its devices are busy with."""

from __future__ import annotations

from collections.abc import Mapping

from ridgeline.facts.mechanisms import constant
from ridgeline.facts.records import Cluster

# Which power state each part of the step time puts a device in.
_STATE = {
    "matrix": "power.matrix",
    "attention": "power.matrix",
    "memory": "power.memory",
    "launch": "power.idle",
    "bubble": "power.idle",
    "update": "power.memory",
}


def step_energy_j(seconds_by_part: Mapping[str, float], cluster: Cluster) -> float:
    """Energy of one step of the whole cluster at the wall [J].

    E = PUE * (sum over parts of time * share of TDP * TDP * devices + host idle power * nodes * time). Parts that
    are not named draw the link state. Without a TDP the device's share is left out.
    Source of the shares: rows power.* of the mechanism table. Evidence: measured shares, derived product.
    """
    device_w = cluster.accelerator.tdp_w or 0.0
    step_s = sum(seconds_by_part.values())
    device_j = sum(
        seconds * constant(_STATE.get(part, "power.link")) * device_w for part, seconds in seconds_by_part.items()
    )
    nodes = -(-cluster.count // cluster.host.devices)
    overhead = cluster.pue.value if cluster.pue is not None else 1.0
    return overhead * (device_j * cluster.count + cluster.host.idle_w * nodes * step_s)


def operator_power_w(tdp_w: float, compute_share: float, memory_share: float) -> float:
    """Board power while one operator runs [W].

    P = TDP * min(1, idle + (matrix - idle) c + (memory - idle) m), with c and m the shares of the time in which the
    matrix units and the memory are busy. Domain: shares from 0 to 1; larger ones are taken as 1.
    Source of the levels: rows power.* of the mechanism table. Evidence: measured levels, derived mix.
    """
    idle, matrix, memory = (constant(f"power.{name}") for name in ("idle", "matrix", "memory"))
    share = idle + (matrix - idle) * min(1.0, compute_share) + (memory - idle) * min(1.0, memory_share)
    return tdp_w * min(1.0, share)
