"""The command `check`: predictions against a table of measurements."""

from __future__ import annotations

from types import SimpleNamespace

from ridgeline.api.answer import Answer
from ridgeline.api.keeping import kept
from ridgeline.api.progress import progress_bar
from ridgeline.errors import InputError
from ridgeline.facts.clusters import cluster
from ridgeline.facts.user_files import TRUTH, read_user_file
from ridgeline.predict.operator import RUNGS
from ridgeline.report.as_json import as_value
from ridgeline.report.check_text import check_blocks
from ridgeline.search.complete import complete
from ridgeline.search.post_training import measured_iteration
from ridgeline.validate.check import Checker
from ridgeline.validate.results import is_results, results_table
from ridgeline.validate.rows import table_of
from ridgeline.validate.score import summarise

_WIDTH = 160  # columns of a table that is piped


def _said(given: SimpleNamespace) -> dict[str, str]:
    """Cells of a truth table that a person says beside a file of results."""
    engine, _, version = (given.engine or "").partition(" ")
    said = {"model": given.model, "engine": engine, "engine_version": version, "tp": given.tp and str(given.tp)}
    said |= {"precision_weights": given.weights}
    if given.on is not None:
        where = cluster(given.on)
        said |= {"hardware": where.accelerator.name, "n_devices": str(where.count)}
        said["tp"] = said["tp"] or str(where.count)
    return {name: value or "" for name, value in said.items()}


def check(given: SimpleNamespace) -> Answer:
    """Prints every row's answer and the summary; progress goes to standard error when that is a terminal.

    `blind` hides from a prediction where its row comes from. Answers are kept as they come, so that a killed check
    of a regular file goes on where it stopped.
    """
    evidence, blind = given.evidence, given.blind
    file = read_user_file(given.table, TRUTH)
    said = _said(given)
    table = results_table(file, said) if is_results(file) else table_of(file)
    if any(said.values()) and not is_results(file):
        raise InputError("says what a benchmark's results leave out; a table has columns for it", field="--on")
    checker = Checker(
        completer=complete, iteration=measured_iteration, rungs=RUNGS[evidence], blind=blind, recipe=given.recipe or ""
    )
    question = f"{evidence} {blind} {given.recipe} {sorted(said.items())}\n".encode() + file.raw if file.again else None
    with kept("check", question) as answered:
        before = len(answered.answers)
        with progress_bar("checking") as told:
            for place, row in enumerate(table.rows[before:], start=before + 1):
                answered.add(as_value(checker.answer(row, table)))
                if told is not None:
                    told(place, len(table.rows))
    rows = answered.answers
    summary = summarise(rows, kind=table.kind)
    return Answer(
        lambda: {"path": given.table, "rows": rows, "summary": as_value(summary)},
        lambda: check_blocks(rows, summary),
        width=_WIDTH,
        value=rows,
    )
