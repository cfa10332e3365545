"""Charts of a search: throughput against latency, memory, dollars and joules; what is dominated is grey."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from ridgeline.pages.charts import Charts
from ridgeline.pages.curves import Point, Side, Told, fronted, scattered
from ridgeline.pages.drawing import Figure
from ridgeline.pages.training import charts as plan_charts
from ridgeline.report.report import Report, SearchReport
from ridgeline.report.serving_search import Candidate, ServingSearch, fleet_text
from ridgeline.report.text import energy_text, money_text, plan_text
from ridgeline.units import time_text

_J_PER_WH = 3600.0
_T = TypeVar("_T")
Value = Callable[[_T], float | None]


def _plain(value: float) -> str:
    return f"{value:g}"


def _peak_gib(one: Report) -> float:
    return max(stage.total_bytes for stage in one.memory) / 2.0**30


def _count(value: float) -> str:
    return f"{value:,.0f}" if value >= 1e3 or value == 0 else f"{value:.3g}"


def of_plans(found: SearchReport) -> Charts:
    """Charts of `plan`: fronts of the plans that are shown, then those of the best."""
    best = found.best

    def front(name: str, title: str, side: Side, value: Value[Report]) -> Callable[[], Figure | None]:
        rate = Side(title=f"{best[0].counts}/s", told=_count, scale="near")
        return lambda: _front(name, title, best, (lambda one: one.counts_per_s, value), (rate, side), _plan)

    memory = Side(title="peak memory of a device [GiB]", told=_plain, scale="near")
    return {
        "front": front(
            "front", "Throughput and memory", memory, _peak_gib
        ),
        "joules": front(
            "joules", "Throughput and energy", Side(title="energy of a step [Wh]", told=_plain, scale="near"),
            lambda one: one.energy_j_per_step / _J_PER_WH,
        ),
        "dollars": front(
            "dollars", "Throughput and cost", Side(title="cost of a step", told=money_text, scale="near"),
            lambda one: one.usd_per_step,
        ),
        **plan_charts(best[0]),
    }  # fmt: skip


def of_deployments(found: ServingSearch) -> Charts:
    """Charts of `plan --serve`: fronts of the deployments that are shown."""

    def front(name: str, title: str, side: tuple[str, Told], value: Value[Candidate]) -> Callable[[], Figure | None]:
        rate = Side(title="requests/s of a device that keep to the objective", told=_plain, scale="near")
        sides = rate, Side(title=side[0], told=side[1], scale="near")
        return lambda: _front(name, title, found.ranked, (lambda one: one.good_rps / one.devices, value), sides, _fleet)

    return {
        "front": front("front", "Goodput and TPOT", ("TPOT p99", time_text), lambda one: one.metrics.tpot.p99),
        "ttft": front("ttft", "Goodput and TTFT", ("TTFT p99", time_text), lambda one: one.metrics.ttft.p99),
        "dollars": front("dollars", "Goodput and cost", ("price of an hour", money_text), lambda one: one.usd_per_h),
        "joules": front(
            "joules", "Goodput and energy", ("energy of a token", energy_text), lambda one: one.energy_j_per_token
        ),
    }


def _plan(one: Report) -> str:
    step = one.step_time
    return (
        f"{plan_text(one.plan)}\n{_count(one.counts_per_s)} {one.counts}/s, step {time_text(step.value)}"
        f" (80 % interval {time_text(step.low)} to {time_text(step.high)})\nevidence: {step.evidence.label}"
    )


def _fleet(one: Candidate) -> str:
    ends = f"TTFT p99 {time_text(one.metrics.ttft.p99)}, TPOT p99 {time_text(one.metrics.tpot.p99)}"
    return f"{fleet_text(one)}\n{one.good_rps:.3g} good requests/s; {ends}"


def _front(
    name: str,
    title: str,
    found: Sequence[_T],
    values: tuple[Value[_T], Value[_T]],
    sides: tuple[Side, Side],
    told: Callable[[_T], str],
) -> Figure | None:
    """Candidates by two values, more of the first and less of the second being better; None where one is not known."""
    points = list[Point]()
    for place, one in enumerate(found, start=1):
        x, y = values[0](one), values[1](one)
        if x is not None and y is not None and x == x and y == y:  # not NaN
            same = any((x, y) == (other.x, other.y) for other in points)
            points.append(Point(x=x, y=y, tip=f"#{place}: {told(one)}", label="" if same else f"#{place}"))
    if len(points) < 2:
        return None
    note = f"The {len(points)} best by the search's own aim (--top shows more); grey: another is better in both."
    return scattered(name, title, fronted(points), sides, note=note)
