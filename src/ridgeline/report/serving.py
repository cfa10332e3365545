"""The report of a replay, its words, tables and JSON: the answer first, then what limits it and what it rests on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ridgeline.facts.records import Cluster, Evidence
from ridgeline.graph.ops import Model
from ridgeline.plan.deployment import Deployment, Queue, Role
from ridgeline.report.blocks import Block, Line, Table, blank
from ridgeline.report.serving_shares import share_as_dict, shares_blocks
from ridgeline.report.text import energy_text, money_text
from ridgeline.serving.capacity import Capacity
from ridgeline.serving.metrics import Band, Metrics, Objective, Quantiles
from ridgeline.serving.replay import Replay
from ridgeline.serving.shares import Share
from ridgeline.serving.traffic.summary import Summary
from ridgeline.units import bytes_text, rate_text, time_text

_SERIES_ROWS = 12  # stretches of time shown
_BAR = 24  # columns
_DROPPED = 5  # rows of a trace that are named one by one


@dataclass(frozen=True, kw_only=True)
class ServingReport:
    """What a deployment does under traffic.

    `ends` are the metrics when every time is at the low and at the high end of its interval. `decode_parts` and
    `prefill_parts` say what an iteration at the mean batch is made of [s]; `queue_share` is the part of TTFT that
    is not the prompt's own iteration [1]. `usd_per_h` is None without a price.
    """

    model: Model
    cluster: Cluster
    deployments: tuple[Deployment, ...]
    engines: tuple[str, ...]
    capacities: tuple[Capacity, ...]
    traffic: Summary
    traffic_name: str
    dropped: tuple[str, ...]
    objective: Objective
    metrics: Metrics
    ends: tuple[Metrics, ...]
    replay: Replay
    prefill: Band
    decode: Band
    prefill_parts: Mapping[str, float]
    decode_parts: Mapping[str, float]
    queue_share: float
    power_w: float | None
    energy_j: float | None
    usd_per_h: float | None
    evidence: Evidence
    rungs: Mapping[str, str]
    assumed: tuple[str, ...]
    seconds: float
    shares: tuple[Share, ...] = ()  # by client where the queue is fair among them, by priority where that displaces

    @property
    def devices(self) -> int:
        """Devices that serve [1]."""
        return sum(one.devices for one in self.deployments)

    @property
    def goodput_per_usd(self) -> float | None:
        """Requests that keep to the objective for a dollar [1/USD]; None without a price or an objective."""
        good = self.metrics.goodput_rps
        return None if good is None or not self.usd_per_h else good * 3600.0 / self.usd_per_h

    @property
    def usd_per_million_output_tokens(self) -> float | None:
        """Price of a million generated tokens [USD]; None without a price or tokens."""
        rate = self.metrics.output_tokens_per_s
        return None if self.usd_per_h is None or not rate else self.usd_per_h / 3600.0 / rate * 1e6


def deployment_text(one: Deployment) -> str:
    """A deployment in one line: its count, degrees above one, formats."""
    degrees = [f"{name} {getattr(one, name)}" for name in ("tp", "pp", "dp", "ep") if getattr(one, name) > 1]
    words = [f"{one.instances} x ({', '.join(degrees) or 'one device'})"]
    words += [f"on {one.kind}"] if one.kind else []
    if one.role is not Role.WHOLE:
        words.insert(0, one.role.value)
    words += [f"contexts over {one.kv_ranks}"] if one.kv_ranks > 1 else []
    words += [one.weights] if one.weights else []
    words += [f"{one.kv} cache"] if one.kv else []
    if one.draft_tokens:
        words.append(f"{one.draft_tokens} drafted, {one.acceptance:.0%} accepted")
    words += [f"{one.beam_width} beams"] if one.beam_width > 1 else []
    words += [] if one.queue is Queue.ARRIVAL else [f"{one.queue.value} queue"]
    changes = f", drawn every {_counted(one.priority_period, 'iteration')}" if one.priority_period else ""
    words += [f"urgent displace{changes}"] if one.displaces else []
    slots = f", {one.adapter_slots:,} at once" if one.adapter_slots else ""
    words += [f"{_counted(one.adapters, 'adapter')} of rank {one.adapter_rank}{slots}"] if one.adapters else []
    words += [f"nano-batches from {one.nano_tokens:,} tokens"] if one.nano_tokens else []
    if one.expert_devices:
        where = f"{one.expert_devices} {one.expert_kind}" if one.expert_kind else _counted(one.expert_devices, "device")
        words.append(f"experts on {where}, {one.micro_batches} micro-batches")
    if one.expert_imbalance is not None:
        replicas = f", {_counted(one.expert_redundant, 'replica')} a layer" if one.expert_redundant else ""
        words.append(f"fullest expert rank {one.expert_imbalance:.2f} times the mean{replicas}")
    if one.tokens_stay:
        rows = "" if one.expert_inside is None else f", {one.expert_inside:.2f} rows a layer sent in a node"
        rows += "" if one.expert_between is None else f" and {one.expert_between:.2f} beyond"
        words.append(f"tokens stay with experts{rows}")
    if one.split:
        sides = f", sides change at {one.split_fill:.0%}, slack {one.split_slack:g}" if one.split_slack else ""
        words.append(f"split{f', {one.split_share:.0%} for prompts' if one.split_share else ''}{sides}")
    owed = f", {one.owe_share:g} of their own at most" if one.owe_share is not None else ""
    words += [f"merge for prompts from {one.elastic_tokens:,} tokens"] if one.elastic_tokens else []
    words += [f"borrow room, {one.lend_share:.0%} of what is free{owed}"] if one.borrows else []
    words += [f"{one.kv_kept:,} tokens of cache kept{' early' if one.kv_early else ''}"] if one.kv_kept else []
    words += [f"{one.kv_fetched:,} fetched a step"] if one.kv_fetched else []
    return " ".join(words)


def _with_interval(value: float, low: float, high: float) -> str:
    if not math.isfinite(value):
        return "none measured"
    least, most = min(value, low, high), max(value, low, high)
    return f"{time_text(value)} (80 % interval {time_text(least)} to {time_text(most)}) median"


def serving_blocks(report: ServingReport) -> list[Block]:
    """The report in words and tables."""
    metrics, found = report.metrics, report.replay
    blocks: list[Block] = [Line(text=_title(report), hang=2), blank()]
    if metrics.overloaded:
        blocks.append(Line(text=f"OVERLOADED: {metrics.overloaded}", strong=True, hang=2))
    elif any(end.overloaded for end in report.ends):
        blocks.append(Line(text="Overloaded where every time is at the high end of its interval", strong=True, hang=2))
    rows = [
        ("deployment", "; ".join(deployment_text(one) for one in report.deployments)),
        ("engine", "; ".join(dict.fromkeys(report.engines))),
        ("TTFT", f"{_with_interval(metrics.ttft.p50, *(end.ttft.p50 for end in report.ends))}"),
        ("TPOT", f"{_with_interval(metrics.tpot.p50, *(end.tpot.p50 for end in report.ends))}"),
        ("throughput", _throughput(report)),
    ]
    if metrics.attained is not None:
        rows.append(("goodput", _goodput(report)))
    rows += _costs(report)
    rows.append(("limited by", _limits(report)))
    rows.append(("evidence", _evidence(report)))
    width = max(len(name) for name, _ in rows) + 2
    blocks += [Line(text=f"{name:<{width}}{text}", indent=2, hang=width) for name, text in rows]
    blocks += [blank(), Line(text="Latency", strong=True), _latencies(metrics), blank()]
    fair = any(one.queue is Queue.FAIR for one in report.deployments)
    blocks += shares_blocks(report.shares, "client" if fair else "priority")
    blocks += [Line(text="Memory per device", strong=True), _memory(report), blank()]
    blocks += [Line(text="Over time", strong=True), _series(found), blank()]
    blocks += [Line(text="Where an iteration's time goes", strong=True), _parts(report)]
    blocks += _notes(report)
    return blocks


def _counted(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def _title(report: ServingReport) -> str:
    asked, traffic = report.model, report.traffic
    rate = f", {traffic.rate_per_s:.3g} requests/s" if traffic.rate_per_s else ""
    return (
        f"{asked.name} on {report.cluster.name}: {report.traffic_name}, {_counted(traffic.requests, 'request')}{rate},"
        f" prompts of {traffic.prompt.mean:,.0f} and answers of {traffic.output.mean:,.0f} tokens on average"
    )


def _throughput(report: ServingReport) -> str:
    metrics = report.metrics
    each = metrics.output_tokens_per_s / report.devices
    return (
        f"{metrics.requests_per_s:.3g} requests/s, {metrics.output_tokens_per_s:,.0f} output tokens/s"
        f" ({each:,.0f} per device), {metrics.total_tokens_per_s:,.0f} with prompts"
    )


def _goodput(report: ServingReport) -> str:
    bounds = {"TTFT": report.objective.ttft_s, "TPOT": report.objective.tpot_s, "latency": report.objective.latency_s}
    words = ", ".join(f"{name} <= {time_text(bound)}" for name, bound in bounds.items() if bound is not None)
    return f"{report.metrics.goodput_rps:.3g} requests/s keep to {words}: {report.metrics.attained:.1%} of all"


def _costs(report: ServingReport) -> list[tuple[str, str]]:
    rows = []
    if report.power_w is not None and report.energy_j is not None:
        tokens = report.metrics.output_tokens_per_s * report.replay.span_s
        each = f", {report.energy_j / tokens:.3g} J a token" if tokens else ""
        rows.append(
            (
                "power",
                f"{rate_text(report.power_w, 'W')} at the wall, {energy_text(report.energy_j)}{each}",
            )
        )
    price = report.usd_per_million_output_tokens
    if price is not None and report.usd_per_h is not None:
        good = report.goodput_per_usd if any(one.expert_kind for one in report.deployments) else None
        kept = "" if good is None else f", {good:,.0f} requests that keep to the objective for a dollar"
        rows.append(
            ("cost", f"{money_text(price)} per million output tokens at {money_text(report.usd_per_h)} an hour{kept}")
        )
    return rows


def _limits(report: ServingReport) -> str:
    def longest(parts: Mapping[str, float]) -> str:
        total = sum(parts.values()) or 1.0
        name = max(parts, key=lambda part: parts[part])
        return f"{name} {parts[name] / total:.0%}"

    queue = f", {report.queue_share:.0%} of TTFT is waiting" if report.queue_share >= 0.01 else ""
    return f"decode: {longest(report.decode_parts)}; prompts: {longest(report.prefill_parts)}{queue}"


def _evidence(report: ServingReport) -> str:
    worst = ", ".join(f"{family} {rung}" for family, rung in report.rungs.items())
    return f"{report.evidence.label} is the lowest rung; kernels: {worst}"


def _latencies(metrics: Metrics) -> Table:
    kinds = (("TTFT", metrics.ttft), ("TPOT", metrics.tpot), ("ITL", metrics.itl), ("latency", metrics.latency))
    rows = tuple((name, *(_cell(value) for value in (q.mean, q.p50, q.p90, q.p99))) for name, q in kinds)
    return Table(columns=("", "mean", "p50", "p90", "p99"), rows=rows, right=frozenset({"mean", "p50", "p90", "p99"}))


def _cell(value_s: float) -> str:
    return time_text(value_s) if math.isfinite(value_s) and value_s > 0 else "-"


def _memory(report: ServingReport) -> Table:
    rows = []
    for one, held in zip(report.deployments, report.capacities, strict=True):
        rows.append(
            (
                one.role.value, bytes_text(held.memory_bytes), bytes_text(held.weights_bytes),
                bytes_text(held.workspace_bytes + held.context_bytes), bytes_text(held.cache_bytes),
                f"{held.cache_tokens:,}",
            )
        )  # fmt: skip
        if held.experts_bytes:
            memory, weights = bytes_text(held.experts_memory_bytes), bytes_text(held.experts_bytes)
            rows.append(("experts", memory, weights, "-", "-", "-"))
    columns = ("instance", "device", "weights", "workspace", "cache", "tokens of cache a rank")
    return Table(columns=columns, rows=tuple(rows), right=frozenset(columns[1:]))


def _series(found: Replay) -> Table:
    """Cache in use, waiting and running requests, the most in each stretch of time."""
    last = int(found.span_s / found.series_s) + 1
    each = max(1, -(-last // _SERIES_ROWS))
    rows = []
    for start in range(0, last, each):
        part = found.series[start : min(start + each, last)]
        used, waiting, running = (float(part[:, column].max()) for column in range(3))
        share = used / max(found.capacity_blocks, 1)
        bar = "#" * round(_BAR * min(share, 1.0))
        rows.append(
            (
                time_text(start * found.series_s) if start else "0 s",
                f"{running:,.0f}",
                f"{waiting:,.0f}",
                f"{share:.1%}",
                f"[{bar:<{_BAR}}]",
            )
        )
    columns = ("from", "running", "waiting", "cache", "")
    return Table(columns=columns, rows=tuple(rows), right=frozenset(columns[:4]))


def _parts(report: ServingReport) -> Table:
    names = list(dict.fromkeys((*report.decode_parts, *report.prefill_parts)))
    rows = tuple(
        (name, _cell(report.decode_parts.get(name, 0.0)), _cell(report.prefill_parts.get(name, 0.0))) for name in names
    )
    return Table(
        columns=("part", "mean decode step", "mean prompt alone"), rows=rows,
        right=frozenset({"mean decode step", "mean prompt alone"}),
    )  # fmt: skip


def _notes(report: ServingReport) -> list[Block]:
    metrics, found = report.metrics, report.replay
    notes = [
        f"{_counted(found.iterations, 'iteration')} in {_counted(found.runs, 'run')};"
        f" {_counted(found.preemptions, 'preemption')}; {metrics.hit_share:.1%} of prompt tokens found in the cache"
    ]
    if found.failures or found.starts:
        up = float(found.up_s.sum()) / found.span_s if found.span_s > 0 else 0.0
        notes.append(
            f"{found.failures:,} failures and {found.starts:,} starts of instances; {up:.2f} were up on average"
        )
    if found.moves:
        notes.append(f"{_counted(found.moves, 'cache')} sent from prefill to decode instances")
    if found.merges:
        notes.append(f"{_counted(found.merges, 'iteration')} of several instances together")
    if found.loans:
        notes.append(f"{_counted(found.loans, 'time')} a request borrowed room of other instances")
    if found.loads:
        notes.append(f"{_counted(found.loads, 'adapter')} loaded from host memory")
    if metrics.refused:
        notes.append(f"{_counted(metrics.refused, 'request')} refused: longer than the cache of one rank")
    if report.dropped:
        more = len(report.dropped) - _DROPPED
        rows = "; ".join(report.dropped[:_DROPPED]) + (f"; and {more:,} more" if more > 0 else "")
        notes.append(f"{_counted(len(report.dropped), 'row')} of the trace not used: {rows}")
    notes += [f"assumed: {text}" for text in report.assumed]
    return [blank(), Line(text="Notes", strong=True), *(Line(text=f"- {text}", indent=2, hang=2) for text in notes)]


def _quantiles_dict(values: Quantiles) -> dict[str, float | None]:
    return {f"{name}_s": (value if math.isfinite(value) else None) for name, value in vars(values).items()}


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


def serving_as_dict(report: ServingReport) -> dict[str, Any]:
    """The report under stable keys, SI numbers."""
    metrics, found = report.metrics, report.replay
    last = int(found.span_s / found.series_s) + 1
    return {
        "model": report.model.name,
        "cluster": report.cluster.name,
        "deployments": [deployment_as_dict(one) for one in report.deployments],
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
        "iterations": found.iterations,
        "span_s": found.span_s,
        "power_w": report.power_w,
        "energy_j": report.energy_j,
        "usd_per_h": report.usd_per_h,
        "usd_per_million_output_tokens": report.usd_per_million_output_tokens,
        "decode_parts_s": dict(report.decode_parts),
        "prefill_parts_s": dict(report.prefill_parts),
        "capacities": [vars(held) for held in report.capacities],
        "series_s": found.series_s,
        "series": [[float(cell) for cell in row] for row in found.series[:last]],
        "rungs": dict(report.rungs),
        "evidence": report.evidence.label,
        "assumed": list(report.assumed),
    }


def deployment_as_dict(one: Deployment) -> dict[str, Any]:
    """A deployment under stable keys."""
    return {name: getattr(value, "value", value) for name, value in vars(one).items()}
