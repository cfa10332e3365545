"""Rows of a sweep on disk: a journal that any number of machines add to, and the table at the end."""

from __future__ import annotations

import csv
import json
import os
import socket
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from ridgeline.api.sweep_file import Sweep
from ridgeline.errors import InputError, printable

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
