"""What words and silences of published results mean, and how named benchmarks were run: rows of `data/readings.tsv`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cache

from ridgeline.errors import InputError
from ridgeline.facts import store

TABLE = "readings.tsv"
CELLS = ("runs", "program", "model", "device", "words")
"""What patterns are looked for in: where results come from, the program's name, and cells of a result."""

Value = bool | int | float | str


_SOURCE_WORDS: ContextVar[tuple[str, ...]] = ContextVar("source words", default=())
_RECIPES: ContextVar[dict[str, None] | None] = ContextVar("recipes", default=None)


@contextmanager
def recipes_told(*words: str) -> Iterator[dict[str, None]]:
    """The rules of one source that results inside took, as the keys of the yielded table.

    `words` name the source of the result: a rule that fits only because of them is a recipe.
    """
    found: dict[str, None] = {}
    before = _SOURCE_WORDS.set(tuple(word for word in words if word)), _RECIPES.set(found)
    try:
        yield found
    finally:
        _SOURCE_WORDS.reset(before[0])
        _RECIPES.reset(before[1])


def tell_recipe(pattern: str, cell: str, told: str) -> None:
    """Notes a rule whose pattern of sources fits a cell, and would not without the words that name the source."""
    found = _RECIPES.get()
    if found is None or not pattern:
        return
    bare = cell
    for word in _SOURCE_WORDS.get():
        bare = bare.replace(word, "")
    if _compiled(pattern).search(bare) is None:
        found[told] = None


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One row: `value` is what `key` means where all patterns are found, `told` the words that say so to people."""

    key: str
    value: Value
    told: str
    patterns: Mapping[str, str]
    source: str = ""

    @property
    def text(self) -> str:
        """The value as a word."""
        return str(self.value)

    @property
    def number(self) -> float:
        """The value as a number, in the unit of its key."""
        return float(self.value)

    def of(self, cells: Mapping[str, str]) -> Reading | None:
        """The reading, with groups of model or words for backslashes; None where a pattern is not found."""
        found = {name: _compiled(pattern).search(cells.get(name, "")) for name, pattern in self.patterns.items()}
        if not all(found.values()):
            return None
        tell_recipe(self.patterns.get("runs", ""), cells.get("runs", ""), f"{self.key} = {self.value} ({self.source})")
        named = next((match for name in ("model", "words") if (match := found.get(name)) and match.re.groups), None)
        if named is None or not isinstance(self.value, str) or "\\" not in self.value:
            return self
        return replace(self, value=_typed(named.expand(self.value)))


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE)


@cache
def _table() -> Mapping[str, tuple[Reading, ...]]:
    """The rows by key, and by the part of it before a point."""
    found: dict[str, list[Reading]] = {}
    for row in store.read_tsv(TABLE):
        patterns = {name: row[name] for name in CELLS if row[name]}
        if (row["runs"] or row["program"]) and not row["source"]:
            raise InputError(f"{row['key']} of one source says not where it is known from", file=TABLE, field="source")
        made = Reading(
            key=row["key"], value=_typed(row["value"]), told=row["told"], patterns=patterns, source=row["source"]
        )
        for key in dict.fromkeys((made.key, made.key.partition(".")[0])):
            found.setdefault(key, []).append(made)
    return {key: tuple(rows) for key, rows in found.items()}


def _typed(cell: str) -> Value:
    if cell in ("yes", "no"):
        return cell == "yes"
    try:
        return int(cell)
    except ValueError:
        pass
    try:
        return float(cell)
    except ValueError:
        return cell


def rows(key: str) -> tuple[Reading, ...]:
    """All rows of a key, or of the keys that begin with it and a point, in the order of the table."""
    return _table()[key]


def words(key: str) -> Mapping[str, str]:
    """What single words mean: those of `words`, which are no patterns here, and their values."""
    return {word: row.text for row in rows(key) for word in row.patterns["words"].split()}


def readings(key: str, **cells: str) -> Iterator[Reading]:
    """The rows of a key whose patterns are all found in `cells`, case ignored, in the order of the table."""
    for row in rows(key):
        found = row.of(cells)
        if found is not None:
            yield found


def reading(key: str, **cells: str) -> Reading | None:
    """The first row of a key that fits; None where none does.

    >>> reading("network", model="resnet50").value
    'resnet-50'
    """
    return next(readings(key, **cells), None)


def settings(kind: str, said: list[str], **cells: str) -> dict[str, Value]:
    """Settings of a kind ('runtime.gradient_bytes' is one of 'runtime') that fit; of two of one the later holds.

    What is told of each goes to `said`.
    """
    found: dict[str, Value] = {}
    for row in readings(kind, **cells):
        found[row.key.partition(".")[2]] = row.value
        if row.told and row.told not in said:
            said.append(row.told)
    return found
