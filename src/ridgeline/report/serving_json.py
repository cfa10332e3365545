"""The report of a replay under stable keys, in SI numbers."""

from __future__ import annotations

import math
from typing import Any

from ridgeline.report.deployments import deployment_as_dict
from ridgeline.report.serving import ServingReport
from ridgeline.report.serving_reasons import because
from ridgeline.report.serving_shares import share_as_dict
from ridgeline.report.serving_steps import steps_as_dict
from ridgeline.serving.metrics import Metrics, Quantiles
from ridgeline.serving.sampling import SECTIONS, Sampling


def _quantiles_dict(values: Quantiles) -> dict[str, float | None]:
    return {f"{name}_s": _finite(value) for name, value in vars(values).items()}


def _end_dict(end: Metrics) -> dict[str, Any]:
    """The metrics at one end of the interval of every time."""
    kinds = {"ttft": end.ttft, "tpot": end.tpot, "itl": end.itl, "latency": end.latency}
    return {
        **{name: _quantiles_dict(values) for name, values in kinds.items()},
        "requests_per_s": end.requests_per_s,
        "output_tokens_per_s": end.output_tokens_per_s,
        "attained": end.attained,
        "goodput_rps": end.goodput_rps,
        "overloaded": end.overloaded or None,
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _sampling_dict(drawn: Sampling | None) -> dict[str, Any] | None:
    """Half widths of 80 % intervals for the draw of the requests alone; null where nothing is drawn."""
    if drawn is None:
        return None
    kinds = {"ttft": drawn.ttft, "tpot": drawn.tpot, "latency": drawn.latency}
    return {
        "method": "sectioning",
        "sections": SECTIONS,
        "requests": drawn.requests,
        **{name: _quantiles_dict(values) for name, values in kinds.items()},
        "requests_per_s": drawn.requests_per_s,
        "output_tokens_per_s": drawn.output_tokens_per_s,
        "attained": drawn.attained,
    }


def serving_as_dict(report: ServingReport) -> dict[str, Any]:
    """The report under stable keys, SI numbers."""
    metrics, found = report.metrics, report.replay
    last = int(found.span_s / found.series_s) + 1
    return {
        "model": report.model.name,
        "cluster": report.cluster.name,
        "deployments": [deployment_as_dict(one) for one in report.deployments],
        "idle_devices": report.idle_devices,
        "engines": list(report.engines),
        "traffic": {
            "name": report.traffic_name,
            "requests": report.traffic.requests,
            "rate_per_s": report.traffic.rate_per_s,
            "prompt_tokens_mean": report.traffic.prompt.mean,
            "output_tokens_mean": report.traffic.output.mean,
            "dropped": list(report.dropped),
        },
        "overloaded": metrics.overloaded or None,
        "ttft": _quantiles_dict(metrics.ttft),
        "tpot": _quantiles_dict(metrics.tpot),
        "itl": _quantiles_dict(metrics.itl),
        "latency": _quantiles_dict(metrics.latency),
        "ends": [_end_dict(end) for end in report.ends],
        "intervals": {name: [_finite(end) for end in ends] for name, ends in report.intervals().items()},
        "sampling": _sampling_dict(report.sampled),
        "window_s": metrics.window_s,
        "steady": metrics.steady,
        "requests_per_s": metrics.requests_per_s,
        "output_tokens_per_s": metrics.output_tokens_per_s,
        "total_tokens_per_s": metrics.total_tokens_per_s,
        "attained": metrics.attained,
        "goodput_rps": metrics.goodput_rps,
        "goodput_per_usd": report.goodput_per_usd,
        "hit_share": metrics.hit_share,
        "refused": metrics.refused,
        "shares": [share_as_dict(one) for one in report.shares],
        "preemptions": found.preemptions,
        "moves": found.moves,
        "adapter_loads": found.loads,
        "loans": found.loans,
        "merges": found.merges,
        "failures": found.failures,
        "starts": found.starts,
        "instances_up": report.instances_up,
        "iterations": found.iterations,
        "span_s": found.span_s,
        "power_w": report.power_w,
        "energy_j": report.energy_j,
        "carbon_kg": report.carbon_kg,
        "usd_per_h": report.usd_per_h,
        "usd_per_million_output_tokens": report.usd_per_million_output_tokens,
        "reasons": because(report),
        "decode_parts_s": dict(report.decode_parts),
        "prefill_parts_s": dict(report.prefill_parts),
        "capacities": [vars(held) for held in report.capacities],
        "series_s": found.series_s,
        "series": [[float(cell) for cell in row] for row in found.series[:last]],
        "rungs": dict(report.rungs),
        "evidence": report.evidence.label,
        **steps_as_dict(report.known, report.what_if),
        "assumed": list(report.assumed),
    }
