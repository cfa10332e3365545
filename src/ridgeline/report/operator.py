"""What one operator costs, machines side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ridgeline.facts.records import Evidence
from ridgeline.report.blocks import Block, Line, Table, blank
from ridgeline.units import bytes_text, rate_text, time_text


class Priced(Protocol):
    """One operator on one machine, as `predict.operator.OperatorCost` has it."""

    @property
    def machine(self) -> str:
        """Its name."""

    @property
    def seconds(self) -> float:
        """Time [s]."""

    @property
    def low_s(self) -> float:
        """Low end of its 80 % interval [s]."""

    @property
    def high_s(self) -> float:
        """High end of it [s]."""

    @property
    def flop(self) -> float:
        """Useful FLOP [FLOP]."""

    @property
    def bytes(self) -> float:
        """Traffic [byte]."""

    @property
    def compute_s(self) -> float:
        """FLOP at the datasheet's rate [s]."""

    @property
    def memory_s(self) -> float:
        """Bytes at the datasheet's bandwidth [s]."""

    @property
    def bound(self) -> str:
        """What the time is made of mostly; 'link' of an exchange."""

    @property
    def power_w(self) -> float | None:
        """The board's power [W]."""

    @property
    def rung(self) -> str:
        """The rung that answered."""

    @property
    def library(self) -> str:
        """Whose kernels were measured."""

    @property
    def source(self) -> str:
        """Where the price comes from."""

    @property
    def evidence(self) -> Evidence:
        """How it is known."""


def operator_blocks(found: Sequence[Priced]) -> list[Block]:
    """A table of the machines, and where each price comes from."""
    columns = ("machine", "time", "80 % interval", "rate", "bytes", "bound", "of roofline", "power", "rung")
    right = frozenset({"time", "rate", "bytes", "of roofline", "power"})
    blocks: list[Block] = [Table(columns=columns, rows=tuple(_row(cost) for cost in found), right=right), blank()]
    for cost in found:
        told = ", ".join(word for word in (cost.library, cost.source) if word) or "the mechanism on sustained rates"
        blocks.append(Line(text=f"{cost.machine}: {told} ({cost.evidence.label})", indent=2, hang=2))
    return blocks


def _row(cost: Priced) -> tuple[str, ...]:
    moved = cost.bound == "link" or not cost.flop
    amount, unit = (cost.bytes, "B/s") if moved else (cost.flop, "FLOP/s")
    return (
        cost.machine,
        time_text(cost.seconds),
        f"{time_text(cost.low_s)} to {time_text(cost.high_s)}",
        rate_text(amount / cost.seconds, unit) if amount else "",
        bytes_text(cost.bytes) if cost.bytes else "",
        cost.bound,
        f"{max(cost.compute_s, cost.memory_s) / cost.seconds:.0%}" if amount else "",
        "" if cost.power_w is None else f"{cost.power_w:.0f} W",
        cost.rung,
    )
