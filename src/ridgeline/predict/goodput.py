"""A whole run under failures: what is saved, over what, how often, and what that leaves of its time."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

import numpy as np

from ridgeline.facts.failures import device_mtbf_s, failure_rows, recovery
from ridgeline.memory.query import MemoryOptions
from ridgeline.memory.stage import stage_memory
from ridgeline.plan.plan import Plan
from ridgeline.predict.predictor import Predictor
from ridgeline.predict.remaining import SimulatedRemaining, simulated
from ridgeline.seams.checkpoint import CheckpointRule, SavedStates
from ridgeline.seams.failure_detection import detector_of
from ridgeline.seams.registry import CHECKPOINTS, of_family, technique
from ridgeline.training.goodput import Goodput, SaveCost, best_interval_s, hosts_share, straggler_factor, work_share

if TYPE_CHECKING:
    from ridgeline.report.report import Report

_HOUR_S = 3600.0
_USUAL = "async-checkpoint"  # how a run's states are saved where its plan does not say
_FEWEST = 1.0  # failures of a whole run from which on they are counted without being asked for


def checkpoint_rule(plan: Plan) -> CheckpointRule | None:
    """How a plan saves its states; None where it says nothing of it."""
    return cast(CheckpointRule | None, of_family(CHECKPOINTS, plan.technique))


def state_bytes(predictor: Predictor) -> tuple[float, float]:
    """Bytes of all states of a run, each once, with what the optimizer keeps; and of the weights alone [byte]."""
    graph = predictor.model.graph
    options: MemoryOptions = {"layers": {name: graph.layers.count(name) for name in graph.blocks}}
    held = stage_memory(graph, predictor.workload, **options)
    weights = float(np.max(held["weights"]))
    return weights + float(np.max(held["optimizer"])), weights


def saved_by(predictor: Predictor, rule: CheckpointRule, plan: Plan, step_s: float) -> SavedStates:
    """What a plan's devices save, and over what."""
    cluster, devices = predictor.cluster, plan.devices
    node = min(cluster.node_devices, devices)
    outer = next((tier for tier in predictor.machine.tiers if tier.size > node), predictor.machine.tiers[-1])
    each = recovery()["storage_per_device"].value
    states, weights = state_bytes(predictor)
    return SavedStates(
        state_bytes=states,
        weight_bytes=weights,
        devices=devices,
        hosts=-(-devices // node),
        storage_bytes_per_s=each * devices if rule.storage is None else rule.storage,
        host_bytes_per_s=cluster.host.device_bytes_per_s,
        network_bytes_per_s=float(outer.bytes_per_s),
        step_s=step_s,
        steps=SimulatedRemaining(predictor, plan) if simulated(predictor, plan) else None,
    )


def with_failures(predictor: Predictor, report: Report) -> Report:
    """A report with what failures and saves leave of its run.

    Where the plan names no way to save states they are counted as in `async-checkpoint` if the whole run expects a
    failure, at the published rates; `no-failures` leaves them out.
    """
    plan, step_s = report.plan, report.step_time.value
    rule = checkpoint_rule(plan)
    if rule is None and (report.run_time_s is None or report.run_time_s * plan.devices < _FEWEST * device_mtbf_s()[0]):
        return report
    steps = 1.0 if report.run_time_s is None else report.run_time_s / step_s
    return replace(report, goodput=goodput(predictor, plan, step_s, steps, usual=rule is None))


def goodput(
    predictor: Predictor, plan: Plan, step_s: float, steps: float, *, without: str = "", usual: bool = False
) -> Goodput | None:
    """What failures leave of a run of so many steps; None where the plan names no way to save states.

    `usual` takes the usual way instead. `without` leaves a published run out of the rates of failures. Of parameters
    that the technique leaves open the rate of failures is the median of `data/failures.tsv`, times are those of
    `data/recovery.tsv`.
    """
    rule = cast(CheckpointRule, technique(CHECKPOINTS, _USUAL)) if usual else checkpoint_rule(plan)
    if rule is None or not rule.counted:
        return None
    saved, known = saved_by(predictor, rule, plan, step_s), recovery()
    rates = device_mtbf_s(without=without) if rule.mtbf_h is None else (rule.mtbf_h * _HOUR_S,) * 3
    detection_s, restart_s = known["detection"].value, known["restart"].value
    detector = detector_of(plan.technique)
    if detector is not None:
        detection_s = detector.noticed_s() + detector.traced_s()
    if rule.restart_s is None:
        restart_s = rule.restarts_s(detection_s, restart_s)
    else:
        restart_s = rule.restart_s + (detection_s if detector else 0.0)
    repair_s = known["repair"].value if rule.repair_h is None else rule.repair_h * _HOUR_S
    save = SaveCost(stops_s=rule.stops_s(saved), lasts_s=rule.lasts_s(saved), load_s=rule.load_s(saved))
    slow = straggler_factor(saved.hosts, rule.slow_share, rule.slowdown)
    base_s = steps * step_s
    found = [_shares(rule, saved, save, mtbf_s, restart_s, repair_s) for mtbf_s in rates]
    (interval_s, work, hosts, throughput), low, high = found
    times = [base_s * slow / (one[1] * one[2] * one[3]) if one[1] * one[2] * one[3] else np.inf for one in found]
    assert low is not None
    assert high is not None
    return Goodput(
        technique=rule.text,
        mtbf_s=rates[0] / plan.devices,
        mtbf_low_s=rates[1] / plan.devices,
        mtbf_high_s=rates[2] / plan.devices,
        failures=times[0] * plan.devices / rates[0],
        checkpoint_bytes=saved.state_bytes,
        save=save,
        interval_s=interval_s,
        restart_s=restart_s + save.load_s,
        work_share=work,
        hosts_share=hosts,
        straggler_share=1.0 / slow,
        throughput_share=throughput,
        run_time_s=float(times[0]),
        run_low_s=float(times[2]),
        run_high_s=float(times[1]),
        assumed=_assumed(rule, without, traced=detector is not None, usual=usual),
    )


def _shares(
    rule: CheckpointRule, saved: SavedStates, save: SaveCost, device_s: float, restart_s: float, repair_s: float
) -> tuple[float, float, float, float]:
    """Interval [s], and shares left by saves and lost work, by waiting, and of throughput [1], at a device's MTBF."""
    mtbf_s, host_s = device_s / saved.devices, device_s * saved.hosts / saved.devices
    safe_s = save.lasts_s - save.stops_s  # what a failure loses besides, until the last save is safe
    back_s = restart_s + save.load_s + max(0.0, safe_s)
    least_s = max(saved.step_s, save.lasts_s)
    interval_s = rule.interval_s or best_interval_s(save.stops_s, back_s, mtbf_s, least_s=least_s)
    work = work_share(max(interval_s, least_s), save.stops_s, back_s, mtbf_s)
    waits = 1.0 if rule.spares is None else hosts_share(saved.hosts, rule.spares, repair_s, host_s)
    missing = saved.hosts * repair_s / host_s
    return max(interval_s, least_s), work, waits, rule.throughput(saved, missing)


def _assumed(rule: CheckpointRule, without: str, *, traced: bool, usual: bool) -> tuple[str, ...]:
    """What was taken where the plan or the technique's parameters leave it open."""
    if usual:
        return (
            f"{_USUAL}, with the medians of published runs and their times to recover; no-failures leaves them out",
        )
    runs = [name for name in failure_rows() if name != without]
    told = {
        "mtbf_h": f"failures as often as in the median of {', '.join(runs)}",
        "storage": "storage at 122 MB/s for each device, as Llama 3's",
        "restart_s": f"{'' if traced else '10 minutes to detect a failure and '}15 minutes to restart at most, as"
        " MegaScale's",
    }
    if type(rule).restarts_s is not CheckpointRule.restarts_s:
        told.pop("restart_s")
    return tuple(text for name, text in told.items() if getattr(rule, name) is None)
