"""Policies of engines and frameworks, one TOML file each: what holds from which version on, when, and how known."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from ridgeline.errors import InputError, UnknownNameError, nearest_text
from ridgeline.facts import store
from ridgeline.facts.records import Evidence, Fact
from ridgeline.facts.user_files import ENGINE, FRAMEWORK, FileKind, Toml, parse_toml, read_toml, shortened

_NUMBERS = re.compile(r"^[a-z]{0,2}(\d{1,9}(?:\.\d{1,9})*)")
_RANGE = re.compile(r"^(\d{1,7})\.\.(\d{1,7})(?:/(\d{1,7}))?$")
_NAME = re.compile(r'^name = "(.+)"$', re.MULTILINE)
_LARGEST_LIST = 20_000
_FIRST_YEAR = 1900  # a version that begins so is a date
_RUNGS = {rung.label: rung for rung in Evidence if rung is not Evidence.HERE}
_NEWEST = (float("inf"),)
_WORDS = "a list of words"
_NAMES = "a word of the accelerator's name, or some, separated by commas"

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


@dataclass(frozen=True, kw_only=True)
class Key:
    """What a policy file may say under one name: a row of `data/policy_keys.tsv`, where kinds are explained."""

    name: str
    kind: str
    unit: str
    low: float | None
    high: float | None
    words: tuple[str, ...]
    measured: bool
    meaning: str

    def read(self, value: object) -> Any:
        """A value of the file in the type of its kind; a `ValueError` says what is wrong."""
        match self.kind:
            case "flag":
                return _typed(value, bool, "true or false")
            case "word":
                return self._one_of(_typed(value, str, f"one of {', '.join(self.words)}"))
            case "words":
                parts = _typed(value, list, _WORDS)
                if not self.words:
                    return tuple(_typed(part, str, _WORDS) for part in parts)
                found = {self._one_of(part) for part in parts}
                return tuple(name for name in self.words if name in found)
            case "sizes":
                return _sizes(value)
            case "rows":
                table = _typed(value, dict, "a table of numbers by name")
                return {self._one_of(name): self._number(one) for name, one in table.items()}
            case "text":
                return _typed(value, str, f"a word: {self.meaning}")
            case "name":
                if not all(word.strip() for word in str(_typed(value, str, _NAMES)).split(",")):
                    raise ValueError(f"needs {_NAMES}; got {value!r}")
                return value
        return self._number(value)

    def _number(self, value: object) -> Any:
        low, high = self.low or 0.0, self.high or 0.0
        return _number(value, low, high, self.unit, whole=self.kind == "count")

    def _one_of(self, value: object) -> str:
        text = str(value)
        if not isinstance(value, str) or value not in self.words:
            near = nearest_text(text, self.words)
            raise ValueError(f"needs one of {', '.join(self.words)}; got '{text[:40]}'" + (near and f"; {near}"))
        return text


def _number(value: object, low: float, high: float, unit: str, *, whole: bool) -> Any:
    wanted = "a whole number" if whole else "a number"
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
        raise ValueError(f"needs {wanted} of {unit}; got {shortened(value)}")
    if not (low <= value <= high) or not math.isfinite(value):
        raise ValueError(f"needs {wanted} from {low:g} to {high:g} {unit}; got {shortened(value)}")
    return value if whole else float(value)


def _typed(value: object, kind: type, wanted: str) -> Any:
    if not isinstance(value, kind):
        raise ValueError(f"needs {wanted}; got {shortened(value)}")
    return value


def _sizes(value: object) -> tuple[int, ...]:
    """Batch sizes in rising order, from whole numbers and runs such as '8..256/8'."""
    found: list[int] = []
    for part in _typed(value, list, "a list such as [1, 2, 4, '8..256/8']"):
        found.extend(_run(part) if isinstance(part, str) else (_number(part, 1, 1e7, "sequences", whole=True),))
        if len(found) > _LARGEST_LIST:
            raise ValueError(f"holds more than {_LARGEST_LIST} sizes")
    return tuple(sorted(set(found)))


def _run(part: str) -> range:
    match = _RANGE.match(part)
    if match is None:
        raise ValueError(f"needs runs such as '8..256/8'; got '{part[:40]}'")
    first, last, step = int(match[1]), int(match[2]), int(match[3] or 1)
    if first < 1 or last < first or step < 1 or (last - first) // step > _LARGEST_LIST:
        raise ValueError(f"needs 1 <= first <= last and a step >= 1; got '{part}'")
    return range(first, last + 1, step)


@dataclass(frozen=True, kw_only=True)
class PolicyCase:
    """Values with the conditions under which they hold; none: always. A fact of a table's row is named KEY.ROW."""

    conditions: Mapping[str, Any]
    values: Mapping[str, Any]
    facts: Mapping[str, Fact]


@dataclass(frozen=True, kw_only=True)
class Release:
    """What holds from a version on: as another program (`like`, NAME or NAME@VERSION; '' none), but for its cases."""

    start: Version
    like: str
    cases: tuple[PolicyCase, ...]


