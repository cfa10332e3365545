"""Policies of serving engines, one TOML file each: how a version batches, what memory it holds, what its host costs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

from ridgeline.errors import DomainError, InputError, UnknownNameError
from ridgeline.facts import store
from ridgeline.facts.engine_schema import CONDITION_CHECKS, KEYS, MEASURED, TEXTS, EnginePolicy, checked
from ridgeline.facts.records import Evidence, Fact
from ridgeline.facts.toml_text import line_of, parse_toml
from ridgeline.facts.user_files import ENGINE, read_user_file

_FOLDER = "engines"
_NUMBERS = re.compile(r"^[a-z]{0,2}(\d{1,9}(?:\.\d{1,9})*)")
_FIRST_YEAR = 1900  # a version that begins so is a date
_RUNGS = {rung.label: rung for rung in Evidence if rung is not Evidence.HERE}
_NEWEST = (float("inf"),)

Place = tuple[str | int, ...]
Version = tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class ModelTraits:
    """What a policy may ask of a model: its name, whether it routes tokens to experts, its hidden size [1].

    Of the model that stands for none no condition holds.
    """

    name: str = ""
    experts: bool | None = None
    hidden: float = float("inf")


_NO_MODEL = ModelTraits()


@dataclass(frozen=True, kw_only=True)
class _Case:
    """Values with the conditions under which they hold; none: always."""

    conditions: Mapping[str, Any]
    values: Mapping[str, Any]
    facts: Mapping[str, Fact]


@dataclass(frozen=True, kw_only=True)
class _Engine:
    name: str
    aliases: tuple[str, ...]
    policies: tuple[tuple[Version, tuple[_Case, ...]], ...]


@dataclass(frozen=True, kw_only=True)
class _File:
    """The file that is read, and where a complaint about it belongs."""

    name: str
    text: str
    shipped: bool

    def fail(self, message: str, place: Place) -> NoReturn:
        field = ".".join(str(part) for part in place) or None
        raise InputError(message, file=self.name, line=line_of(self.text, place) if place else None, field=field)

    def unknown(self, key: str, known: Sequence[str], place: Place) -> NoReturn:
        near = get_close_matches(key, known, n=1, cutoff=0.5)
        self.fail("unknown field; " + (f"nearest: {near[0]}" if near else f"known: {', '.join(known)}"), (*place, key))


def engine_names() -> tuple[str, ...]:
    """Names of the engines whose policies ship with the package, sorted."""
    return tuple(sorted((engine.name for engine in _catalog().values()), key=str.casefold))


def engine_known(name: str) -> bool:
    """Whether an engine of that name has a policy in the catalog."""
    return _folded(name) in _by_name()


def engine_named(name: str) -> str:
    """The name under which the catalog has an engine that people also call otherwise; `name` itself of no known one.

    >>> engine_named("trtllm")
    'TensorRT-LLM'
    """
    known = _by_name().get(_folded(name))
    return name if known is None else known.name


def newest_policy(name: str) -> str:
    """The version from which the newest policy of a known engine holds."""
    start = _by_name()[_folded(name)].policies[-1][0]
    return ".".join(f"{part:g}" for part in start)


def engine_policy(
    name: str,
    version: str = "",
    *,
    memory_bytes: float,
    offline: bool = False,
    context_tokens: int = 0,
    ranks: int = 1,
    device: str = "",
    architecture: str = "",
    model: ModelTraits = _NO_MODEL,
) -> EnginePolicy:
    """The policy that version `version` of an engine has on a device with `memory_bytes` [byte].

    An empty version, a nightly build and a date count as the newest. `offline`: requests are known beforehand;
    `context_tokens`: the model's longest context; `ranks`: devices of an instance; `device`: the accelerator's name;
    `architecture`: its vendor and architecture; `model`: what is known of the model, without which no rule about models
    holds.

    >>> engine_policy("vllm", "0.8.5", memory_bytes=80e9).token_budget
    8192
    """
    engine = _by_name().get(_folded(name))
    if engine is None:
        known = [word for entry in _catalog().values() for word in (entry.name, *entry.aliases)]
        raise UnknownNameError("engine", name, known, hint="a policy file of your own can stand in for it")
    given = _given(memory_bytes, offline, context_tokens, ranks, device, model, architecture)
    return _resolve(engine, version, given)


def engine_policy_from_file(
    path: str | Path,
    version: str = "",
    *,
    memory_bytes: float,
    offline: bool = False,
    context_tokens: int = 0,
    ranks: int = 1,
    device: str = "",
    architecture: str = "",
    model: ModelTraits = _NO_MODEL,
) -> EnginePolicy:
    """The policy that a person's own TOML file describes; every defect of the file is an InputError."""
    raw, text = parse_toml(read_user_file(path, ENGINE).raw, file=str(path))
    engine = _read(raw, _File(name=str(path), text=text, shipped=False))
    given = _given(memory_bytes, offline, context_tokens, ranks, device, model, architecture)
    return _resolve(engine, version, given)


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


