"""Reports of serving under stable keys, in SI numbers: a replay, a replayed deployment of a search, a search."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ridgeline.energy.footprint import footprint
from ridgeline.report.as_json import as_value, picked
from ridgeline.report.deployments import deployment_as_dict, techniques_told
from ridgeline.report.evidence import steps_as_dict
from ridgeline.report.serving import ServingReport, because
from ridgeline.report.serving_search import Candidate, ServingSearch
from ridgeline.seams.serving import all_devices
from ridgeline.serving.metrics import Metrics
from ridgeline.serving.objective import Objective
from ridgeline.serving.sampling import SECTIONS, RequestShare, SamplingBands


def _latencies(record: Metrics | SamplingBands | RequestShare, *kinds: str) -> dict[str, Any]:
    """Some latencies [s], each by quantile."""
    found = {kind: vars(getattr(record, kind)) for kind in kinds}
    return {kind: {f"{name}_s": as_value(value) for name, value in each.items()} for kind, each in found.items()}


def _end(end: Metrics) -> dict[str, Any]:
    """The metrics at one end of the interval of every time."""
    return {
        **_latencies(end, "ttft", "tpot", "itl", "latency"),
        **picked(end, "requests_per_s", "output_tokens_per_s", "attained", "goodput_rps"),
        "overloaded": end.overloaded or None,
    }


def _sampling(drawn: SamplingBands | None) -> dict[str, Any] | None:
    """Half widths of 80 % intervals for the draw of the requests alone; null where nothing is drawn."""
    if drawn is None:
        return None
    return {
        "method": "sectioning", "sections": SECTIONS, "requests": drawn.requests,
        **_latencies(drawn, "ttft", "tpot", "latency"),
        **picked(drawn, "requests_per_s", "output_tokens_per_s", "attained"),
    }  # fmt: skip


def _share(one: RequestShare) -> dict[str, Any]:
    names = ("name", "requests", "done", "prompt_tokens", "output_tokens")
    return {**picked(one, *names), **_latencies(one, "ttft", "tpot")}


def _footprint(report: ServingReport) -> dict[str, Any]:
    """Water [litre], emissions of making devices [kg] and devices worn out [1]; null without a rated power."""
    if report.energy_j is None:
        return dict.fromkeys(("water_l", "embodied_kg", "devices_worn"))
    devices = sum(all_devices(one) for one in report.deployments)
    return vars(footprint(report.cluster, report.energy_j, report.replay.span_s, devices=devices))


def serving_as_dict(report: ServingReport) -> dict[str, Any]:
    """The report under stable keys, SI numbers."""
    metrics, found, traffic = report.metrics, report.replay, report.traffic
    last = int(found.span_s / found.series_s) + 1
    rates = ("requests_per_s", "output_tokens_per_s", "total_tokens_per_s", "attained", "goodput_rps")
    costs = ("power_w", "energy_j", "carbon_kg", "usd_per_h", "usd_per_million_output_tokens")
    return {
        "model": report.model.name,
        "cluster": report.cluster.name,
        "deployments": [deployment_as_dict(one) for one in report.deployments],
        "techniques": techniques_told(report.deployments),
        **picked(report, "idle_devices", "engines"),
        "traffic": {
            "name": report.traffic_name, "requests": traffic.requests, "rate_per_s": traffic.rate_per_s,
            "prompt_tokens_mean": traffic.prompt.mean, "output_tokens_mean": traffic.output.mean,
            "dropped": list(report.dropped),
        },
        "overloaded": metrics.overloaded or None,
        **_latencies(metrics, "ttft", "tpot", "itl", "latency"),
        "ends": [_end(end) for end in report.ends],
        "intervals": as_value(report.intervals()),
        "sampling": _sampling(report.sampled),
        **picked(metrics, "window_s", "steady", *rates),
        "slo": slo_as_dict(report.objective, metrics),
        "goodput_per_usd": report.goodput_per_usd,
        **picked(metrics, "hit_share", "refused"),
        "groups": [vars(one) for one in report.groups],
        "shares": [_share(one) for one in report.shares],
        "fixed": as_value(report.fixed),
        "sessions": as_value(report.sessions),
        **picked(found, "preemptions", "moves"),
        "adapter_loads": found.loads,
        **picked(found, "loans", "merges", "failures", "starts"),
        "instances_up": report.instances_up,
        **picked(found, "iterations", "span_s"),
        **picked(report, *costs),
        **_footprint(report),
        "reasons": because(report),
        "decode_parts_s": as_value(report.decode_parts),
        "prefill_parts_s": as_value(report.prefill_parts),
        "longest_tokens": found.longest_tokens,
        "capacities": [vars(held) for held in report.capacities],
        "series_s": found.series_s,
        "series": [[float(cell) for cell in row] for row in found.series[:last]],
        **picked(report, "rungs", "evidence"),
        **steps_as_dict(report.known, report.what_if),
        "assumed": list(report.assumed),
    }  # fmt: skip


def slo_as_dict(goal: Objective, metrics: Metrics) -> dict[str, Any] | None:
    """Whether an objective is kept, and each percentile of it with its value [s]; null without one."""
    if not goal.stated:
        return None
    at = zip(goal.percentiles, metrics.at_percentiles, strict=True)
    return {
        "kept": metrics.kept,
        **goal.bounds,
        "least_share": goal.least_share if goal.bounds else None,
        "least_goodput_rps": goal.least_goodput_rps,
        "percentiles": [{"slo": one.key, "most_s": one.most_s, "value_s": as_value(value)} for one, value in at],
    }


def ranked_as_dict(one: Candidate) -> dict[str, Any]:
    """A replayed deployment under stable keys."""
    return {
        "deployments": [deployment_as_dict(each) for each in one.deployments],
        "devices": one.devices,
        "goodput_rps": one.good_rps,
        "goodput_per_usd": one.good_per_usd,
        "energy_j_per_token": one.energy_j_per_token,
        "carbon_kg_per_token": one.carbon_kg_per_token,
        "attained": one.metrics.attained,
        "kept": one.metrics.kept,
        "overloaded": one.metrics.overloaded or None,
        **_latencies(one.metrics, "ttft", "tpot", "latency"),
        **picked(one.metrics, "output_tokens_per_s"),
        **(steps_as_dict(one.known, one.what_if) if one.known else {}),
    }


def search_as_dict(found: ServingSearch, assumed: Sequence[str]) -> dict[str, Any]:
    """What a search found; `error` where nothing keeps to the objective."""
    return {
        "best": [ranked_as_dict(one) for one in found.ranked],
        "fewest": None if found.fewest is None else ranked_as_dict(found.fewest),
        "bound_devices": found.bound_devices,
        "bound_spent": found.bound_spent,
        **picked(found, "considered", "pruned", "refused"),
        "assumed": [*assumed, *found.assumed],
        **({"error": found.missed} if found.missed else {}),
    }
