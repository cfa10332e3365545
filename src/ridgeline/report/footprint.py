"""Water, making of devices and hours of the grid's day, of a step and of a whole run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ridgeline.energy.footprint import footprint
from ridgeline.report.as_json import run_totals
from ridgeline.report.report import Report
from ridgeline.report.text import carbon_text
from ridgeline.seams.time_shift import RunHours, time_shift_of


def footprint_as_dict(report: Report) -> dict[str, Any]:
    """Water [litre], emissions of making devices [kg] and devices worn out [1], of a step and of the whole run."""
    step, run = footprint(report.cluster, report.energy_j_per_step, report.step_time.value), run_totals(report)
    found: dict[str, Any] = {f"{name}_per_step": value for name, value in vars(step).items()}
    seconds, energy_j = run["run_time_s"], run["run_energy_j"]
    if seconds is not None and energy_j is not None:
        found |= {f"run_{name}": value for name, value in vars(footprint(report.cluster, energy_j, seconds)).items()}
    hours = run_hours(report)
    return found | ({} if hours is None else {"time_shift": vars(hours)})


def run_hours(report: Report) -> RunHours | None:
    """At which hours the whole run is done, where a technique says so."""
    shift, run = time_shift_of(report.plan.technique), run_totals(report)
    if shift is None or run["run_time_s"] is None or run["run_energy_j"] is None:
        return None
    return shift.hours(run["run_time_s"], run["run_energy_j"])


def footprint_rows(report: Report) -> Iterator[tuple[str, str]]:
    """Rows of a report: water and making where it is said in which region the cluster stands, and hours."""
    found = footprint_as_dict(report)
    if report.cluster.water_l_per_j is not None:
        over, end = ("run_", "") if "run_water_l" in found else ("", "_per_step")
        water, made, worn = (found[f"{over}{name}{end}"] for name in ("water_l", "embodied_kg", "devices_worn"))
        what = "for the run" if over else "per step"
        yield "footprint", f"{water:,.3g} litres of water, {carbon_text(made)} of making {worn:.3g} devices, {what}"
    hours = run_hours(report)
    if hours is not None:
        parts = ", ".join(f"{start:g} h for {length:g} h" for start, length in hours.parts[:6])
        more = f" and {len(hours.parts) - 6} more" if len(hours.parts) > 6 else ""
        less = 1.0 - hours.carbon_kg / hours.at_once_kg if hours.at_once_kg else 0.0
        yield (
            "hours",
            f"after {parts}{more} from {hours.earliest_h:g}:00: {carbon_text(hours.carbon_kg)}, {less:.1%} less than"
            f" {carbon_text(hours.at_once_kg)} at once",
        )
