"""The sole reader of `data/`: text, tables as typed records and as Facts, and the sources that they name."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from ridgeline.errors import InputError, UnknownNameError
from ridgeline.facts.records import Evidence, Fact

_DATA = Path(__file__).parents[1] / "data"
_ENTRY = re.compile(r"^@\w+\{([^,\s]+),\n(.*?)^\}", re.MULTILINE | re.DOTALL)
_FIELD = re.compile(r"^\s*(\w+) = \{(.*)\},?$", re.MULTILINE)
_EVIDENCE = {rung.name.lower(): rung for rung in Evidence if rung is not Evidence.HERE}

Record = TypeVar("Record")


class TableRow(dict[str, str]):
    """The cells of one row of a table by column, and where the row stands."""

    file: str = ""
    line: int | None = None

    def fail(self, message: str, column: str | None = None) -> NoReturn:
        """Raises `InputError` about the row, or about its cell of a column."""
        raise InputError(message, file=self.file, line=self.line, field=column)

    def with_cells(self, cells: Mapping[str, str]) -> TableRow:
        """A row of the same place with other cells."""
        other = TableRow(cells)
        other.file, other.line = self.file, self.line
        return other


def read_text(name: str) -> str:
    """The text of `data/<name>`."""
    return (_DATA / name).read_text(encoding="utf-8")


def path_of(name: str) -> Path:
    """Where `data/<name>` is, for readers of files that people may write too."""
    return _DATA / name


def read_bytes(name: str) -> bytes:
    """The bytes of `data/<name>`, for files that are packed."""
    return (_DATA / name).read_bytes()


def read_json(name: str) -> Any:
    """The content of the JSON file `data/<name>`."""
    return json.loads(read_text(name))


@cache
def read_toml(name: str) -> dict[str, Any]:
    """The tables of the TOML file `data/<name>`."""
    return tomllib.loads(read_text(name))


def toml_records(name: str, section: str, kind: type[Record]) -> dict[str, Record]:
    """The rows of a section of the TOML file `data/<name>` as records by their key; lists are tuples."""

    def frozen(value: Any) -> Any:
        return tuple(map(frozen, value)) if isinstance(value, list) else value

    rows = read_toml(name)[section].items()
    return {key: kind(**{field: frozen(value) for field, value in row.items()}) for key, row in rows}


@cache
def names(folder: str, suffix: str) -> tuple[str, ...]:
    """File names in `data/<folder>` that end in `suffix`, without it, sorted."""
    found = [entry.name for entry in (_DATA / folder).iterdir() if entry.name.endswith(suffix)]
    return tuple(sorted(name.removesuffix(suffix) for name in found))


@cache
def read_tsv(name: str) -> tuple[TableRow, ...]:
    """The rows of the tab-separated table `data/<name>`; one header line, '#' lines are comments."""
    lines = enumerate(read_text(name).splitlines(), start=1)
    (_, first), *rest = ((number, line) for number, line in lines if line and not line.startswith("#"))
    header, rows = first.split("\t"), []
    for number, line in rest:
        cells = line.split("\t")
        row = TableRow(zip(header, cells, strict=False))
        row.file, row.line = f"data/{name}", number
        if len(cells) != len(header):
            row.fail(f"{len(cells)} cells, the header has {len(header)}")
        rows.append(row)
    return tuple(rows)


def records(
    kind: type[Record],
    rows: Iterable[TableRow],
    more: Callable[[TableRow], Mapping[str, Any]] = lambda row: {},
    **columns: str,
) -> tuple[Record, ...]:
    """Rows of a table as records of a dataclass.

    A column fills the field of its name, or the one that `columns` puts it to, in the type that the field is declared
    with, one of `_READERS`; fields of other types are what `more` makes of the row. A field with a default may have no
    column. Raises `InputError` with file, line and field for a cell that is none of its type, and an empty source.
    """
    wanted = [
        (one.name, columns.get(one.name, one.name), _READERS[str(one.type)], one.default is MISSING)
        for one in fields(kind)  # type: ignore[arg-type]
        if str(one.type) in _READERS
    ]
    return tuple(kind(**_cells(row, wanted, dict(more(row)))) for row in rows)


def _cells(
    row: TableRow, wanted: Iterable[tuple[str, str, Callable[[str], Any], bool]], values: dict[str, Any]
) -> dict[str, Any]:
    """The values of a record's fields, `values` among them."""
    for field, column, read, needed in wanted:
        if field in values:
            continue
        if column in row:
            try:
                values[field] = read(row[column])
            except (ValueError, InputError) as error:
                row.fail(str(error), column)
        elif needed:
            row.fail("no such column", column)
        if field == "source" and not values.get(field):
            row.fail("says not where it is known from", column)
    return values


