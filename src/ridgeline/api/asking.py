"""From a command line to a scenario, and from an error to what was said."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ridgeline.api.flags import LIMIT_NAMES, PLAN_NAMES, WORKLOAD_NAMES, flag_of, given
from ridgeline.errors import (
    ClusterError,
    DomainError,
    InputError,
    ModelError,
    NoPlanError,
    PlanError,
    UnknownNameError,
    WorkloadError,
)
from ridgeline.scenario.fields import Field
from ridgeline.scenario.serving import ServingScenario, read_serving, serving_from_words
from ridgeline.scenario.serving_fields import DEPLOYMENT_FIELDS, OFFLOAD_FIELDS, TRAFFIC_FIELDS
from ridgeline.scenario.training import OF_MACHINE, Place, Scenario, read_scenario, scenario_from_words, tables_of

TRAFFIC_NAMES = frozenset(field.name for field in TRAFFIC_FIELDS)
DEPLOYMENT_NAMES = frozenset(field.name for field in (*DEPLOYMENT_FIELDS, *OFFLOAD_FIELDS))
_DIVIDING = frozenset({
    "tp", "pp", "dp", "ep", "kv_ranks", "instances", "prefill", "decode", "expert_devices", "offload", "beside",
    "technique",
})  # fmt: skip
"""Words after which a person has said on how many devices a model lies, or means to."""
_TABLE_AT_FAULT = {PlanError: "plan", ModelError: "model", ClusterError: "cluster"}


def scenario_of(subject: str, on: str | None, words: Mapping[str, Any], *, planned: bool) -> Scenario:
    """The scenario that a command line describes; flags win over the scenario file.

    With `planned` the scenario has a plan, made of defaults where nothing is said.
    """
    _refuse_others(
        words, WORKLOAD_NAMES | PLAN_NAMES | LIMIT_NAMES, "is an option of serving; add --serve, or leave it out"
    )
    sections = {"workload": WORKLOAD_NAMES, **({"plan": PLAN_NAMES} if planned else {})}
    tables = tables_from(subject, on, words, sections)
    if subject.endswith(".toml"):
        return read_scenario(subject, tables)
    if on is None:
        raise InputError("say which machine, e.g. --on 64xH100-SXM", field="--on")
    return scenario_from_words(tables)


def serving_scenario_of(
    subject: str, on: str | None, words: Mapping[str, Any], *, apart: frozenset[str] = frozenset()
) -> ServingScenario:
    """The serving scenario that a command line describes; flags win over the file, whose words `apart` are not read."""
    _refuse_others(words, TRAFFIC_NAMES | DEPLOYMENT_NAMES | {"batch"}, "is an option of training, not of serving")
    tables = tables_from(subject, on, words, {"workload": TRAFFIC_NAMES, "plan": DEPLOYMENT_NAMES})
    if not subject.endswith(".toml") and on is None:
        raise InputError("say which machine, e.g. --on 8xH100-SXM", field="--on")
    found = read_serving(subject, tables, apart=apart) if subject.endswith(".toml") else serving_from_words(tables)
    if "recipe" not in found.stated:
        return found
    from ridgeline.predict.recipes import with_recipe

    return with_recipe(found)


def deployed_scenario_of(
    subject: str, on: str | None, words: Mapping[str, Any], *, apart: frozenset[str] = frozenset()
) -> ServingScenario:
    """As `serving_scenario_of`; where nobody says how a model is divided, an instance takes the fewest devices that
    hold it: tp inside a node, then pp over nodes. What was taken is told."""
    asked = serving_scenario_of(subject, on, words, apart=apart)
    least = 0.5 * asked.model.graph.params  # bytes of weights in 4 bits
    if _DIVIDING & asked.stated.keys() or least < 0.1 * asked.cluster.accelerator.memory_bytes or _starts(asked):
        return asked
    node = asked.cluster.node_devices
    ways = [(1 << power, 1) for power in range(1, node.bit_length())]
    ways += [(node, nodes) for nodes in range(2, asked.cluster.count // node + 1)]
    for tp, pp in ways:
        if tp * pp <= asked.cluster.count:
            found = serving_scenario_of(subject, on, {**words, "tp": str(tp), "pp": str(pp)}, apart=apart)
            if _starts(found):
                told = f"tp {tp}" + (f", pp {pp}" if pp > 1 else "") + ": the fewest devices that hold it"
                return replace(found, stated=asked.stated, assumed=(*found.assumed, f"{told}, as none was given"))
    return asked


def _starts(asked: ServingScenario) -> bool:
    """Whether a device holds its part of the model and a cache beside it, as far as that can be asked."""
    from ridgeline.api.simulating import policies_of
    from ridgeline.cost.machine import machine
    from ridgeline.serving.engine import engine

    try:
        made = engine(asked.model, machine(asked.cluster), asked.deployments[0], policies=policies_of(asked))
        return made.capacity.cache_tokens > 0
    except (NoPlanError, PlanError):
        return False


def _refuse_others(words: Mapping[str, Any], known: frozenset[str], said: str) -> None:
    for name, value in words.items():
        if value is not None and name not in known | OF_MACHINE:
            raise InputError(said, field=flag_of(name))


def tables_from(
    subject: str, on: str | None, words: Mapping[str, Any], sections: Mapping[str, frozenset[str]]
) -> dict[str, dict[str, object]]:
    """The tables of a scenario that flags stand for; the model's where the subject is no scenario."""
    tables: dict[str, dict[str, object]] = {section: given(words, names) for section, names in sections.items()}
    machine = cluster_words(on, words)
    if machine:
        tables["cluster"] = machine
    if not subject.endswith(".toml"):
        tables["model"] = {"config" if subject.endswith(".json") or is_folder(subject) else "name": subject}
    return tables