@cache
def _catalog() -> Mapping[str, _Engine]:
    found = {}
    for stem in store.names(_FOLDER, ".toml"):
        name = f"{_FOLDER}/{stem}.toml"
        raw, text = parse_toml(store.read_text(name).encode(), file=f"data/{name}")
        found[stem] = _read(raw, _File(name=f"data/{name}", text=text, shipped=True))
    return found


@cache
def _by_name() -> Mapping[str, _Engine]:
    table: dict[str, _Engine] = {}
    for engine in _catalog().values():
        for word in (engine.name, *engine.aliases):
            if table.setdefault(_folded(word), engine) is not engine:
                raise InputError(f"engines share the name '{word}'", file=f"data/{_FOLDER}")
    return table


def _folded(name: str) -> str:
    return "".join(letter for letter in name.casefold() if letter.isalnum())


def _read(raw: Mapping[str, Any], file: _File) -> _Engine:
    for key in raw:
        if key not in ("name", "aliases", "policy"):
            file.unknown(key, ("name", "aliases", "policy"), ())
    name, aliases, policies = raw.get("name"), raw.get("aliases", []), raw.get("policy")
    if not isinstance(name, str) or not name:
        file.fail("needs name = 'NAME'", ("name",))
    if not isinstance(aliases, list) or not all(isinstance(alias, str) for alias in aliases):
        file.fail("needs a list of names", ("aliases",))
    if not isinstance(policies, list) or not policies or not all(isinstance(entry, dict) for entry in policies):
        file.fail("needs one [[policy]] or more", ("policy",))
    read = tuple(_policy(entry, ("policy", number), file) for number, entry in enumerate(policies))
    if read[0][0] > (0.0,):
        file.fail("the first policy needs from = '0'", ("policy", 0, "from"))
    for number, (older, newer) in enumerate(pairwise(read), start=1):
        if newer[0] <= older[0]:
            file.fail("needs a later version than the policy above", ("policy", number, "from"))
    return _Engine(name=name, aliases=tuple(aliases), policies=read)


def _policy(raw: Mapping[str, Any], place: Place, file: _File) -> tuple[Version, tuple[_Case, ...]]:
    start = raw.get("from")
    if not isinstance(start, str) or _NUMBERS.match(start) is None:
        file.fail("needs a version such as '0.8'", (*place, "from"))
    rest = {key: value for key, value in raw.items() if key not in ("from", "when")}
    always = _case(rest, place, file, "", {})
    whens = raw.get("when", [])
    if not isinstance(whens, list) or not all(isinstance(entry, dict) for entry in whens):
        file.fail("needs tables [[policy.when]]", (*place, "when"))
    source = str(raw.get("source", ""))
    cases = [_when(entry, (*place, "when", number), file, source) for number, entry in enumerate(whens)]
    return version_key(start), (always, *cases)


def _when(raw: Mapping[str, Any], place: Place, file: _File, source: str) -> _Case:
    conditions = {}
    for key, check in CONDITION_CHECKS.items():
        if key in raw:
            conditions[key] = _try(check, raw[key], (*place, key), file)
    if not conditions:
        file.fail(f"needs a condition: {', '.join(CONDITION_CHECKS)}", place)
    rest = {key: value for key, value in raw.items() if key not in conditions}
    return _case(rest, place, file, source, conditions)


def _case(raw: Mapping[str, Any], place: Place, file: _File, source: str, conditions: Mapping[str, Any]) -> _Case:
    """The values of one table and how each is known."""
    said = raw.get("source", source)
    why = raw.get("why", {})
    if not isinstance(said, str) or (file.shipped and not said):
        file.fail("needs source = 'key, place'", (*place, "source"))
    if not isinstance(why, dict):
        file.fail("needs a table: KEY = {evidence, source, note}", (*place, "why"))
    values = {}
    facts = {}
    for key, given in raw.items():
        if key in TEXTS:
            continue
        if key not in KEYS:
            extra = ("from", "when") if not conditions else tuple(CONDITION_CHECKS)
            file.unknown(key, (*KEYS, *TEXTS, *extra), place)
        values[key] = _try(lambda value, key=key: checked(key, value), given, (*place, key), file)
        facts[key] = _fact(key, values[key], why.get(key), said, (*place, "why", key), file)
    for key in why:
        if key not in values:
            file.fail("explains a key that this table does not set", (*place, "why", key))
    return _Case(conditions=conditions, values=values, facts=facts)


