"""FlexGen's policy as a report: shares of every tier, the block, and how far it can be from the best."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ridgeline.report.blocks import Block, Line, Table, blank, plain
from ridgeline.report.html import html
from ridgeline.report.text import money_text
from ridgeline.units import bytes_text, rate_text, time_text

TIERS = ("device", "host memory", "disk")


@dataclass(frozen=True, kw_only=True)
class PolicyReport:
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

    def __str__(self) -> str:
        """What `ridgeline plan --serve --offload streamed` prints."""
        return plain(policy_blocks(self))

    def _repr_html_(self) -> str:
        return html(policy_blocks(self))


def policy_blocks(report: PolicyReport) -> list[Block]:
    """The report in words and tables."""
    block = report.gpu_batch * report.gpu_batches
    where = "processors, where the cache lies in host memory" if report.cpu_attention else "the device"
    link, products = report.rates["cpu_to_gpu_bytes_per_s"], report.rates["matmul_prefill_flop_per_s"]
    ends = f"80 % interval {report.low:.4g} to {report.high:.4g}"
    rows = [
        (
            "throughput",
            f"{report.tokens_per_s:.4g} output tokens/s ({ends}), prompts included",
        ),
        ("block", f"{block:,} sequences share a fetch of the weights: {report.gpu_batches:,} of {report.gpu_batch:,}"),
        ("attention", f"of decoding sequences by {where}"),
        ("time", f"{time_text(report.prefill_s)} for a block's prompts, {time_text(report.decode_s)} for its answers"),
        ("busy", f"in prompts {_sides(report.prefill)}; in answers {_sides(report.decode)}"),
        (
            "search",
            "no block is sooner at these rates"
            if report.gap <= 1e-9
            else f"no block can be more than {report.gap:.1%} sooner at these rates, by {report.tried:,} replayed",
        ),
        ("rates", f"host link {rate_text(link, 'B/s')}, products {rate_text(products, 'FLOP/s')}"),
    ]
    if report.usd_per_h is not None:
        each = money_text(report.usd_per_h / 3600.0 / report.tokens_per_s * 1e6)
        rows.append(("cost", f"{each} per million output tokens at {money_text(report.usd_per_h)} an hour"))
    width = max(len(name) for name, _ in rows) + 2
    blocks: list[Block] = [Line(text=report.title, hang=2, strong=True), blank()]
    blocks += [Line(text=f"{name:<{width}}{text}", indent=2, hang=width) for name, text in rows]
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
    return [*blocks, blank(), *(Line(text=f"- assumed: {text}", indent=2, hang=2) for text in report.assumed)]


def _sides(spent: Mapping[str, float]) -> str:
    """The sides that are busy at all."""
    return ", ".join(f"{name} {time_text(seconds)}" for name, seconds in spent.items() if seconds > 0)


def policy_as_dict(report: PolicyReport) -> dict[str, Any]:
    """The report under stable keys, SI numbers."""
    kept = {name: dict(getattr(report, name)) for name in ("shares", "rates", "prefill", "decode")}
    return {**vars(report), **kept}
