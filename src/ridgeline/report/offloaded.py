"""Reports of weights that devices do not hold: one batch, with what each side takes, and FlexGen's best policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ridgeline.facts.records import Evidence
from ridgeline.report.as_json import picked
from ridgeline.report.blocks import Block, Line, Printed, Table, blank, labelled, listed
from ridgeline.report.deployments import counted
from ridgeline.report.text import cost_text
from ridgeline.units import bytes_text, rate_text, time_text

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
class OffloadReport(Printed):
    """One static batch with weights in host memory or on disk.

    `first` is the time of all prompts, `step` that of one token of every sequence at the mean context [s]. `share` [1]
    of `unit` (experts, layers, neurons or weights) lies on devices; `device_bytes` and `host_bytes` [byte] are weights.
    `placement` says where cache and activations lie too, where that is modelled; `peak_bytes` [byte] is what the memory
    of the fullest host holds of all that where weights come through it, 0 elsewhere.
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
    peak_bytes: float = 0.0

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

    def blocks(self) -> list[Block]:
        """What `ridgeline predict --serve --offload` prints."""
        return offload_blocks(self)


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
        f" and {report.output_tokens:,} output tokens, {report.technique}"
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
    if report.usd_per_h is not None:
        rows.append(("cost", cost_text(report.usd_per_h, report.output_tokens_per_s)))
    rows.append(("limited by", _limit(report)))
    worst = ", ".join(f"{family} {rung}" for family, rung in report.rungs.items())
    rows.append(("evidence", f"{report.evidence.label}{f'; kernels: {worst}' if worst else ''}"))
    blocks: list[Block] = [Line(text=title, hang=2, strong=True), blank(), *labelled(rows)]
    blocks += [blank(), Line(text="Where the time goes", strong=True), _parts(report)]
    if report.assumed:
        blocks += [blank(), Line(text="Notes", strong=True)]
        blocks += listed(f"assumed: {text}" for text in report.assumed)
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
    rates = ("output_tokens_per_s", "usd_per_h", "usd_per_million_output_tokens")
    return {
        **picked(report, *names, "batch", "prompt_tokens", "output_tokens"),
        "ttft_s": _spent_dict(report.first),
        "tpot_s": _spent_dict(report.step),
        "latency_s": _spent_dict(report.latency),
        **picked(report, *rates, "rungs", "evidence", "assumed", "placement", "peak_bytes"),
    }


TIERS = ("device", "host memory", "disk")


@dataclass(frozen=True, kw_only=True)
class PolicyReport(Printed):
    """Where streamed weights, cache and activations lie for the least time a token.

    `shares` [1] of each kind, `peak_bytes` and `usable_bytes` [byte] are on device, in host memory and on disk.
    `gpu_batches` of `gpu_batch` sequences [1] share one fetch of the weights; `gap` [1] is how far the time can be from
    what no policy can beat; `tried` were replayed [1]. `low` and `high` are the ends of the 80 % interval of
    `tokens_per_s` [1/s], `prefill` and `decode` how long each side is busy [s]. `rates` [byte/s, FLOP/s] are those that
    it was found with, of kernels, links and processors.
    """

    title: str
    tokens_per_s: float
    low: float
    high: float
    prefill_s: float
    decode_s: float
    prefill: Mapping[str, float]
    decode: Mapping[str, float]
    gap: float
    tried: int
    gpu_batch: int
    gpu_batches: int
    cpu_attention: bool
    shares: Mapping[str, tuple[float, ...]]
    peak_bytes: tuple[float, ...]
    usable_bytes: tuple[float, ...]
    rates: Mapping[str, float]
    usd_per_h: float | None
    assumed: tuple[str, ...]

    def blocks(self) -> list[Block]:
        """What `ridgeline plan --serve --offload streamed` prints."""
        return policy_blocks(self)


def policy_blocks(report: PolicyReport) -> list[Block]:
    """The report in words and tables."""
    block = report.gpu_batch * report.gpu_batches
    where = "processors, where the cache lies in host memory" if report.cpu_attention else "the device"
    link, products = report.rates["cpu_to_gpu_bytes_per_s"], report.rates["matmul_prefill_flop_per_s"]
    ends = f"80 % interval {report.low:.4g} to {report.high:.4g}"
    rows = [
        ("throughput", f"{report.tokens_per_s:.4g} output tokens/s ({ends}), prompts included"),
        ("block", f"{block:,} sequences share a fetch of the weights: {report.gpu_batches:,} of {report.gpu_batch:,}"),
        ("attention", f"of decoding sequences by {where}"),
        ("time", f"{time_text(report.prefill_s)} for a block's prompts, {time_text(report.decode_s)} for its outputs"),
        ("busy", f"in prompts {_sides(report.prefill)}; in outputs {_sides(report.decode)}"),
        (
            "search",
            "no block is sooner at these rates"
            if report.gap <= 1e-9
            else f"no block can be more than {report.gap:.1%} sooner at these rates, by {report.tried:,} replayed",
        ),
        ("rates", f"host link {rate_text(link, 'B/s')}, products {rate_text(products, 'FLOP/s')}"),
    ]
    if report.usd_per_h is not None:
        rows.append(("cost", cost_text(report.usd_per_h, report.tokens_per_s)))
    blocks: list[Block] = [Line(text=report.title, hang=2, strong=True), blank(), *labelled(rows)]
    cells = tuple(
        (
            tier,
            *(f"{shares[place]:.1%}" for shares in report.shares.values()),
            bytes_text(report.peak_bytes[place]),
            bytes_text(report.usable_bytes[place]),
        )
        for place, tier in enumerate(TIERS)
    )
    columns = ("on", *report.shares, "peak", "holds")
    table = Table(columns=columns, rows=cells, right=frozenset(columns[1:]))
    blocks += [blank(), Line(text="Where everything lies", strong=True), table]
    return [*blocks, blank(), *listed(f"assumed: {text}" for text in report.assumed)]


def _sides(spent: Mapping[str, float]) -> str:
    """The sides that are busy at all."""
    return ", ".join(f"{name} {time_text(seconds)}" for name, seconds in spent.items() if seconds > 0)


def policy_as_dict(report: PolicyReport) -> dict[str, Any]:
    """The report under stable keys, SI numbers."""
    kept = {name: dict(getattr(report, name)) for name in ("shares", "rates", "prefill", "decode")}
    return {**vars(report), **kept}
