"""What the devices of a fleet cost and draw, of one kind or of two."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ridgeline.energy.power import hosts_w, operator_power_w
from ridgeline.facts.mechanisms import constant
from ridgeline.facts.records import Cluster
from ridgeline.plan.deployment import Deployment
from ridgeline.seams.serving import other_devices, own_devices
from ridgeline.serving.metrics import Band
from ridgeline.serving.replay import Replay


def parts_of(cluster: Cluster, one: Deployment) -> list[tuple[Cluster, int]]:
    """The devices of one instance by kind: where they are, and how many [1]."""
    own = cluster.of_kind(one.kind)
    found = [(own, own_devices(one))]
    if own.secondary is not None and other_devices(one):
        found.append((own.secondary.cluster, other_devices(one)))
    return found


def instance_usd_per_h(cluster: Cluster, one: Deployment) -> float | None:
    """Price of one instance [USD/h]; None where one of its kinds has no price."""
    total = 0.0
    for where, count in parts_of(cluster, one):
        if where.price_usd_per_device_h is None:
            return None
        total += where.price_usd_per_device_h.value * count
    return total


def fleet_usd_per_h(cluster: Cluster, deployments: Sequence[Deployment], found: Replay | None = None) -> float | None:
    """Price of all instances, or with a replay of those that are up on average over it [USD/h]; None without prices."""
    prices = [instance_usd_per_h(cluster, one) for one in deployments]
    each = [price for price in prices if price is not None]
    if len(each) < len(prices):
        return None
    by_instance = np.repeat(each, [one.instances for one in deployments])
    up = found.up_s / found.span_s if found is not None and found.span_s > 0 else np.ones(len(by_instance))
    return float((by_instance * up).sum())


def fleet_power_w(
    cluster: Cluster, deployments: Sequence[Deployment], found: Replay, prefill: Band, decode: Band
) -> float | None:
    """Mean power of the devices that serve and of their share of hosts at the wall [W]; None without a rated power.

    Busy time at what its iterations keep busy, the rest idle; times the building's overhead. All devices of a fleet
    are taken to be as busy as each other.
    """
    spent = found.prefill_s + found.decode_s
    share = found.prefill_s / spent if spent else 0.0
    busy = float(np.mean(found.busy_s)) / found.span_s if found.span_s else 0.0
    total = 0.0
    for one in deployments:
        for where, count in parts_of(cluster, one):
            tdp, devices = where.accelerator.tdp_w, count * one.instances
            if tdp is None:
                return None
            working = share * operator_power_w(tdp, prefill.compute, prefill.memory)
            working += (1.0 - share) * operator_power_w(tdp, decode.compute, decode.memory)
            each = busy * working + (1.0 - busy) * constant("power.idle") * tdp
            total += (each * devices + hosts_w(where, devices)) * (where.pue.value if where.pue is not None else 1.0)
    return total