def asked_tables(
    subject: str,
    on: str | None,
    words: Mapping[str, Any],
    fields: Mapping[str, tuple[Field, ...]],
    what: str,
    *,
    example: str,
) -> tuple[Mapping[str, Mapping[str, object]], Place]:
    """The tables of a scenario whose sections have some fields, flags over those of a file, and where they stand."""
    sections = {section: frozenset(one.name for one in table) for section, table in fields.items()}
    _refuse_others(words, frozenset().union(*sections.values()), f"says nothing of {what}; leave it out")
    tables = tables_from(subject, on, words, sections)
    if subject.endswith(".toml"):
        return tables_of(subject, tables)
    if on is None:
        raise InputError(f"say which machine, e.g. --on {example}", field="--on")
    return tables, Place(file=None, folder=Path(), lines={})


def take_machine_words(given: SimpleNamespace) -> None:
    """Put what a person says about the machine, --region and --price, among the words of a question."""
    given.words |= {name: getattr(given, name, None) for name in OF_MACHINE}


def cluster_words(on: str | None, words: Mapping[str, Any]) -> dict[str, object]:
    """The table of a cluster that `--on`, `--region` and `--price` stand for; empty where none is said."""
    table: dict[str, object] = given(words, OF_MACHINE)
    if on is not None:
        table["file" if on.endswith(".toml") else "name"] = str(Path(on).resolve()) if on.endswith(".toml") else on
    return table


def is_folder(text: str) -> bool:
    """Whether a text is the path of a folder; one that can be no path at all, too long or with a null, is none."""
    try:
        return bool(text) and Path(text).is_dir()
    except (OSError, ValueError):
        return False


def said_as(asked: ServingScenario, section: str, name: str) -> str:
    """How a person said a word of a serving scenario: a flag, or a field of the file's table."""
    return flag_of(name) if asked.file is None else f"{section}.{name}"


@contextmanager
def blamed_on(asked: Scenario) -> Iterator[None]:
    """Errors about a scenario that was read from a file name that file and the table that is at fault."""
    try:
        yield
    except (PlanError, WorkloadError, ModelError, ClusterError, DomainError) as error:
        if asked.file is None:
            raise
        message = str(error).removeprefix("plan: ").removeprefix("workload: ")
        section = _TABLE_AT_FAULT.get(type(error), "workload")
        raise InputError(message, file=asked.file, line=_line_of(asked, section, message), field=section) from None


def _line_of(asked: Scenario, section: str, message: str) -> int | None:
    """The line of the first word of a section that a message names, else of the section itself."""
    named = [asked.lines[section, word] for word in re.findall(r"\w+", message) if (section, word) in asked.lines]
    return next(iter(named), asked.lines.get((section, ""), asked.lines.get(("", section))))


@contextmanager
def blamed_on_word(asked: ServingScenario) -> Iterator[None]:
    """Errors about a name that is in no catalog, or no number format, name the word of the scenario that says it."""
    try:
        yield
    except (UnknownNameError, DomainError) as error:
        quoted = re.search(r"'([^']+)'", str(error))
        words = {"workload": asked.traffic, "plan": asked.stated}
        said = [
            (section, name)
            for section, table in words.items()
            for name, value in table.items()
            if quoted is not None and isinstance(value, str) and value.startswith(quoted[1])
        ]
        if len(said) != 1:
            raise
        section, name = said[0]
        raise InputError(
            str(error), file=asked.file, field=said_as(asked, section, name), value=words[section][name]
        ) from None
