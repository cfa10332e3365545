"""The commands `plan` and `predict`: from words to a scenario, to an answer, to the screen."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from ridgeline.cli.flags import (
    LIMIT_FIELDS,
    LIMIT_NAMES,
    PLAN_NAMES,
    STATED_FIELDS,
    WORKLOAD_NAMES,
    cluster_words,
    given,
    is_folder,
    read_flags,
)
from ridgeline.cli.progress import busy
from ridgeline.cli.refusals import print_refusal, refusal
from ridgeline.errors import ClusterError, DomainError, InputError, ModelError, NoPlanError, PlanError, WorkloadError
from ridgeline.scenario.training import Scenario, read_scenario, scenario_from_words

_TABLE_AT_FAULT = {PlanError: "plan", ModelError: "model", ClusterError: "cluster"}


def scenario_of(subject: str, on: str | None, words: Mapping[str, Any], *, planned: bool) -> Scenario:
    """The scenario that a command line describes; flags win over the scenario file.

    With `planned` the scenario has a plan, made of defaults where nothing is said.
    """
    machine = cluster_words(on, words.get("region"))
    words = {name: value for name, value in words.items() if name != "region"}
    for name, value in words.items():
        if value is not None and name not in WORKLOAD_NAMES | PLAN_NAMES | LIMIT_NAMES:
            raise InputError("is a word of serving; add --serve, or leave it out", field="--" + name.replace("_", "-"))
    tables: dict[str, dict[str, object]] = {"workload": given(words, WORKLOAD_NAMES)}
    if machine:
        tables["cluster"] = machine
    if planned:
        tables["plan"] = given(words, PLAN_NAMES)
    if subject.endswith(".toml"):
        return read_scenario(subject, tables)
    is_file = subject.endswith(".json") or is_folder(subject)
    tables["model"] = {"config" if is_file else "name": subject}
    if on is None:
        raise InputError("say which machine, e.g. --on 64xH100-SXM", field="--on")
    return scenario_from_words(tables)


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


def plan(
    subject: str, on: str | None, words: Mapping[str, Any], *, evidence: str, exhaustive: bool, top: int, as_json: bool
) -> None:
    """Prints the best plans; raises NoPlanError when none fits."""
    asked = scenario_of(subject, on, words, planned=False)
    stated, limits = read_flags(words, STATED_FIELDS), read_flags(words, LIMIT_FIELDS)

    from ridgeline.report.as_json import search_as_dict
    from ridgeline.report.blocks import show
    from ridgeline.report.text import search_blocks
    from ridgeline.search.search import search
    from ridgeline.search.space import EXHAUSTIVE, Space

    space = replace(EXHAUSTIVE if exhaustive else Space(), fixed=stated, **limits)
    try:
        with blamed_on(asked), busy("searching plans"):
            found = search(asked.model, asked.cluster, asked.workload, limits=space, top=top, evidence=evidence)
    except NoPlanError as error:
        if as_json:
            print_refusal({"best": [], **refusal(error)})
        raise
    print(f"searched for {found.seconds:.1f} s", file=sys.stderr)
    if as_json:
        _print_json({**search_as_dict(found), "assumed": list(asked.assumed)})
    else:
        show(search_blocks(found, assumed=asked.assumed), sys.stdout)


def predict(
    subject: str, on: str | None, words: Mapping[str, Any], *, evidence: str, trace: str | None, as_json: bool
) -> None:
    """Prints one plan's report; raises NoPlanError when it does not fit in memory."""
    asked = scenario_of(subject, on, words, planned=True)
    assert asked.plan is not None

    from ridgeline.predict import predict as predicted
    from ridgeline.report.as_json import report_as_dict
    from ridgeline.report.blocks import show
    from ridgeline.report.text import report_blocks
    from ridgeline.units import bytes_text

    with blamed_on(asked):
        report = predicted(asked.model, asked.cluster, asked.workload, asked.plan, evidence=evidence)
    if trace is not None:
        from ridgeline.report.trace import write_trace

        try:
            with Path(trace).open("w", encoding="utf-8") as out:
                events = write_trace(report, out)
        except OSError as error:
            raise InputError(f"cannot be written: {error.strerror}", file=trace) from None
        print(f"wrote {events} events to {trace}; open it at https://ui.perfetto.dev", file=sys.stderr)
    if as_json:
        _print_json({**report_as_dict(report), "assumed": list(asked.assumed)})
    else:
        show(report_blocks(report, assumed=asked.assumed), sys.stdout)
    if not report.fits:
        worst = min(report.memory, key=lambda stage: stage.headroom_bytes)
        raise NoPlanError(
            f"the plan needs {bytes_text(worst.total_bytes)} on stage {worst.stage}, the device has "
            f"{bytes_text(worst.capacity_bytes)}; `ridgeline plan` looks for one that fits"
        )


def _print_json(answer: Mapping[str, Any]) -> None:
    print(json.dumps(answer, indent=1, allow_nan=False))
