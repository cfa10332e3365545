"""Files of claims, `data/claims/NNN-name.toml`, one a paper, read strictly: each defect is named with file and line."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from itertools import product
from typing import Any

from ridgeline.claims.arithmetic import names_in
from ridgeline.facts import store
from ridgeline.facts.ledger import ledger
from ridgeline.facts.user_files import Toml, parse_toml, shortened

STATUSES = ("works", "partly", "not yet")
CHECKED = ("forward", "bracketed", "identity", "inverted", "quoted", "not yet")
COMPUTED = CHECKED[:4]
PREDICTED = CHECKED[:2]
BOUNDS = ("", "up to", "at least")
_NAME = re.compile(r"(\d{3})-[a-z0-9.-]+$")
_FILE = re.compile(r"[\w-][\w.-]*\.(toml|tsv|csv|json)")
SLOT = re.compile(r"\{(\w+)\}")
_Place = tuple[str | int, ...]


@dataclass(frozen=True, kw_only=True)
class CommandValue:
    """A command of `ridgeline` and the path of a value in its `--json`."""

    command: str
    value: str


@dataclass(frozen=True, kw_only=True)
class PaperClaim:
    """What a paper reports, and how it is computed here.

    `theirs` is the paper's number in `unit` [that unit], None where it reports none; `place` tells where it stands and
    where its settings come from. `ours` is a formula over `answers` and numeric `settings`, of a quoted claim what the
    quality costs; each of the open `settings` is put for its {name} in the commands and in the `files`, texts by the
    names that commands have for them. `tolerance` is relative [1].
    """

    text: str
    checked: str
    theirs: float | None = None
    unit: str = ""
    place: str = ""
    tolerance: float = 0.15
    bound: str = ""
    suspected: str = ""
    ours: str = ""
    answers: Mapping[str, CommandValue] = field(default_factory=dict)
    settings: Mapping[str, tuple[float | str, ...]] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Paper:
    """The claims of one paper, and how far it is carried."""

    paper: int
    technique: str = ""
    status: str
    sources: tuple[str, ...]
    missing: str = ""
    claims: tuple[PaperClaim, ...]


@cache
def papers() -> Mapping[int, Paper]:
    """The files of claims by paper, in its order; raises `InputError` for the first defect of any."""
    found: dict[int, Paper] = {}
    for stem in store.names("claims", ".toml"):
        name = f"claims/{stem}.toml"
        file = parse_toml(store.read_bytes(name), file=f"data/{name}")
        one = read_paper(file)
        number = _NAME.match(stem)
        if number is None or int(number[1]) != one.paper:
            file.fail(f"a file of claims is called {one.paper:03d}-NAME.toml", ("paper",))
        if one.paper in found:
            file.fail(f"paper {one.paper} has another file", ("paper",))
        found[one.paper] = one
    return dict(sorted(found.items()))


def read_paper(file: Toml) -> Paper:
    """The claims of one file; raises `InputError` with file, line and field of the first defect."""
    tables = file.tables
    file.only(tables, ("paper", "technique", "status", "sources", "missing", "files", "claim"))
    number = _typed(file, tables, "paper", int)
    if number not in ledger():
        file.fail(f"{number} is no paper of the ledger, which has 1 to {max(ledger())}", ("paper",))
    status = _one_of(file, tables, "status", STATUSES)
    missing = _typed(file, tables, "missing", str, "")
    if (status == "works") == bool(missing):
        file.fail(f"status '{status}' {'takes no' if missing else 'needs'} missing = 'what'", ("missing",))
    sources = _typed(file, tables, "sources", list)
    for place, source in enumerate(sources):
        if source not in store.sources():
            file.fail(f"{shortened(source)} is no key of sources.bib", ("sources", place))
    texts = _files(file, tables)
    told = _typed(file, tables, "claim", list)
    if not told or not all(isinstance(one, dict) for one in told):
        file.fail("needs one [[claim]] or more", ("claim",))
    return Paper(
        paper=number,
        technique=_typed(file, tables, "technique", str, ""),
        status=status,
        sources=tuple(sources),
        missing=missing,
        claims=tuple(_claim(file, one, texts, ("claim", place)) for place, one in enumerate(told)),
    )


def _files(file: Toml, tables: Mapping[str, Any]) -> dict[str, str]:
    """Scenarios and tables that commands read, by name."""
    told = _typed(file, tables, "files", dict, {})
    for name in told:
        if not _FILE.fullmatch(name):
            file.fail(
                "a name of letters, digits, '-' and '.', that ends in .toml, .tsv, .csv or .json", ("files", name)
            )
    return {name: _typed(file, told, name, str, place=("files",)) for name in told}


def _claim(file: Toml, table: Mapping[str, Any], texts: Mapping[str, str], place: _Place) -> PaperClaim:
    known = {one.name: one for one in fields(PaperClaim) if one.name != "files"}
    file.only(table, tuple(known), place)
    checked = _one_of(file, table, "checked", CHECKED, place)
    values: dict[str, Any] = {"checked": checked, "bound": _one_of(file, table, "bound", BOUNDS, place, default="")}
    for name in ("text", "unit", "place", "suspected", "ours"):
        default = "" if known[name].default is not MISSING else None
        values[name] = _typed(file, table, name, str, default, place)
    tolerance = 0.02 if checked == "identity" else 0.15
    values["tolerance"] = _number(file, table, "tolerance", place, tolerance)
    values["theirs"] = _number(file, table, "theirs", place, None)
    values["answers"] = _answers(file, table, place)
    values["settings"] = _settings(file, table, place)
    words = {word for each in values["answers"].values() for word in shlex.split(each.command)}
    cases = [dict(zip(values["settings"], case, strict=True)) for case in product(*values["settings"].values())]
    named = {SLOT.sub(lambda slot: str(case.get(slot[1], "")), word) for word in words for case in cases}  # noqa: B023
    values["files"] = {name: text for name, text in texts.items() if name in named}
    one = PaperClaim(**values)
    _consistent(file, one, place)
    return one


def _answers(file: Toml, table: Mapping[str, Any], place: _Place) -> dict[str, CommandValue]:
    found = {}
    for name, told in _typed(file, table, "answers", dict, {}, place).items():
        here = (*place, "answers", name)
        if not isinstance(told, dict):
            file.fail("needs { command = '...', value = '...' }", here)
        file.only(told, ("command", "value"), here)
        found[name] = CommandValue(
            command=_typed(file, told, "command", str, None, here), value=_typed(file, told, "value", str, None, here)
        )
    return found


def _settings(file: Toml, table: Mapping[str, Any], place: _Place) -> dict[str, tuple[float | str, ...]]:
    found = {}
    for name, told in _typed(file, table, "settings", dict, {}, place).items():
        if not isinstance(told, list) or len(told) < 2 or not all(type(one) in (int, float, str) for one in told):
            file.fail("needs two values or more, numbers or words", (*place, "settings", name))
        found[name] = tuple(told)
    return found


def _consistent(file: Toml, one: PaperClaim, place: _Place) -> None:
    """Raises for a claim that cannot be computed as it says."""
    if (one.checked in COMPUTED) > bool(one.ours):
        file.fail(f"a claim that is {one.checked} needs ours", (*place, "ours"))
    if one.checked == "not yet" and one.ours:
        file.fail("a claim that is not yet checked has no ours", (*place, "ours"))
    if one.checked in (*PREDICTED, "identity") and one.theirs is None:
        file.fail("needs the paper's number", (*place, "theirs"))
    if one.checked in PREDICTED and not one.answers:
        file.fail(f"a {one.checked} claim needs answers of commands", (*place, "answers"))
    if (one.checked == "bracketed") != bool(one.settings):
        told = "needs" if not one.settings else "of a claim that is not bracketed: it has no"
        file.fail(f"{told} settings = {{ NAME = [one, another] }}", (*place, "settings"))
    try:
        names = names_in(one.ours) if one.ours else frozenset()
    except ValueError as error:
        file.fail(str(error), (*place, "ours"))
    if missing := names - one.answers.keys() - one.settings.keys():
        file.fail(f"asks for '{min(missing)}', which is no answer", (*place, "ours"))
    if idle := one.answers.keys() - names:
        file.fail("is not in ours", (*place, "answers", min(idle)))
    commands = [each.command for each in one.answers.values()]
    slots = {slot for text in (*commands, *one.files.values()) for slot in SLOT.findall(text)}
    if unknown := slots - one.settings.keys():
        file.fail(f"has {{{min(unknown)}}}, which is no setting", (*place, "answers"))
    if idle := one.settings.keys() - slots - names:
        file.fail("is in no command", (*place, "settings", min(idle)))


def _typed(file: Toml, table: Mapping[str, Any], name: str, kind: type, default: Any = None, place: _Place = ()) -> Any:
    value = table.get(name, default)
    if not isinstance(value, kind) or isinstance(value, bool):
        wanted = {str: "a text", int: "a whole number", list: "a list", dict: "a table"}[kind]
        file.fail(f"needs {wanted}; got {'nothing' if value is None else shortened(value)}", (*place, name))
    return value


def _number(file: Toml, table: Mapping[str, Any], name: str, place: _Place, default: float | None) -> float | None:
    value = table.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float | None):
        file.fail(f"needs a number; got {shortened(value)}", (*place, name))
    return value


def _one_of(
    file: Toml, table: Mapping[str, Any], name: str, words: tuple[str, ...], place: _Place = (), *, default: Any = None
) -> str:
    value = table.get(name, default)
    if value not in words:
        told = ", ".join(f"'{word}'" for word in words)
        file.fail(f"needs one of {told}; got {shortened(value)}", (*place, name))
    return str(value)
