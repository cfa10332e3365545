"""The words of a scenario: every field a person may write, how it is read, and what it means.

One table, `data/words.tsv`, serves the TOML reader, the command line's flags and the documentation.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from ridgeline.errors import InputError, PlanError, RidgelineError, UnitError, UnknownNameError, closest
from ridgeline.facts.policies import FRAMEWORKS
from ridgeline.facts.store import read_tsv
from ridgeline.graph.workload import POST_TASKS, PRECISIONS, Task
from ridgeline.scenario.synonyms import called_here
from ridgeline.seams.registry import listed, made, names, technique
from ridgeline.seams.technique import Technique
from ridgeline.units import parse, parse_count

_MOST = 10**6  # a bound on nonsense, far beyond any published run: sequences of a step, devices of a job ...
_MOST_TECHNIQUES = 100


@dataclass(frozen=True, kw_only=True)
class Field:
    """One field: its name in a scenario, its reader, its help line and what it may be.

    `read` turns the value as written (TOML value or flag text) into the value that `Workload` or
    `Plan` takes, and raises `ValueError` or `UnitError` with a sentence. `switch` marks yes/no.
    """

    name: str
    read: Callable[[object], Any]
    help: str
    choices: tuple[str, ...] = ()
    switch: bool = False
    write: Callable[[Any], object] = lambda value: value

    @property
    def flag(self) -> str:
        """The field as a command-line flag."""
        return "--" + self.name.replace("_", "-")


def near(word: str, known: Iterable[str]) -> str:
    """A sentence that names the valid words nearest to `word`, or all of them when none is near."""
    valid = list(known)
    here, found = called_here(word, valid), nearest(word, valid)
    if here:
        return f"here it is called {' or '.join(here)}"
    return f"nearest: {', '.join(found)}" if found else f"valid: {', '.join(valid)}"


def nearest(word: str, known: Iterable[str]) -> tuple[str, ...]:
    """Valid words near to `word`: what other programs call so, else at most three of like spelling, nearest first."""
    names = list(known)
    return called_here(word, names) or closest(word, names)


def count(least: int, most: int = _MOST) -> Callable[[object], int]:
    """A reader of whole numbers [1] from `least` to `most`; it raises `ValueError` for any other."""

    def read(value: object) -> int:
        if not isinstance(value, int | float | str) or isinstance(value, bool):
            raise ValueError(f"{shown(value)} is not a count such as 1536, 4M or 15T")
        number = parse_count(value)
        if not least <= number <= most:
            raise ValueError(f"{shown(value)} is out of range; needs {least} to {most:,}")
        return number

    return read


def number(unit: str, least: float, below: float, *, ends: bool = False) -> Callable[[object], float]:
    """A reader of numbers in `unit`, at least `least` and below `below`; it raises `ValueError` for any other.

    With `ends` the upper bound is allowed as well, as 1 is of a share.
    """

    def read(value: object) -> float:
        if not isinstance(value, int | float | str) or isinstance(value, bool):
            raise ValueError(f"{shown(value)} is not a number{'' if unit == '1' else f' in {unit}'}")
        number = parse(value, unit)
        if not (least <= number < below or (ends and number == below)):
            sign = "<=" if ends else "<"
            raise ValueError(f"{shown(value)} is out of range; needs {least:g} <= value {sign} {below:g}")
        return number

    return read


def _switch(value: object) -> bool:
    if isinstance(value, bool):
        return value
    words = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
    if isinstance(value, str) and value.casefold() in words:
        return words[value.casefold()]
    raise ValueError(f"{shown(value)} is not true or false")


def _counts(value: object) -> tuple[int, ...]:
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, list | tuple) or not 1 <= len(parts) <= 10_000:
        raise ValueError(f"{shown(value)} is not a list of layer counts such as [20, 20, 20, 20]")
    return tuple(count(0)(part) for part in parts)


def _choice(names: tuple[str, ...], convert: Callable[[str], Any]) -> Callable[[object], Any]:
    folded = {name.casefold(): name for name in names}

    def read(value: object) -> Any:
        word = value.casefold() if isinstance(value, str) else str(value)
        if word not in folded:
            raise ValueError(f"{shown(value)} is not one of them; {near(word[:80], names)}")
        return convert(folded[word])

    return read


def shown(value: object) -> str:
    """A value as an error repeats it, at most 60 characters."""
    text = str(value)
    return f"'{text[:60]}...'" if len(text) > 60 else f"'{text}'"


def pick(name: str, names: Iterable[str], help_: str) -> Field:
    """A field that is one of some words."""
    options = tuple(names)
    return Field(name=name, read=_choice(options, str), help=help_, choices=options)


def whole(name: str, help_: str, *, least: int = 1, most: int = _MOST) -> Field:
    """A field that is a whole number."""
    return Field(name=name, read=count(least, most), help=help_)


def yes(name: str, help_: str) -> Field:
    """A field that is yes or no."""
    return Field(name=name, read=_switch, help=help_, switch=True)


def text(name: str, help_: str) -> Field:
    """A field that is a text: a name, or the path of a file."""

    def read(value: object) -> str:
        if not isinstance(value, str) or not value.strip():
            raise ValueError(f"{shown(value)} is not a name")
        return value.strip()

    return Field(name=name, read=read, help=help_)


def _techniques(value: object) -> tuple[str, ...]:
    """Techniques from a list of names or tables, or from names in one text, apart by commas outside brackets."""
    parts = re.split(r",(?![^(]*\))", value) if isinstance(value, str) else value
    if not isinstance(parts, list | tuple) or len(parts) > _MOST_TECHNIQUES:
        raise ValueError(f"{shown(value)} is not a list of at most {_MOST_TECHNIQUES} techniques")
    try:
        return tuple(_technique(part).text for part in parts if part != "")
    except RidgelineError as error:
        raise ValueError(str(error)) from None


def _technique(part: object) -> Technique:
    if isinstance(part, str):
        found = listed(part)
    elif isinstance(part, dict) and isinstance(part.get("name"), str):
        found = listed(part["name"])
        found = made(found.family, found.key, {name: value for name, value in part.items() if name != "name"})
    else:
        raise ValueError(f"{shown(part)} names no technique; write [[plan.technique]] with name = '...'")
    word = (WORDS | POST_FAMILIES | MACHINE_FAMILIES | FLEET_FAMILIES).get(found.family)
    if word is not None:
        raise ValueError(f"{found.key} is one of the {found.family}; write {word} = '{found.text}'")
    return found


def filled(name: str, family: str, help_: str, *, also: tuple[str, ...] = ()) -> Field:
    """A field that names a technique of a family, with parameters in brackets where they are not its own.

    Words of `also` stand for one without naming it.
    """
    known = (*names(family), *also)

    def read(value: object) -> str:
        word, bracket, parameters = str(value).strip().partition("(")
        key: str = _choice(known, str)(word)
        if key in also and not bracket:
            return key
        try:
            return technique(family, key + bracket + parameters).text
        except PlanError as error:
            raise ValueError(str(error)) from None

    return Field(name=name, read=read, help=help_, choices=known)


WORDS = {
    "optimizers": "optimizer",
    "schedules": "schedule",
    "losses": "loss",
    "recompute": "recompute",
    "contexts": "context_style",
    "length_balance": "length_balance",
    "node_orders": "node_order",
}
"""Families of which a scenario always has one, and the word that names it."""
POST_FAMILIES = {
    "rollout_schedules": "rollout_mode",
    "rollout_collections": "rollout_collection",
    "sequence_packing": "sequence_packing",
}
"""Families of post-training that a word of their own names."""
MACHINE_FAMILIES = {"power_limits": "power_cap"}
"""Families of a cluster's devices that a word of its own names."""
SERVING_FAMILIES = {"queues": "queue", "preemption": "preemption", "routers": "router"}
"""Families of serving that a word of their own names."""
FLEET_FAMILIES = {"autoscalers": "autoscale"}
"""Families of a fleet that the first of several named values names."""
TECHNIQUES = Field(
    name="technique",
    read=_techniques,
    help="techniques to apply, by name, with parameters in brackets; `ridgeline techniques` lists them",
    write=list,
)


