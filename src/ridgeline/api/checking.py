"""The command `check`: predictions against a table of measurements."""

from __future__ import annotations

from types import SimpleNamespace

from ridgeline.api.answer import Answer
from ridgeline.api.keeping import kept
from ridgeline.api.progress import progress_bar
from ridgeline.facts.user_files import TRUTH, read_user_file
from ridgeline.predict.operator import RUNGS
from ridgeline.report.as_json import as_value
from ridgeline.report.check_text import check_blocks
from ridgeline.search.complete import complete
from ridgeline.validate.check import Checker
from ridgeline.validate.rows import table_of
from ridgeline.validate.score import summarise

_WIDTH = 160  # columns of a table that is piped


def check(given: SimpleNamespace) -> Answer:
    """Prints every row's answer and the summary; progress goes to standard error when that is a terminal.

    `blind` hides from a prediction where its row comes from. Answers are kept as they come, so that a killed check
    of a regular file goes on where it stopped.
    """
    evidence, blind = given.evidence, given.blind
    file = read_user_file(given.table, TRUTH)
    table = table_of(file)
    checker = Checker(completer=complete, rungs=RUNGS[evidence], blind=blind)
    question = f"{evidence} {blind}\n".encode() + file.raw if file.again else None
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
