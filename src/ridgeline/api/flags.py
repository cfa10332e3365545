"""Words of a question that stand for fields of a scenario, so that a flag and a TOML key never differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ridgeline.errors import InputError
from ridgeline.scenario.fields import PLAN_FIELDS, WORKLOAD_FIELDS, Field, fields_of, read_fields

NOT_SEARCHED = ("layer_split", "recompute_layers")  # a search has no such choice to hold
STATED_FIELDS = tuple(field for field in PLAN_FIELDS if field.name not in NOT_SEARCHED)
LIMIT_FIELDS = fields_of("limits")
LIMIT_NAMES = frozenset(field.name for field in LIMIT_FIELDS)
WORKLOAD_NAMES = frozenset(field.name for field in WORKLOAD_FIELDS)
PLAN_NAMES = frozenset(field.name for field in PLAN_FIELDS)


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
