"""The report of a batch whose weights devices do not hold: times, where weights lie, what each side takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ridgeline.facts.records import Evidence
from ridgeline.report.blocks import Block, Line, Table, blank, plain
from ridgeline.report.deployments import counted
from ridgeline.report.html import html
from ridgeline.report.text import money_text
from ridgeline.units import bytes_text, time_text

_SIDES = {
    "device": "kernels of devices and their launches",
    "host": "products and copies of processors",
    "link": "bytes over the host link",
    "sync": "calls and small copies between both",
    "disk": "reads from disk",
}


@dataclass(frozen=True, kw_only=True)
class Spent:
    """One time [s] with the ends of its 80 % interval and what it is spent on; `total` counts what overlaps once."""

    total: float
    low: float
    high: float
    parts: Mapping[str, float]

    def times(self, factor: float) -> Spent:
        """The same, `factor` times over."""
        parts = {name: factor * value for name, value in self.parts.items()}
        return Spent(total=factor * self.total, low=factor * self.low, high=factor * self.high, parts=parts)

    def __add__(self, other: Spent) -> Spent:
        """One after the other; both are late alike."""
        parts = {name: value + other.parts[name] for name, value in self.parts.items()}
        low, high = self.low + other.low, self.high + other.high
        return Spent(total=self.total + other.total, low=low, high=high, parts=parts)


@dataclass(frozen=True, kw_only=True)
class OffloadReport:
    """One static batch with weights in host memory or on disk.

    `first` is the time of all prompts, `step` that of one token of every sequence at the mean context [s]. `share` [1]
    of `unit` (experts, layers, neurons or weights) lies on devices; `device_bytes` and `host_bytes` [byte] are weights.
    `placement` says where cache and activations lie too, where that is modelled.
    """

    model: str
    cluster: str
    technique: str
    engine: str
    processors: str
    unit: str
    share: float
    device_bytes: float
    host_bytes: float
    batch: int
    prompt_tokens: int
    output_tokens: int
    first: Spent
    step: Spent
    usd_per_h: float | None
    rungs: Mapping[str, str]
    evidence: Evidence
    assumed: tuple[str, ...]
    placement: str = ""

    @property
    def latency(self) -> Spent:
        """From the prompts to the last token [s]: the first token comes with the prompts."""
        return self.first + self.step.times(self.output_tokens - 1)

    @property
    def output_tokens_per_s(self) -> float:
        """Generated tokens over the whole batch's time [token/s]."""
        return self.batch * self.output_tokens / self.latency.total

    @property
    def usd_per_million_output_tokens(self) -> float | None:
        """Price of a million generated tokens [USD]; None without a price."""
        return None if self.usd_per_h is None else self.usd_per_h / 3600.0 / self.output_tokens_per_s * 1e6

    def __str__(self) -> str:
        """What `ridgeline predict --serve --offload` prints."""
        return plain(offload_blocks(self))

    def _repr_html_(self) -> str:
        return html(offload_blocks(self))


def _interval(spent: Spent) -> str:
    return f"{time_text(spent.total)} (80 % interval {time_text(spent.low)} to {time_text(spent.high)})"


def _limit(report: OffloadReport) -> str:
    """The side that each phase spends most on."""
    said = []
    for name, spent in (("decode", report.step), ("prompts", report.first)):
        side = max(spent.parts, key=lambda part: spent.parts[part])
        said.append(f"{name}: {_SIDES[side]} {spent.parts[side] / (sum(spent.parts.values()) or 1.0):.0%}")
    return "; ".join(said)


def offload_blocks(report: OffloadReport) -> list[Block]:
    """The report in words and tables."""
    title = (
        f"{report.model} on {report.cluster}: {counted(report.batch, 'sequence')} of {report.prompt_tokens:,} prompt"
        f" and {report.output_tokens:,} answer tokens, {report.technique}"
    )
    latency, rate = report.latency, report.batch * report.output_tokens
    fewest, most = (f"{rate / end:,.3g}" for end in (latency.high, latency.low))
    held = (
        f"{report.share:.1%} of the {report.unit} on devices: {bytes_text(report.device_bytes)} of weights a device;"
        f" {bytes_text(report.host_bytes)} elsewhere"
    )
    if not report.device_bytes:
        held = f"{bytes_text(report.host_bytes)}, none of it on a device"
    rows = [("engine", report.engine), ("processors", report.processors or "none takes part"), ("weights", held)]
    rows += [("placement", report.placement)] if report.placement else []
    rows += [("TTFT", _interval(report.first)), ("TPOT", _interval(report.step)), ("latency", _interval(latency))]
    rows.append(
        ("throughput", f"{report.output_tokens_per_s:,.3g} output tokens/s (80 % interval {fewest} to {most});"
         f" {report.batch / report.step.total:,.3g} while decoding")
    )  # fmt: skip
    price = report.usd_per_million_output_tokens
    if price is not None and report.usd_per_h is not None:
        rows.append(
            ("cost", f"{money_text(price)} per million output tokens at {money_text(report.usd_per_h)} an hour")
        )
    rows.append(("limited by", _limit(report)))
    worst = ", ".join(f"{family} {rung}" for family, rung in report.rungs.items())
    rows.append(("evidence", f"{report.evidence.label}{f'; kernels: {worst}' if worst else ''}"))
    width = max(len(name) for name, _ in rows) + 2
    blocks: list[Block] = [Line(text=title, hang=2, strong=True), blank()]
    blocks += [Line(text=f"{name:<{width}}{text}", indent=2, hang=width) for name, text in rows]
    blocks += [blank(), Line(text="Where the time goes", strong=True), _parts(report)]
    if report.assumed:
        blocks += [blank(), Line(text="Notes", strong=True)]
        blocks += [Line(text=f"- assumed: {text}", indent=2, hang=2) for text in report.assumed]
    return blocks


def _parts(report: OffloadReport) -> Table:
    """Seconds of each side; their sum is more than the total where sides run side by side."""
    spent = (report.first, report.step)
    rows = [
        (text, *(time_text(one.parts[side]) if one.parts[side] > 0 else "-" for one in spent))
        for side, text in _SIDES.items()
        if any(one.parts[side] > 0 for one in spent)
    ]
    rows.append(("all, with what overlaps", *(time_text(one.total) for one in spent)))
    columns = ("side", "all prompts", "one step")
    return Table(columns=columns, rows=tuple(rows), right=frozenset(columns[1:]))


def _spent_dict(spent: Spent) -> dict[str, Any]:
    return {"value": spent.total, "low": spent.low, "high": spent.high, "parts_s": dict(spent.parts)}


def offload_as_dict(report: OffloadReport) -> dict[str, Any]:
    """The report under stable keys, SI numbers."""
    names = ("model", "cluster", "technique", "engine", "processors", "unit", "share", "device_bytes", "host_bytes")
    more = ("batch", "prompt_tokens", "output_tokens")
    return {
        **{name: getattr(report, name) for name in (*names, *more)},
        "ttft_s": _spent_dict(report.first),
        "tpot_s": _spent_dict(report.step),
        "latency_s": _spent_dict(report.latency),
        "output_tokens_per_s": report.output_tokens_per_s,
        "usd_per_h": report.usd_per_h,
        "usd_per_million_output_tokens": report.usd_per_million_output_tokens,
        "rungs": dict(report.rungs),
        "evidence": report.evidence.label,
        "assumed": list(report.assumed),
        "placement": report.placement,
    }
