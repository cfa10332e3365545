"""Predictions of published layouts do not drift unless somebody means it, and stored errors are what they say."""

from __future__ import annotations

import layouts
import pytest

COMMENTS, ROWS = layouts.read()
NAMES = [row["row"] for row in ROWS]
FAMILIES = {"megatron-h100": 9, "seqpar-a100": 8, "sc21-a100": 10, "foundry-h100": 8, "foundry-a100": 4}
REMEDY = "if this is meant, run PYTHONPATH=src python tests/golden/layouts.py --write and note it in the changelog"


@pytest.mark.parametrize("row", ROWS, ids=NAMES)
def test_prediction_is_the_stored_one(row: layouts.Row) -> None:
    assert layouts.predicted(row) == pytest.approx(float(row["predicted"]), rel=1e-6), REMEDY


@pytest.mark.parametrize("row", ROWS, ids=NAMES)
def test_error_is_what_measurement_and_prediction_give(row: layouts.Row) -> None:
    assert float(row["error"]) == pytest.approx(float(row["predicted"]) / float(row["measured"]) - 1, abs=5.1e-5)


def test_every_published_row_is_there_with_its_source() -> None:
    assert {family: sum(name.startswith(family) for name in NAMES) for family in FAMILIES} == FAMILIES
    assert len(set(NAMES)) == len(NAMES) == sum(FAMILIES.values())
    assert all(row["source"] for row in ROWS)


def test_sums_of_the_measured_column_guard_against_silent_edits() -> None:
    total = {
        family: sum(float(row["measured"]) for row in ROWS if row["row"].startswith(family)) for family in FAMILIES
    }
    expected = {"megatron-h100": 4030.7, "seqpar-a100": 287.19, "sc21-a100": 1459.0}
    expected |= {"foundry-h100": 35833.0, "foundry-a100": 16778.0}
    assert total == pytest.approx(expected)


@pytest.mark.parametrize("row", [row for row in ROWS if not row["micro_batch"]], ids=lambda row: row["row"])
def test_what_the_planner_adds_keeps_what_the_source_states(row: layouts.Row) -> None:
    plan = layouts.plan_of(row)
    for name, value in layouts.stated_of(row).items():
        assert getattr(plan, name) == value, name
    assert plan.devices == int(row["devices"])
