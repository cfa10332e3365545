"""The command `techniques`: what the registry holds, built in or of another package, each with its page."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import Field
from math import isinf, isnan
from types import SimpleNamespace
from typing import Any

from ridgeline.api.answer import Answer
from ridgeline.errors import InputError, PlanError, UnknownNameError
from ridgeline.facts.store import sources
from ridgeline.facts.taxonomies import taxonomies, taxonomy_source
from ridgeline.report.blocks import Block, Line, Table, blank
from ridgeline.scenario.fields import (
    FLEET_FAMILIES,
    MACHINE_FAMILIES,
    POST_FAMILIES,
    SERVING_FAMILIES,
    TECHNIQUES,
    WORDS,
    WORKLOAD_FIELDS,
)
from ridgeline.seams.registry import families, family_of, kind, names
from ridgeline.seams.technique import Technique, shown

ALWAYS = (
    WORDS | SERVING_FAMILIES | FLEET_FAMILIES | POST_FAMILIES | MACHINE_FAMILIES
)  # families that a word of their own names
_WIDTH = 180  # columns of a list that is piped


def techniques(given: SimpleNamespace) -> Answer:
    """Prints all techniques, those of a tag, or the page of one; raises `UnknownNameError` for a name of none."""
    answer: Any
    blocks: list[Block]
    if given.tag is not None:
        if given.name is not None:
            raise InputError("sorts the list, and a page was asked for; leave one of them out", field="--tag")
        answer = tagged(given.tag)
        blocks = _tagged_blocks(answer)
    elif given.name is None:
        found = entries()
        rows = tuple((one["key"], one["family"], one["summary"] or one["error"]) for one in found)
        blocks = [Table(columns=("technique", "family", "what it does"), rows=rows, indent=0)]
        answer = {"entries": found}
    else:
        answer = technique_as_dict(_found(given.name))
        blocks = _page(answer)
    return Answer(lambda: answer, lambda: blocks, width=_WIDTH)


def entries() -> list[dict[str, str]]:
    """Key, family and one line of every technique; of one whose file cannot be read why, as its `error`."""
    found = []
    for family in families():
        for key in names(family):
            one = {"key": key, "family": family, "summary": "", "error": ""}
            try:
                one["summary"] = kind(family, key).summary()
            except PlanError as error:
                one["error"] = str(error)
            found.append(one)
    return found


def tagged(name: str) -> dict[str, Any]:
    """Techniques and options by tag, of one tag or of all of a taxonomy; raises `UnknownNameError` for neither."""
    known = taxonomies()
    every = {tag.key: tag for tags in known.values() for tag in tags}
    if name not in known and name not in every:
        raise UnknownNameError("tag", name, [*known, *every], hint=f"taxonomies: {', '.join(known)}")
    wanted = known[name] if name in known else (every[name],)
    about, source = taxonomy_source(wanted[0].taxonomy)
    rows = [one for one in entries() if not one["error"]]
    found = []
    for tag in wanted:
        keys = [one["key"] for one in rows if tag.key in kind(one["family"], one["key"]).tags]
        found.append(
            {"tag": tag.key, "place": tag.place, "told": tag.told, "techniques": keys, "options": list(tag.options)}
        )
    return {"taxonomy": wanted[0].taxonomy, "told": about, "source": _source(source), "tags": found}


def _tagged_blocks(answer: Mapping[str, Any]) -> list[Block]:
    rows = tuple(
        (one["place"], one["tag"], one["told"], ", ".join([*one["techniques"], *one["options"]]) or "-")
        for one in answer["tags"]
    )
    return [
        Line(text=f"{answer['taxonomy']}: {answer['told']}"), blank(),
        Table(columns=("acts on", "tag", "what it is", "here"), rows=rows, indent=0),
        blank(), Line(text=f"source   {answer['source']['citation']}", hang=9),
    ]  # fmt: skip


def _found(name: str) -> type[Technique]:
    """The technique of a key, of whatever family."""
    return kind(family_of(name), name)


def technique_as_dict(one: type[Technique]) -> dict[str, Any]:
    """The page of a technique as JSON: what it does, how it is written, parameters, seams, sources."""
    return {
        "key": one.key,
        "family": one.family,
        "summary": one.summary(),
        "page": inspect.getdoc(one) or "",
        "module": one.__module__,
        "written": written(one),
        "parameters": [_parameter(name, each) for name, each in one.parameters().items()],
        "seams": [filled for seam in _seams(one) for filled in _filled(one, seam)],
        "declares": {name: getattr(one, name) for seam in _seams(one) for name in _declared(one, seam)},
        "quality": quality_as_dict(one),
        "claims": list(one.claims),
        "export": dict(vars(one).get("export", {})),
        "owns": sorted(one.slots()),
        "needs": sorted(one.needs),
        "excludes": _excludes(one),
        "tags": list(one.tags),
        "papers": _papers(one.key),
        "sources": [_source(each) for each in one.source],
    }


def quality_as_dict(one: type[Technique] | Technique) -> dict[str, Any] | None:
    """What a technique costs in accuracy, and who measured it; None where nobody is known to have."""
    found = one.quality
    if found is None:
        return None
    value = None if isnan(found.value) else found.value
    return {"told": found.conditions, "value": value, "unit": found.unit, "source": found.source}


def _excludes(one: type[Technique]) -> list[str]:
    """Techniques of other families that own a slot of its own: they do not go together."""
    found = []
    for family in families():
        for key in names(family) if family != one.family else ():
            try:
                other = kind(family, key)
            except PlanError:
                continue
            if one.kinds & other.kinds and one.slots() & other.slots():
                found.append(key)
    return found


def _papers(key: str) -> list[dict[str, Any]]:
    """What papers report of a technique, by the files of claims, and how each is checked."""
    from ridgeline.claims.files import papers

    return [
        {"paper": paper.paper, "status": paper.status, "claim": claim.text, "checked": claim.checked}
        for paper in papers().values() if paper.technique == key for claim in paper.claims
    ]  # fmt: skip


def _source(told: str) -> dict[str, str | None]:
    """A source by its key, or by what a file of another package says of it, an address among it."""
    if told in sources():
        return {"key": told, "citation": sources()[told].citation, "url": sources()[told].url}
    address = re.search(r"https?://[^\s,]+", told)
    return {"key": None, "citation": told, "url": address[0] if address else ""}


def written(one: type[Technique]) -> list[str]:
    """How a technique is written on a command line and in a scenario file, with all its parameters as they are."""
    defaults = ",".join(f"{name}={shown(each.default)}" for name, each in one.parameters().items())
    word = f"{one.key}({defaults})" if defaults else one.key
    name = ALWAYS.get(one.family, TECHNIQUES.name)
    section = "workload" if name in (field.name for field in WORKLOAD_FIELDS) else "plan"
    section = "cluster" if one.family in MACHINE_FAMILIES else section
    quoted, listed = (f"'{word}'" if defaults else word), (f'"{word}"' if one.family in ALWAYS else f'["{word}"]')
    return [f"--{name.replace('_', '-')} {quoted}", f"[{section}] {name} = {listed}"]


def _parameter(name: str, one: Field[Any]) -> dict[str, Any]:
    low, high = one.metadata["low"], one.metadata["high"]
    bounded = not isinstance(one.default, bool | str)
    return {
        "name": name,
        "unit": one.metadata["unit"],
        "default": one.default,
        "low": low if bounded and not isinf(low) else None,
        "high": high if bounded and not isinf(high) else None,
        "help": one.metadata["help"],
    }


def range_text(parameter: dict[str, Any]) -> str:
    """The values that a parameter may have, for people."""
    default, low, high = (parameter[name] for name in ("default", "low", "high"))
    if isinstance(default, bool | str):
        return "true, false" if isinstance(default, bool) else "a word"
    if low is None:
        return "any" if high is None else f"<= {high:g}"
    return f">= {low:g}" if high is None else f"{low:g} to {high:g}"


def _seams(one: type[Technique]) -> list[type[Technique]]:
    """The seams that a technique may fill: the classes of `ridgeline.seams` that it is made from."""
    return [each for each in one.__mro__ if each.__module__.startswith("ridgeline.seams.") and each is not Technique]


def _filled(one: type[Technique], seam: type[Technique]) -> list[dict[str, str]]:
    """The methods of a seam that a technique has in place of the seam's own, with what each says."""
    return [
        {"seam": seam.__module__.rpartition(".")[2], "method": name, "says": _first_line(getattr(one, name))}
        for name, own in vars(seam).items()
        if not name.startswith("_") and callable(own) and inspect.getattr_static(one, name) is not own
    ]


