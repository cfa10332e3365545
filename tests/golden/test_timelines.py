"""Timelines of small plans, bit for bit: a refactor may not move a task."""

from __future__ import annotations

import pytest
import timelines

REMEDY = "if this is meant, run PYTHONPATH=src python tests/golden/layouts.py --write and note it in the changelog"


@pytest.mark.parametrize("name", list(timelines.PLANS))
def test_every_task_starts_and_ends_as_stored(name: str) -> None:
    assert timelines.log(name) == timelines.stored()[name], REMEDY


def test_a_log_is_the_same_when_made_again() -> None:
    name = next(iter(timelines.PLANS))
    assert timelines.log(name) == timelines.log(name)
