"""The answer about a training step on devices of unlike types, and its text and JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from ridgeline.facts.records import Cluster
from ridgeline.plan.plan import Plan
from ridgeline.report.blocks import Block, Line, blank, record_table, sources_blocks
from ridgeline.units import bytes_text, time_text


@dataclass(frozen=True, kw_only=True)
class DeviceUse:
    """What devices of one type do in a step.

    `layers` of each of their stages (empty without a pipeline); micro-batches of a size on each rank and the sequences
    of all of them; the share of all model states that they hold together [1]; memory of the fullest [byte]; `busy` is
    the share of the step that one computes [1]; `limit` says in a phrase what holds them.
    """

    device: str
    devices: int
    layers: tuple[int, ...]
    micro_batch: int
    micro_batches: int
    sequences: int
    state_share: float
    memory_bytes: float
    capacity_bytes: float
    busy: float
    limit: str = ""


@dataclass(frozen=True, kw_only=True)
class MixedReport:
    """One step on unlike devices: its time [s] with its 80 % interval, its lower bound [s], and who does what.

    `exchange_share` is what the links carry over the step [1], `usd_per_h` the price of all devices, None unknown.
    """

    plan: Plan
    cluster: Cluster
    sequences: int
    tokens: float
    step_s: float
    low_s: float
    high_s: float
    bound_s: float
    layered: bool
    exchange_share: float
    uses: tuple[DeviceUse, ...]
    usd_per_h: float | None
    sources: tuple[str, ...]
    tried: int = 0

    @property
    def fits(self) -> bool:
        """Whether each device's memory holds its part."""
        return all(one.memory_bytes <= one.capacity_bytes for one in self.uses)

    def with_limits(self) -> MixedReport:
        """The same with what holds each type: memory, its own compute, or others that it waits for."""
        busiest = max(one.busy for one in self.uses)

        def limit(one: DeviceUse) -> str:
            if one.memory_bytes > one.capacity_bytes:
                return f"memory: lacks {bytes_text(one.memory_bytes - one.capacity_bytes)}"
            full = ", memory is full" if one.memory_bytes > 0.97 * one.capacity_bytes else ""
            if one.busy < 0.97 * busiest:
                return f"waits for others{full}"
            if self.exchange_share > max(0.9, busiest):
                return f"waits for links{full}"
            return f"its own compute{full}"

        return replace(self, uses=tuple(replace(one, limit=limit(one)) for one in self.uses))

    def as_dict(self) -> dict[str, Any]:
        """The answer for machines."""
        plan = self.plan
        return {
            "plan": {
                "tp": plan.tp, "pp": plan.pp, "dp": plan.dp, "zero": plan.zero, "recompute": plan.recompute,
                "micro_batch": plan.micro_batch, "technique": list(plan.technique),
            },
            "groups": [] if self.cluster.mixed is None else [one.name for one in self.cluster.mixed.groups],
            "step_time_s": {"value": self.step_s, "low": self.low_s, "high": self.high_s, "unit": "s"},
            "bound_s": self.bound_s, "tokens_per_s": self.tokens / self.step_s,
            "samples_per_s": self.sequences / self.step_s, "layered_accumulation": self.layered,
            "exchange_share": self.exchange_share, "fits": self.fits,
            "devices": [{**asdict(one), "layers": list(one.layers)} for one in self.uses],
            "usd_per_step": None if self.usd_per_h is None else self.usd_per_h * self.step_s / 3600,
            "plans_tried": self.tried, "sources": list(self.sources),
        }  # fmt: skip


def _words(plan: Plan) -> str:
    found = [f"tp {plan.tp}", f"pp {plan.pp}", f"dp {plan.dp}", f"zero {plan.zero}"]
    return ", ".join([*found, *([] if plan.recompute == "none" else [f"recompute {plan.recompute}"]), *plan.technique])


def mixed_blocks(found: Sequence[MixedReport], assumed: Sequence[str] = ()) -> list[Block]:
    """The best plan in full; others, where there are any, as a table behind it."""
    best = found[0]
    head = (
        f"{best.cluster.name}: {time_text(best.step_s)} a step ({time_text(best.low_s)} to {time_text(best.high_s)}),"
        f" {best.tokens / best.step_s:,.0f} tokens/s, {best.sequences / best.step_s:,.2f} sequences/s"
    )
    cost = "" if best.usd_per_h is None else f"; ${best.usd_per_h * best.step_s / 3600:,.4f} a step"
    way = "layered gradient accumulation; " if best.layered else ""
    blocks: list[Block] = [
        Line(text=head, strong=True),
        Line(text=_words(best.plan), indent=2),
        Line(
            text=f"{way}links are busy for {best.exchange_share:.0%} of the step; closed-form bound"
            f" {time_text(best.bound_s)}{cost}",
            indent=2,
        ),
        blank(),
        record_table(best.uses, _USES, "device", "layers", "limit"),
    ]
    if len(found) > 1:
        ways: dict[str, Callable[[MixedReport], str]] = {
            "plan": lambda one: _words(one.plan),
            "micro-batch": lambda one: str(one.plan.micro_batch),
            "step": lambda one: time_text(one.step_s),
            "over the best": lambda one: f"{one.step_s / best.step_s:.2f}",
        }
        blocks += [blank(), record_table(found, ways, "plan")]
    return [*blocks, *sources_blocks(assumed, best.sources)]


_USES: dict[str, Callable[[DeviceUse], str]] = {
    "device": lambda one: one.device,
    "count": lambda one: str(one.devices),
    "layers": lambda one: "/".join(map(str, one.layers)) or "all",
    "micro-batches": lambda one: f"{one.micro_batches} x {one.micro_batch}",
    "sequences": lambda one: f"{one.sequences:,}",
    "states": lambda one: f"{one.state_share:.1%}",
    "memory": lambda one: bytes_text(one.memory_bytes),
    "of": lambda one: bytes_text(one.capacity_bytes),
    "busy": lambda one: f"{one.busy:.0%}",
    "limit": lambda one: one.limit,
}
