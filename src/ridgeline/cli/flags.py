"""Command-line flags made from the fields of a scenario, so that a flag and a TOML key never differ."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from ridgeline.errors import InputError
from ridgeline.scenario.fields import PLAN_FIELDS, WORKLOAD_FIELDS, Field, count, read_fields

NOT_SEARCHED = ("layer_split", "recompute_layers")  # a search has no such choice to hold
STATED_FIELDS = tuple(field for field in PLAN_FIELDS if field.name not in NOT_SEARCHED)
LIMIT_FIELDS = tuple(
    Field(name=name, read=count(1), help=help_)
    for name, help_ in (
        ("max_tp", "largest tensor-parallel degree to try"),
        ("max_pp", "largest pipeline-parallel degree to try"),
        ("max_cp", "largest context-parallel degree to try"),
        ("max_ep", "largest expert-parallel degree to try"),
        ("max_micro_batch", "largest micro-batch to try"),
        ("max_chunks", "most model chunks per stage to try"),
    )
)
LIMIT_NAMES = frozenset(field.name for field in LIMIT_FIELDS)
WORKLOAD_NAMES = frozenset(field.name for field in WORKLOAD_FIELDS)
PLAN_NAMES = frozenset(field.name for field in PLAN_FIELDS)


SHARED = "Training and serving"  # the heading of words that are in several tables of a command


def flags_of(groups: Mapping[str, tuple[Field, ...]]) -> list[inspect.Parameter]:
    """A parameter per field of some tables, under the heading of its table.

    A flag that is not given is None; one that is given is text (True or False for a switch), for
    the field's own reader. A word of two tables is one flag, under a heading of its own.
    """
    headings: dict[str, str] = {}
    fields: dict[str, Field] = {}
    for heading, table in groups.items():
        for field in table:
            headings[field.name] = SHARED if field.name in fields else heading
            fields.setdefault(field.name, field)
    return [_parameter(field, headings[name]) for name, field in fields.items()]


def _parameter(field: Field, heading: str) -> inspect.Parameter:
    kind: Any = bool | None if field.switch else str | None
    name = f"{field.flag}/--no-{field.flag[2:]}" if field.switch else field.flag
    metavar = None if field.switch else "|".join(field.choices) or "VALUE"
    option = typer.Option(name, help=field.help, metavar=metavar, show_default=False, rich_help_panel=heading)
    return inspect.Parameter(
        field.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, option]
    )


def read_flags(words: Mapping[str, Any], fields: tuple[Field, ...]) -> dict[str, Any]:
    """The values of those flags among `fields` that the person gave."""
    flags = {field.name: field.flag for field in fields}
    table = given(words, frozenset(flags))
    return read_fields(table, fields, lambda name, message: InputError(message, field=flags[name]))


def flag_of(name: str) -> str:
    """A field's name as its flag."""
    return "--" + name.replace("_", "-")


def given(words: Mapping[str, Any], names: frozenset[str]) -> dict[str, Any]:
    """The flags among `names` that the person gave."""
    return {name: value for name, value in words.items() if name in names and value is not None}
