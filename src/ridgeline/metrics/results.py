"""Tables of results: TSV, CSV, JSON, JSON lines or a NumPy matrix, of a person's file or one of `data/results`."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.errors import InputError, UnknownNameError
from ridgeline.facts import store
from ridgeline.facts.user_files import MIB, FileKind, as_user_file, read_user_file

Row = Mapping[str, Any]
Matrix = NDArray[np.float64]
RESULTS = FileKind(
    what="a table of results", most_bytes=1024 * MIB, most_line_bytes=256 * MIB, streams=True, packed=True,
    next_step="split the table",
)  # fmt: skip
_NONE = ("", "-", "none", "nan", "null", "n/a")
_YES, _NO = (
    ("true", "yes", "1", "1.0", "right", "pass", "passed"),
    ("false", "no", "0", "0.0", "wrong", "fail", "failed"),
)


@dataclass(frozen=True, kw_only=True)
class Results:
    """One table: rows by column; `cells` is the matrix of a .npy file, which has no rows."""

    name: str
    rows: tuple[Row, ...] = ()
    cells: Matrix | None = None

    def renamed(self, columns: Mapping[str, str]) -> Results:
        """The table where each key of `columns` is the column that its value names; raises `InputError` for none."""
        for wanted in columns.values():
            if self.rows and not any(wanted in row for row in self.rows):
                raise UnknownNameError("column", wanted, self.columns)
        return replace(
            self, rows=tuple({**row, **{new: row.get(old) for new, old in columns.items()}} for row in self.rows)
        )

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of any row, in the order in which they first stand."""
        return tuple(dict.fromkeys(name for row in self.rows for name in row))

    def number(self, row: Row, column: str) -> float | None:
        """A cell as a number, None where it says none; raises `InputError` for other words."""
        value = row.get(column)
        if value is None or str(value).strip().casefold() in _NONE:
            return None
        try:
            found = float(value)
        except (TypeError, ValueError):
            found = float("nan")
        if not isfinite(found):
            raise InputError(f"'{value}' is no number", file=self.name, field=column, line=row.get("line"))
        return found

    def numbers(self, column: str) -> list[float | None]:
        """A column of all rows; raises `InputError` where no row has it."""
        self.need(column)
        return [self.number(row, column) for row in self.rows]

    def flag(self, row: Row, column: str) -> bool | None:
        """A cell that says yes or no, None where it says neither; raises `InputError` for other words."""
        word = str(row.get(column, "")).strip().casefold()
        if word in _NONE:
            return None
        if word not in _YES + _NO:
            raise InputError(f"'{word}' says neither yes nor no", file=self.name, field=column)
        return word in _YES

    def need(self, *columns: str) -> None:
        """Raises `InputError` for the first of these columns that no row has."""
        for column in columns:
            if column not in self.columns:
                told = ", ".join(self.columns[:12]) or "no column"
                next_ = f"--column {column}=NAME says which it is"
                raise InputError(f"no column '{column}'; it has {told}; {next_}", file=self.name, field=column)

    def matrix(self) -> Matrix:
        """A line for each row, of its cells that are numbers but `line`; raises `InputError` where lines differ."""
        if self.cells is not None:
            return self.cells
        named = [name for name in self.columns if name != "line"]
        kept = [name for name in named if all(_numeric(row.get(name)) for row in self.rows)]
        if not kept:
            raise InputError("no column holds numbers alone, so it is no matrix", file=self.name)
        return np.array([[float(row[name]) for name in kept] for row in self.rows])


def _numeric(value: Any) -> bool:
    try:
        return isfinite(float(value))
    except (TypeError, ValueError):
        return False


def shipped() -> tuple[str, ...]:
    """Names of the tables of published results that are of this package."""
    return store.names("results", ".tsv")


def read_results(path: str) -> Results:
    """A table by its file, or by its name in `shipped`; raises `InputError` for what cannot be read as one."""
    if path in shipped() and not Path(path).exists():
        file = as_user_file(store.read_bytes(f"results/{path}.tsv"), RESULTS, path)
        return Results(name=path, rows=tuple(_separated("\n".join(file.lines()), path)))
    if not Path(path).exists():
        raise InputError(f"no such file, and no table of {', '.join(shipped())}", file=path)
    if path.endswith(".npy"):
        return Results(name=path, cells=_array(path))
    text = "\n".join(read_user_file(path, RESULTS).lines())
    found = _json(text, path) if text.lstrip()[:1] in ("{", "[") else _separated(text, path)
    return Results(name=path, rows=tuple(found))


def _array(path: str) -> Matrix:
    try:
        cells = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise InputError(f"is no NumPy array ({error})", file=path) from None
    if cells.ndim != 2 or not cells.size:
        raise InputError(f"has {cells.ndim} axes, needs 2: results by row and sample", file=path)
    return np.asarray(cells, dtype=np.float64)


def _separated(text: str, name: str) -> Iterator[Row]:
    """Rows of TSV or CSV with a header, '#' lines left out."""
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line and not line.startswith("#")]
    if not lines:
        raise InputError("is empty", file=name)
    mark = "\t" if "\t" in lines[0][1] else ","
    header, *rest = csv.reader(io.StringIO("\n".join(line for _, line in lines)), delimiter=mark)
    for (number, _), cells in zip(lines[1:], rest, strict=False):
        if len(cells) != len(header):
            raise InputError(f"{len(cells)} cells, the header has {len(header)}", file=name, line=number)
        yield {**dict(zip(header, cells, strict=True)), "line": number}


def _json(text: str, name: str) -> Iterator[Row]:
    """Rows of JSON: a list, an object of lists or of objects by task, events of a trace, or an object a line."""
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    holds_rows = isinstance(found, dict) and any(isinstance(value, list | dict) for value in found.values())
    if found is None or (isinstance(found, dict) and "\n" not in text.strip() and not holds_rows):
        yield from _lines(text, name)
    elif isinstance(found, dict) and isinstance(found.get("traceEvents"), list):
        yield from (row for row in found["traceEvents"] if isinstance(row, dict))
    else:
        yield from _leaves(found, ())


def _lines(text: str, name: str) -> Iterator[Row]:
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise InputError(f"is not JSON: {error}", file=name, line=number) from None
        if not isinstance(row, dict):
            raise InputError("is no object; each line holds one result", file=name, line=number)
        yield {**row, "line": number}


def _leaves(found: Any, keys: Sequence[str]) -> Iterator[Row]:
    """Rows of a list, of an object's only list, or of an object by task, its last two keys as `task` and `group`."""
    if isinstance(found, list):
        yield from (_named(one, keys) for one in found if isinstance(one, dict))
        return
    kinds = {dict if isinstance(one, dict) else list if _is_table(one) else None for one in found.values()}
    tables = [one for one in found.values() if _is_table(one)]
    if len(kinds) == 1 and None not in kinds:
        for key, value in found.items():
            yield from _leaves(value, (*keys, key))
    elif tables and not keys:
        yield from _leaves(tables[0], keys)
    else:
        yield _named(found, keys)


def _is_table(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, dict) for one in value)


def _named(row: Mapping[str, Any], keys: Sequence[str]) -> Row:
    named = dict(zip(("task", "group"), reversed(keys), strict=False))
    return {**named, **row}
