"""Policies of programs, one TOML file each: what holds from which version on, under which conditions, and how known."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass, field
from difflib import get_close_matches
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

from ridgeline.errors import InputError, UnknownNameError
from ridgeline.facts import store
from ridgeline.facts.policy_schema import Check, checked, measured_of
from ridgeline.facts.records import Evidence, Fact
from ridgeline.facts.toml_text import line_of, parse_toml
from ridgeline.facts.user_files import FileKind, read_user_file

_TEXTS = ("source", "why")
_NUMBERS = re.compile(r"^[a-z]{0,2}(\d{1,9}(?:\.\d{1,9})*)")
_NAME = re.compile(r'^name = "(.+)"$', re.MULTILINE)
_FIRST_YEAR = 1900  # a version that begins so is a date
_RUNGS = {rung.label: rung for rung in Evidence if rung is not Evidence.HERE}
_NEWEST = (float("inf"),)

Place = tuple[str | int, ...]
Version = tuple[float, ...]
Holds = Callable[[Mapping[str, Any]], bool]


def version_key(version: str) -> Version:
    """Numbers by which versions are ordered; what has none, and a date, is the newest.

    >>> version_key("v0.6.3.post1") < version_key("0.10") < version_key("nightly-2024")
    True
    """
    found = _NUMBERS.match(version.strip().casefold())
    if found is None:
        return _NEWEST
    numbers = tuple(float(part) for part in found[1].split("."))
    while len(numbers) > 1 and numbers[-1] == 0:
        numbers = numbers[:-1]
    return _NEWEST if numbers[0] >= _FIRST_YEAR and not version.strip().casefold().startswith("b") else numbers


def folded(name: str) -> str:
    """A name by which spellings of it are told alike: its letters and digits.

    >>> folded("TensorRT-LLM")
    'tensorrtllm'
    """
    return "".join(letter for letter in name.casefold() if letter.isalnum())


def names_in(folder: str) -> tuple[str, ...]:
    """Names of the programs that ship in a folder of data/, sorted; their files are not read beyond the name."""
    texts = (store.read_text(f"{folder}/{stem}.toml") for stem in store.names(folder, ".toml"))
    return tuple(sorted((found[1] for text in texts if (found := _NAME.search(text))), key=str.casefold))


@dataclass(frozen=True, kw_only=True)
class Case:
    """Values with the conditions under which they hold; none: always. A fact of a table's row is named KEY.ROW."""

    conditions: Mapping[str, Any]
    values: Mapping[str, Any]
    facts: Mapping[str, Fact]


@dataclass(frozen=True, kw_only=True)
class Policy:
    """What holds from a version on: as another program (`like`, NAME or NAME@VERSION; '' none), but for its cases."""

    start: Version
    like: str
    cases: tuple[Case, ...]


@dataclass(frozen=True, kw_only=True)
class Program:
    """A program by its names, and its policies in order of their versions."""

    name: str
    aliases: tuple[str, ...]
    policies: tuple[Policy, ...]

    @property
    def starts(self) -> tuple[str, ...]:
        """The versions from which its policies hold."""
        return tuple(".".join(f"{part:g}" for part in policy.start) for policy in self.policies)