def _first_line(thing: object) -> str:
    return (inspect.getdoc(thing) or "").partition("\n")[0]


def _declared(one: type[Technique], seam: type[Technique]) -> list[str]:
    """Yes, no and counts that a seam asks of a technique, where they are not the seam's own."""
    asked = {name: value for name, value in vars(seam).items() if isinstance(value, bool | int)}
    return [name for name, value in asked.items() if not name.startswith("_") and getattr(one, name) != value]


def _page(one: dict[str, Any]) -> list[Block]:
    paragraphs = [" ".join(part.split()) for part in one["page"].split("\n\n")]
    blocks: list[Block] = [Line(text=f"{one['key']}: {one['family']}", strong=True)]
    blocks += [line for text in paragraphs for line in (blank(), Line(text=text))]
    blocks += [blank(), *(Line(text=f"write   {form}", hang=8) for form in one["written"])]
    if one["parameters"]:
        rows = tuple(
            (each["name"], shown(each["default"]), each["unit"], range_text(each), each["help"])
            for each in one["parameters"]
        )
        columns = ("parameter", "default", "unit", "range", "what it is")
        blocks += [blank(), Table(columns=columns, rows=rows, right=frozenset({"default"}), indent=0)]
    seams = tuple((each["seam"], each["method"], each["says"]) for each in one["seams"])
    blocks += [blank(), Table(columns=("seam", "fills", "what it answers"), rows=seams, indent=0)]
    declares = ", ".join(f"{name} = {str(value).lower()}" for name, value in one["declares"].items())
    blocks += [
        blank(),
        *([Line(text=f"declares {declares}")] if declares else []),
        *(
            [Line(text=f"quality  {one['quality']['told']} ({one['quality']['source']})", hang=9)]
            if one["quality"]
            else []
        ),
        *(Line(text=f"claims   {claim}", hang=9) for claim in one["claims"]),
        *(Line(text=f"in       {program}: {words}", hang=9) for program, words in one["export"].items()),
        Line(text=f"owns     {', '.join(one['owns']) or 'nothing'}"),
        Line(text=f"needs    {', '.join(one['needs']) or 'nothing'}"),
        *([Line(text=f"tags     {', '.join(one['tags'])}", hang=9)] if one["tags"] else []),
        *([Line(text=f"excludes {', '.join(one['excludes'])}", hang=9)] if one["excludes"] else []),
        *(
            Line(text=f"paper    {each['paper']}: {each['claim']} ({each['checked']})", hang=9)
            for each in one["papers"]
        ),
        Line(text=f"code     {one['module']}"),
        *(Line(text=f"source   {each['citation']}", hang=9) for each in one["sources"]),
    ]
    return blocks