@dataclass(frozen=True, kw_only=True)
class Program:
    """A program by its names, and its releases in order of their versions."""

    name: str
    aliases: tuple[str, ...]
    releases: tuple[Release, ...]

    @property
    def starts(self) -> tuple[str, ...]:
        """The versions from which its policies hold."""
        return tuple(".".join(f"{part:g}" for part in release.start) for release in self.releases)


@dataclass(frozen=True, kw_only=True)
class ReleasePolicy:
    """The policy of one version of a program; `facts` tell how each key that its file sets is known."""

    name: str
    version: str
    facts: Mapping[str, Fact] = field(compare=False, repr=False)

    @property
    def sources(self) -> tuple[str, ...]:
        """The sources of all keys that the file sets, each once."""
        return tuple(dict.fromkeys(fact.source for fact in self.facts.values()))


@dataclass(frozen=True, kw_only=True)
class PolicyFiles:
    """The policy files of one kind of program, `what`: their folder in data/, their keys and conditions of cases."""

    what: str
    folder: str
    user_file: FileKind

    @cached_property
    def keys(self) -> Mapping[str, Key]:
        """The keys that a policy may set, by name."""
        return _keys(self.what)

    @cached_property
    def conditions(self) -> Mapping[str, Key]:
        """The conditions that a case may name."""
        return _keys(f"{self.what}.when")

    @cached_property
    def programs(self) -> Mapping[str, Program]:
        """The programs that ship with the package, by the stem of their files."""
        found = {}
        for stem in store.names(self.folder, ".toml"):
            name = f"{self.folder}/{stem}.toml"
            found[stem] = self.read(parse_toml(store.read_bytes(name), file=f"data/{name}"), shipped=True)
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
        """Names of the programs that ship with the package, sorted; their files are not read beyond the name."""
        texts = (store.read_text(f"{self.folder}/{stem}.toml") for stem in store.names(self.folder, ".toml"))
        return tuple(sorted((found[1] for text in texts if (found := _NAME.search(text))), key=str.casefold))

    def find(self, name: str) -> Program | None:
        """The program that people call `name`; None for an unknown one."""
        return self._by_name.get(folded(name))

    def canonical(self, name: str) -> str:
        """The name of the program that people call `name`; `name` itself of an unknown one."""
        known = self.find(name)
        return name if known is None else known.name

    def named(self, name: str) -> Program:
        """The program that people call `name`; raises `UnknownNameError` for an unknown one."""
        found = self.find(name)
        if found is None:
            known = [word for program in self.programs.values() for word in (program.name, *program.aliases)]
            raise UnknownNameError(self.what, name, known, hint="a policy file of your own can stand in for it")
        return found

    def in_force(self, program: Program, version: str, holds: Holds) -> tuple[dict[str, Any], dict[str, Fact]]:
        """Values and facts of a version; later releases and later cases override earlier ones, tables row by row."""
        wanted = version_key(version)
        values: dict[str, Any] = {}
        facts: dict[str, Fact] = {}
        for release in program.releases:
            if release.start > wanted:
                break
            if release.like:
                other, _, its_version = release.like.partition("@")
                more, known = self.in_force(self.named(other), its_version, holds)
                values, facts = values | more, facts | known
            for case in release.cases:
                if holds(case.conditions):
                    for key, value in case.values.items():
                        values[key] = {**values.get(key, {}), **value} if isinstance(value, dict) else value
                    facts |= case.facts
        return values, facts

    def from_file(self, path: str | Path) -> Program:
        """The program that a person's own TOML file describes; every defect of the file is an InputError."""
        return self.read(read_toml(path, self.user_file), shipped=False)

    def read(self, file: Toml, *, shipped: bool) -> Program:
        """The program of a parsed file; a shipped one must say how its numbers are known.

        Raises `InputError` with the file's name, line and field of the first defect.
        """
        return _PolicyReader(self, file, shipped=shipped).program()


ENGINES = PolicyFiles(what="engine", folder="engines", user_file=ENGINE)
FRAMEWORKS = PolicyFiles(what="framework", folder="frameworks", user_file=FRAMEWORK)


def _keys(whose: str) -> Mapping[str, Key]:
    rows = (row for row in store.read_tsv("policy_keys.tsv") if row["of"] == whose)
    return {key.name: key for key in store.records(Key, rows, name="key")}