def _fact(key: str, value: Any, why: object, source: str, place: Place, file: _File) -> Fact:
    unit = str(KEYS[key].metadata["unit"]) or "1"
    number = float(value) if isinstance(value, int | float) else 0.0
    if why is None:
        if file.shipped and key in MEASURED:
            file.fail("needs evidence, source and note: nobody sets it in a configuration", place)
        rung = Evidence.ASSUMED if key in MEASURED else Evidence.DATASHEET
        return Fact(value=number, unit=unit, source=source or Path(file.name).name, conditions="", evidence=rung)
    if not isinstance(why, dict) or not all(isinstance(text, str) for text in why.values()):
        file.fail("needs {evidence = '...', source = '...', note = '...'}", place)
    for word in why:
        if word not in ("evidence", "source", "note"):
            file.unknown(word, ("evidence", "source", "note"), place)
    label = why.get("evidence", "")
    if label not in _RUNGS:
        file.fail(f"evidence needs to be one of {', '.join(_RUNGS)}; got '{label[:40]}'", place)
    return Fact(
        value=number,
        unit=unit,
        source=why.get("source") or source or Path(file.name).name,
        conditions=why.get("note", ""),
        evidence=_RUNGS[label],
    )


def _try(check: Any, value: object, place: Place, file: _File) -> Any:
    try:
        return check(value)
    except ValueError as error:
        file.fail(str(error), place)


def _given(
    memory_bytes: float,
    offline: bool,
    context_tokens: int,
    ranks: int,
    device: str,
    model: ModelTraits,
    architecture: str = "",
) -> Mapping[str, Any]:
    if not 0 < memory_bytes < float("inf"):
        raise DomainError(f"memory_bytes = {memory_bytes:g}, needs > 0 byte of device memory")
    if ranks < 1 or context_tokens < 0:
        raise DomainError(f"ranks = {ranks}, context_tokens = {context_tokens}; needs ranks >= 1, context_tokens >= 0")
    return {
        "memory": memory_bytes, "offline": offline, "context": context_tokens, "ranks": ranks, "device": device,
        "architecture": architecture, "model": model,
    }  # fmt: skip


def _holds(conditions: Mapping[str, Any], given: Mapping[str, Any]) -> bool:
    """Whether every condition of a case is met."""
    model: ModelTraits = given["model"]
    met = {
        "memory_above_bytes": given["memory"] >= conditions.get("memory_above_bytes", 0),
        "memory_below_bytes": given["memory"] < conditions.get("memory_below_bytes", float("inf")),
        "offline": given["offline"] is conditions.get("offline"),
        "context_above_tokens": given["context"] > conditions.get("context_above_tokens", -1),
        "ranks_at_least": given["ranks"] >= conditions.get("ranks_at_least", 1),
        "device": any(_folded(word) in _folded(given["device"]) for word in conditions.get("device", "").split(",")),
        "architecture": conditions.get("architecture", "").casefold() in given["architecture"].casefold().split(),
        "build": conditions.get("build", "").casefold() in given["version"].casefold(),
        "model": bool(model.name) and model.name.casefold().startswith(conditions.get("model", "").casefold()),
        "experts": model.experts is conditions.get("experts"),
        "hidden_up_to": model.hidden <= conditions.get("hidden_up_to", 0),
    }
    return all(met[name] for name in conditions)


def _resolve(engine: _Engine, version: str, given: Mapping[str, Any]) -> EnginePolicy:
    """Later policies and later cases override earlier ones; rules become numbers."""
    wanted = version_key(version)
    values: dict[str, Any] = {}
    facts: dict[str, Fact] = {}
    for start, cases in engine.policies:
        if start > wanted:
            continue
        for case in cases:
            if _holds(case.conditions, {**given, "version": version}):
                values |= case.values
                facts |= case.facts
    policy = EnginePolicy(name=engine.name, version=version, facts=facts, **values)
    if policy.budget_covers_context:
        values["token_budget"] = max(policy.token_budget, given["context"])
    if not policy.graphs:
        values["graph_sizes"] = ()
    elif policy.graph_max:
        values["graph_sizes"] = tuple(size for size in policy.graph_sizes if size <= policy.graph_max)
    reserved = policy.reserved_bytes + policy.reserved_rank_bytes * given["ranks"]
    if policy.reserved_bytes:
        if reserved >= given["memory"]:
            raise DomainError(
                f"{engine.name} leaves {reserved:.3g} byte free of {given['memory']:.3g}; set a memory fraction"
            )
        values["memory_fraction"] = 1 - reserved / given["memory"]
    return EnginePolicy(name=engine.name, version=version, facts=facts, **values)
