"""A scenario: model, cluster, workload and perhaps a plan, read from one TOML file or from flags.

People's units are read here ('15T' tokens, '80 GiB') and nowhere below. What a person wrote for
the model and the cluster is kept as written, so a scenario can be written out again.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ridgeline.errors import InputError, RidgelineError
from ridgeline.facts.lengths import is_law
from ridgeline.facts.user_files import SCENARIO, read_user_file
from ridgeline.graph.workload import Workload, without_rate
from ridgeline.plan.plan import Plan
from ridgeline.scenario.assumed import complete_plan, fill_precision, fill_workload, idle_words
from ridgeline.scenario.fields import PLAN_FIELDS, WORKLOAD_FIELDS, Field, near, read_fields
from ridgeline.scenario.operated import operated
from ridgeline.scenario.serving_fields import DEPLOYMENT_FIELDS, TRAFFIC_FIELDS

if TYPE_CHECKING:
    from ridgeline.facts.records import Cluster
    from ridgeline.graph.model import Model

SECTIONS = ("model", "cluster", "workload", "plan")
_LONGEST_TEXT = 4_096  # characters of one value; the longest path on Linux
_LARGEST_WHOLE = 10**18
OF_MACHINE = frozenset({"region", "price", "power_cap"})
"""Words about a named machine that are not its own: where it stands, and what a person pays for it."""

Table = Mapping[str, object]


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """What to predict or plan for; `plan` is None when the plan is asked for.

    `written` holds the model and cluster tables as the person wrote them, paths made absolute.
    `assumed` names what the person left out and what was put there, `file` and `lines` (by section and word) where it
    was read.
    """

    model: Model
    cluster: Cluster
    workload: Workload
    plan: Plan | None = None
    written: Mapping[str, Table] = field(default_factory=dict)
    assumed: tuple[str, ...] = ()
    file: str | None = field(default=None, compare=False)
    lines: Mapping[tuple[str, str], int] = field(default_factory=dict, compare=False)


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where each word of a scenario was written: a line of the file, or a flag."""

    file: str | None
    folder: Path
    lines: Mapping[tuple[str, str], int]
    flags: frozenset[tuple[str, str]] = frozenset()

    def of_file(self) -> Mapping[tuple[str, str], int]:
        """The lines of words that no flag took the place of; of a section with a flag not its own."""
        moved = {*self.flags, *((section, "") for section, _ in self.flags)}
        return {key: line for key, line in self.lines.items() if key not in moved}

    def fail(self, section: str, name: str, message: str) -> InputError:
        """The error that names file, line and field."""
        if self.file is None or (section, name) in self.flags:
            flag = "--" + name.replace("_", "-") if name else section
            of_machine = flag if name in OF_MACHINE else "--on"
            return InputError(message, field={"model": "MODEL", "cluster": of_machine}.get(section, flag))
        words = (name, name.rsplit(".", 1)[-1], name.split(".", 1)[0], "")
        keys = (*((section, word) for word in words), ("", section))  # the last of model = "NAME", above all tables
        line = next((self.lines[key] for key in keys if key in self.lines), None)
        return InputError(message, file=self.file, line=line, field=f"{section}.{name}" if name else section)


def read_scenario(path: str | Path, words: Mapping[str, Table] | None = None) -> Scenario:
    """The scenario in a TOML file; `words` (section, field) are flags, and win over the file.

    Raises InputError with file, line and field for anything that cannot be used.
    """
    return _build(*tables_of(path, words))


def scenario_from_words(words: Mapping[str, Table]) -> Scenario:
    """The scenario that the tables `words` describe, as `read_scenario` would read them from a file."""
    return _build(words, Place(file=None, folder=Path(), lines={}))


