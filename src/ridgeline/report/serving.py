"""The report of a replay, its words and tables: the answer first, then what limits it and what it rests on."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ridgeline.cost.answer import Rung, worst
from ridgeline.facts.records import Cluster, Evidence
from ridgeline.facts.transfer import joined, run_spread
from ridgeline.graph.model import Model
from ridgeline.plan.deployment import Deployment
from ridgeline.report.blocks import Block, Line, Printed, Table, blank, labelled, listed, record_table
from ridgeline.report.deployments import counted, deployment_text, techniques_told
from ridgeline.report.evidence import Known, Sensitivity, steps_known, steps_what_if
from ridgeline.report.serving_groups import FixedFleet, GroupUse, fixed_rows, groups_table, sessions_blocks
from ridgeline.report.text import carbon_text, cost_text, energy_text, grid_text, latency_text, no_price
from ridgeline.seams.serving import Partition, Queue, all_devices, of, step_tokens
from ridgeline.seams.setting import Summary
from ridgeline.serving.capacity import Capacity
from ridgeline.serving.ends import bound_by_times
from ridgeline.serving.metrics import Band, Metrics
from ridgeline.serving.objective import Objective, objective_text
from ridgeline.serving.replay import Replay
from ridgeline.serving.sampling import RequestShare, SamplingBands, widened, widened_share
from ridgeline.serving.sessions import SessionUse
from ridgeline.units import bytes_text, rate_text, time_text

_SERIES_ROWS = 12  # stretches of time shown
_BAR = 24  # columns
_DROPPED = 5  # rows of a trace that are named one by one
_SHOWN = 8  # clients or priorities of the table
_FULL = 0.95  # of the blocks in use: hardly a request's worth is left
_TOLD = 0.15  # of TPOT that is no decode step, from which it is told; waiting takes more than half of TTFT


@dataclass(frozen=True, kw_only=True)
class ServingReport(Printed):
    """What a deployment does under traffic.

    `ends` are the metrics when every time of a pool is at the low and at the high end of its interval, pool by pool.
    `decode_parts` and `prefill_parts` say what an iteration at the mean batch is made of [s]; `queue_share` is the part
    of TTFT that is not the prompt's own iteration [1]. `usd_per_h` is None without a price.
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
    carbon_kg: float | None
    usd_per_h: float | None
    evidence: Evidence
    known: tuple[tuple[Known, ...], ...]  # of a decode step and of a prompt: each part's rung, and what hangs on it
    what_if: tuple[tuple[Sensitivity, ...], ...]  # of a decode step and of a prompt
    rungs: Mapping[str, str]
    assumed: tuple[str, ...]
    seconds: float
    sampled: SamplingBands | None = None  # how far they may be from endless traffic of the kind
    shares: tuple[RequestShare, ...] = ()  # by client where the queue is fair, by priority where that displaces
    groups: tuple[GroupUse, ...] = ()  # of a fleet on devices of unlike kinds
    sessions: SessionUse | None = None  # of turns that wait for each other
    fixed: FixedFleet | None = None  # beside one that is scaled

    @property
    def devices(self) -> int:
        """Devices that serve [1]."""
        return sum(all_devices(one) for one in self.deployments)

    @property
    def idle_devices(self) -> int:
        """Devices of the cluster that no instance runs on [1]."""
        beside = 0 if self.cluster.secondary is None else self.cluster.secondary.cluster.count
        return self.cluster.count + beside - self.devices

    @property
    def instances_up(self) -> float:
        """Instances that are up, on average over the replay [1]."""
        found = self.replay
        return float(found.up_s.sum()) / found.span_s if found.span_s > 0 else float(len(found.up_s))

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

    def intervals(self) -> dict[str, tuple[float, float]]:
        """80 % intervals, of times, whole runs and the draw of the requests: latencies [s], rates [1/s], shares [1]."""
        found, drawn, rung = {}, self.sampled, worst([Rung(one) for one in self.rungs.values()]).value
        lasts = [one.latency.mean for one in (self.metrics, *self.ends)]
        runs = {kind: run_spread("first token" if kind == "ttft" else "serving step", rung) for kind in _LATENCIES}
        for kind in _LATENCIES:
            for name, value in vars(getattr(self.metrics, kind)).items():
                ends = [getattr(getattr(end, kind), name) for end in self.ends]
                half = 0.0 if drawn is None else getattr(getattr(drawn, kind), name)
                found[f"{kind}_{name}_s"] = widened(
                    value, joined(value, [*ends, *(value * end for end in runs[kind])]), half
                )
        for name in ("requests_per_s", "output_tokens_per_s"):
            rates = [getattr(one, name) for one in (self.metrics, *self.ends)]
            half = 0.0 if drawn is None else getattr(drawn, name)
            beyond = runs["tpot"] if bound_by_times(rates, lasts) else (1.0, 1.0)
            least, most = joined(rates[0], [min(rates), max(rates), *(rates[0] / end for end in beyond)])
            found[name] = widened(rates[0], (least, most), half)
        shares = [one.attained for one in (self.metrics, *self.ends) if one.attained is not None]
        if shares:
            half = 0.0 if drawn is None else drawn.attained or 0.0
            found["attained"] = widened_share(shares[0], (min(shares), max(shares)), half)
        return found

    def blocks(self) -> list[Block]:
        """What `ridgeline simulate` prints."""
        return serving_blocks(self)


