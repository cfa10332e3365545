"""A report as a dictionary of plain values, for `--json`: numbers in SI, units in the keys.

The keys are stable: one is added with a minor release and removed only with a major one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from ridgeline.facts.records import Cluster, Evidence
from ridgeline.graph.model import Model
from ridgeline.graph.workload import Workload
from ridgeline.plan.plan import Plan
from ridgeline.report.evidence import sensitivities_as_list, what_if_lines
from ridgeline.report.report import FrameworkRun, Report, SearchReport, StageMemory

if TYPE_CHECKING:
    from ridgeline.training.goodput import Goodput


def as_value(value: object) -> Any:
    """A value that JSON can hold: enumerations by value, evidence by its label, numbers that are not finite as null."""
    if isinstance(value, Evidence):
        return value.label
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): as_value(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [as_value(item) for item in value]
    if is_dataclass(value) and not isinstance(value, type):
        return picked(value, *(field.name for field in fields(value)))
    return value


def picked(record: object, *names: str) -> dict[str, Any]:
    """Some fields and properties of a record, by their names."""
    return {name: as_value(getattr(record, name)) for name in names}


def choices(record: Plan | Workload) -> dict[str, Any]:
    """Every field of a plan or workload, by its scenario name."""
    values = {field.name: getattr(record, field.name) for field in fields(record)}
    return {name: as_value(getattr(value, "key", value)) for name, value in values.items()}


def model_as_dict(model: Model) -> dict[str, Any]:
    """A model's identity and size: parameters [1]."""
    return {
        "name": model.name, "type": model.model_type, **picked(model.graph, "params", "active_params"),
        "layers": len(model.graph.layers), **picked(model, "max_positions", "source", "notes"),
    }  # fmt: skip


def cluster_as_dict(cluster: Cluster) -> dict[str, Any]:
    """A cluster: its devices, tiers [byte/s, s] and prices."""
    each = ("bytes_per_s", "latency_s", "topology", "oversubscription")
    return {
        "name": cluster.name,
        "accelerator": cluster.accelerator.name,
        "devices": cluster.count,
        "node_devices": cluster.node_devices,
        "memory_bytes_per_device": as_value(cluster.accelerator.memory_bytes),
        "tiers": [{"name": tier.name, "devices": tier.size, **picked(tier, *each)} for tier in cluster.tiers],
        **picked(cluster, "price_usd_per_device_h", "pue", "carbon_kg_per_j"),
    }


def _memory(stage: StageMemory) -> dict[str, Any]:
    low, high = stage.interval_bytes
    return {
        "stage": stage.stage, "categories_bytes": as_value(stage.categories),
        **picked(stage, "total_bytes", "reserved_bytes"),
        "low_bytes": as_value(low), "high_bytes": as_value(high), **picked(stage, "capacity_bytes", "headroom_bytes"),
    }  # fmt: skip


def run_totals(report: Report) -> dict[str, float | None]:
    """What the whole run takes: time [s], steps [1], energy [J], money [USD], carbon [kg].

    Totals are the step's numbers times the steps in the run's time, over the share of it that failures leave where they
    are counted (a device that waits is taken to draw as much); None where not known.
    """
    steps = None if report.run_time_s is None else report.run_time_s / report.step_time.value
    longer = 1.0
    if report.goodput is not None and report.run_time_s is not None:
        longer = report.goodput.run_time_s / report.run_time_s

    def total(per_step: float | None) -> float | None:
        return None if steps is None or per_step is None else per_step * steps * longer

    return {
        "run_time_s": None if report.run_time_s is None else report.run_time_s * longer,
        "run_steps": steps,
        "run_energy_j": total(report.energy_j_per_step),
        "run_usd": total(report.usd_per_step),
        "run_carbon_kg": total(report.carbon_kg_per_step),
    }


def _goodput(found: Goodput, report: Report) -> dict[str, Any]:
    """A run under failures."""
    shares = ("work_share", "hosts_share", "straggler_share", "throughput_share")
    times = ("mtbf_s", "mtbf_low_s", "mtbf_high_s", "interval_s", "restart_s", "run_time_s", "run_low_s", "run_high_s")
    return {
        "goodput": as_value(found.goodput), **picked(found, "technique", "failures", "checkpoint_bytes"),
        **picked(found, *shares, *times), "failure_free_s": report.run_time_s,
        "save_stops_s": as_value(found.save.stops_s), "save_lasts_s": as_value(found.save.lasts_s),
        "load_s": as_value(found.save.load_s), "assumed": list(found.assumed),
    }  # fmt: skip


def report_as_dict(report: Report) -> dict[str, Any]:
    """The answer to `predict`."""
    from ridgeline.report.footprint import footprint_as_dict

    rates = ("model_flop", "hardware_flop", "mfu", "hfu")
    step = ("energy_j_per_step", "power_w", "usd_per_step", "carbon_kg_per_step")
    return {
        "model": model_as_dict(report.model),
        "cluster": cluster_as_dict(report.cluster),
        "workload": choices(report.workload),
        "plan": choices(report.plan),
        **picked(report, "idle_devices", "idle_why", "fits"),
        "step_time_s": as_value(report.step_time),
        **picked(report, "bound_s", "tokens_per_s"),
        "tokens_per_s_per_device": as_value(report.tokens_per_s / report.plan.devices),
        "samples_per_s": None if report.sample_tokens is None else as_value(report.counts_per_s),
        **picked(report, *rates),
        "mfu_causal": as_value(report.causal_mfu),
        **picked(report, *step),
        **as_value(run_totals(report)),
        **as_value(footprint_as_dict(report)),
        **({} if report.goodput is None else {"goodput": _goodput(report.goodput, report)}),
        "memory": [_memory(stage) for stage in report.memory],
        **picked(report, "shares", "limit", "ops", "evidence", "known", "assumptions"),
        "what_if": what_if_lines(report.what_if, "step time"),
        "sensitivities": sensitivities_as_list(report.what_if),
        **picked(report, "sources"),
    }


def _framework(run: FrameworkRun) -> dict[str, Any]:
    """What a framework runs: `slowdown` [1] is None where no plan of it fits."""
    return {
        "framework": run.name, "runs_best": not run.why, **picked(run, "slowdown", "at_most"),
        "plan": None if run.plan is None else choices(run.plan), "why_not_best": run.why,
    }  # fmt: skip


def search_as_dict(found: SearchReport) -> dict[str, Any]:
    """The answer to `plan`."""
    return {
        "best": [report_as_dict(report) for report in found.best],
        **picked(found, "covered", "legal", "feasible", "simulated", "pruned_by_bound"),
        "frameworks": [_framework(run) for run in found.frameworks],
        **picked(found, "infeasible", "bound_gap"),
        "search_s": as_value(found.seconds),
    }