def _lengths(value: object) -> str:
    """A law of lengths, or the path of a file of them."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{shown(value)} is no law and no file, e.g. 'lognormal(median=2000,sigma=1.4)'")
    return value


def _framework(value: object) -> str:
    from ridgeline.facts.frameworks import framework_policy

    word = str(value).strip()
    try:
        framework_policy(word)
    except UnknownNameError as error:
        raise ValueError(str(error)) from None
    return word


_TASKS = tuple(task.value for task in Task)


def _task(value: object) -> Task:
    """What a training step trains; post-training has its own scenario, which `predict` and `plan` read."""
    if str(value).casefold() in POST_TASKS:
        raise ValueError(
            f"{shown(value)} is post-training, which `predict` and `plan` answer; here {', '.join(_TASKS)}"
        )
    found: Task = _choice(_TASKS, Task)(value)
    return found


Kind = Callable[[str, str, str], Field]
"""How a row of `data/words.tsv` becomes a field, from its name, its arguments and its help."""


def own(
    read: Callable[[object], Any],
    *,
    choices: tuple[str, ...] = (),
    write: Callable[[Any], object] = lambda value: value,
) -> Kind:
    """The kind of fields with a reader of their own."""
    return lambda name, _, told: Field(name=name, read=read, help=told, choices=choices, write=write)


def one_of(words: Iterable[str]) -> Kind:
    """The kind of fields that are one of words which are known here."""
    return lambda name, _, told: pick(name, words, told)


def _whole(name: str, args: str, told: str) -> Field:
    least, _, most = args.partition("..")
    return whole(name, told, least=int(least or 1), most=int(float(most or _MOST)))


def _number(name: str, args: str, told: str) -> Field:
    unit, _, bounds = args.partition(" ")
    least, _, most = bounds.partition("..")
    read = number(unit, float(least), float(most.removeprefix("=")), ends=most.startswith("="))
    return Field(name=name, read=read, help=told)


def _filled(name: str, args: str, told: str) -> Field:
    family, *also = args.split()
    return filled(name, family, told, also=tuple(also))


_KINDS: Mapping[str, Kind] = {
    "whole": _whole, "number": _number, "filled": _filled, "yes": lambda name, _, told: yes(name, told),
    "pick": lambda name, args, told: pick(name, args.split(), told), "name": lambda name, _, told: text(name, told),
}  # fmt: skip


def fields_of(table: str, kinds: Mapping[str, Kind] = MappingProxyType({})) -> tuple[Field, ...]:
    """The fields of a table of `data/words.tsv`, some by kinds of their own."""
    known = {**_KINDS, **kinds}
    rows = [row for row in read_tsv("words.tsv") if row["of"] == table]
    return tuple(known[row["kind"]](row["name"], row["args"], row["help"]) for row in rows)


_STAGES = ("0", "1", "2", "3")
WORKLOAD_FIELDS = fields_of(
    "workload",
    {
        "task": own(_task, choices=_TASKS, write=lambda task: task.value),
        "precision": one_of(PRECISIONS),
        "law": own(_lengths),
        "framework": own(
            _framework, choices=FRAMEWORKS.names(), write=lambda framework: getattr(framework, "key", framework)
        ),
    },
)
PLAN_FIELDS = (
    *fields_of(
        "plan",
        {
            "stage": own(lambda value: int(_choice(_STAGES, int)(str(value))), choices=_STAGES),
            "layers": own(_counts, write=list),
        },
    ),
    TECHNIQUES,
)


def read_fields(
    table: Mapping[str, object],
    fields: tuple[Field, ...],
    fail: Callable[[str, str], InputError],
    *,
    elsewhere: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """The read values of a table; raises what `fail(name, message)` makes for a word that is unknown or unreadable.

    `elsewhere` says of words that belong to another kind of scenario which command reads them.
    """
    known = {field.name: field for field in fields}
    values = {}
    for name, value in table.items():
        if name not in known:
            refused = fail(name, _unknown(name, known, elsewhere))
            refused.nearest = nearest(name, known)
            raise refused
        try:
            values[name] = known[name].read(value)
        except (ValueError, UnitError) as error:
            refused = fail(name, str(error))
            refused.value, refused.nearest = value, nearest(str(value)[:80], known[name].choices)
            raise refused from None
    return values


def _unknown(name: str, known: Iterable[str], elsewhere: Mapping[str, str]) -> str:
    """Why a word is not read: it is one of elsewhere, here or there under another name, or of no table at all."""
    if name in elsewhere:
        return elsewhere[name]
    there = () if called_here(name, known) else called_here(name, elsewhere)
    return (
        f"here it is called {there[0]}, which {elsewhere[there[0]]}" if there else f"unknown field; {near(name, known)}"
    )
