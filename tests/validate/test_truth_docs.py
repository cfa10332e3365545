"""The page on check names what the code knows."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from ridgeline.facts.programs import training_programs
from ridgeline.facts.readings import rows
from ridgeline.memory.runtime import Runtime
from ridgeline.validate.metrics import METRICS
from ridgeline.validate.operator_kernels import PRODUCTS as LAYER_PRODUCTS
from ridgeline.validate.operator_kernels import STREAMS as LAYER_STREAMS
from ridgeline.validate.operators import SUSTAINED
from ridgeline.validate.rows import COUNTS, KINDS, NUMBERS

PAGE = (Path(__file__).parents[2] / "docs" / "check.md").read_text(encoding="utf-8")
TABLE = PAGE.split("## What programs do when", 1)[1].split("\n## ", 1)[0].splitlines()


def test_every_program_stands_with_its_conventions_and_reason() -> None:
    for engine in training_programs():
        (line,) = [text for text in TABLE if text.startswith(f"| {engine.name} |")]
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        zero = "chosen" if engine.zero is None else str(engine.zero)
        assert cells[2:6] == [engine.attention_kernel, engine.execution, zero, engine.recompute or "chosen"]
        assert cells[6:] == [engine.accounting, engine.framework, engine.reason]


def test_every_memory_habit_stands_with_its_fields_and_reason() -> None:
    for habit in rows("runtime"):
        (line,) = [text for text in PAGE.splitlines() if text.endswith(f"| {habit.told} |")]
        name = habit.key.removeprefix("runtime.")
        assert f"`{name}`" in line
        assert name in {field.name for field in fields(Runtime)}
    assert all(row.told in PAGE for row in rows("bytes_precision"))


def test_every_metric_kind_column_and_sequence_length_is_named() -> None:
    for metric in METRICS:
        assert f"\n| {metric.name} |" in PAGE
    for name in (*KINDS, *COUNTS, *NUMBERS):
        assert name in PAGE
    for usual in rows("seq_len"):
        assert f"| {usual.value} |" in PAGE


def test_every_family_and_refusal_of_operators_is_named() -> None:
    page = (Path(__file__).parents[2] / "docs" / "operators.md").read_text(encoding="utf-8")
    for refused in rows("op_refused"):
        assert f"| {refused.value} |" in page
    for name in (*LAYER_PRODUCTS, *LAYER_STREAMS, *(family for family, _ in LAYER_STREAMS.values())):
        assert f"`{name}`" in page or f": {name}`" in page
    for kind in rows("collective"):
        assert f"`{kind.value}`" in page
    assert SUSTAINED in page
