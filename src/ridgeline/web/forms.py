"""The forms of the page, made of the table of questions: every word with its help, choices and default."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from ridgeline.api import options as _options  # noqa: F401  (fills the table)
from ridgeline.api.confined import EXAMPLE
from ridgeline.api.verb import VERBS, Argument, Verb
from ridgeline.scenario.fields import Field

QUESTIONS = ("predict", "plan", "simulate", "advise")
WRITING = frozenset({"--trace", "--html", "--png", "--svg", "--out"})  # own options that write a file
_SHARED = "Training and serving"
_KINDS: dict[type, str] = {bool: "switch", int: "number", float: "number"}


def shown(name: str) -> dict[str, Argument]:
    """Own options of a question that a page has: those that write no file."""
    own = VERBS[name].own
    return {each: one for each, one in own.items() if one.flag not in WRITING and each != "train"}


@cache
def forms() -> dict[str, Any]:
    """Words of each question under their headings, and names of the catalog to pick from, as JSON holds them."""
    questions = [_form(name, VERBS[name]) for name in QUESTIONS]
    return {"questions": questions, "names": _names(), "example": EXAMPLE}


def _form(name: str, one: Verb) -> dict[str, Any]:
    own = [_own(each, option) for each, option in shown(name).items()]
    taken = {entry["name"] for entry in own}
    groups: dict[str, list[dict[str, Any]]] = {}
    for heading, entry in _fields(one):
        if entry["name"] not in taken:
            groups.setdefault(heading, []).append(entry)
    return {
        "name": name, "help": one.help, "own": own,
        "groups": [{"heading": heading, "words": words} for heading, words in groups.items()],
    }  # fmt: skip


def _own(name: str, option: Argument) -> dict[str, Any]:
    kind = "choice" if option.choices else _KINDS.get(option.kind, "text")
    return {
        "name": name, "flag": option.flag or option.metavar or name, "help": option.help, "kind": kind,
        "choices": list(option.choices), "default": option.default if option.shown else None,
    }  # fmt: skip


def _fields(one: Verb) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each field once, with its heading; one of several tables has a heading of its own."""
    headings: dict[str, str] = {}
    fields: dict[str, Field] = {}
    for heading, table in one.fields.items():
        for field in table:
            headings[field.name] = _SHARED if field.name in fields else heading
            fields.setdefault(field.name, field)
    for name, field in fields.items():
        kind = "choice" if field.choices else "switch" if field.switch else "text"
        yield headings[name], {
            "name": name, "flag": field.flag, "help": field.help, "kind": kind, "choices": list(field.choices),
            "default": None,
        }  # fmt: skip


def _names() -> dict[str, list[str]]:
    """Names that the fields of model and cluster suggest."""
    from ridgeline.facts.accelerators import accelerators
    from ridgeline.facts.clusters import published_clusters
    from ridgeline.facts.machines import machines
    from ridgeline.graph.load import catalog
    from ridgeline.graph.networks import networks

    devices = [f"{count}x{name}" for name in accelerators() for count in (1, 8)]
    return {"subject": [*catalog(), *networks()], "on": [*devices, *machines(), *published_clusters()]}
