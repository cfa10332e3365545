"""The answer about a training step whose sequences have unlike lengths, and its text and JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ridgeline.facts.records import Cluster
from ridgeline.plan.plan import Plan
from ridgeline.report.blocks import Block, Line, blank, record_table, sources_blocks
from ridgeline.units import time_text


@dataclass(frozen=True, kw_only=True)
class DegreeUse:
    """Groups of one degree in a step: how many, and which sequences [token]; `moved` keep activations on the host."""

    degree: int
    groups: int
    sequences: int
    tokens: float
    shortest: float
    longest: float
    moved: int


@dataclass(frozen=True, kw_only=True)
class LengthsReport:
    """One step: its time [s] with its 80 % interval, and how its sequences were divided.

    `bound_s` is what no division of the kind can be below (None: unknown), `waiting` the share of ranks' time that is
    spent waiting for the slowest [1], `dropped` the share of sequences that are longer than allowed [1].
    """

    plan: Plan
    cluster: Cluster
    sequences: int
    tokens: float
    longest: float
    median: float
    dropped: float
    rank_tokens: float
    step_s: float
    low_s: float
    high_s: float
    bound_s: float | None
    waiting: float
    rounds: int
    degrees: tuple[DegreeUse, ...]
    sources: tuple[str, ...]

    @property
    def tokens_per_s(self) -> float:
        """Throughput [token/s]."""
        return self.tokens / self.step_s

    def as_dict(self) -> dict[str, Any]:
        """The answer for machines."""
        return {
            "length_balance": self.plan.length_balance,
            "step_time": {"value": self.step_s, "low": self.low_s, "high": self.high_s, "unit": "s"},
            "bound_s": self.bound_s, "tokens_per_s": self.tokens_per_s, "waiting_share": self.waiting,
            "micro_batches": self.rounds, "sequences": self.sequences, "tokens": self.tokens,
            "longest_tokens": self.longest, "median_tokens": self.median, "dropped_share": self.dropped,
            "tokens_per_rank": self.rank_tokens, "degrees": [asdict(one) for one in self.degrees],
            "sources": list(self.sources),
        }  # fmt: skip


def lengths_blocks(found: Sequence[LengthsReport], assumed: Sequence[str] = ()) -> list[Block]:
    """The best division in full; others, where there are any, as a table behind it."""
    best = found[0]
    head = (
        f"{best.plan.length_balance}: {time_text(best.step_s)} a step ({time_text(best.low_s)} to"
        f" {time_text(best.high_s)}), {best.tokens_per_s:,.0f} tokens/s on {best.plan.devices} {best.cluster.name}"
    )
    drops = f"; {best.dropped:.1%} of all are longer and left out" if best.dropped > 5e-4 else ""
    blocks: list[Block] = [
        Line(text=head, strong=True),
        Line(
            text=f"{best.sequences:,} sequences a step, {best.tokens:,.0f} tokens: median {best.median:,.0f}, longest"
            f" {best.longest:,.0f}{drops}. A rank's memory holds the activations of {best.rank_tokens:,.0f} tokens.",
            indent=2,
        ),
        Line(
            text=f"{best.rounds} micro-batches; ranks wait {best.waiting:.0%} of the time for slower ones"
            + (f"; no division of this kind takes less than {time_text(best.bound_s)}." if best.bound_s else "."),
            indent=2,
        ),
        blank(),
        record_table(best.degrees, _USES, "activations on the host"),
    ]
    if len(found) > 1:
        ways: dict[str, Callable[[LengthsReport], str]] = {
            "length balance": lambda one: one.plan.length_balance,
            "step": lambda one: time_text(one.step_s),
            "over the best": lambda one: f"{one.step_s / best.step_s:.2f}",
            "waiting": lambda one: f"{one.waiting:.0%}",
        }
        blocks += [blank(), record_table(found, ways, "length balance")]
    return [*blocks, *sources_blocks(assumed, best.sources)]


_USES: dict[str, Callable[[DegreeUse], str]] = {
    "ranks": lambda one: str(one.degree),
    "groups": lambda one: str(one.groups),
    "sequences": lambda one: f"{one.sequences:,}",
    "tokens": lambda one: f"{one.tokens:,.0f}",
    "shortest": lambda one: f"{one.shortest:,.0f}",
    "longest": lambda one: f"{one.longest:,.0f}",
    "activations on the host": lambda one: str(one.moved or "-"),
}
