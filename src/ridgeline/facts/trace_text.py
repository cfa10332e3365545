"""The text of a trace file as columns of cells: CSV with a header, or one JSON object a line; optionally gzipped.

A stranger's file: any column order, extra columns, other names of the same column, wrong cell counts, broken lines.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from ridgeline.errors import InputError
from ridgeline.facts.user_files import UserFile

Lines = Iterator[tuple[int, str]]

CHUNK_ROWS, CHUNK_CHARACTERS = 200_000, 2**25  # rows whose cells are held at once
FIELDS = ("arrival", "prompt", "output", "prefix", "session", "client", "priority", "wait")
NEEDED = FIELDS[:3]
ALIASES: Mapping[str, tuple[str, ...]] = {
    "arrival": (
        "arrival_s", "arrival", "arrival_time", "arrival_time_s", "arrived_at", "arrival_ms", "arrival_time_ms",
        "timestamp", "timestamp_s", "timestamp_ms", "time_s", "time",
    ),
    "prompt": (
        "input_tokens", "prompt_tokens", "context_tokens", "request_tokens", "input_length", "prompt_length",
        "input_len", "prompt_len", "num_prefill_tokens", "input_toks", "isl",
    ),
    "output": (
        "output_tokens", "generated_tokens", "completion_tokens", "response_tokens", "output_length", "output_len",
        "num_decode_tokens", "output_toks", "osl",
    ),
    "prefix": ("prefix_block_ids", "hash_ids", "block_ids"),
    "session": ("session", "session_id", "conversation_id", "chat_id"),
    "client": ("client", "client_id", "tenant", "user", "user_id"),
    "priority": ("priority",),
    "wait": ("tool_s", "tool_time_s", "think_s", "think_time_s", "wait_s", "delay_s"),
}  # fmt: skip
"""Names of each column, best first; case, spaces and underscores do not matter."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Dropped:
    """One row of a trace file that was not used; `field` is '' where the whole row is at fault."""

    line: int
    field: str
    reason: str

    def __str__(self) -> str:
        return f"line {self.line}: {f'field {self.field!r}: ' if self.field else ''}{self.reason}"


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """Consecutive rows: the cells of each field that the file has, and the line of each row."""

    cells: Mapping[str, list[str]]
    lines: list[int]
    dropped: list[Dropped]


@dataclass(frozen=True, kw_only=True)
class TraceText:
    """A trace file's fields under their names in the file, seconds per unit of time, and its rows."""

    name: str
    columns: Mapping[str, str]
    unit_s: float
    chunks: Iterator[Chunk]


def split(file: UserFile) -> TraceText:
    """The rows of a trace; raises `InputError` where the file has no usable header.

    Of a gzip file that breaks off the rows before the break are there, and the line of the break is dropped.
    """
    lines = enumerate(file.lines(), start=1)
    number, line = next(((number, line) for number, line in lines if _is_row(line)), (0, ""))
    if not number:
        why = "the file is empty; a trace has a header line and rows"
        raise InputError(f"is a broken gzip file: {file.break_}" if file.break_ else why, file=file.name)
    found = _split(line, number, lines, file.name)
    if not file.break_:
        return found
    cut = Dropped(line=file.line_ends + 1, field="", reason=f"the gzip file breaks off here: {file.break_}")
    last = Chunk(cells={field: [] for field in found.columns}, lines=[], dropped=[cut])
    return replace(found, chunks=chain(found.chunks, (last,)))


def _taken(lines: Lines) -> list[tuple[int, str]]:
    """The next rows of one chunk: at most `CHUNK_ROWS`, and few of long ones."""
    taken, size = [], 0
    for number, line in lines:
        taken.append((number, line))
        size += len(line)
        if len(taken) >= CHUNK_ROWS or size >= CHUNK_CHARACTERS:
            break
    return taken


def _is_row(line: str) -> bool:
    return bool(line) and not line.isspace() and not line.lstrip().startswith("#")


def _squeezed(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.casefold())


