"""What one operator costs, machines side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from ridgeline.energy.power import Power
from ridgeline.facts.records import Evidence
from ridgeline.report.blocks import Block, Line, Printed, blank, record_table
from ridgeline.units import bytes_text, rate_text, time_text


@dataclass(frozen=True, kw_only=True)
class OperatorCost(Printed):
    """One operator's price: time [s] with its 80 % interval, work, traffic, and the two sides of its roofline.

    `compute_s` and `memory_s` are the datasheet's floor: FLOP at the peak rate, bytes at the peak bandwidth; `low_s` is
    no less than it, but for bytes that the last cache on the device may hold between calls.
    `bound` names what the time is made of mostly: 'compute', 'hbm', 'link' or 'start'. `rung` is 'table', 'fitted',
    'borrowed' or 'mechanism', `library` whose kernels were measured. `power` is the board's while it runs, None
    without a rated power, `energy_j` over the time [J].
    """

    width: ClassVar[int] = 120
    machine: str
    seconds: float
    low_s: float
    high_s: float
    flop: float
    bytes: float
    compute_s: float
    memory_s: float
    bound: str
    evidence: Evidence
    rung: str = "mechanism"
    library: str = ""
    source: str = ""
    power: Power | None = None

    @property
    def power_w(self) -> float | None:
        """The board's power while it runs [W]."""
        return None if self.power is None else self.power.mid_w

    @property
    def flop_per_s(self) -> float:
        """Rate reached [FLOP/s]."""
        return self.flop / self.seconds

    @property
    def energy_j(self) -> float | None:
        """Energy of one device while it runs [J]."""
        return None if self.power_w is None else self.power_w * self.seconds

    def blocks(self) -> list[Block]:
        """What `ridgeline op` prints of one machine."""
        return operator_blocks([self])


def operator_blocks(found: Sequence[OperatorCost]) -> list[Block]:
    """A table of the machines, and where each price comes from."""
    blocks: list[Block] = [record_table(found, _CELLS, "machine", "80 % interval", "bound", "rung"), blank()]
    for cost in found:
        told = ", ".join(word for word in (cost.library, cost.source) if word) or "the mechanism on sustained rates"
        blocks.append(Line(text=f"{cost.machine}: {told} ({cost.evidence.label})", indent=2, hang=2))
    return blocks


def _rate(cost: OperatorCost) -> str:
    """The rate of the work, or of the bytes where they are all that it does; '' where it does nothing."""
    moved = cost.bound == "link" or not cost.flop
    amount, unit = (cost.bytes, "B/s") if moved else (cost.flop, "FLOP/s")
    return rate_text(amount / cost.seconds, unit) if amount else ""


_CELLS: dict[str, Callable[[OperatorCost], str]] = {
    "machine": lambda cost: cost.machine,
    "time": lambda cost: time_text(cost.seconds),
    "80 % interval": lambda cost: f"{time_text(cost.low_s)} to {time_text(cost.high_s)}",
    "rate": _rate,
    "bytes": lambda cost: bytes_text(cost.bytes) if cost.bytes else "",
    "bound": lambda cost: cost.bound,
    "of roofline": lambda cost: f"{max(cost.compute_s, cost.memory_s) / cost.seconds:.0%}" if _rate(cost) else "",
    "power": lambda cost: "" if cost.power_w is None else f"{cost.power_w:.0f} W",
    "rung": lambda cost: cost.rung,
}
