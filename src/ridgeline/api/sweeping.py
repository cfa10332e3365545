"""The command `sweep`: one question for each case of a grid or a list, by many processes, kept as they come."""

from __future__ import annotations

import csv
import json
import os
import socket
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TextIO

from ridgeline.api.answer import Answer
from ridgeline.api.progress import progress_bar, tell
from ridgeline.api.sweep_file import Sweep, limit_of, read_sweep, shard_of
from ridgeline.api.sweep_pool import RayPool, processes_of, run
from ridgeline.errors import InputError, printable
from ridgeline.report.blocks import Block, Line, Table, blank, listed, reason_of

_TABLES = (".csv", ".parquet")


class SweptRows(list[dict[str, Any]]):
    """The records of a sweep, with the words that vary in it and the columns that were asked for."""

    def __init__(self, sweep: Sweep, rows: Iterable[dict[str, Any]]) -> None:
        super().__init__(rows)
        self.words = list(dict.fromkeys(word for case in sweep.cases for word in case.words))
        self.columns = sweep.columns


class SweepJournal:
    """Rows that were answered, in files of JSON lines in one folder; each process that runs adds a file of its own.

    A line that a kill cut short is not read. Rows are known by the key of their question, so that a changed sweep
    keeps what it still asks.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._out: TextIO | None = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self.rows = {row["key"]: row for path in sorted(folder.glob("*.jsonl")) for row in _lines(path)}
        except OSError as error:
            told = f"cannot be used: {error.strerror or error}"
            raise InputError(told, field="--journal", value=str(folder)) from None

    def add(self, rows: Sequence[dict[str, Any]]) -> None:
        """Keeps rows, on disk before it returns; raises `InputError` where the disk refuses."""
        try:
            if self._out is None:
                name = f"{socket.gethostname()}-{os.getpid()}-{len(list(self._folder.iterdir()))}.jsonl"
                self._out = (self._folder / name).open("a", encoding="utf-8")
            self._out.write("".join(json.dumps(row) + "\n" for row in rows))
            self._out.flush()
        except OSError as error:
            told = f"cannot be written: {error.strerror}; free some space and run it again, it goes on"
            raise InputError(told, field="--journal", value=str(self._folder)) from None
        self.rows |= {row["key"]: row for row in rows}

    def close(self) -> None:
        """Lets go of the file."""
        if self._out is not None:
            self._out.close()


def _lines(path: Path) -> Iterable[dict[str, Any]]:
    with path.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):  # cut short by a kill
                continue
            if isinstance(row, dict) and isinstance(row.get("key"), str) and "status" in row:
                yield row


def records(sweep: Sweep, rows: Mapping[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """A record a case that has a row, in the order of the sweep: number, status, words, values, and why not."""
    found = []
    for case in sweep.cases:
        row = rows.get(case.key)
        if row is not None:
            said = {word: _cell(value) for word, value in case.words.items()}
            values = {name: _cell(value) for name, value in row.get("values", {}).items() if name not in said}
            told = {"error": printable(row["error"])} if row.get("error") else {}
            found.append({"number": case.number, "status": row["status"], **said, **values, **told})
    return found


def _cell(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, dict | list) else value


def check_out(out: str | None) -> None:
    """Raises `InputError` for a table that could not be written, before hours of work."""
    if out is None:
        return
    if Path(out).suffix not in _TABLES:
        raise InputError("is neither .csv nor .parquet", field="--out", value=out)
    if not Path(out).resolve().parent.is_dir():
        raise InputError("its folder is not there; make it first", field="--out", value=out)
    if out.endswith(".parquet"):
        try:
            import pyarrow  # noqa: F401
        except ImportError:
            raise InputError("needs pyarrow; `pip install ridgeline[sweep]`, or write .csv", field="--out") from None


def write_table(found: Sequence[Mapping[str, Any]], out: str) -> None:
    """Writes records as CSV or Parquet, whole or not at all; raises `InputError` where it cannot."""
    names = list(dict.fromkeys(name for record in found for name in record))
    partial = Path(f"{out}.partial")
    try:
        if out.endswith(".csv"):
            with partial.open("w", encoding="utf-8", newline="") as lines:
                table = csv.DictWriter(lines, names, restval="")
                table.writeheader()
                table.writerows(found)
        else:
            _write_parquet(found, names, partial)
        partial.replace(out)
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", field="--out", value=out) from None


def _write_parquet(found: Sequence[Mapping[str, Any]], names: Sequence[str], path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    columns = {}
    for name in names:
        values = [record.get(name) for record in found]
        kinds = {type(value) for value in values if value is not None}
        if kinds <= {int, float} and len(kinds) == 2:
            values = [None if value is None else float(value) for value in values]
        elif len(kinds) > 1:
            values = [None if value is None else str(value) for value in values]
        columns[name] = pyarrow.array(values)
    parquet.write_table(pyarrow.table(columns), path)


_ROWS = 1_000  # rows of JSON; chosen
_SHOWN, _COLUMNS, _ERRORS = 20, 4, 20  # printed rows, their values, and faults; chosen


def sweep(given: SimpleNamespace) -> Answer:
    """Runs what a journal does not hold yet, and answers with all that it holds.

    Raises `InputError` for a file, shard or folder that cannot be used.
    """
    asked, (shard, shards) = read_sweep(given.file), shard_of(given.shard)
    if given.limit_case is not None:
        asked = replace(asked, limit_s=limit_of(given.limit_case, "--limit-case"))
    check_out(given.out)
    journal = SweepJournal(Path(given.journal or Path(given.file).with_suffix(".journal")))
    mine = [case for case in asked.cases if case.number % shards == shard]
    new = list({case.key: case for case in mine if case.key not in journal.rows}.values())
    if len(new) < len(mine):
        tell(f"{len(mine) - len(new):,} of {len(mine):,} cases are in the journal already")
    begun_s = time.monotonic()
    count = given.processes or os.cpu_count() or 1
    try:
        with progress_bar("sweeping") as bar:
            done = 0

            def keep(rows: list[dict[str, Any]]) -> None:
                nonlocal done
                journal.add(rows)
                done += len(rows)
                if bar is not None:
                    bar(done, len(new))

            ray = given.ray
            run(asked, new, (lambda many: RayPool(ray, many)) if ray else processes_of, count, keep)
    finally:
        journal.close()
    found = records(asked, journal.rows)
    if given.out is not None:
        write_table(found, given.out)
    return _answer(asked, found, {"new": len(new), "seconds": time.monotonic() - begun_s, "out": given.out})


def _answer(asked: Sweep, found: Sequence[dict[str, Any]], ran: Mapping[str, Any]) -> Answer:
    counts = Counter(each["status"] for each in found)
    failed = [each for each in found if each.get("error")]
    faults = Counter(reason_of(each["error"]) for each in failed)
    first = {reason_of(each["error"]): each for each in reversed(failed)}
    told = {
        "file": asked.file, "verb": asked.verb, "cases": len(asked.cases),
        **{status: counts[status] for status in ("answered", "impossible", "refused")},
        "left": len(asked.cases) - len(found), **ran,
        "errors": [
            {"error": first[reason]["error"], "cases": many, "first": first[reason]["number"]}
            for reason, many in faults.most_common(_ERRORS)
        ],
        "rows": list(found[:_ROWS]),
    }  # fmt: skip
    none = bool(found) and not counts["answered"]
    return Answer(
        lambda: told, lambda: _blocks(asked, told), value=SweptRows(asked, found),
        impossible=f"no case of {len(found):,} could be answered" if none else None,
    )  # fmt: skip


def _blocks(asked: Sweep, told: Mapping[str, Any]) -> list[Block]:
    left = f", {told['left']:,} left to other shards" if told["left"] else ""
    blocks: list[Block] = [
        Line(
            text=f"{told['cases']:,} cases of {asked.verb}: {told['answered']:,} answered, {told['impossible']:,} "
            f"impossible, {told['refused']:,} refused{left}",
            strong=True,
        ),
        Line(text=f"{told['new']:,} new in {told['seconds']:.1f} s" + (f"; {told['out']}" if told["out"] else "")),
        blank(),
    ]
    rows = told["rows"][:_SHOWN]
    words = list(dict.fromkeys(word for case in asked.cases[:_ROWS] for word in case.words))
    values = [name for name in dict.fromkeys(name for row in rows for name in row) if f"{name}_low" in rows[0]]
    numbers = [name for name, value in (rows[0] if rows else {}).items() if isinstance(value, float)]
    shown = (list(asked.columns) or values or numbers)[:_COLUMNS]
    names = ("number", *words, *shown, "status")
    if rows:
        blocks.append(Table(columns=names, rows=tuple(tuple(_said(row.get(name)) for name in names) for row in rows)))
    if told["cases"] > len(rows):
        blocks.append(Line(text="all rows: --out FILE.csv"))
    faults = (f"{each['cases']:,} x {each['error']} (first: number {each['first']})" for each in told["errors"])
    return [*blocks, *listed(faults, "Not answered")]


def _said(value: Any) -> str:
    return "" if value is None else f"{value:.5g}" if isinstance(value, float) else str(value)