_LATENCIES = ("ttft", "tpot", "latency")


def _with_interval(report: ServingReport, kind: str) -> str:
    value = getattr(report.metrics, kind).p50
    if not math.isfinite(value):
        return "none measured"
    least, most = report.intervals()[f"{kind}_p50_s"]
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
        ("TTFT", _with_interval(report, "ttft")),
        ("TPOT", _with_interval(report, "tpot")),
        ("throughput", _throughput(report)),
    ]
    rows[1:1] = [("techniques", text) for text in techniques_told(report.deployments)]
    if report.idle_devices > 0:
        used = f"{report.idle_devices} devices have no instance; power and cost are of the {report.devices} others"
        rows.insert(1, ("idle", used))
    if metrics.attained is not None:
        rows.append(("goodput", _goodput(report)))
    if report.objective.percentiles or report.objective.least_goodput_rps is not None:
        rows.append(("objective", _objective(report)))
    rows += _costs(report)
    rows += fixed_rows(report.fixed, report.usd_per_h)
    rows.append(("limited by", limits(report)))
    rows += [("because", text) for text in because(report)]
    worst = ", ".join(f"{family} {rung}" for family, rung in report.rungs.items())
    rows += [("evidence", text) for text in (*steps_known(report.known), f"kernels: {worst}")]
    blocks += labelled(rows)
    blocks += [blank(), Line(text="Latency", strong=True), _latencies(metrics), blank()]
    fair = any(of(one, Queue).by_client for one in report.deployments)
    blocks += _shares(report.shares, "client" if fair else "priority")
    if report.groups:
        blocks += [Line(text="Groups", strong=True), groups_table(report.groups), blank()]
    blocks += sessions_blocks(report.sessions)
    blocks += [Line(text="Memory per device", strong=True), _memory(report), blank()]
    blocks += [Line(text="Over time", strong=True), _series(found), blank()]
    blocks += [Line(text="Where an iteration's time goes", strong=True), _parts(report)]
    blocks += [*steps_what_if(report.what_if), *_notes(report)]
    return blocks


def _title(report: ServingReport) -> str:
    asked, traffic = report.model, report.traffic
    rate = f", {traffic.rate_per_s:.3g} requests/s" if traffic.rate_per_s else ""
    return (
        f"{asked.name} on {report.cluster.name}: {report.traffic_name}, {counted(traffic.requests, 'request')}{rate},"
        f" prompts of {traffic.prompt.mean:,.0f} and outputs of {traffic.output.mean:,.0f} tokens on average"
    )


def _between(values: Sequence[str], after: str) -> str:
    """The ends of an interval, from values in order; nothing where they read alike, as where the load bounds a rate."""
    return "" if values[0] == values[-1] else f"80 % interval {values[0]} to {values[-1]}{after}"


def _throughput(report: ServingReport) -> str:
    metrics = report.metrics
    each = metrics.output_tokens_per_s / report.devices
    rates = report.intervals()["output_tokens_per_s"]
    return (
        f"{metrics.requests_per_s:.3g} requests/s, {metrics.output_tokens_per_s:,.0f} output tokens/s"
        f" ({_between([f'{rate:,.0f}' for rate in rates], '; ')}{each:,.0f} per device),"
        f" {metrics.total_tokens_per_s:,.0f} with prompts"
    )


