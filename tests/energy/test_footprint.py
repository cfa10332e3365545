"""Water, making of devices and hours of the grid's day: by hand, and against every choice of hours."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

import numpy as np
import pytest

from ridgeline.api.verb import ask
from ridgeline.energy.footprint import footprint
from ridgeline.energy.shifting import shifted
from ridgeline.errors import InputError, PlanError, UnknownNameError
from ridgeline.facts.accelerators import accelerator
from ridgeline.facts.clusters import cluster
from ridgeline.facts.footprints import embodied_kg, grid_day, grid_water
from ridgeline.facts.records import Evidence
from ridgeline.seams.registry import technique
from ridgeline.seams.time_shift import TimeShift

JOB = {"subject": "llama-3.1-8b", "on": "8xH100-SXM", "zero": "3", "micro_batch": "1", "quick": True}


def test_water_and_making_by_hand() -> None:
    """Eight H100 for a thousandth of three years, and a megawatt-hour at a PUE of 1.56, on the world's grid."""
    where = cluster("8xH100-SXM")
    found = footprint(where, 3.6e9, 3 * 365.25 * 86400 / 1000)
    assert found.devices_worn == pytest.approx(0.008)
    assert found.embodied_kg == pytest.approx(0.008 * (273 + 5700 / 8))
    assert found.water_l == pytest.approx(1000 * (3.91 + 1.8 / 1.56))
    assert footprint(where, 0.0, 100.0, devices=4).embodied_kg == pytest.approx(
        footprint(where, 0.0, 100.0).embodied_kg / 2
    )


def test_a_region_has_its_water_and_others_the_worlds() -> None:
    assert grid_water("FR").value * 3.6e6 == pytest.approx(3.67)
    assert grid_water("singapore").value == grid_water().value
    assert "the world" in grid_water("singapore").conditions


def test_an_unlisted_device_is_on_the_line_of_two_and_assumed() -> None:
    part = accelerator("MI300X")
    found = embodied_kg(part)
    assert found.evidence is Evidence.ASSUMED
    assert found.value == pytest.approx(273 + 91 / 61 * (part.memory_bytes / 1e9 - 80) + 712.5)


def test_a_report_tells_water_where_a_region_is_said() -> None:
    near, far = (ask("predict", **JOB, region=region, tokens="1B") for region in (None, "SE"))
    told = far.as_dict()
    assert told["water_l_per_step"] > 0.0
    assert told["run_water_l"] == pytest.approx(told["water_l_per_step"] * told["run_steps"])
    texts = ["\n".join(str(block) for block in one.blocks()) for one in (near, far)]
    assert ["litres of water" in text for text in texts] == [False, True]


def every_choice(costs: np.ndarray, work: int, restart: int) -> float:
    """The least of all choices of slots, one by one."""
    best = np.inf
    for mask in range(1, 1 << len(costs)):
        chosen = [(mask >> place) & 1 for place in range(len(costs))]
        lengths = [len(list(group)) for on, group in groupby(chosen) if on]
        if all(one >= restart for one in lengths[1:]) and sum(lengths) - restart * (len(lengths) - 1) == work:
            best = min(best, float((costs * chosen).sum()))
    return best


def test_no_choice_of_hours_emits_less() -> None:
    rng = np.random.default_rng(0)
    for _ in range(80):
        window = int(rng.integers(2, 11))
        work, restart = int(rng.integers(1, window + 1)), int(rng.integers(0, 3))
        costs = rng.random(window).round(2)
        found = shifted(costs, work, restart=restart)
        assert found.spent == pytest.approx(every_choice(costs, work, restart))
        assert sum(costs[first : first + slots].sum() for first, slots in found.runs) == pytest.approx(found.spent)
        whole = shifted(costs, work, pauses=False)
        sums = [costs[first : first + work].sum() for first in range(window - work + 1)]
        assert whole.spent == pytest.approx(min(sums))
        assert found.spent <= whole.spent + 1e-12 <= found.at_once + 1e-9


def test_a_short_run_waits_for_the_morning_and_without_slack_for_nothing() -> None:
    """Three hours in California from 18:00: the least of the next day is 11:00 to 14:00."""
    day = grid_day("california")
    one = technique("time_shifts", "cleanest-hours(day=california,earliest=18,slack=24)")
    assert isinstance(one, TimeShift)
    found = one.hours(3 * 3600.0, 3.6e6)
    assert found.parts == ((17.0, 3.0),)
    assert found.carbon_kg == pytest.approx(3.6e6 * sum(day[11:14]) / 3)
    assert found.at_once_kg == pytest.approx(3.6e6 * sum(day[18:21]) / 3)
    still = technique("time_shifts", "cleanest-hours(slack=0)")
    assert isinstance(still, TimeShift)
    assert still.hours(3 * 3600.0, 3.6e6).parts == ((0.0, 3.0),)


def test_a_file_of_hours_is_read_and_a_bad_one_refused(tmp_path: Path) -> None:
    good, short = tmp_path / "day.csv", tmp_path / "short.csv"
    good.write_text("hour,g_per_kwh\n" + "".join(f"{hour},{100 + hour}\n" for hour in range(48)))
    short.write_text("g_per_kwh\n100\n")
    assert len(grid_day(str(good))) == 48
    with pytest.raises(InputError, match="has 1 hours; needs 24"):
        grid_day(str(short))
    with pytest.raises(InputError, match="no such file"):
        grid_day(str(tmp_path / "none.csv"))
    with pytest.raises(UnknownNameError, match="known: california"):
        grid_day("atlantis")


def test_a_shift_needs_a_whole_run() -> None:
    with pytest.raises((InputError, PlanError), match="--tokens"):
        ask("predict", **JOB, technique="cleanest-hours")
    told = ask("predict", **JOB, technique="cleanest-hours(day=germany)", tokens="1B").as_dict()["time_shift"]
    assert told["carbon_kg"] < told["at_once_kg"]
