"""What the devices of a fleet cost and draw, of one kind or of two."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ridgeline.energy.power import hosts_w, operator_power_w
from ridgeline.facts.mechanisms import constant
from ridgeline.facts.rates import rated_w
from ridgeline.facts.records import Cluster
from ridgeline.plan.deployment import Deployment, Role
from ridgeline.predict.serving_known import Mean
from ridgeline.report.serving_groups import GroupUse
from ridgeline.seams.serving import all_devices, other_devices, own_devices
from ridgeline.serving.engine import Engine
from ridgeline.serving.metrics import Band, decode_band, prefill_band
from ridgeline.serving.replay import Replay
from ridgeline.serving.step import StepTables


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


def idle_instance_w(cluster: Cluster, one: Deployment) -> float | None:
    """What one instance and its share of hosts draw at the wall at least, working or not [W]; None without a rated
    power."""
    total = 0.0
    for where, count in parts_of(cluster, one):
        tdp, limit_w = rated_w(where.accelerator), where.accelerator.tdp_w
        if tdp is None or limit_w is None:
            return None
        overhead = where.pue.value if where.pue is not None else 1.0
        total += (min(constant("power.idle") * tdp, limit_w) * count + hosts_w(where, count)) * overhead
    return total


def fleet_usd_per_h(cluster: Cluster, deployments: Sequence[Deployment], found: Replay | None = None) -> float | None:
    """Price of all instances, or with a replay of those that are paid on average over it [USD/h]; None without prices.

    They are paid from the beginning of their start until they are drained, and not while they are away.
    """
    prices = [instance_usd_per_h(cluster, one) for one in deployments]
    each = [price for price in prices if price is not None]
    if len(each) < len(prices):
        return None
    by_instance = np.repeat(each, [one.instances for one in deployments])
    up = found.paid_s / found.span_s if found is not None and found.span_s > 0 else np.ones(len(by_instance))
    return float((by_instance * up).sum())


def busy_shares(deployments: Sequence[Deployment], found: Replay) -> list[float]:
    """The share of the replay that a mean instance of each deployment is busy [1]."""
    ends = np.cumsum([one.instances for one in deployments])
    each = np.split(np.asarray(found.busy_s, dtype=float), ends[:-1])
    return [float(part.mean()) / found.span_s if found.span_s and len(part) else 0.0 for part in each]


def bands_of(engines: Sequence[Engine], tables: Sequence[StepTables], mean: Mean) -> list[tuple[Band, Band]]:
    """What each deployment's mean prompt and its mean decode step keep busy."""
    return [
        (prefill_band(one, table, mean.prompt), decode_band(one, table, mean.batch, mean.context))
        for one, table in zip(engines, tables, strict=True)
    ]


def fleet_power_w(
    cluster: Cluster, deployments: Sequence[Deployment], found: Replay, bands: Sequence[tuple[Band, Band]]
) -> float | None:
    """Mean power of the devices that serve and of their share of hosts at the wall [W]; None without a rated power.

    Busy time at what the iterations of its deployment keep busy, the rest idle; times the building's overhead. The
    instances of a deployment are taken to be as busy as each other.
    """
    spent = found.prefill_s + found.decode_s
    total = 0.0
    ends = np.cumsum([one.instances for one in deployments])
    paid = [float(part.mean()) / found.span_s if found.span_s else 1.0 for part in np.split(found.paid_s, ends[:-1])]
    shares = zip(busy_shares(deployments, found), paid, strict=True)
    for one, (prefill, decode), (busy, there) in zip(deployments, bands, shares, strict=True):
        of_role = {Role.PREFILL: 1.0, Role.DECODE: 0.0}
        share = of_role.get(one.role, found.prefill_s / spent if spent else 0.0)
        for where, count in parts_of(cluster, one):
            limit_w, tdp, devices = where.accelerator.tdp_w, rated_w(where.accelerator), count * one.instances
            if tdp is None or limit_w is None:
                return None
            working = share * operator_power_w(tdp, prefill.compute, prefill.memory)
            working += (1.0 - share) * operator_power_w(tdp, decode.compute, decode.memory)
            each = busy * min(working, limit_w) + max(0.0, there - busy) * constant("power.idle") * tdp
            total += (each * devices + there * hosts_w(where, devices)) * (
                where.pue.value if where.pue is not None else 1.0
            )
    return total


def group_uses(cluster: Cluster, deployments: Sequence[Deployment], found: Replay) -> tuple[GroupUse, ...]:
    """What each deployment of a fleet on devices of unlike kinds does; nothing of a fleet of one kind."""
    if len({one.kind for one in deployments}) < 2:
        return ()
    done = max(int(found.done.sum()), 1)
    tokens = max(float(found.output[found.done].sum()), 1.0)
    uses = []
    for place, (one, busy) in enumerate(zip(deployments, busy_shares(deployments, found), strict=True)):
        mine = found.done & (found.served_by == place)
        own, price = float(found.output[mine].sum()), instance_usd_per_h(cluster, one)
        usd_per_h = None if price is None else price * one.instances
        spent = None if usd_per_h is None or not own else usd_per_h * found.span_s / 3600.0 / own * 1e6
        uses.append(
            GroupUse(
                kind=one.kind or cluster.accelerator.name, role=one.role.value, instances=one.instances,
                devices=all_devices(one), request_share=float(mine.sum()) / done, output_token_share=own / tokens,
                busy_share=busy, usd_per_h=usd_per_h, usd_per_million_output_tokens=spent,
            )
        )  # fmt: skip
    return tuple(uses)
