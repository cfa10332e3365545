"""What each group of a fleet on devices of unlike kinds does and costs, and what becomes of sessions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ridgeline.report.blocks import Block, Line, Table, blank
from ridgeline.report.text import latency_text, money_text
from ridgeline.serving.sessions import SessionUse


@dataclass(frozen=True, kw_only=True)
class GroupUse:
    """Instances of one deployment: shares of requests and output tokens [1] and of the time that it is busy [1].

    A request counts for the group of its last token. Prices are None where none is known of the kind.
    """

    kind: str
    role: str
    instances: int
    devices: int
    request_share: float
    output_token_share: float
    busy_share: float
    usd_per_h: float | None
    usd_per_million_output_tokens: float | None


@dataclass(frozen=True, kw_only=True)
class FixedFleet:
    """A fleet that is never scaled, beside one that is: its instances, the share of requests that keep the objective
    [1] and whether it holds, TTFT [s], its price and device hours, and the least that any fleet of its instances costs
    [USD/h] and takes [device hours]; `missed` requests of it, and `scaled_missed` of the one that is scaled."""

    instances: int
    attained: float | None
    kept: bool | None
    ttft_p99_s: float
    usd_per_h: float | None
    bound_usd_per_h: float | None
    missed: int | None
    scaled_missed: int | None
    device_h: float
    scaled_device_h: float
    bound_device_h: float | None

    def told(self, usd_per_h: float | None) -> str:
        """In a line, beside the price of the fleet that is scaled [USD/h]."""
        kept = "" if self.attained is None else f", {self.attained:.1%} keep to the objective"
        text = f"all {self.instances} instances up: TTFT p99 {latency_text(self.ttft_p99_s)}{kept}"
        if self.usd_per_h and usd_per_h is not None:
            text += (
                f", ${self.usd_per_h:.4g} an hour; scaled ${usd_per_h:.4g}, {1.0 - usd_per_h / self.usd_per_h:.0%} less"
            )
        if self.bound_usd_per_h is not None:
            text += f"; no fleet of them below ${self.bound_usd_per_h:.4g} (closed form)"
        text += f"; device hours {self.device_h:.3g}, scaled {self.scaled_device_h:.3g}"
        text += "" if self.bound_device_h is None else f", at least {self.bound_device_h:.3g}"
        if self.missed is not None and self.scaled_missed is not None:
            text += f"; {self.missed:,} requests miss the objective, scaled {self.scaled_missed:,}"
        return text


def groups_table(groups: Sequence[GroupUse]) -> Table:
    """Groups, one a row."""
    rows = tuple(
        (
            one.kind, one.role, f"{one.instances:,}", f"{one.devices:,}", f"{one.request_share:.1%}",
            f"{one.output_token_share:.1%}", f"{one.busy_share:.1%}",
            "-" if one.usd_per_h is None else f"{one.usd_per_h:.4g}",
            "-" if one.usd_per_million_output_tokens is None else money_text(one.usd_per_million_output_tokens),
        )
        for one in groups
    )  # fmt: skip
    columns = ("device", "role", "instances", "devices", "requests", "output tokens", "busy", "$/h", "$/M tokens")
    return Table(columns=columns, rows=rows, right=frozenset(columns[2:]))


def fixed_rows(one: FixedFleet | None, usd_per_h: float | None) -> list[tuple[str, str]]:
    """The fixed fleet beside one that is scaled at its price [USD/h]; nothing where none is."""
    return [] if one is None else [("fixed fleet", one.told(usd_per_h))]


def sessions_blocks(found: SessionUse | None) -> list[Block]:
    """Whole sessions in a line, and their turns by place; nothing where there are none."""
    if found is None:
        return []
    unfinished = "" if found.done == found.sessions else f", {found.done:,} of which ended"
    told = (
        f"{found.sessions:,} sessions of {found.turns_mean:.3g} turns{unfinished}: {latency_text(found.time.p50)}"
        f" median, {latency_text(found.time.p90)} p90, {latency_text(found.time.p99)} p99; {found.waits_share:.0%} of"
        f" it in tools or thinking, {found.ttft_share:.0%} before first tokens, {found.decode_share:.0%} generating"
    )
    rows = tuple(
        (
            f"{one.first}" if one.first == one.last else f"{one.first}-{one.last}", f"{one.turns:,}",
            f"{one.prompt_tokens_mean:,.0f}", f"{one.hit_share:.1%}", latency_text(one.ttft.mean),
            latency_text(one.ttft.p50), latency_text(one.ttft.p99),
        )
        for one in found.by_turn
    )  # fmt: skip
    columns = ("turn", "turns", "prompt", "in the cache", "TTFT mean", "p50", "p99")
    table = Table(columns=columns, rows=rows, right=frozenset(columns[1:]))
    return [Line(text="Sessions", strong=True), Line(text=told, indent=2, hang=2), table, blank()]
