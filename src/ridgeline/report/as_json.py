"""A report as a dictionary of plain values, for `--json`: numbers in SI, units in the keys.

The keys are stable: one is added with a minor release and removed only with a major one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from enum import Enum
from typing import Any

from ridgeline.facts.records import Cluster, Fact
from ridgeline.graph.ops import Model
from ridgeline.graph.workload import Workload
from ridgeline.plan.plan import Plan
from ridgeline.report.evidence import known_as_list
from ridgeline.report.frameworks import frameworks_as_list
from ridgeline.report.report import Estimate, OpRow, Report, SearchReport, StageMemory
from ridgeline.report.what_if import sensitivities_as_list, what_if_lines


def as_value(value: object) -> Any:
    """A value that JSON can hold; enumerations by value, numbers that are not finite as null."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): as_value(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [as_value(item) for item in value]
    return value


def choices(record: Plan | Workload) -> dict[str, Any]:
    """Every field of a plan or workload, by its scenario name."""
    values = {field.name: getattr(record, field.name) for field in fields(record)}
    return {name: as_value(getattr(value, "key", value)) for name, value in values.items()}


def model_as_dict(model: Model) -> dict[str, Any]:
    """A model's identity and size: parameters [1]."""
    return {
        "name": model.name,
        "type": model.model_type,
        "params": model.graph.params,
        "active_params": model.graph.active_params,
        "layers": len(model.graph.layers),
        "max_positions": model.max_positions,
        "source": model.source,
        "notes": list(model.notes),
    }


def fact_as_dict(fact: Fact | None) -> dict[str, Any] | None:
    """A fact with its unit, source, conditions and evidence."""
    if fact is None:
        return None
    return {
        "value": as_value(fact.value),
        "unit": fact.unit,
        "source": fact.source,
        "conditions": fact.conditions,
        "evidence": fact.evidence.label,
    }


def cluster_as_dict(cluster: Cluster) -> dict[str, Any]:
    """A cluster: its devices, tiers [byte/s, s] and prices."""
    return {
        "name": cluster.name,
        "accelerator": cluster.accelerator.name,
        "devices": cluster.count,
        "node_devices": cluster.node_devices,
        "memory_bytes_per_device": as_value(cluster.accelerator.memory_bytes),
        "tiers": [
            {
                "name": tier.name,
                "devices": tier.size,
                "bytes_per_s": as_value(tier.bytes_per_s),
                "latency_s": as_value(tier.latency_s),
                "topology": tier.topology,
                "oversubscription": as_value(tier.oversubscription),
            }
            for tier in cluster.tiers
        ],
        "price_usd_per_device_h": fact_as_dict(cluster.price_usd_per_device_h),
        "pue": fact_as_dict(cluster.pue),
        "carbon_kg_per_j": fact_as_dict(cluster.carbon_kg_per_j),
    }


def _estimate(estimate: Estimate) -> dict[str, Any]:
    return {
        "value": as_value(estimate.value),
        "low": as_value(estimate.low),
        "high": as_value(estimate.high),
        "unit": estimate.unit,
        "evidence": estimate.evidence.label,
    }


def _memory(stage: StageMemory) -> dict[str, Any]:
    return {
        "stage": stage.stage,
        "categories_bytes": as_value(stage.categories),
        "total_bytes": as_value(stage.total_bytes),
        "low_bytes": as_value(stage.interval_bytes[0]),
        "high_bytes": as_value(stage.interval_bytes[1]),
        "capacity_bytes": as_value(stage.capacity_bytes),
        "headroom_bytes": as_value(stage.headroom_bytes),
    }


def _op(row: OpRow) -> dict[str, Any]:
    return {
        "block": row.block,
        "op": row.op,
        "layers": row.layers,
        "forward_s": as_value(row.forward_s),
        "backward_s": as_value(row.backward_s),
        "flop": as_value(row.flop),
        "bytes": as_value(row.bytes),
        "bound": row.bound,
        "evidence": row.evidence.label,
    }


def run_totals(report: Report) -> dict[str, float | None]:
    """What the whole run takes: time [s], steps [1], energy [J], money [USD], carbon [kg].

    Totals are the step's numbers times the steps in the run's time; None where not known.
    """
    steps = None if report.run_time_s is None else report.run_time_s / report.step_time.value

    def total(per_step: float | None) -> float | None:
        return None if steps is None or per_step is None else per_step * steps

    return {
        "run_time_s": report.run_time_s,
        "run_steps": steps,
        "run_energy_j": total(report.energy_j_per_step),
        "run_usd": total(report.usd_per_step),
        "run_carbon_kg": total(report.carbon_kg_per_step),
    }


def report_as_dict(report: Report) -> dict[str, Any]:
    """The answer to `predict`."""
    return {
        "model": model_as_dict(report.model),
        "cluster": cluster_as_dict(report.cluster),
        "workload": choices(report.workload),
        "plan": choices(report.plan),
        "idle_devices": report.idle_devices,
        "idle_why": report.idle_why,
        "fits": report.fits,
        "step_time_s": _estimate(report.step_time),
        "bound_s": as_value(report.bound_s),
        "tokens_per_s": as_value(report.tokens_per_s),
        "tokens_per_s_per_device": as_value(report.tokens_per_s / report.plan.devices),
        "samples_per_s": None if report.sample_tokens is None else as_value(report.counts_per_s),
        "model_flop": as_value(report.model_flop),
        "hardware_flop": as_value(report.hardware_flop),
        "mfu": as_value(report.mfu),
        "hfu": as_value(report.hfu),
        "mfu_causal": as_value(report.causal_mfu),
        "energy_j_per_step": as_value(report.energy_j_per_step),
        "power_w": as_value(report.power_w),
        "usd_per_step": as_value(report.usd_per_step),
        "carbon_kg_per_step": as_value(report.carbon_kg_per_step),
        **{key: as_value(value) for key, value in run_totals(report).items()},
        "memory": [_memory(stage) for stage in report.memory],
        "shares": [{"label": s.label, "kind": s.kind, "seconds": as_value(s.seconds)} for s in report.shares],
        "limit": report.limit,
        "ops": [_op(row) for row in report.ops],
        "evidence": {name: evidence.label for name, evidence in report.evidence.items()},
        "known": known_as_list(report.known),
        "assumptions": list(report.assumptions),
        "what_if": what_if_lines(report.what_if, "step time"),
        "sensitivities": sensitivities_as_list(report.what_if),
        "sources": list(report.sources),
    }


def search_as_dict(found: SearchReport) -> dict[str, Any]:
    """The answer to `plan`."""
    return {
        "best": [report_as_dict(report) for report in found.best],
        "covered": found.covered,
        "legal": found.legal,
        "feasible": found.feasible,
        "simulated": found.simulated,
        "pruned_by_bound": found.pruned_by_bound,
        "frameworks": frameworks_as_list(found.frameworks, choices),
        "infeasible": [{"reason": row.reason, "plans": row.plans, "nearest": row.nearest} for row in found.infeasible],
        "bound_gap": as_value(found.bound_gap),
        "search_s": as_value(found.seconds),
    }