def tables_of(path: str | Path, words: Mapping[str, Table] | None = None) -> tuple[Mapping[str, Table], Place]:
    """The tables of a scenario file, flags laid over them, and where each word was written."""
    file = str(path)
    text = read_user_file(path, SCENARIO).text()
    tables = _tables(text, file)
    over = dict(words or {})
    place = Place(
        file=file,
        folder=Path(path).resolve().parent,
        lines=_lines(text),
        flags=frozenset((section, name) for section, table in over.items() for name in table),
    )
    merged: dict[str, Table] = {**tables, **over}
    moved = bool(over.get("cluster")) and set(over["cluster"]) <= OF_MACHINE
    for name in ("workload", "plan", *(("cluster",) if moved else ())):  # flag by flag; others are replaced whole
        if name in merged:
            merged[name] = {**tables.get(name, {}), **over.get(name, {})}
    return merged, place


def task_in(path: str) -> object:
    """The task of a scenario file's workload; None where it names none, or cannot be read."""
    try:
        workload = tomllib.loads(read_user_file(path, SCENARIO).text()).get("workload")
    except (InputError, ValueError, RecursionError):
        return None
    return workload.get("task") if isinstance(workload, dict) else None


def _tables(text: str, file: str) -> dict[str, dict[str, object]]:
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        found = re.search(r"at line (\d+)", str(error))
        last = int(found[1]) if found else text.count("\n") + 1
        raise InputError(f"is not TOML: {error}", file=file, line=last) from None
    lines, tables = _lines(text), {}
    for section, value in document.items():
        line = lines.get((section, ""), lines.get(("", section)))
        if section not in SECTIONS:
            raise InputError(f"unknown table; {near(section, SECTIONS)}", file=file, line=line, field=section)
        table = {"name": value} if isinstance(value, str) and section in ("model", "cluster") else value
        if not isinstance(table, dict):
            raise InputError(f"needs a table [{section}]", file=file, line=line, field=section)
        for name, item in table.items():
            problem = _unfit(item)
            if problem:
                line = lines.get((section, name), line)
                raise InputError(problem, file=file, line=line, field=f"{section}.{name}")
        tables[section] = table
    return tables


def _unfit(value: object, depth: int = 0) -> str | None:
    """Why a TOML value is beyond any honest scenario, or None."""
    if isinstance(value, int) and abs(value) > _LARGEST_WHOLE:
        return f"the whole number is beyond {_LARGEST_WHOLE:.0e}"
    if isinstance(value, str) and len(value) > _LONGEST_TEXT:
        return f"the text has {len(value)} characters, at most {_LONGEST_TEXT} are read"
    if isinstance(value, dict | list):
        if depth > 8 or len(value) > 10_000:
            return "the value is nested more than 8 deep or longer than 10000"
        parts = value.values() if isinstance(value, dict) else value
        return next((problem for part in parts if (problem := _unfit(part, depth + 1))), None)
    if not isinstance(value, bool | int | float | str):
        return f"'{value}' is a date or time; no field takes one"
    return None


def _lines(text: str) -> dict[tuple[str, str], int]:
    """The line of each section and of each of its fields."""
    section = ""
    lines: dict[tuple[str, str], int] = {}
    for place, line in enumerate(text.splitlines(), start=1):
        if header := re.match(r"\s*\[+\s*[\"']?([\w-]+)[^\]]*\]", line):
            section = header[1]
            lines.setdefault((section, ""), place)
        elif key := re.match(r"\s*[\"']?([\w-]+)[\"']?\s*(?:\.\s*[\"']?([\w-]+)[\"']?\s*)?[=.]", line):
            lines.setdefault((key[1], key[2]) if key[2] and not section else (section, key[1]), place)
    return lines


def model_and_cluster(tables: Mapping[str, Table], place: Place) -> tuple[Model, Cluster, Mapping[str, Table]]:
    """The model and the cluster that tables name, and how they were written, paths made absolute.

    Raises `InputError`, at its place, for what is missing or cannot be read.
    """
    for section, ask in (("model", "a name, config or dimensions"), ("cluster", "a name, file or description")):
        if not tables.get(section):
            raise place.fail(section, "", f"missing: say {ask}")
    written = {
        "model": _absolute(tables["model"], "config", place),
        "cluster": _absolute(tables["cluster"], "file", place),
    }
    model = guarded("model", tables["model"], place, lambda: _model(written["model"], place))
    return model, cluster_in(tables, place), written