def facts(name: str) -> Mapping[str, Fact]:
    """The facts of a table with the columns key, value, unit, source, conditions and evidence, by key."""
    rows = read_tsv(name)
    return dict(zip((row["key"] for row in rows), records(Fact, rows), strict=True))


def fact(value: float, unit: str, row: TableRow, **other: str) -> Fact:
    """A Fact of a table's row, refused when source or evidence is missing; `other` stands for cells of the row."""
    source, conditions, label = (other.get(name, row.get(name, "")) for name in ("source", "conditions", "evidence"))
    if not source:
        row.fail(f"value {value:g} {unit} has no source", "source")
    return Fact(value=value, unit=unit, source=source, conditions=conditions, evidence=evidence(label, file=row.file))


def evidence(label: str, *, file: str | None = None) -> Evidence:
    """The rung that a table's label names."""
    found = _EVIDENCE.get(label)
    if found is None:
        raise InputError(f"'{label}' is no evidence; one of {', '.join(_EVIDENCE)}", file=file)
    return found


def number(row: Mapping[str, str], column: str, scale: float = 1.0) -> float | None:
    """A cell times `scale`, None where it is blank [unit of the column after scaling]."""
    cell = row[column]
    return float(cell) * scale if cell else None


def listed(cell: str, separator: str = ";") -> tuple[str, ...]:
    """The parts of a cell that holds a list."""
    return tuple(part.strip() for part in cell.split(separator) if part.strip())


def numbers(cell: str) -> tuple[float, ...]:
    """The numbers of a cell that holds several, one space between two."""
    return tuple(float(word) for word in cell.split())


def _optional(read: Callable[[str], Any]) -> Callable[[str], Any]:
    return lambda cell: read(cell) if cell else None


def _flag(cell: str) -> bool:
    if cell not in ("yes", "no", ""):
        raise ValueError(f"'{cell}' is neither yes nor no")
    return cell == "yes"


_READERS: Mapping[str, Callable[[str], Any]] = {
    "str": str,
    "str | None": _optional(str),
    "float": float,
    "float | None": _optional(float),
    "int": int,
    "int | None": _optional(int),
    "bool": _flag,
    "bool | None": _optional(_flag),
    "tuple[float, ...]": numbers,
    "tuple[str, ...]": lambda cell: tuple("" if word == "''" else word for word in cell.split()),
    "Evidence": evidence,
}


@dataclass(frozen=True, kw_only=True)
class Source:
    """One public source."""

    key: str
    title: str
    author: str
    year: str = ""
    url: str = ""
    note: str = ""

    @property
    def citation(self) -> str:
        """The source in one line for people."""
        head = f"{self.author}{f' ({self.year})' if self.year else ''}: {self.title}"
        return ". ".join(part for part in (head, self.url, self.note) if part)


@cache
def sources() -> Mapping[str, Source]:
    """All sources of `data/sources.bib` by key."""
    return {
        key: Source(key=key, **dict(_FIELD.findall(body))) for key, body in _ENTRY.findall(read_text("sources.bib"))
    }


def source(fact_source: str) -> Source:
    """The source that a fact's 'key, place' names.

    >>> source("ml-engineering, compute/accelerator/README.md L354").author
    'Stas Bekman'
    """
    key = fact_source.split(",", 1)[0].strip()
    found = sources().get(key)
    if found is None:
        raise UnknownNameError("source", key, sources())
    return found
