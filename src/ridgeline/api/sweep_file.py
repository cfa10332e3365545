"""What a sweep asks: a TOML file of words, grids and lists, as the cases of one question."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

import ridgeline
from ridgeline.api.verb import VERBS
from ridgeline.errors import InputError
from ridgeline.facts.user_files import MIB, FileKind, Toml, read_toml
from ridgeline.units import parse

SWEEP = FileKind(what="a sweep", most_bytes=16 * MIB)
SWEPT = ("predict", "plan", "simulate", "advise", "op")
MOST_CASES = 100_000
_WRITING = frozenset({"trace", "html", "picture"})  # own options that write one file a question


@dataclass(frozen=True, slots=True)
class SweepCase:
    """One question of a sweep: its number from 0, the words that differ, and the key of its answer in a journal."""

    number: int
    words: Mapping[str, Any]
    key: str


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A sweep: its question, the words of all cases, the paths of the answer that are wanted, and the cases."""

    file: str
    verb: str
    words: Mapping[str, Any]
    columns: tuple[str, ...]
    limit_s: float | None  # of one case
    cases: Sequence[SweepCase]


def read_sweep(path: str) -> Sweep:
    """The sweep in a TOML file; raises `InputError` with file and line for what cannot be used."""
    toml = read_toml(path, SWEEP)
    toml.only(toml.tables, ("sweep",))
    table = _table(toml, toml.tables.get("sweep"), ("sweep",))
    toml.only(table, ("verb", "words", "grid", "case", "columns", "limit_case"), ("sweep",))
    verb = table.get("verb")
    if verb not in SWEPT:
        toml.fail(f"is not one of them: {', '.join(SWEPT)}", ("sweep", "verb"), value=verb)
    words = _words(toml, verb, table.get("words", {}), ("sweep", "words"))
    grid = _words(toml, verb, table.get("grid", {}), ("sweep", "grid"))
    for word, values in grid.items():
        if not isinstance(values, list) or not values:
            toml.fail("is not a list of values, e.g. [1, 2, 4]", ("sweep", "grid", word), value=values)
    listed = table.get("case", [{}])
    if not isinstance(listed, list):
        toml.fail("is not a list of tables; write [[sweep.case]]", ("sweep", "case"))
    cases = [_words(toml, verb, each, ("sweep", "case", index)) for index, each in enumerate(listed)]
    many = len(cases) * prod(map(len, grid.values()))
    if many > MOST_CASES:
        toml.fail(f"makes {many:,} cases, the limit is {MOST_CASES:,}; make several sweeps", ("sweep",))
    columns = table.get("columns", [])
    if not isinstance(columns, list) or not all(isinstance(each, str) for each in columns):
        toml.fail("is not a list of paths such as 'memory.0.total_bytes'", ("sweep", "columns"))
    limit_s = None if "limit_case" not in table else limit_of(table["limit_case"], "limit_case")
    crossed = ({**case, **dict(zip(grid, values, strict=True))} for case in cases for values in product(*grid.values()))
    about = (_code(), verb, tuple(columns))
    return Sweep(
        file=path, verb=verb, words=words, columns=tuple(columns), limit_s=limit_s,
        cases=[SweepCase(number, each, _key(about, {**words, **each})) for number, each in enumerate(crossed)],
    )  # fmt: skip


def limit_of(value: Any, field: str) -> float:
    """The time that one case may take [s]; raises `InputError` for what is no time above zero."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise InputError("is no time; write 60s or 5min", field=field, value=value)
    found = parse(value, "s", field=field)
    if found <= 0:
        raise InputError("is no time above zero; write 60s or 5min", field=field, value=value)
    return found


def _table(toml: Toml, value: object, place: tuple[str | int, ...]) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        toml.fail("is not a table; a sweep begins with [sweep]", place if value is not None else ())
    return value


def _words(toml: Toml, verb: str, value: object, place: tuple[str | int, ...]) -> Mapping[str, Any]:
    """Words of the question, `_` for `-`; a wrong one is refused before anything is asked."""
    table = _table(toml, value, place)
    known = [word for word in VERBS[verb].words() if word not in _WRITING or word not in VERBS[verb].own]
    for word in table:
        if word not in known:
            toml.unknown(word, known, place)
    return table


def _key(about: tuple[Any, ...], words: Mapping[str, Any]) -> str:
    """A name of the question: of its words, of the files that they name, and of the code that answers it."""
    files = [_content(value) for value in words.values() if isinstance(value, str)]
    text = json.dumps([*about, sorted(words.items()), files], default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


@cache
def _content(text: str) -> str:
    """A name of what a file holds; '' where a word names none."""
    try:
        about = os.stat(text)
        small = about.st_size <= SWEEP.most_bytes and Path(text).is_file()
        return hashlib.sha256(Path(text).read_bytes()).hexdigest() if small else f"{about.st_size} {about.st_mtime_ns}"
    except (OSError, ValueError):
        return ""


@cache
def _code() -> str:
    """A name of the package as it is: other code or facts answer anew, on any machine."""
    root, found = Path(ridgeline.__file__).parent, hashlib.sha256()
    with suppress(PackageNotFoundError):
        found.update(version("aiconfigurator-core").encode())  # measured tables that answers may rest on
    for path in sorted(path for path in root.rglob("*") if path.suffix in (".py", ".tsv", ".toml", ".json")):
        found.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return found.hexdigest()


def shard_of(text: str | None) -> tuple[int, int]:
    """'3/16' as the third of sixteen shards, counted from 0; raises `InputError` for what is none."""
    if text is None:
        return 0, 1
    first, slash, last = text.partition("/")
    if not (slash and first.isdecimal() and last.isdecimal() and 1 <= int(first) <= int(last) <= MOST_CASES):
        raise InputError("is no shard; write 3/16 for the third of sixteen", field="--shard", value=text)
    return int(first) - 1, int(last)
