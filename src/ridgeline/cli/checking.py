"""The command `check`: predictions against a table of measurements."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from ridgeline.cli.keeping import kept
from ridgeline.predict.operator import RUNGS
from ridgeline.report.as_json import as_value
from ridgeline.report.blocks import show
from ridgeline.report.check_text import check_blocks
from ridgeline.search.complete import complete
from ridgeline.validate.check import Checker
from ridgeline.validate.rows import Row, read
from ridgeline.validate.score import summarise

_WIDTH = 160  # columns of a table that is piped


def check(path: str, *, evidence: str, as_json: bool) -> None:
    """Prints every row's answer and the summary; progress goes to standard error when that is a terminal.

    Answers are kept as they come, so that a killed check goes on where it stopped.
    """
    table = read(path)
    checker = Checker(completer=complete, rungs=RUNGS[evidence])
    with kept("check", evidence.encode() + b"\n" + Path(path).read_bytes()) as answered:
        for row in _progress(table.rows[len(answered.answers) :]):
            answered.add(as_value(checker.answer(row, table)))
    rows = answered.answers
    summary = summarise(rows, kind=table.kind)
    if as_json:
        print(json.dumps({"path": path, "rows": rows, "summary": as_value(summary)}, indent=1, allow_nan=False))
    else:
        show(check_blocks(rows, summary), sys.stdout, width=_WIDTH)


def _progress(rows: tuple[Row, ...]) -> Iterator[Row]:
    """The rows, with a bar on a terminal."""
    if not sys.stderr.isatty():
        yield from rows
        return
    from rich.console import Console
    from rich.progress import track

    tracked: Iterable[Row] = track(rows, description="checking", console=Console(stderr=True), transient=True)
    yield from tracked
