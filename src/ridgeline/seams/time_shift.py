"""The seam of time shifts: at which hours of a grid's day a run of known length is done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ridgeline.facts.records import Fact
from ridgeline.seams.registry import of_family
from ridgeline.seams.technique import EXACT, Technique

if TYPE_CHECKING:
    from ridgeline.seams.setting import Setting

TIME_SHIFTS = "time_shifts"


@dataclass(frozen=True, kw_only=True)
class RunHours:
    """When a run is done: (hours after the earliest start, hours) of each part, its carbon and that at once [kg]."""

    earliest_h: float
    parts: tuple[tuple[float, float], ...]
    carbon_kg: float
    at_once_kg: float


@dataclass(frozen=True, kw_only=True)
class TimeShift(Technique):
    """Hours for a run whose length and energy are known. A step takes as long under all of them."""

    family: ClassVar[str] = TIME_SHIFTS
    in_plan: ClassVar[bool] = True
    quality: ClassVar[Fact | None] = EXACT

    def axes(self, setting: Setting) -> tuple[str, ...]:
        """None: a step takes as long under all of them."""
        return ()

    def hours(self, run_s: float, energy_j: float) -> RunHours:
        """When a run of so many seconds, which draws its energy evenly, is done."""
        raise NotImplementedError


def time_shift_of(texts: Sequence[str]) -> TimeShift | None:
    """The shift that a plan lists; None where it lists none."""
    found = of_family(TIME_SHIFTS, tuple(texts))
    assert found is None or isinstance(found, TimeShift)
    return found
