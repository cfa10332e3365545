"""Fleets that are scaled: how long a cold start takes, and what a fleet that always stands would do and cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ridgeline.facts.mechanisms import constant
from ridgeline.facts.records import Cluster
from ridgeline.predict.fleet import fleet_usd_per_h, instance_usd_per_h
from ridgeline.report.serving_groups import FixedFleet
from ridgeline.seams.serving import instance_devices, own_devices
from ridgeline.serving.bounds import least_work
from ridgeline.serving.engine import Engine
from ridgeline.serving.fleet_events import Autoscale, FleetEvents
from ridgeline.serving.metrics import Metrics, measure
from ridgeline.serving.objective import Objective
from ridgeline.serving.replay import Replay, replay_tables
from ridgeline.serving.step import StepTables
from ridgeline.serving.traffic.traffic import Traffic
from ridgeline.units import time_text

if TYPE_CHECKING:
    from ridgeline.predict.serving import Operation


def cold_start(one: Engine, auto: Autoscale) -> dict[str, float]:
    """What the start of an instance on a machine that holds nothing goes through, one after another [s].

        image / pull rate + devices of a node * weights / storage rate + process + compiling + graphs * capture

    Weights are read at the loader's rate, the storage's where that is slower, or a stated one, no faster than each
    device's host link takes its own.
    """
    host = one.machine.cluster.host
    weights = one.capacity.weights_bytes
    here = min(own_devices(one.deployment), host.devices)
    rate = auto.load_bytes_per_s or min(constant("start.loader_bytes_per_s"), host.nvme_bytes_per_s)
    return {
        "image": auto.image_bytes / auto.pull_bytes_per_s,
        "weights": max(weights * here / rate, weights / host.device_bytes_per_s),
        "process": constant("start.process_s"),
        "compiling": one.policy.compile_s,
        "graphs": len(one.graphs) * constant("start.capture_s"),
    }


def with_cold_starts(operation: Operation, engines: Sequence[Engine]) -> tuple[Operation, tuple[str, ...]]:
    """The operation with the time of a cold start where nobody says one, the slowest engine's, and what was taken."""
    events = operation.fleet_events
    if events is None or events.autoscale is None or events.autoscale.start_s is not None:
        return operation, ()
    auto = events.autoscale
    parts = max((cold_start(one, auto) for one in engines), key=lambda each: sum(each.values()))
    total = sum(parts.values())
    told = ", ".join(f"{name} {time_text(seconds)}" for name, seconds in parts.items() if seconds > 0)
    changed = replace(events, autoscale=replace(auto, start_s=total))
    return replace(operation, fleet_events=changed), (f"a cold start takes {time_text(total)}: {told}",)


def fixed_fleet(
    cluster: Cluster, engines: Sequence[Engine], tables: Sequence[StepTables], traffic: Traffic,
    scaled: tuple[Replay, Metrics, Objective], way: Mapping[str, Any],
) -> FixedFleet | None:  # fmt: skip
    """The same fleet with all instances up beside the `scaled` one, and the least that any fleet of them takes.

    None of a fleet that is not scaled.
    """
    events: FleetEvents | None = way["fleet_events"]
    if events is None or events.autoscale is None:
        return None
    deployments = [one.deployment for one in engines]
    found = replay_tables(engines, tables, traffic, **{**way, "fleet_events": replace(events, autoscale=None)})
    metrics = measure(found, traffic, scaled[2])
    works = [least_work(one, table, traffic) for one, table in zip(engines, tables, strict=True)]

    def least(prices: Sequence[float | None]) -> float | None:
        """The cheapest instance of either side of the work, each at its price."""
        if any(price is None or work is None for price, work in zip(prices, works, strict=True)):
            return None
        sides = ("prompt_s", "output_s")
        pairs = list(zip(prices, works, strict=True))
        each = [min(float(price or 0.0) * float(getattr(work, side)) for price, work in pairs) for side in sides]
        return traffic.requests * sum(each)

    bound = least([instance_usd_per_h(cluster, one) for one in deployments])
    sizes = [instance_devices(one) for one in deployments]
    each = np.repeat(sizes, [one.instances for one in deployments])
    device_s = least([float(size) for size in sizes])
    return FixedFleet(
        instances=len(each), attained=metrics.attained, kept=metrics.kept, ttft_p99_s=metrics.ttft.p99,
        usd_per_h=fleet_usd_per_h(cluster, deployments, found),
        bound_usd_per_h=None if bound is None or not found.span_s else bound / found.span_s,
        missed=_missed(metrics, traffic), scaled_missed=_missed(scaled[1], traffic),
        device_h=float((found.paid_s * each).sum()) / 3600.0,
        scaled_device_h=float((scaled[0].paid_s * each).sum()) / 3600.0,
        bound_device_h=None if device_s is None else device_s / 3600.0,
    )  # fmt: skip


def _missed(metrics: Metrics, traffic: Traffic) -> int | None:
    """Requests that miss the objective; None without one."""
    return None if metrics.attained is None else round((1.0 - metrics.attained) * traffic.requests)
