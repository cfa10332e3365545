"""A run in the hours of its grid that emit least, with slack until it must be done."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import ClassVar

from ridgeline.energy.shifting import shifted
from ridgeline.errors import PlanError
from ridgeline.facts.footprints import grid_day
from ridgeline.seams.technique import param
from ridgeline.seams.time_shift import RunHours, TimeShift

_MOST_SLOTS = 6000  # of window and of work, so that a choice takes a second; chosen
_SLOTS_AN_HOUR = (4, 1)  # quarters, or whole hours of long runs


@dataclass(frozen=True, kw_only=True)
class CleanestHours(TimeShift):
    """A run waits for, and pauses over, the hours of its grid's day that emit most.

    It starts no earlier than `earliest` and ends no later than the time it takes and `slack` after that. Dynamic
    programming over quarters of an hour, or over hours, finds the least carbon; tests compare it with every choice.
    A resumed run takes `restart` more, in whole slots. Power is even, and every day is like the mean day of the year
    unless a file says more hours. Left out: what the idle cluster draws, costs and could do while a run is paused.
    """

    key: ClassVar[str] = "cleanest-hours"
    source: ClassVar[tuple[str, ...]] = ("lets-wait-awhile-2021",)
    day: str = param("california", "", "grid's day: california, germany, texas ..., or a CSV file of g_per_kwh")
    earliest: float = param(18.0, "hour", "hour of the first day from which it may run", low=0.0, high=24.0)
    slack: float = param(24.0, "hour", "how much later than at once it may end", low=0.0, high=1000.0)
    pauses: bool = param(True, "1", "whether it may stop and go on later")
    restart: float = param(0.25, "hour", "that a resumed run takes before it works again", low=0.0, high=24.0)

    def hours(self, run_s: float, energy_j: float) -> RunHours:
        """When a run of so many seconds, which draws its energy evenly, is done."""
        day = grid_day(self.day)
        for each in _SLOTS_AN_HOUR:
            work, slack, restart = (ceil(one * each - 1e-9) for one in (run_s / 3600.0, self.slack, self.restart))
            if work + slack <= _MOST_SLOTS:
                break
        else:
            raise PlanError(f"{self.key}: a run of {run_s / 3600:,.0f} hours, at most {_MOST_SLOTS:,} are shifted")
        first = int(self.earliest * each)
        grid = [day[(first + slot) // each % len(day)] for slot in range(work + slack)]
        found = shifted(grid, work, restart=restart, pauses=self.pauses)
        slot_j = energy_j / work
        return RunHours(
            earliest_h=self.earliest, parts=tuple((start / each, slots / each) for start, slots in found.runs),
            carbon_kg=found.spent * slot_j, at_once_kg=found.at_once * slot_j,
        )  # fmt: skip