def _goodput(report: ServingReport) -> str:
    between = _between([f"{share:.1%}" for share in report.intervals()["attained"]], "")
    each = replace(report.objective, percentiles=(), least_goodput_rps=None)
    kept = f"{report.metrics.goodput_rps:.3g} requests/s keep to {objective_text(each)}"
    return f"{kept}: {report.metrics.attained:.1%} of all{f' ({between})' if between else ''}"


def _objective(report: ServingReport) -> str:
    """What each percentile came to, and whether all of the objective is kept."""
    at = zip(report.objective.percentiles, report.metrics.at_percentiles, strict=True)
    told = [f"{one.text} {latency_text(value)} (at most {latency_text(one.most_s)})" for one, value in at]
    if report.objective.least_goodput_rps is not None:
        told.append(f"goodput at least {report.objective.least_goodput_rps:g}/s")
    return f"{'kept' if report.metrics.kept else 'MISSED'}: {', '.join(told)}"


def _costs(report: ServingReport) -> list[tuple[str, str]]:
    rows, tokens = [], report.metrics.output_tokens
    if report.power_w is not None and report.energy_j is not None:
        each = f", {report.energy_j / tokens:.3g} J a token" if tokens else ""
        rows.append(("power", f"{rate_text(report.power_w, 'W')} at the wall, {energy_text(report.energy_j)}{each}"))
    if report.carbon_kg is not None:
        each = f", {carbon_text(report.carbon_kg / tokens * 1e6)} per million output tokens" if tokens else ""
        rows.append(("carbon", f"{carbon_text(report.carbon_kg)}{each}, {grid_text(report.cluster)}"))
    kinds = [report.cluster.of_kind(one.kind) for one in report.deployments]
    if report.power_w is None:
        lacking = dict.fromkeys(one.accelerator.name for one in kinds if one.accelerator.tdp_w is None)
        rows.append(("power", f"no rated power is known of {', '.join(lacking)}"))
    if report.usd_per_h is None:
        lacking = dict.fromkeys(one.accelerator.name for one in kinds if one.price_usd_per_device_h is None)
        rows.append(("cost", no_price(", ".join(lacking) or report.cluster.name)))
    elif rate := report.metrics.output_tokens_per_s:
        good = report.goodput_per_usd if any(one.expert_kind for one in report.deployments) else None
        kept = "" if good is None else f", {good:,.0f} requests that keep to the objective for a dollar"
        rows.append(("cost", cost_text(report.usd_per_h, rate) + kept))
    return rows


def _latencies(metrics: Metrics) -> Table:
    kinds = (("TTFT", metrics.ttft), ("TPOT", metrics.tpot), ("ITL", metrics.itl), ("latency", metrics.latency))
    rows = tuple((name, *(_above_0(value) for value in (q.mean, q.p50, q.p90, q.p99))) for name, q in kinds)
    columns = ("", "mean", "p50", "p90", "p99")
    return Table(columns=columns, rows=rows, right=frozenset(columns[1:]))


def _above_0(value_s: float) -> str:
    return latency_text(value_s) if value_s > 0 else "-"


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
        begun = time_text(start * found.series_s) if start else "0 s"
        rows.append((begun, f"{running:,.0f}", f"{waiting:,.0f}", f"{share:.1%}", f"[{bar:<{_BAR}}]"))
    columns = ("from", "running", "waiting", "cache", "")
    return Table(columns=columns, rows=tuple(rows), right=frozenset(columns[:4]))


def _parts(report: ServingReport) -> Table:
    both = (report.decode_parts, report.prefill_parts)
    names = [name for name in dict.fromkeys((*both[0], *both[1])) if any(parts.get(name, 0.0) > 0 for parts in both)]
    rows = tuple((name, *(_above_0(parts.get(name, 0.0)) for parts in both)) for name in names)
    columns = ("part", "mean decode step", "mean prompt alone")
    return Table(columns=columns, rows=rows, right=frozenset(columns[1:]))


