"""Fields of a scenario: what they read, what they refuse, and that they cover the records."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from ridgeline.errors import InputError
from ridgeline.graph.workload import PRECISIONS, Task, Workload
from ridgeline.plan.plan import Plan
from ridgeline.scenario.fields import PLAN_FIELDS, WORKLOAD_FIELDS, Field, near, read_fields
from ridgeline.seams.registry import names

BY_NAME: dict[str, Field] = {field.name: field for field in (*WORKLOAD_FIELDS, *PLAN_FIELDS)}


def fail(name: str, message: str) -> InputError:
    return InputError(message, field=name)


def test_every_field_of_the_records_can_be_written() -> None:
    asked = [field.name for field in fields(Workload)]
    assert [field.name for field in WORKLOAD_FIELDS] == asked
    assert [field.name for field in PLAN_FIELDS] == [field.name for field in fields(Plan)]


def test_choices_are_those_of_the_records() -> None:
    assert BY_NAME["task"].choices == tuple(task.value for task in Task)
    assert BY_NAME["schedule"].choices == names("schedules")
    assert BY_NAME["recompute"].choices == (*names("recompute"), "selective")
    assert BY_NAME["precision"].choices == tuple(PRECISIONS)
    assert BY_NAME["optimizer"].choices == names("optimizers")


@pytest.mark.parametrize("field", [field for field in BY_NAME.values() if field.choices], ids=lambda field: field.name)
def test_every_choice_is_read(field: Field) -> None:
    for choice in field.choices:
        assert field.write(field.read(choice)) in (choice, int(choice) if choice.isdigit() else choice)


@pytest.mark.parametrize(
    ("name", "written", "value"),
    [
        ("tokens", "15T", 15_000_000_000_000),
        ("seq_len", 8192, 8192),
        ("seq_len", "8_192", 8192),
        ("padding", "10%", 0.1),
        ("padding", 0.25, 0.25),
        ("zero", 3, 3),
        ("zero", "3", 3),
        ("schedule", "zb-v", "zb-v"),
        ("task", "qlora", Task.QLORA),
        ("layer_split", [3, 4, 0], (3, 4, 0)),
        ("layer_split", "20,20,18", (20, 20, 18)),
        ("offload_optimizer", True, True),
        ("offload_optimizer", "no", False),
    ],
)
def test_values_are_read(name: str, written: object, value: Any) -> None:
    assert BY_NAME[name].read(written) == value


@pytest.mark.parametrize(
    ("name", "written", "words"),
    [
        ("seq_len", 0, "out of range; needs 1"),
        ("seq_len", "8k tokens", "is not a count"),
        ("seq_len", True, "is not a count"),
        ("seq_len", [1], "is not a count"),
        ("tokens", "1e40", "out of range"),
        ("tokens", 1.5, "not a whole number"),
        ("padding", 1.0, "needs 0 <= value < 1"),
        ("padding", "nan", "not a number"),
        ("padding", "3 GB", "wanted a number without a unit"),
        ("zero", 4, "not one of them; valid: 0, 1, 2, 3"),
        ("zero", True, "not one of them"),
        ("precision", "bf61", "nearest: bf16"),
        ("schedule", ["1f1b"], "not one of them"),
        ("offload_optimizer", 1, "not true or false"),
        ("layer_split", [], "not a list of layer counts"),
        ("layer_split", "a,b", "is not a count"),
        ("optimizer", "x" * 500, "valid: adafactor"),
    ],
)
def test_values_are_refused_with_a_sentence(name: str, written: object, words: str) -> None:
    with pytest.raises(InputError, match=f"field '{name}'") as caught:
        read_fields({name: written}, (BY_NAME[name],), fail)
    assert words in str(caught.value)
    assert len(str(caught.value)) < 300


def test_an_unknown_field_is_told_its_nearest() -> None:
    with pytest.raises(InputError, match="field 'micro_bach': unknown field; nearest: micro_batch"):
        read_fields({"micro_bach": 1}, PLAN_FIELDS, fail)
    assert near("qqqq", ["tp", "pp"]) == "valid: tp, pp"


def test_flags_are_the_names_with_dashes() -> None:
    assert BY_NAME["global_batch"].flag == "--global-batch"