def _found(names: Sequence[str]) -> dict[str, int]:
    """The place of each field among a header's names."""
    squeezed = [_squeezed(name) for name in names]
    found = {}
    for field, aliases in ALIASES.items():
        alias = next((each for each in aliases if _squeezed(each) in squeezed), None)
        if alias is not None:
            found[field] = squeezed.index(_squeezed(alias))
    return found


def _refuse_missing(found: Mapping[str, int], name: str, line: int) -> None:
    missing = next((field for field in NEEDED if field not in found), None)
    if missing is not None:
        raise InputError(
            f"no such column; a trace has {', '.join(ALIASES[field][0] for field in NEEDED)}"
            f" (here also accepted: {', '.join(ALIASES[missing][1:])})",
            file=name,
            line=line,
            field=ALIASES[missing][0],
        )


def _split(first: str, number: int, lines: Lines, name: str) -> TraceText:
    """The rows below a header, or the objects from the first on: under it are the names of the columns."""
    as_json, mark = first.lstrip().startswith("{"), max(",\t;", key=first.count)
    record = _object(first) if as_json else {}
    if record is None:
        raise InputError("is not a JSON object; a trace is CSV, or one JSON object a line", file=name, line=number)
    names = list(record) if as_json else [cell.strip() for cell in _cells(first, mark)]
    found = _found(names)
    _refuse_missing(found, name, number)
    twice = next((each for each in names if each and names.count(each) > 1), None)
    if twice is not None:
        raise InputError("appears twice in the header", file=name, line=number, field=twice[:80])
    columns = {field: names[place] for field, place in found.items()}
    arrival, prefix = _squeezed(columns["arrival"]), _squeezed(columns.get("prefix", ""))
    # Mooncake's published traces count `timestamp` in milliseconds beside `hash_ids`.
    milli = arrival.endswith("ms") or (as_json and (arrival, prefix) == ("timestamp", "hashids"))
    rows = chain(((number, first),), lines)
    chunks = _json_chunks(rows, columns) if as_json else _csv_chunks(lines, mark, len(names), found)
    return TraceText(name=name, columns=columns, unit_s=1e-3 if milli else 1.0, chunks=chunks)


def _csv_chunks(lines: Lines, mark: str, width: int, found: Mapping[str, int]) -> Iterator[Chunk]:
    while taken := _taken(lines):
        head, piece = taken[0][0], [line for _, line in taken]
        flat: list[str] = []  # cells of all rows, one row after another: a list per row would cost half of the time
        numbers, dropped = [], []
        if all(line.count(mark) == width - 1 and line[:1].isdigit() for line in piece) and '"' not in "".join(piece):
            flat, numbers = mark.join(piece).split(mark), list(range(head, head + len(piece)))
            piece = []
        for number, line in enumerate(piece, start=head):
            cells = _cells(line, mark) if '"' in line else line.split(mark)
            if not _is_row(line):
                continue
            if len(cells) == width:
                flat.extend(cells)
                numbers.append(number)
            else:
                dropped.append(
                    Dropped(
                        line=number,
                        field="",
                        reason=f"{len(cells)} cell{'s' * (len(cells) != 1)}, the header has {width}",
                    )
                )
        cells_of = {field: flat[place::width] for field, place in found.items()}
        yield Chunk(cells=cells_of, lines=numbers, dropped=dropped)


def _cells(line: str, mark: str) -> list[str]:
    try:
        return next(csv.reader((line,), delimiter=mark), [])
    except csv.Error:
        return []


def _json_chunks(lines: Lines, columns: Mapping[str, str]) -> Iterator[Chunk]:
    while taken := _taken(lines):
        cells: dict[str, list[str]] = {field: [] for field in columns}
        numbers, dropped = [], []
        for number, line in taken:
            if not _is_row(line):
                continue
            record = _object(line)
            if record is None:
                dropped.append(Dropped(line=number, field="", reason="is not a JSON object"))
                continue
            numbers.append(number)
            for field, key in columns.items():
                cells[field].append(_written(record.get(key)))
        yield Chunk(cells=cells, lines=numbers, dropped=dropped)


def _object(line: str) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _written(value: Any) -> str:
    if value is None:
        return ""
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