@dataclass(frozen=True, kw_only=True)
class Policies:
    """The policy files of one kind of program: their folder in data/, their keys and their conditions."""

    what: str
    folder: str
    user_file: FileKind
    keys: Mapping[str, Field[Any]]
    conditions: Mapping[str, Check] = field(default_factory=dict)

    @cached_property
    def programs(self) -> Mapping[str, Program]:
        """The programs that ship with the package, by the stem of their files."""
        found = {}
        for stem in store.names(self.folder, ".toml"):
            name = f"{self.folder}/{stem}.toml"
            raw, text = parse_toml(store.read_text(name).encode(), file=f"data/{name}")
            found[stem] = self.read(raw, name=f"data/{name}", text=text, shipped=True)
        return found

    @cached_property
    def _by_name(self) -> Mapping[str, Program]:
        table: dict[str, Program] = {}
        for program in self.programs.values():
            for word in (program.name, *program.aliases):
                if table.setdefault(folded(word), program) is not program:
                    raise InputError(f"{self.what}s share the name '{word}'", file=f"data/{self.folder}")
        return table

    def names(self) -> tuple[str, ...]:
        """Names of the programs that ship with the package, sorted."""
        return names_in(self.folder)

    def find(self, name: str) -> Program | None:
        """The program that people call `name`; None for an unknown one."""
        return self._by_name.get(folded(name))

    def named(self, name: str) -> Program:
        """The program that people call `name`; raises `UnknownNameError` for an unknown one."""
        found = self.find(name)
        if found is None:
            known = [word for program in self.programs.values() for word in (program.name, *program.aliases)]
            raise UnknownNameError(self.what, name, known, hint="a policy file of your own can stand in for it")
        return found

    def in_force(self, program: Program, version: str, holds: Holds) -> tuple[dict[str, Any], dict[str, Fact]]:
        """Values and facts of a version; later policies and later cases override earlier ones, tables row by row."""
        wanted = version_key(version)
        values: dict[str, Any] = {}
        facts: dict[str, Fact] = {}
        for policy in program.policies:
            if policy.start > wanted:
                break
            if policy.like:
                other, _, its_version = policy.like.partition("@")
                more, known = self.in_force(self.named(other), its_version, holds)
                values, facts = values | more, facts | known
            for case in policy.cases:
                if holds(case.conditions):
                    for key, value in case.values.items():
                        values[key] = {**values.get(key, {}), **value} if isinstance(value, dict) else value
                    facts |= case.facts
        return values, facts

    def from_file(self, path: str | Path) -> Program:
        """The program that a person's own TOML file describes; every defect of the file is an InputError."""
        raw, text = parse_toml(read_user_file(path, self.user_file).raw, file=str(path))
        return self.read(raw, name=str(path), text=text, shipped=False)

    def read(self, raw: Mapping[str, Any], *, name: str, text: str, shipped: bool) -> Program:
        """The program of a parsed file; a shipped one must say how its numbers are known.

        Raises `InputError` with the file's `name`, the line in its `text` and the field of the first defect.
        """
        return _Reader(self, name=name, text=text, shipped=shipped).program(raw)


