"""The seam of power limits: what a board may draw, and the clock that this leaves to products."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, cast

from ridgeline.errors import DomainError, PlanError
from ridgeline.facts.mechanisms import constant
from ridgeline.facts.rates import rated_w
from ridgeline.facts.records import Accelerator, Fact
from ridgeline.seams.registry import technique
from ridgeline.seams.technique import EXACT, Technique

if TYPE_CHECKING:
    from ridgeline.seams.setting import Setting

POWER_LIMITS = "power_limits"
_SHORT = re.compile(r"([\d.eE+]+)\s*(w|kw|mhz|ghz)?", re.IGNORECASE)
_WRITTEN = {"": ("power-cap(watts={})", 1.0), "w": ("power-cap(watts={})", 1.0), "kw": ("power-cap(watts={})", 1e3)}
_WRITTEN |= {"mhz": ("clock-limit(mhz={})", 1.0), "ghz": ("clock-limit(mhz={})", 1e3)}


@dataclass(frozen=True, kw_only=True)
class PowerLimit(Technique):
    """A limit of every board of a cluster. One in its place makes another accelerator of the same rated power."""

    family: ClassVar[str] = POWER_LIMITS
    kinds: ClassVar[frozenset[str]] = frozenset({"training", "serving", "sampling"})
    quality: ClassVar[Fact | None] = EXACT

    def limit_w(self, part: Accelerator) -> float:
        """The most that a board draws [W]."""
        raise NotImplementedError

    @classmethod
    def tried(cls, part: Accelerator) -> tuple[str, ...]:
        """Texts of limits that are worth comparing on a part, none of them impossible."""
        raise NotImplementedError

    def applies(self, setting: Setting) -> str:
        """Why it does not apply; '' where the rated power of all devices is known."""
        part = setting.cluster.accelerator
        return super().applies(setting) or ("" if rated_w(part) else f"no rated power is known of {part.name}")

    def axes(self, setting: Setting) -> tuple[str, ...]:
        """Those that are worth comparing."""
        return self.tried(setting.cluster.accelerator)

    def limited(self, part: Accelerator) -> Accelerator:
        """A part whose board is limited.

        Raises `DomainError` for a limit above its rated power, or not above what it draws idle.
        """
        most = rated_w(part)
        if most is None:
            raise DomainError(f"no rated power is known of {part.name}, so what {self.text} leaves is not either")
        limit_w, idle = self.limit_w(part), constant("power.idle") * most
        if not idle < limit_w <= most:
            raise DomainError(
                f"{part.name}, {self.text}: a cap of {limit_w:g} W; needs more than {idle:g} W, what it draws idle, to"
                f" {most:g} W"
            )
        return replace(part, tdp_w=limit_w)


def power_limit(text: object) -> PowerLimit:
    """The limit that a word names: '500W' and '1200MHz' stand for `power-cap` and `clock-limit`.

    >>> power_limit("1.2GHz").text
    'clock-limit(mhz=1200)'
    """
    short = _SHORT.fullmatch(str(text).strip())
    if short is None and not str(text).strip()[:1].isalpha():
        raise PlanError(f"'{text}' is no limit of a board; write watts or a clock, as 500W or 1200MHz")
    if short is None:
        return cast(PowerLimit, technique(POWER_LIMITS, str(text)))
    try:
        written, scale = _WRITTEN[(short[2] or "").lower()]
        return cast(PowerLimit, technique(POWER_LIMITS, written.format(f"{float(short[1]) * scale:g}")))
    except ValueError:
        raise PlanError(f"'{text}' is no number of watts or of MHz, e.g. 500W or 1200MHz") from None


def power_share(part: Accelerator) -> float:
    """Share of the clock of products that a limit below the part's rated power leaves [1].

    Dynamic power grows as the cube of the clock while voltage follows it, so the clock is
    ((limit - idle) / (rated - idle)) ** (1/3) of the rated one. Domain: limits between idle and rated power.
    Evidence: derived.
    """
    rated = rated_w(part)
    if rated is None or part.tdp_w is None or part.tdp_w >= rated:
        return 1.0
    idle = constant("power.idle") * rated
    if part.tdp_w <= idle:
        raise DomainError(f"{part.name}: power cap {part.tdp_w:.0f} W is not above idle power {idle:.0f} W")
    return float(((part.tdp_w - idle) / (rated - idle)) ** (1 / 3))