def cluster_in(tables: Mapping[str, Table], place: Place) -> Cluster:
    """The cluster that tables name; raises `InputError` where they name none that can be read, or priced."""
    if not tables.get("cluster"):
        raise place.fail("cluster", "", "missing: say a name, file or description")
    written = _absolute(tables["cluster"], "file", place)
    found: Cluster = guarded("cluster", tables["cluster"], place, lambda: _cluster(written, place))
    if not found.accelerator.peak_flop_per_s:
        raise place.fail("cluster", next(iter(tables["cluster"])), without_rate(found.accelerator.name, "", ()))
    return found


def _build(tables: Mapping[str, Table], place: Place) -> Scenario:
    model, cluster, written = model_and_cluster(tables, place)
    told = "is an option of serving; `ridgeline simulate` reads it, `plan` and `predict` with --serve"
    traffic = dict.fromkeys((entry.name for entry in TRAFFIC_FIELDS), told) | words_of("plan", PLAN_FIELDS)
    deployment = dict.fromkeys((entry.name for entry in DEPLOYMENT_FIELDS), told) | words_of(
        "workload", WORKLOAD_FIELDS
    )
    fail = failing("workload", place)
    values = read_fields(tables.get("workload", {}), WORKLOAD_FIELDS, fail, elsewhere=traffic)
    if "lengths" in values and not is_law(values["lengths"]):
        values |= _absolute({"lengths": values["lengths"]}, "lengths", place)
    chosen = read_fields(tables.get("plan", {}), PLAN_FIELDS, failing("plan", place), elsewhere=deployment)
    given = {"workload": values.keys(), "plan": chosen.keys()}
    for section, name, why in idle_words(values, chosen, model):
        if name in given[section]:
            raise place.fail(section, name, why)
    assumed = tuple(fill_workload(values, model))
    stated: Table = {"precision": values["precision"]} if "precision" in values else {}
    assumed += guarded("workload", stated, place, lambda: tuple(fill_precision(values, cluster)))
    workload = guarded("workload", {}, place, lambda: Workload(**values))
    plan = None
    if "plan" in tables:
        assumed += guarded("plan", {}, place, lambda: tuple(complete_plan(chosen, model, cluster, workload)))
        plan = guarded("plan", {}, place, lambda: Plan(**chosen))
    return Scenario(
        model=model, cluster=cluster, workload=workload, plan=plan, written=written, assumed=assumed, file=place.file,
        lines=place.of_file(),
    )  # fmt: skip


def words_of(section: str, fields: tuple[Field, ...]) -> dict[str, str]:
    """What is said of the words of a section where another's are read."""
    return dict.fromkeys((entry.name for entry in fields), f"is an option of [{section}]; write it there")


def failing(section: str, place: Place) -> Callable[[str, str], InputError]:
    """The error of a field of a section, in its place."""
    return lambda name, message: place.fail(section, name, message)


def guarded(section: str, table: Table, place: Place, build: Callable[[], Any]) -> Any:
    """What `build` makes; raises errors below that name no file with the place of this table, or of the field of it
    that they begin with, or that is its only one."""
    try:
        return build()
    except (RidgelineError, RecursionError) as error:
        if isinstance(error, InputError) and (error.file is not None or error.field is not None):
            raise
        text = str(error).removeprefix(f"{section}: ")
        blamed = text.partition(" = ")[0]
        name = blamed if blamed in table else next(iter(table)) if len(table) == 1 else ""
        raise place.fail(section, name, text) from None


def _absolute(table: Table, name: str, place: Place) -> dict[str, object]:
    value = table.get(name)
    return dict(table) if not isinstance(value, str) else {**table, name: str((place.folder / value).resolve())}


