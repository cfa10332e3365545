"""Field tables of programs' configs: each field's name, type and range in a release, and our word for it.

`data/exports/NAME.tsv` has a row for each field of a program. `name` may have dots, for fields inside others. `ours` is
the word of a scenario that it stands for (`plan.tp`), empty where nothing that is modelled hangs on it; `convert` says
how its value becomes ours and back. `default` is what the program takes where the field is absent, said where ours
differs or where our value may have no counterpart: it is written out then, and read into a file without the field.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from ridgeline.errors import InputError
from ridgeline.export.forms import is_number
from ridgeline.facts.policies import version_key
from ridgeline.facts.store import read_tsv

_TYPES: Mapping[str, tuple[type, ...]] = {
    "int": (int,), "float": (int, float), "bool": (bool,), "str": (str,), "list": (list,), "table": (dict,), "any": (),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ConfigField:
    """One field of a program's config, in releases from `since` to before `until` ('' without end)."""

    name: str
    type: str
    range: str = ""  # 'a|b|c', or 'LEAST..MOST', either end may be open
    since: str = ""
    until: str = ""
    ours: str = ""
    convert: str = ""
    source: str = ""
    alias: str = ""  # other spellings, 'c|ctx'
    default: str = ""

    def holds(self, release: str) -> bool:
        """Whether the field is there in a release; of '' the newest is meant."""
        key = version_key(release) if release else None
        early = bool(self.since) and key is not None and key < version_key(self.since)
        late = bool(self.until) and (key is None or key >= version_key(self.until))
        return not (early or late)

    def check(self, value: object) -> str:
        """Why the program would refuse a value; '' where it would not."""
        if value is None:  # null: the field left out
            return ""
        if self.type == "float" and isinstance(value, str) and is_number(value):
            return ""  # YAML 1.1 reads 2e-5 as text, and programs take it
        kinds = _TYPES[self.type]
        if kinds and (not isinstance(value, kinds) or (isinstance(value, bool) and self.type != "bool")):
            return f"{value!r} is no {self.type}"
        low, between, high = self.range.partition("..")
        if between and isinstance(value, int | float):
            inside = (not low or value >= float(low)) and (not high or value <= float(high))
            return "" if inside else f"{value} is outside {self.range}"
        if self.range and not between and isinstance(value, str) and value not in self.range.split("|"):
            return f"'{value}' is none of {', '.join(self.range.split('|'))}"
        return ""

    @property
    def absent(self) -> Any:
        """What the program takes where the field is absent; None where the table does not say."""
        return _typed(self.default) if self.default else None

    def theirs(self, value: Any) -> Any:
        """Our value as the program writes it; None where it has no word for it."""
        return _CONVERSIONS[self.convert.partition(":")[0]][0](value, self.convert.partition(":")[2])

    def our_value(self, value: Any) -> Any:
        """The program's value as ours; None where we have no word for it."""
        return _CONVERSIONS[self.convert.partition(":")[0]][1](value, self.convert.partition(":")[2])


def _pairs(told: str) -> list[tuple[str, str]]:
    return [(ours.strip(), theirs.strip()) for ours, _, theirs in (pair.partition("=") for pair in told.split(";"))]


def _as_word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _typed(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    try:
        return int(text)
    except ValueError:
        return text


_CONVERSIONS: Mapping[str, Any] = {
    "": (lambda value, _: value, lambda value, _: value),
    "not": (lambda value, _: not value, lambda value, _: not value),
    "text": (lambda value, _: str(value), lambda value, _: _typed(str(value))),
    "times": (lambda value, by: value * _typed(by), lambda value, by: value // _typed(by)),
    # 'map:ours=theirs;...': the first pair with our word, or theirs; words that are not in it have no counterpart
    "map": (
        lambda value, told: next((_typed(theirs) for ours, theirs in _pairs(told) if ours == _as_word(value)), None),
        lambda value, told: next((_typed(ours) for ours, theirs in _pairs(told) if theirs == _as_word(value)), None),
    ),
    # 'over:ours=theirs;...': as map, and other words as they are
    "over": (
        lambda value, told: next((_typed(t) for o, t in _pairs(told) if o == _as_word(value)), value),
        lambda value, told: next((_typed(o) for o, t in _pairs(told) if t == _as_word(value)), value),
    ),
    # 'among:a|b': words that are the same, of these alone
    "among": (
        lambda value, told: value if value in told.split("|") else None,
        lambda value, told: value if value in told.split("|") else None,
    ),
    # 'above:N': a switch that is on where ours is above N
    "above": (lambda value, least: value > int(least), lambda value, least: None),
}
"""How values become theirs, and ours, by the first word of `convert`; the rest of it is the second argument."""


@cache
def field_table(name: str) -> tuple[ConfigField, ...]:
    """The fields of a program's config; raises `InputError` for a row of our own data that cannot be used."""
    place = f"exports/{name}.tsv"
    rows = [ConfigField(**row) for row in read_tsv(place)]
    for row in rows:
        if row.type not in _TYPES or row.convert.partition(":")[0] not in _CONVERSIONS or not row.source:
            raise InputError(f"{row.name}: unknown type or conversion, or no source", file=place, field=row.name)
    return tuple(rows)