def _notes(report: ServingReport) -> list[Block]:
    metrics, found = report.metrics, report.replay
    notes = [
        f"{counted(found.iterations, 'iteration')} in {counted(found.runs, 'run')};"
        f" {counted(found.preemptions, 'preemption')}; {metrics.hit_share:.1%} of prompt tokens found in the cache"
    ]
    until = "in which requests come" if metrics.steady else "until the last token"
    drawn = (
        f"; intervals hold for the draw of {counted(report.sampled.requests, 'request')} too" if report.sampled else ""
    )
    notes.append(f"rates over the {time_text(metrics.window_s)} {until}{drawn}")
    if found.failures or found.starts:
        failed, begun = counted(found.failures, "failure"), counted(found.starts, "start")
        notes.append(f"{failed} and {begun} of instances; {report.instances_up:.2f} were up on average")
    for count, what, told in (
        (found.moves, "cache", "sent from prefill to decode instances"),
        (found.merges, "iteration", "of several instances together"),
        (found.loans, "time", "a request borrowed room of other instances"),
        (found.loads, "adapter", "loaded from host memory"),
        (metrics.refused, "request", "refused: longer than the cache of one rank"),
    ):
        notes += [f"{counted(count, what)} {told}"] if count else []
    if report.dropped:
        more = len(report.dropped) - _DROPPED
        rows = "; ".join(report.dropped[:_DROPPED]) + (f"; and {more:,} more" if more > 0 else "")
        notes.append(f"{counted(len(report.dropped), 'row')} of the trace not used: {rows}")
    notes += [f"assumed: {text}" for text in report.assumed]
    return [blank(), Line(text="Notes", strong=True), *listed(notes)]


def limits(report: ServingReport) -> str:
    """The longest part of a decode step and of a prompt's iteration, and the share of TTFT that is waiting."""

    def longest(parts: Mapping[str, float]) -> str:
        total = sum(parts.values()) or 1.0
        name = max(parts, key=lambda part: parts[part])
        return f"{name} {parts[name] / total:.0%}"

    queue = f", {report.queue_share:.0%} of TTFT is waiting" if report.queue_share >= 0.01 else ""
    return f"decode: {longest(report.decode_parts)}; prompts: {longest(report.prefill_parts)}{queue}"


def because(report: ServingReport) -> list[str]:
    """Why tokens take longer than a decode step, and what requests wait for; nothing where neither is so."""
    return [text for text in (_steps(report), _waits(report)) if text]


def _steps(report: ServingReport) -> str:
    """How much of TPOT is no decode step, where that is much of it."""
    one, step_s, tpot_s = report.deployments[-1], sum(report.decode_parts.values()), report.metrics.tpot.mean
    if step_tokens(one) > 1 or not math.isfinite(tpot_s) or tpot_s - step_s < _TOLD * tpot_s:
        return ""
    apart = of(one, Partition).applied or len(report.deployments) > 1
    other = "waits between steps" if apart else "prompts in the same iterations or between them"
    return f"a decode step takes {time_text(step_s)} of a mean TPOT of {time_text(tpot_s)}; the rest is {other}"


def _waits(report: ServingReport) -> str:
    """What requests wait for, where they wait for more than half of TTFT."""
    found = report.replay
    last = int(found.span_s / found.series_s) + 1
    used, waiting = found.series[:last, 0], found.series[:last, 1]
    if report.queue_share < 0.5 or not waiting.any() or len(report.deployments) > 1:
        return ""
    full = float(np.mean(used[waiting > 0] >= _FULL * found.capacity_blocks))
    if full >= 0.5:
        return f"requests wait for room in the cache, which is full in {full:.0%} of the time in which any wait"
    return "requests wait for their turn in an iteration, not for room in the cache"


def _shares(shares: Sequence[RequestShare], of: str) -> list[Block]:
    """A table of shares; nothing where there are none."""
    if not shares:
        return []
    cells: dict[str, Callable[[RequestShare], str]] = {
        of: lambda one: one.name, "requests": lambda one: f"{one.requests:,}", "ended": lambda one: f"{one.done:,}",
        "tokens in": lambda one: f"{one.prompt_tokens:,}", "tokens out": lambda one: f"{one.output_tokens:,}",
        "TTFT p50": lambda one: latency_text(one.ttft.p50), "TTFT p99": lambda one: latency_text(one.ttft.p99),
        "TPOT p99": lambda one: latency_text(one.tpot.p99),
    }  # fmt: skip
    more = [Line(text=f"and {len(shares) - _SHOWN:,} more (--json has all)", indent=2)] if len(shares) > _SHOWN else []
    return [Line(text=f"By {of}", strong=True), record_table(shares[:_SHOWN], cells, of), *more, blank()]
