"""The command `claims`: what papers report beside what is predicted for their settings."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

from ridgeline.api.answer import Answer
from ridgeline.api.progress import progress_bar
from ridgeline.api.refusals import refusal
from ridgeline.api.verb import ask, read_line
from ridgeline.claims.files import papers
from ridgeline.claims.text import claims_blocks
from ridgeline.claims.verdicts import rows_of, summarise
from ridgeline.errors import RidgelineError, UnknownNameError
from ridgeline.facts.ledger import LedgerRow, ledger

_WIDTH = 160  # columns of a table that is piped


def claims(given: SimpleNamespace) -> Answer:
    """Prints a row for each claim of the papers that are asked for, and the summary."""
    wanted, known = _wanted(given.family, given.paper), papers()
    rows: list[dict[str, Any]] = []
    with progress_bar("checking claims") as told:
        for place, row in enumerate(wanted, start=1):
            rows += rows_of(row, known.get(row.n), asked)
            if told is not None:
                told(place, len(wanted))
    summary = summarise(rows)
    return Answer(
        lambda: {"rows": rows, "summary": summary},
        lambda: claims_blocks(rows, summary, verbose=given.verbose),
        width=_WIDTH,
        value=rows,
    )


def _wanted(family: str | None, paper: str | None) -> list[LedgerRow]:
    """The papers of a family, one by its number or system, or all; raises `UnknownNameError` where there is none."""
    rows = list(ledger().values())
    if family is not None:
        if family not in {row.family for row in rows}:
            raise UnknownNameError("family", family, sorted({row.family for row in rows}))
        rows = [row for row in rows if row.family == family]
    if paper is not None:
        word = paper.casefold()
        found = [row for row in rows if word in (str(row.n), row.system.casefold())]
        if not found:
            raise UnknownNameError("paper", paper, [row.system for row in rows], hint="or its number, 1 to 228")
        rows = found
    return rows


def asked(command: str, files: Mapping[str, str]) -> Mapping[str, Any]:
    """The JSON of a command beside such files, run in this process, with its `exit_code`; a refusal is one too."""
    return _asked(command, tuple(files.items()))


@cache
def _asked(command: str, files: tuple[tuple[str, str], ...]) -> Mapping[str, Any]:
    try:
        with TemporaryDirectory() as folder:
            for name, text in files:
                (Path(folder) / name).write_text(text, encoding="utf-8")
            known = {name: str(Path(folder) / name) for name, _ in files}
            question, words = read_line([known.get(word, word) for word in shlex.split(command)])
            # no value of a claim is a gain from better machines, and each takes a pricing of its own
            found = ask(question, **words, **({"quick": True} if question in ("predict", "simulate") else {}))
            answer = json.loads(found.to_json())
    except RidgelineError as error:
        return refusal(error)
    code = int(found.impossible is not None)
    return {"exit_code": code, **answer} if isinstance(answer, dict) else {"exit_code": code, "list": answer}
