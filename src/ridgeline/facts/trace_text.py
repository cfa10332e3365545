"""The text of a trace file as columns of cells: CSV with a header, or one JSON object a line; optionally gzipped.

A stranger's file: any column order, extra columns, other names of the same column, wrong cell counts, broken lines.
"""

from __future__ import annotations

import csv
import json
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from ridgeline.errors import InputError

LARGEST_BYTES = 512 * 2**20  # a bound on nonsense, unpacked: a million requests take about 20e6 bytes
LARGEST_ROWS = 10_000_000
_GZIP, _PIECE_BYTES = 31, 2**16  # window of zlib with gzip's header; what is unpacked before a break is found
CHUNK_ROWS = 200_000  # rows whose cells are held at once
FIELDS = ("arrival", "prompt", "output", "prefix", "session", "client", "priority")
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

    columns: Mapping[str, str]
    unit_s: float
    chunks: Iterator[Chunk]


def read_bytes(path: str | Path) -> bytes:
    """The content of a file as it lies, at most `LARGEST_BYTES` [byte]."""
    try:
        with Path(path).open("rb") as stream:
            raw = stream.read(LARGEST_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise InputError(f"cannot be read: {reason}", file=str(path)) from None
    _refuse_large(len(raw), str(path))
    return raw


def split(raw: bytes, name: str) -> TraceText:
    """The rows of a trace; raises `InputError` where the file has no usable header.

    Of a gzip file that breaks off the rows before the break are there, and the line of the break is dropped.
    """
    text, broken = _text(raw, name)
    lines = text.rstrip("\n").split("\n")
    if broken and not text.endswith("\n"):
        lines.pop()
    if len(lines) > LARGEST_ROWS:
        raise InputError(f"{len(lines)} lines, the limit is {LARGEST_ROWS}; split the trace", file=name)
    first = next((i for i, line in enumerate(lines) if _is_row(line)), None)
    if first is None:
        why = f"is a broken gzip file: {broken}" if broken else "the file is empty; a trace has a header line and rows"
        raise InputError(why, file=name)
    found = _json_lines(lines, first, name) if lines[first].lstrip().startswith("{") else _csv(lines, first, name)
    if not broken:
        return found
    cut = Dropped(line=len(lines) + 1, field="", reason=f"the gzip file breaks off here: {broken}")
    last = Chunk(cells={field: [] for field in found.columns}, lines=[], dropped=[cut])
    return replace(found, chunks=chain(found.chunks, (last,)))


def _refuse_large(size_bytes: int, name: str) -> None:
    if size_bytes > LARGEST_BYTES:
        raise InputError(f"holds more than {LARGEST_BYTES} bytes; split the trace", file=name)


def _text(raw: bytes, name: str) -> tuple[str, str]:
    """The text of a file, of a packed one up to where it breaks off, and why it does; '' where it does not."""
    broken = ""
    if raw[:2] == b"\x1f\x8b":
        raw, broken = _unpacked(raw, name)
    wide = raw[:2] in (b"\xff\xfe", b"\xfe\xff")
    text = raw.decode("utf-16" if wide else "utf-8-sig", errors="replace")
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text, broken


def _unpacked(raw: bytes, name: str) -> tuple[bytes, str]:
    """What the members of a gzip file hold up to where it breaks off, and why it does."""
    found, member = bytearray(), zlib.decompressobj(wbits=_GZIP)
    for start in range(0, len(raw), _PIECE_BYTES):
        piece = raw[start : start + _PIECE_BYTES]
        while piece:
            if member.eof:
                member = zlib.decompressobj(wbits=_GZIP)
            try:
                found += member.decompress(piece)
            except zlib.error as error:
                return bytes(found), str(error)
            piece = member.unused_data.lstrip(b"\0")  # of the next member; zeros may fill a file up
        _refuse_large(len(found), name)
    return bytes(found), "" if member.eof else "its end is missing"


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


def _csv(lines: list[str], first: int, name: str) -> TraceText:
    header = lines[first]
    mark = max(",\t;", key=header.count)
    names = [cell.strip() for cell in _cells(header, mark)]
    found = _found(names)
    _refuse_missing(found, name, first + 1)
    twice = next((each for each in names if each and names.count(each) > 1), None)
    if twice is not None:
        raise InputError("appears twice in the header", file=name, line=first + 1, field=twice[:80])
    columns = {field: names[place] for field, place in found.items()}
    return TraceText(
        columns=columns,
        unit_s=1e-3 if _squeezed(columns["arrival"]).endswith("ms") else 1.0,
        chunks=_csv_chunks(lines, first + 1, mark, len(names), found),
    )


def _csv_chunks(lines: list[str], start: int, mark: str, width: int, found: Mapping[str, int]) -> Iterator[Chunk]:
    for head in range(start, len(lines), CHUNK_ROWS):
        piece = lines[head : head + CHUNK_ROWS]
        flat: list[str] = []  # cells of all rows, one row after another: a list per row would cost half of the time
        numbers, dropped = [], []
        if all(line.count(mark) == width - 1 and line[:1].isdigit() for line in piece) and '"' not in "".join(piece):
            flat, numbers = mark.join(piece).split(mark), list(range(head + 1, head + 1 + len(piece)))
            piece = []
        for number, line in enumerate(piece, start=head + 1):
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


def _json_lines(lines: list[str], first: int, name: str) -> TraceText:
    record = _object(lines[first])
    if record is None:
        raise InputError("is not a JSON object; a trace is CSV, or one JSON object a line", file=name, line=first + 1)
    names = list(record)
    found = _found(names)
    _refuse_missing(found, name, first + 1)
    columns = {field: names[place] for field, place in found.items()}
    arrival = _squeezed(columns["arrival"])
    # Mooncake's published traces count `timestamp` in milliseconds beside `hash_ids`.
    milli = arrival.endswith("ms") or (arrival == "timestamp" and _squeezed(columns.get("prefix", "")) == "hashids")
    return TraceText(columns=columns, unit_s=1e-3 if milli else 1.0, chunks=_json_chunks(lines, first, columns))


def _json_chunks(lines: list[str], start: int, columns: Mapping[str, str]) -> Iterator[Chunk]:
    for head in range(start, len(lines), CHUNK_ROWS):
        cells: dict[str, list[str]] = {field: [] for field in columns}
        numbers, dropped = [], []
        for number, line in enumerate(lines[head : head + CHUNK_ROWS], start=head + 1):
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
