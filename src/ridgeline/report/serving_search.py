"""The report of a search over deployments: the best first, what each costs, why others were not possible."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ridgeline.plan.deployment import Deployment
from ridgeline.report.blocks import Block, Line, Table, blank
from ridgeline.report.deployments import deployment_as_dict, deployment_text, objective_text
from ridgeline.report.evidence import Known
from ridgeline.report.serving_steps import steps_as_dict, steps_known, steps_what_if
from ridgeline.report.text import money_text
from ridgeline.report.what_if import Sensitivity
from ridgeline.serving.metrics import ATTAINED, Metrics, Objective
from ridgeline.units import time_text


class Ranked(Protocol):
    """A deployment that was replayed."""

    @property
    def deployments(self) -> tuple[Deployment, ...]:
        """Its instances, or its pools."""

    @property
    def metrics(self) -> Metrics:
        """What users saw."""

    @property
    def devices(self) -> int:
        """Devices that it takes [1]."""

    @property
    def usd_per_h(self) -> float | None:
        """Their price [USD/h]."""

    @property
    def known(self) -> tuple[tuple[Known, ...], ...]:
        """How well its decode step and its prompt are known; empty of those that are not the best."""

    @property
    def what_if(self) -> tuple[tuple[Sensitivity, ...], ...]:
        """What would change both."""

    @property
    def good_rps(self) -> float:
        """Requests that keep to the objective [1/s]."""

    @property
    def good_per_usd(self) -> float | None:
        """The same for a dollar [1/USD]."""


def fleet_text(found: Ranked) -> str:
    """A fleet in one line."""
    return "; ".join(deployment_text(one) + _limits(one) for one in found.deployments)


def _limits(one: Deployment) -> str:
    words = [f"budget {one.token_budget}"] if one.token_budget else []
    words += [f"batch {one.max_seqs}"] if one.max_seqs else []
    return f" {', '.join(words)}" if words else ""


def search_table(ranked: Sequence[Ranked]) -> Table:
    """The best deployments, one a row."""
    rows: list[tuple[str, ...]] = []
    for place, one in enumerate(ranked, start=1):
        metrics = one.metrics
        kept = "-" if metrics.attained is None else f"{metrics.attained:.1%}"
        dollars = "-" if one.good_per_usd is None else f"{one.good_per_usd:,.0f}"
        overloaded = " OVERLOADED" if metrics.overloaded else ""
        cells = (
            str(one.devices), f"{one.good_rps:.3g}", dollars, kept, _cell(metrics.ttft.p99), _cell(metrics.tpot.p99),
        )  # fmt: skip
        if rows and rows[-1][1:-1] == cells:  # comes out as the one above
            first, shown = rows[-1][0].partition("-")[0], rows[-1][-1]
            rows[-1] = (f"{first}-{place}", *cells, f"{shown}, or {fleet_text(one)}{overloaded}")
        else:
            rows.append((str(place), *cells, fleet_text(one) + overloaded))
    columns = ("#", "devices", "good/s", "per $", "kept", "TTFT p99", "TPOT p99", "deployment")
    return Table(columns=columns, rows=tuple(rows), right=frozenset(columns[:-1]))


def search_text(
    title: str,
    ranked: Sequence[Ranked],
    fewest: Ranked | None,
    *,
    considered: int,
    pruned: Mapping[str, int],
    refused: Mapping[str, int],
    assumed: Sequence[str],
    missed: str = "",
) -> list[Block]:
    """A search in words and tables; `missed` says that nothing keeps to the objective."""
    best = ranked[0]
    blocks: list[Block] = [Line(text=title, hang=2), blank()]
    rows = [("best", fleet_text(best)), ("goodput", _goodput(best)), *_seen(best)]
    if missed:
        rows.insert(0, ("objective", f"NOT KEPT: {missed}"))
    if fewest is not None:
        rows.append(("fewest devices", f"{fewest.devices}: {fleet_text(fewest)}, {fewest.metrics.attained:.1%} kept"))
    rows += [("" if place else "evidence", text) for place, text in enumerate(steps_known(best.known))]
    width = max(len(name) for name, _ in rows) + 2
    blocks += [Line(text=f"{name:<{width}}{text}", indent=2, hang=width) for name, text in rows]
    blocks += [blank(), Line(text="Best deployments", strong=True), search_table(ranked)]
    blocks += [*steps_what_if(best.what_if), blank()]
    blocks.append(Line(text=f"{considered:,} deployments replayed with their queues", indent=2))
    blocks += [Line(text=f"- {count:,} of them {reason}", indent=2, hang=2) for reason, count in pruned.items()]
    blocks += [Line(text=f"- {count:,} not possible: {reason}", indent=2, hang=2) for reason, count in refused.items()]
    blocks += [Line(text=f"- assumed: {text}", indent=2, hang=2) for text in assumed]
    return blocks


def missed_text(best: Ranked, objective: Objective, attainable: Mapping[str, Ranked]) -> str:
    """That nothing keeps to an objective, how near each of its bounds can be come to and by which deployment."""
    names = {"ttft_s": "TTFT", "tpot_s": "TPOT", "latency_s": "latency"}
    nearest = ", ".join(
        f"{names[name]} {_cell(getattr(one.metrics, name.removesuffix('_s')).p99)} by {fleet_text(one)}"
        for name, one in attainable.items()
    )
    return (
        f"no deployment keeps {ATTAINED:.0%} of requests to {objective_text(objective)}, the best keeps"
        f" {best.metrics.attained:.1%}; the least of the slowest 1 %: {nearest}; take more devices, narrower"
        " weights and caches (--quantize), or a wider objective (--slo)"
    )


def _seen(best: Ranked) -> list[tuple[str, str]]:
    """What users of the best see, and what a token costs."""
    metrics = best.metrics
    kinds = (("TTFT", metrics.ttft), ("TPOT", metrics.tpot))
    rows = [(name, f"{_cell(each.p50)} median, {_cell(each.p99)} of the slowest 1 %") for name, each in kinds]
    rate = metrics.output_tokens_per_s
    tokens = (
        f"{metrics.requests_per_s:.3g} requests/s, {rate:,.0f} output tokens/s ({rate / best.devices:,.0f} per device)"
    )
    rows.append(("throughput", tokens))
    if best.usd_per_h and rate:
        each = best.usd_per_h / 3600.0 / rate * 1e6
        rows.append(("cost", f"{money_text(each)} per million output tokens at {money_text(best.usd_per_h)} an hour"))
    if best.usd_per_h is None:
        rows.append(("cost", "no price is known of these devices; a cluster file may give its own (`price`)"))
    return rows


def _goodput(best: Ranked) -> str:
    dollars = "" if best.good_per_usd is None else f", {best.good_per_usd:,.0f} for a dollar"
    price = f" ({money_text(1e6 / best.good_per_usd)} per million requests)" if best.good_per_usd else ""
    kept = "" if best.metrics.attained is None else f"; {best.metrics.attained:.1%} of requests keep to the objective"
    return f"{best.good_rps:.3g} requests/s, {best.good_rps / best.devices:.3g} per device{dollars}{price}{kept}"


def _cell(value_s: float) -> str:
    return time_text(value_s) if math.isfinite(value_s) else "-"


def ranked_as_dict(one: Ranked) -> dict[str, Any]:
    """A replayed deployment under stable keys."""
    metrics = one.metrics

    def plain(values: object) -> dict[str, float | None]:
        return {f"{name}_s": (value if math.isfinite(value) else None) for name, value in vars(values).items()}

    return {
        "deployments": [deployment_as_dict(each) for each in one.deployments],
        "devices": one.devices,
        "goodput_rps": one.good_rps,
        "goodput_per_usd": one.good_per_usd,
        "attained": metrics.attained,
        "overloaded": metrics.overloaded or None,
        "ttft": plain(metrics.ttft),
        "tpot": plain(metrics.tpot),
        "latency": plain(metrics.latency),
        "output_tokens_per_s": metrics.output_tokens_per_s,
        **(steps_as_dict(one.known, one.what_if) if one.known else {}),
    }


class Mixed(Protocol):
    """One line of a rented fleet."""

    @property
    def option(self) -> str:
        """Its name."""

    @property
    def rented(self) -> int:
        """Instances [1]."""

    @property
    def load(self) -> float:
        """Load on them in full instances [1]."""

    @property
    def cost_usd_per_hour(self) -> float:
        """Their price [USD/h]."""


def mix_text(counts: Mapping[str, int]) -> str:
    """A mix in words."""
    return ", ".join(f"{count} x {name}" for name, count in counts.items())


def rent_text(
    title: str,
    rented: Sequence[Mixed],
    *,
    cost_usd_per_hour: float,
    gap: float,
    headroom: float,
    deployments: Mapping[str, Deployment],
    refused: Mapping[str, str],
    assumed: Sequence[str],
    attained: float | None = None,
    missed: Sequence[tuple[str, float, float]] = (),
) -> list[Block]:
    """A rented fleet in words and tables; `attained` in its replay, `missed` are cheaper mixes whose replay did not."""
    mixes = mix_text({one.option: one.rented for one in rented if one.rented})
    proof = "no mix costs less" if gap <= 0 else f"no mix costs more than {gap:.1%} less"
    rows = [
        ("rent", mixes),
        ("price", f"{money_text(cost_usd_per_hour)} an hour; at these rates {proof}"),
        ("replay", "not overloaded" if attained is None else f"{attained:.1%} of requests keep to the objective"),
        ("headroom", f"the same mix of requests may grow {headroom:.2f} times on it"),
    ]
    width = max(len(name) for name, _ in rows) + 2
    blocks: list[Block] = [Line(text=title, hang=2), blank()]
    blocks += [Line(text=f"{name:<{width}}{text}", indent=2, hang=width) for name, text in rows]
    table = tuple(
        (
            str(one.rented), one.option, deployment_text(deployments[one.option]), f"{one.load / one.rented:.0%}",
            money_text(one.cost_usd_per_hour),
        )
        for one in rented
        if one.rented
    )  # fmt: skip
    columns = ("instances", "of", "each", "filled to", "an hour")
    numbers = frozenset({"instances", "filled to", "an hour"})
    blocks += [blank(), Table(columns=columns, rows=table, right=numbers), blank()]
    blocks += [
        Line(
            text=f"- {mix} at {money_text(usd)} an hour would do by the sum, its replay keeps {share:.1%}",
            indent=2,
            hang=2,
        )
        for mix, usd, share in missed
    ]
    blocks += [Line(text=f"- left out {name}: {reason}", indent=2, hang=2) for name, reason in refused.items()]
    blocks += [Line(text=f"- assumed: {text}", indent=2, hang=2) for text in assumed]
    return blocks
