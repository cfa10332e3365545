"""Charts of a replay: latencies, load over time, memory of an instance, what an iteration is made of."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from ridgeline.pages.bars import Bar, bars
from ridgeline.pages.charts import Charts
from ridgeline.pages.curves import Curve, Side, curved
from ridgeline.pages.drawing import HUES, Figure
from ridgeline.report.serving import ServingReport
from ridgeline.serving.metrics import latencies
from ridgeline.units import bytes_text, time_text

_KINDS = {"ttft": "TTFT", "tpot": "TPOT", "latency": "latency"}
_PLACES = 200  # of a curve


def charts(report: ServingReport) -> Charts:
    """Charts of `simulate`."""
    return {
        "latency": lambda: _quantiles(report),
        "distribution": lambda: _distribution(report),
        "load": lambda: _load(report),
        "cache": lambda: _cache(report),
        "memory": lambda: _memory(report),
        "iteration": lambda: _iteration(report),
    }


def _quantiles(report: ServingReport) -> Figure | None:
    """Median and slowest latencies, each with its interval; one scale a kind would hide, so all share one."""
    ends, rows = report.intervals(), []
    for place, (kind, name) in enumerate(_KINDS.items()):
        for quantile in ("p50", "p90", "p99"):
            value = getattr(getattr(report.metrics, kind), quantile)
            if kind != "latency" and math.isfinite(value) and value > 0:
                low, high = ends[f"{kind}_{quantile}_s"]
                told = f"{time_text(value)} ({time_text(low)} to {time_text(high)})"
                tip = f"{name} {quantile}: {told}, 80 % interval\nevidence: {report.evidence.label}"
                part = (value, HUES[place], tip)
                rows.append(Bar(name=f"{name} {quantile}", told=told, parts=(part,), interval=(low, high)))
    return bars("latency", "Latencies with 80 % intervals", rows) if rows else None


def _distribution(report: ServingReport) -> Figure | None:
    """The share of requests that each latency is kept to."""
    curves = []
    for place, (name, values) in enumerate(zip(_KINDS.values(), latencies(report.replay), strict=True)):
        known = np.sort(values[np.isfinite(values) & (values > 0)])
        rows = np.unique(np.linspace(0, len(known) - 1, min(len(known), _PLACES)).astype(int)) if len(known) else ()
        places = [(float(known[row]), (int(row) + 1) / len(known)) for row in rows]
        curves.append(Curve(name=name, places=places, colour=HUES[place]))
    sides = Side(title="at most", told=time_text, scale="log"), Side(title="share of requests", told=_percent)
    asked = ", ".join(
        f"{name.removesuffix('_s')} {time_text(bound)}" for name, bound in report.objective.bounds.items()
    )
    return curved("distribution", "Requests by latency", curves, sides, f"Objective: {asked}." if asked else "")


def _percent(share: float) -> str:
    return f"{share:.0%}"


def _series(report: ServingReport) -> tuple[list[float], NDArray[np.float64]]:
    """Times [s], and the most of blocks, waiting and running requests since the one before."""
    found = report.replay
    last = int(found.span_s / found.series_s) + 1
    each = max(1, -(-last // _PLACES))
    starts = range(0, last, each)
    most = [found.series[start : min(start + each, last)].max(axis=0) for start in starts]
    return [start * found.series_s for start in starts], np.array(most)


def _load(report: ServingReport) -> Figure | None:
    at, most = _series(report)
    curves = [
        Curve(name=name, places=list(zip(at, map(float, most[:, column]), strict=True)), colour=HUES[place])
        for place, (name, column) in enumerate({"running": 2, "waiting": 1}.items())
    ]
    sides = Side(title="time", told=time_text), Side(title="requests", told=lambda value: f"{value:,.0f}")
    return curved("load", "Requests over time", curves, sides)


def _cache(report: ServingReport) -> Figure | None:
    at, most = _series(report)
    shares = most[:, 0] / max(report.replay.capacity_blocks, 1)
    curve = Curve(name="blocks in use", places=list(zip(at, map(float, shares), strict=True)), colour=HUES[2])
    sides = Side(title="time", told=time_text), Side(title="share of the cache", told=_percent)
    return curved("cache", "KV cache over time", [curve], sides)


def _memory(report: ServingReport) -> Figure:
    rows, colours = [], dict(zip(("weights", "workspace", "context", "state", "cache"), HUES, strict=False))
    for one, held in zip(report.deployments, report.capacities, strict=True):
        sizes = {name: getattr(held, f"{name}_bytes") for name in colours}
        parts = tuple((size, colours[name], f"{name}: {bytes_text(size)}") for name, size in sizes.items() if size > 0)
        told = f"{bytes_text(sum(sizes.values()))} of {bytes_text(held.memory_bytes)}"
        rows.append(Bar(name=f"{one.role.value} instance", told=told, parts=parts))
    capacity = max(held.memory_bytes for held in report.capacities)
    legend = [(colour, name) for name, colour in colours.items()]
    return bars("memory", "Memory of a device", rows, mark=capacity, legend=legend, note="The line is the capacity.")


def _iteration(report: ServingReport) -> Figure | None:
    both = {"mean decode step": report.decode_parts, "mean prompt alone": report.prefill_parts}
    names = list(dict.fromkeys(each for parts in both.values() for each in parts))
    colours = {name: HUES[place % len(HUES)] for place, name in enumerate(names)}
    rows = list(_parts(both, colours))
    legend = [
        (colour, name) for name, colour in colours.items() if any(parts.get(name, 0) > 0 for parts in both.values())
    ]
    return bars("iteration", "Where an iteration's time goes", rows, legend=legend) if rows else None


def _parts(both: Mapping[str, Mapping[str, float]], colours: Mapping[str, str]) -> Iterator[Bar]:
    """Shares of an iteration's parts, a row for each kind of iteration."""
    for name, found in both.items():
        total = sum(found.values())
        if total > 0:
            parts = tuple(
                (seconds / total, colours[part], f"{name}, {part}: {time_text(seconds)}, {seconds / total:.0%}")
                for part, seconds in found.items()
                if seconds > 0
            )
            yield Bar(name=name, told=time_text(total), parts=parts)