def _model(table: Table, place: Place) -> Model:
    from ridgeline.graph.load import load

    sources = [name for name in ("name", "config") if name in table]
    if len(table) == 1 and sources:
        text = table[sources[0]]
        if not isinstance(text, str) or not text:
            raise place.fail("model", sources[0], "needs a text: a catalog name, or a config.json file or folder")
        return load(text)
    return _from_dims(table, place)


def _from_dims(table: Table, place: Place) -> Model:
    from ridgeline.graph.build import from_dims
    from ridgeline.graph.families.explicit import FIELDS

    known = ["name", "source", *FIELDS]
    for name in table:
        if name == "config":
            raise place.fail("model", name, "says the whole model; leave the other words out, or give dimensions alone")
        if name not in known:
            raise place.fail("model", name, f"unknown field; {near(name, [*known, 'name', 'config'])}")
    missing = [name for name in ("layers", "hidden", "heads", "vocab") if name not in table]
    if missing:
        raise place.fail("model", "", f"no {', '.join(missing)}; give a name, a config, or these dimensions as well")
    dims: dict[str, Any] = dict(table)
    try:
        return from_dims(**dims)
    except TypeError as error:
        raise place.fail("model", "", f"the dimensions do not describe a model: {error}") from None


def _cluster(table: Table, place: Place) -> Cluster:
    from ridgeline.facts.clusters import cluster, cluster_from_toml

    sources = [name for name in ("name", "file") if name in table]
    if len(sources) == 1 and OF_MACHINE.issuperset(table.keys() - {sources[0]}) and len(table) > 1:
        return operated(_cluster({sources[0]: table[sources[0]]}, place), table, place)
    if len(table) > 1 or not sources:
        from ridgeline.facts.cluster_file import cluster_of

        file = place.file or "command line"
        try:
            return cluster_of(table, file=file)
        except InputError as error:
            message = str(error).removeprefix(f"{file}: ").removeprefix(f"field '{error.field}': ")
            raise place.fail("cluster", error.field or "", message) from None
    text = table[sources[0]]
    if not isinstance(text, str) or not text:
        raise place.fail("cluster", sources[0], "needs a text, e.g. name = '64xH100-SXM' or file = 'machine.toml'")
    if sources[0] == "file":
        return cluster_from_toml(text)
    return cluster(text)


def write_scenario(scenario: Scenario) -> str:
    """The scenario as TOML that `read_scenario` reads back to an equal one.

    Model and cluster are written as the person wrote them, units included.
    """
    parts = [_section(name, scenario.written[name]) for name in ("model", "cluster")]
    return "\n".join([*parts, *(_section(name, table) for name, table in workload_and_plan(scenario).items())])


def workload_and_plan(scenario: Scenario) -> dict[str, dict[str, object]]:
    """The tables [workload] and [plan] of a scenario, without words that would change nothing in it."""
    tables = {"workload": _values(scenario.workload, WORKLOAD_FIELDS)}
    tables |= {} if scenario.plan is None else {"plan": _values(scenario.plan, PLAN_FIELDS)}
    plan = {} if scenario.plan is None else vars(scenario.plan)
    for section, name, _ in idle_words(vars(scenario.workload), plan, scenario.model):
        tables.get(section, {}).pop(name, None)
    return tables


def _values(record: Workload | Plan, known: tuple[Field, ...]) -> dict[str, object]:
    pairs = ((one, getattr(record, one.name)) for one in known)
    return {one.name: one.write(value) for one, value in pairs if value not in (None, "", ())}


def _section(name: str, table: Table) -> str:
    return f"[{name}]\n" + "".join(f"{_key(key)} = {toml_value(value)}\n" for key, value in table.items())


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else toml_value(key)


def toml_value(value: object) -> str:
    """A value as TOML writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(key)} = {toml_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    return repr(value)
