"""A board that may draw fewer watts than it is built for, or whose clock is held below its boost clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ridgeline.errors import DomainError
from ridgeline.facts.mechanisms import constant
from ridgeline.facts.rates import rated_w
from ridgeline.facts.records import Accelerator
from ridgeline.seams.power_limit import PowerLimit
from ridgeline.seams.technique import param

_TRIED = (1.0, 0.85, 0.7, 0.55, 0.4)  # of the rated power, or of the boost clock; chosen


@dataclass(frozen=True, kw_only=True)
class PowerCap(PowerLimit):
    """A board draws no more than a cap; products run at the clock that the cap leaves them.

    As `nvidia-smi -pl` sets it. Memory and links keep their rates: below what memory-bound work draws, times are lower
    bounds. No measurement under caps is fitted.
    """

    key: ClassVar[str] = "power-cap"
    source: ClassVar[tuple[str, ...]] = ("power-capping-2022",)
    claims: ClassVar[tuple[str, ...]] = ("15 % less energy of training a Transformer for a marginal increase in time",)
    watts: float | None = param(None, "W", "most that a board draws; its rated power when absent", low=1.0, high=1e5)

    def limit_w(self, part: Accelerator) -> float:
        """The cap itself [W]."""
        return self.watts or rated_w(part) or 0.0

    @classmethod
    def tried(cls, part: Accelerator) -> tuple[str, ...]:
        """Caps from 40 % of the rated power up; none where that is not known."""
        rated = rated_w(part)
        return tuple(cls(watts=round(share * rated, 1)).text for share in _TRIED) if rated else ()


@dataclass(frozen=True, kw_only=True)
class ClockLimit(PowerLimit):
    """A board's clock is held at or below a frequency; products take that much longer and draw by its cube less.

    As `nvidia-smi -lgc` sets it. Where the rated power already holds long products below the boost clock, they are
    slowed by less than is predicted: their time is an upper bound. Memory and links keep their rates.
    """

    key: ClassVar[str] = "clock-limit"
    source: ClassVar[tuple[str, ...]] = ("power-capping-2022",)
    mhz: float | None = param(None, "MHz", "highest clock of the cores; the boost clock when absent", low=1.0, high=1e5)

    def limit_w(self, part: Accelerator) -> float:
        """What products draw at that clock [W]: idle + (rated - idle) (clock / boost clock)^3."""
        rated = rated_w(part) or 0.0
        if self.mhz is None:
            return rated
        if not part.boost_hz or self.mhz * 1e6 > part.boost_hz:
            known = f"above its boost clock of {part.boost_hz / 1e6:g} MHz" if part.boost_hz else "its own is not known"
            raise DomainError(f"{part.name}, {self.text}: {known}; name a lower one, or a cap in W")
        idle = constant("power.idle") * rated
        return idle + (rated - idle) * (self.mhz * 1e6 / part.boost_hz) ** 3

    @classmethod
    def tried(cls, part: Accelerator) -> tuple[str, ...]:
        """Clocks from 40 % of the boost clock up; none where that is not known."""
        boost = part.boost_hz
        return tuple(cls(mhz=round(share * boost / 1e6)).text for share in _TRIED) if boost else ()