class _PolicyReader:
    """One file that is read, and where a complaint about it belongs."""

    def __init__(self, policies: PolicyFiles, file: Toml, *, shipped: bool) -> None:
        self.policies, self.file, self.shipped, self.fail = policies, file, shipped, file.fail

    def program(self) -> Program:
        raw = self.file.tables
        self.file.only(raw, ("name", "aliases", "policy"))
        name, aliases, policies = raw.get("name"), raw.get("aliases", []), raw.get("policy")
        if not isinstance(name, str) or not name:
            self.fail("needs name = 'NAME'", ("name",))
        if not isinstance(aliases, list) or not all(isinstance(alias, str) for alias in aliases):
            self.fail("needs a list of names", ("aliases",))
        if not isinstance(policies, list) or not policies or not all(isinstance(entry, dict) for entry in policies):
            self.fail("needs one [[policy]] or more", ("policy",))
        read = tuple(self.release(entry, ("policy", number)) for number, entry in enumerate(policies))
        if read[0].start > (0.0,):
            self.fail("the first policy needs from = '0'", ("policy", 0, "from"))
        for number, (older, newer) in enumerate(pairwise(read), start=1):
            if newer.start <= older.start:
                self.fail("needs a later version than the policy above", ("policy", number, "from"))
        return Program(name=name, aliases=tuple(aliases), releases=read)

    def release(self, raw: Mapping[str, Any], place: Place) -> Release:
        start, like, whens = raw.get("from"), raw.get("like", ""), raw.get("when", [])
        if not isinstance(start, str) or _NUMBERS.match(start) is None:
            self.fail("needs a version such as '0.8'", (*place, "from"))
        if not isinstance(like, str):
            self.fail("needs the name of another program, such as 'NAME' or 'NAME@VERSION'", (*place, "like"))
        if like and not self.shipped and self.policies.find(like.partition("@")[0]) is None:
            self.fail(f"is none of {', '.join(self.policies.names())}", (*place, "like"))
        rest = {key: value for key, value in raw.items() if key not in ("from", "like", "when")}
        always = self.case(rest, place, "", {})
        if not isinstance(whens, list) or not all(isinstance(entry, dict) for entry in whens):
            self.fail("needs tables [[policy.when]]", (*place, "when"))
        source = str(raw.get("source", ""))
        cases = [self.when(entry, (*place, "when", number), source) for number, entry in enumerate(whens)]
        return Release(start=version_key(start), like=like, cases=(always, *cases))

    def when(self, raw: Mapping[str, Any], place: Place, source: str) -> PolicyCase:
        known = self.policies.conditions
        conditions = {name: self.value(key, raw[name], (*place, name)) for name, key in known.items() if name in raw}
        if not conditions:
            self.fail(f"needs a condition: {', '.join(known)}", place)
        rest = {key: value for key, value in raw.items() if key not in conditions}
        return self.case(rest, place, source, conditions)

    def case(self, raw: Mapping[str, Any], place: Place, source: str, conditions: Mapping[str, Any]) -> PolicyCase:
        """The values of one table and how each is known."""
        said, why = raw.get("source", source), raw.get("why", {})
        if not isinstance(said, str) or (self.shipped and not said):
            self.fail("needs source = 'key, place'", (*place, "source"))
        if not isinstance(why, dict):
            self.fail("needs a table: KEY = {evidence, source, note}", (*place, "why"))
        values: dict[str, Any] = {}
        facts: dict[str, Fact] = {}
        for name, given in raw.items():
            if name in ("source", "why"):
                continue
            key = self.policies.keys.get(name)
            if key is None:
                extra = ("from", "like", "when") if not conditions else tuple(self.policies.conditions)
                self.file.unknown(name, (*self.policies.keys, "source", "why", *extra), place)
            if key.kind != "gone":
                values[name] = self.value(key, given, (*place, name))
                facts |= self.known(key, values[name], why.get(name), said, (*place, "why", name))
        for name in why:
            if name not in raw:
                self.fail("explains a key that this table does not set", (*place, "why", name))
        return PolicyCase(conditions=conditions, values=values, facts=facts)

    def value(self, key: Key, given: object, place: Place) -> Any:
        try:
            return key.read(given)
        except ValueError as error:
            self.fail(str(error), place)

    def known(self, key: Key, value: Any, why: Any, source: str, place: Place) -> dict[str, Fact]:
        """How one key is known; of a table, each row."""
        if not isinstance(value, dict):
            return {key.name: self.fact(key, value, why, source, place)}
        said = {} if why is None else why
        if not isinstance(said, dict):
            self.fail("needs a table: ROW = {evidence, source, note}", place)
        for row in said:
            if row not in value:
                self.fail("explains a row that this table does not set", (*place, row))
        return {
            f"{key.name}.{row}": self.fact(key, one, said.get(row), source, (*place, row)) for row, one in value.items()
        }

    def fact(self, key: Key, value: Any, why: object, source: str, place: Place) -> Fact:
        measured = key.measured or key.kind == "rows"
        known = {"evidence": (Evidence.ASSUMED if measured else Evidence.DATASHEET).label}
        if why is None:
            if self.shipped and measured:
                self.fail("needs evidence, source and note: nobody sets it in a configuration", place)
        elif not isinstance(why, dict) or not all(isinstance(text, str) for text in why.values()):
            self.fail("needs {evidence = '...', source = '...', note = '...'}", place)
        else:
            self.file.only(why, ("evidence", "source", "note"), place)
            known = {"evidence": "", **why}
        label = known["evidence"]
        if label not in _RUNGS:
            self.fail(f"evidence needs to be one of {', '.join(_RUNGS)}; got '{label[:40]}'", place)
        return Fact(
            value=float(value) if isinstance(value, int | float) else 0.0,
            unit=key.unit or "1",
            source=known.get("source") or source or Path(self.file.name).name,
            conditions=known.get("note", ""),
            evidence=_RUNGS[label],
        )
