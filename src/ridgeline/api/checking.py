"""The command `check`: predictions against a table of measurements."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TextIO

import ridgeline
from ridgeline.api.answer import Answer
from ridgeline.api.progress import progress_bar, tell
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

_FROM_S = 5.0  # commands that end sooner leave nothing on disk


def cache_folder() -> Path:
    """Where a person's machine keeps files that may be lost."""
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "ridgeline" / "cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "ridgeline"
    given = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(given) if os.path.isabs(given) else Path.home() / ".cache") / "ridgeline"


class KeptAnswers:
    """The answers of an interrupted run of the same question, and those added to them.

    `question` is everything that the answers depend on beside the package itself, whose files are part of the name of
    what is kept: another version, other facts or other code begin anew. Without a question (it came through a pipe and
    cannot be asked again) nothing is kept.
    """

    def __init__(self, command: str, question: bytes | None) -> None:
        self.answers: list[dict[str, Any]] = []
        self._begun_s = time.monotonic()
        self._command, self._question = command, question or b""
        self._path: Path | None = None
        self._out: TextIO | None = None
        self._given_up = question is None
        with suppress(OSError):
            if question is not None and any(cache_folder().glob(f"{command}-*.jsonl")):
                self._resume()

    def add(self, answer: dict[str, Any]) -> None:
        """Keeps one more answer; where the disk refuses, it is kept in memory alone."""
        self.answers.append(answer)
        if self._given_up or (self._out is None and time.monotonic() - self._begun_s < _FROM_S):
            return
        try:
            new = [answer] if self._out is not None else self.answers
            if self._out is None:
                self._out = self._open()
            self._out.writelines(json.dumps(one, allow_nan=False) + "\n" for one in new)
            self._out.flush()
        except (OSError, ValueError):
            self._given_up = True

    def close(self) -> None:
        """Lets go of what is kept, which stays for the next run."""
        with suppress(OSError):
            if self._out is not None:
                self._out.close()

    def done(self) -> None:
        """Removes what was kept: the question is answered."""
        self.close()
        with suppress(OSError):
            if self._path is not None and not self._given_up:
                self._path.unlink(missing_ok=True)

    def _place(self) -> Path:
        if self._path is None:
            root = Path(ridgeline.__file__).parent
            name = hashlib.sha256(self._question)
            with suppress(PackageNotFoundError):
                name.update(version("aiconfigurator-core").encode())  # measured tables that answers may rest on
            for path in sorted(path for path in root.rglob("*") if path.suffix in (".py", ".tsv", ".toml", ".json")):
                about = path.stat()
                name.update(f"{path.relative_to(root)} {about.st_size} {about.st_mtime_ns}\n".encode())
            self._path = cache_folder() / f"{self._command}-{name.hexdigest()[:24]}.jsonl"
        return self._path

    def _open(self) -> TextIO:
        """The file for writing, emptied; another process that holds it keeps it."""
        path = self._place()
        path.parent.mkdir(parents=True, exist_ok=True)
        out = path.open("a", encoding="utf-8")
        with suppress(ImportError):
            import fcntl

            fcntl.flock(out, fcntl.LOCK_EX | fcntl.LOCK_NB)
        out.truncate(0)
        return out

    def _resume(self) -> None:
        path = self._place()
        if not path.exists():
            return
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                self.answers.append(json.loads(line))
            except ValueError:  # cut short by the kill
                break
        self._out = self._open()
        self._out.writelines(json.dumps(one, allow_nan=False) + "\n" for one in self.answers)
        self._out.flush()


@contextmanager
def kept(command: str, question: bytes | None) -> Iterator[KeptAnswers]:
    """What an interrupted run left, told on the error stream; removed when the block ends well."""
    found = KeptAnswers(command, question)
    if found.answers:
        tell(f"going on after {len(found.answers):,} answers of a run that was interrupted")
    try:
        yield found
    except BaseException:
        found.close()
        raise
    found.done()


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