class _Reader:
    """One file that is read, and where a complaint about it belongs."""

    def __init__(self, policies: Policies, *, name: str, text: str, shipped: bool) -> None:
        self.policies, self.name, self.text, self.shipped = policies, name, text, shipped
        self.measured = measured_of(policies.keys)

    def fail(self, message: str, place: Place) -> NoReturn:
        where = ".".join(str(part) for part in place) or None
        raise InputError(message, file=self.name, line=line_of(self.text, place) if place else None, field=where)

    def unknown(self, key: str, known: Sequence[str], place: Place) -> NoReturn:
        near = get_close_matches(key, known, n=1, cutoff=0.5)
        self.fail("unknown field; " + (f"nearest: {near[0]}" if near else f"known: {', '.join(known)}"), (*place, key))

    def program(self, raw: Mapping[str, Any]) -> Program:
        for key in raw:
            if key not in ("name", "aliases", "policy"):
                self.unknown(key, ("name", "aliases", "policy"), ())
        name, aliases, policies = raw.get("name"), raw.get("aliases", []), raw.get("policy")
        if not isinstance(name, str) or not name:
            self.fail("needs name = 'NAME'", ("name",))
        if not isinstance(aliases, list) or not all(isinstance(alias, str) for alias in aliases):
            self.fail("needs a list of names", ("aliases",))
        if not isinstance(policies, list) or not policies or not all(isinstance(entry, dict) for entry in policies):
            self.fail("needs one [[policy]] or more", ("policy",))
        read = tuple(self.policy(entry, ("policy", number)) for number, entry in enumerate(policies))
        if read[0].start > (0.0,):
            self.fail("the first policy needs from = '0'", ("policy", 0, "from"))
        for number, (older, newer) in enumerate(pairwise(read), start=1):
            if newer.start <= older.start:
                self.fail("needs a later version than the policy above", ("policy", number, "from"))
        return Program(name=name, aliases=tuple(aliases), policies=read)

    def policy(self, raw: Mapping[str, Any], place: Place) -> Policy:
        start = raw.get("from")
        if not isinstance(start, str) or _NUMBERS.match(start) is None:
            self.fail("needs a version such as '0.8'", (*place, "from"))
        like = raw.get("like", "")
        if not isinstance(like, str):
            self.fail("needs the name of another program, such as 'NAME' or 'NAME@VERSION'", (*place, "like"))
        if like and not self.shipped and self.policies.find(like.partition("@")[0]) is None:
            self.fail(f"is none of {', '.join(self.policies.names())}", (*place, "like"))
        rest = {key: value for key, value in raw.items() if key not in ("from", "like", "when")}
        always = self.case(rest, place, "", {})
        whens = raw.get("when", [])
        if not isinstance(whens, list) or not all(isinstance(entry, dict) for entry in whens):
            self.fail("needs tables [[policy.when]]", (*place, "when"))
        source = str(raw.get("source", ""))
        cases = [self.when(entry, (*place, "when", number), source) for number, entry in enumerate(whens)]
        return Policy(start=version_key(start), like=like, cases=(always, *cases))

    def when(self, raw: Mapping[str, Any], place: Place, source: str) -> Case:
        conditions = {}
        for key, check in self.policies.conditions.items():
            if key in raw:
                conditions[key] = self.attempt(check, raw[key], (*place, key))
        if not conditions:
            self.fail(f"needs a condition: {', '.join(self.policies.conditions)}", place)
        rest = {key: value for key, value in raw.items() if key not in conditions}
        return self.case(rest, place, source, conditions)

    def case(self, raw: Mapping[str, Any], place: Place, source: str, conditions: Mapping[str, Any]) -> Case:
        """The values of one table and how each is known."""
        said = raw.get("source", source)
        why = raw.get("why", {})
        if not isinstance(said, str) or (self.shipped and not said):
            self.fail("needs source = 'key, place'", (*place, "source"))
        if not isinstance(why, dict):
            self.fail("needs a table: KEY = {evidence, source, note}", (*place, "why"))
        values: dict[str, Any] = {}
        facts: dict[str, Fact] = {}
        for key, given in raw.items():
            if key in _TEXTS:
                continue
            entry = self.policies.keys.get(key)
            if entry is None:
                extra = ("from", "like", "when") if not conditions else tuple(self.policies.conditions)
                self.unknown(key, (*self.policies.keys, *_TEXTS, *extra), place)
            values[key] = self.attempt(partial(checked, entry), given, (*place, key))
            facts |= self.known(entry, values[key], why.get(key), said, (*place, "why", key))
        for key in why:
            if key not in values:
                self.fail("explains a key that this table does not set", (*place, "why", key))
        return Case(conditions=conditions, values=values, facts=facts)

    def known(self, entry: Field[Any], value: Any, why: Any, source: str, place: Place) -> dict[str, Fact]:
        """How one key is known; of a table, each row."""
        if not isinstance(value, dict):
            return {entry.name: self.fact(entry, value, why, source, place, measured=entry.name in self.measured)}
        said = {} if why is None else why
        if not isinstance(said, dict):
            self.fail("needs a table: ROW = {evidence, source, note}", place)
        for row in said:
            if row not in value:
                self.fail("explains a row that this table does not set", (*place, row))
        return {
            f"{entry.name}.{row}": self.fact(entry, one, said.get(row), source, (*place, row), measured=True)
            for row, one in value.items()
        }

    def fact(self, entry: Field[Any], value: Any, why: object, source: str, place: Place, *, measured: bool) -> Fact:
        unit = str(entry.metadata["unit"]) or "1"
        number = float(value) if isinstance(value, int | float) else 0.0
        if why is None:
            if self.shipped and measured:
                self.fail("needs evidence, source and note: nobody sets it in a configuration", place)
            rung = Evidence.ASSUMED if measured else Evidence.DATASHEET
            return Fact(value=number, unit=unit, source=source or Path(self.name).name, conditions="", evidence=rung)
        if not isinstance(why, dict) or not all(isinstance(text, str) for text in why.values()):
            self.fail("needs {evidence = '...', source = '...', note = '...'}", place)
        for word in why:
            if word not in ("evidence", "source", "note"):
                self.unknown(word, ("evidence", "source", "note"), place)
        label = why.get("evidence", "")
        if label not in _RUNGS:
            self.fail(f"evidence needs to be one of {', '.join(_RUNGS)}; got '{label[:40]}'", place)
        return Fact(
            value=number,
            unit=unit,
            source=why.get("source") or source or Path(self.name).name,
            conditions=why.get("note", ""),
            evidence=_RUNGS[label],
        )

    def attempt(self, check: Check, value: object, place: Place) -> Any:
        try:
            return check(value)
        except ValueError as error:
            self.fail(str(error), place)
