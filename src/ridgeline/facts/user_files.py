"""The one reader of files that people give: each is opened once, read once and bounded before anything is laid out.

Every complaint about one names file, line and field.
"""

from __future__ import annotations

import io
import os
import re
import stat
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from ridgeline.errors import InputError, nearest_text
from ridgeline.facts.records import Evidence, Fact

_PIECE_BYTES = 2**16
_GZIP_WINDOW = 31  # of zlib, with gzip's header
_MOST_MEMBERS = 100_000  # of one gzip file; tools that split theirs write one for 64 KiB or more
_AT = re.compile(r"\(at line (\d+), column \d+\)")
_LONG_NUMBER = re.compile(r"[\d_]{640,}")  # Python refuses to read longer whole numbers, from 640 digits up
_HEADER = re.compile(r"^\s*(\[\[?)\s*([^\[\]]+?)\s*\]\]?")
SAID = "as the file says"  # of a fact that a person's file states
_WIDE = (b"\xff\xfe", b"\xfe\xff")  # byte order marks of UTF-16


@dataclass(frozen=True, kw_only=True)
class FileKind:
    """What a file is for, and the most that is read of one: bytes (unpacked), lines, bytes of a line.

    `streams` says whether it may come through a pipe; `packed` whether it may be gzipped.
    """

    what: str
    most_bytes: int
    most_lines: int = 10**9
    most_line_bytes: int = 10**9
    next_step: str = "is this the right file?"
    streams: bool = False
    packed: bool = False


MIB = 2**20
SCENARIO = FileKind(what="a scenario", most_bytes=1_000_000)
CLUSTER = FileKind(what="a cluster file", most_bytes=1_000_000)
ENGINE = FileKind(what="an engine file", most_bytes=1_000_000)
FRAMEWORK = FileKind(what="a framework file", most_bytes=1_000_000)
CONFIG = FileKind(what="a model's config", most_bytes=8 * MIB)
PROFILE = FileKind(what="a machine profile", most_bytes=16 * MIB)
LOADS = FileKind(
    what="a table of expert loads", most_bytes=64 * MIB, most_lines=1_000_000, most_line_bytes=_PIECE_BYTES,
    streams=True, next_step="sum the loads of several samples",
)  # fmt: skip
TRUTH = FileKind(
    what="a truth table", most_bytes=256 * MIB, most_lines=200_000, most_line_bytes=MIB, streams=True, packed=True,
    next_step="split the table",
)  # fmt: skip
TRACE = FileKind(
    what="a trace", most_bytes=512 * MIB, most_lines=10_000_000, most_line_bytes=4 * MIB, streams=True, packed=True,
    next_step="split the trace",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, eq=False)
class UserFile:
    """The bytes of a file as they lie, within the bounds of its kind.

    `line_ends` counts those of the unpacked text, `break_` says why a gzip file ends early ('' where it does not) and
    `again` whether the path can be read a second time: a pipe cannot.
    """

    name: str
    raw: bytes = field(repr=False)
    line_ends: int
    break_: str
    again: bool

    def text(self) -> str:
        """The whole text; raises `InputError` with the line that is not UTF-8."""
        try:
            return self.raw.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = self.raw.count(b"\n", 0, error.start) + 1
            raise InputError("is not UTF-8 text; save the file as UTF-8", file=self.name, line=line) from None

    def lines(self) -> Iterator[str]:
        """The lines without their ends, one at a time; of a broken gzip file those before the break."""
        source: io.RawIOBase = _Unpacked(self.raw) if _is_gzip(self.raw) else io.BytesIO(self.raw)  # type: ignore[assignment]
        stream = io.BufferedReader(source, _PIECE_BYTES)
        wide = stream.peek(2)[:2] in _WIDE
        for line in io.TextIOWrapper(stream, encoding="utf-16" if wide else "utf-8-sig", errors="replace"):
            if line.endswith("\n"):
                yield line[:-1]
            elif not self.break_:
                yield line


def read_user_file(path: str | Path, kind: FileKind, *, field: str | None = None) -> UserFile:
    """A file's bytes, read once; raises `InputError` naming the file and the bound that it breaks.

    `field` is the word or flag that gave the path, where an error should name it.
    """
    with open_user_file(path, kind, field=field) as (stream, again):
        return _bounded(_pieces(stream), kind, str(path), again=again)


@contextmanager
def open_user_file(
    path: str | Path, kind: FileKind, *, field: str | None = None
) -> Iterator[tuple[io.RawIOBase, bool]]:
    """A file's bytes as a stream, for who reads it in pieces and bounds them, and whether it can be read again.

    Raises `InputError` naming the file for what cannot be opened, read or unpacked.
    """
    name = str(path)
    try:
        again = _again(os.stat(path), kind, name, field)
        with Path(path).open("rb", buffering=0) as stream:
            yield stream, again
    except FileNotFoundError:
        raise InputError("no such file", file=name, field=field) from None
    except (OSError, ValueError, zlib.error) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise InputError(f"cannot be read: {reason}", file=name, field=field) from None


def as_user_file(raw: bytes, kind: FileKind, name: str) -> UserFile:
    """Bytes that are at hand, under the same bounds; raises `InputError` where they break one."""
    return _bounded(_pieces(io.BytesIO(raw)), kind, name, again=True)


def _again(about: os.stat_result, kind: FileKind, name: str, field: str | None) -> bool:
    """Whether what a path names can be read again; devices, and pipes where `kind` has none, are refused."""
    if stat.S_ISREG(about.st_mode):
        return True
    if stat.S_ISDIR(about.st_mode):
        raise InputError(f"is a folder; {kind.what} is a file", file=name, field=field)
    pipe = stat.S_ISFIFO(about.st_mode)
    if pipe and kind.streams:
        return False
    needs = "a regular file or a pipe" if kind.streams else "a regular file"
    raise InputError(f"is {'a pipe' if pipe else 'a device'}; {kind.what} is {needs}", file=name, field=field)


def _pieces(stream: io.RawIOBase | io.BytesIO) -> Iterator[bytes]:
    while piece := stream.read(_PIECE_BYTES):
        yield piece


def _bounded(pieces: Iterator[bytes], kind: FileKind, name: str, *, again: bool) -> UserFile:
    """The file of these pieces: bytes are counted as they come, lines before any is laid out."""
    raw, plain, bounds = bytearray(), _Bounds(kind, name), _Bounds(kind, name)
    for piece in pieces:
        raw += piece
        if kind.packed and _is_gzip(raw):
            plain.add_bytes(len(piece))
        else:
            bounds.add(piece)
    whole = bytes(raw)
    if not (kind.packed and _is_gzip(whole)):
        return UserFile(name=name, raw=whole, line_ends=bounds.line_ends, break_="", again=again)
    unpacked = _Unpacked(whole)
    while piece := unpacked.read(_PIECE_BYTES) or b"":
        bounds.add(piece)
    return UserFile(name=name, raw=whole, line_ends=bounds.line_ends, break_=unpacked.break_, again=again)


def _is_gzip(raw: bytes | bytearray) -> bool:
    return raw[:2] == b"\x1f\x8b"


class _Bounds:
    """Counts bytes, line ends and the length of the running line; raises `InputError` beyond those of a kind."""

    def __init__(self, kind: FileKind, name: str) -> None:
        self._kind, self._name = kind, name
        self._bytes, self._line_bytes, self._marks = 0, 0, {b"\n": 0, b"\r": 0}

    @property
    def line_ends(self) -> int:
        """Line ends so far, by whichever mark there are more of [1]."""
        return max(self._marks.values())

    def add_bytes(self, count: int) -> None:
        """Counts bytes alone."""
        self._bytes += count
        if self._bytes > self._kind.most_bytes:
            self._fail(f"holds more than {self._kind.most_bytes:,} bytes, the limit of {self._kind.what}")

    def add(self, piece: bytes) -> None:
        """Counts one more piece of the text."""
        kind, line = self._kind, self.line_ends + 1
        self.add_bytes(len(piece))
        for mark in self._marks:
            self._marks[mark] += piece.count(mark)
        if self.line_ends > kind.most_lines:
            self._fail(f"holds more than {kind.most_lines:,} lines, the limit of {kind.what}")
        places = [place for mark in self._marks if (place := piece.find(mark)) >= 0]
        running = self._line_bytes + min(places, default=len(piece))
        last = max(piece.rfind(mark) for mark in self._marks)
        self._line_bytes = running if last < 0 else len(piece) - 1 - last
        if max(running, self._line_bytes) > kind.most_line_bytes:
            told = f"this line has more than {kind.most_line_bytes:,} bytes, the limit of {kind.what}"
            self._fail(told, line if running > kind.most_line_bytes else self.line_ends + 1)

    def _fail(self, told: str, line: int | None = None) -> None:
        raise InputError(f"{told}; {self._kind.next_step}", file=self._name, line=line)


class _Unpacked(io.RawIOBase):
    """What the members of a gzip file hold, piece by piece, up to where it breaks off; `break_` says why it does."""

    def __init__(self, raw: bytes) -> None:
        self._rest, self._member, self._members = memoryview(raw), zlib.decompressobj(wbits=_GZIP_WINDOW), 1
        self._held = b""
        self.break_ = ""

    def readable(self) -> bool:
        """It is for reading alone."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fills a buffer as far as the next piece goes; 0 at the end."""
        room = memoryview(buffer).cast("B")
        found = b""
        while not found and not self.break_:
            ended = not self._held and not self._rest
            if ended and self._member.eof:
                break
            found = self._next(len(room))
            if ended and not found and not self.break_:
                self.break_ = "its end is missing"
        room[: len(found)] = found
        return len(found)

    def _next(self, most: int) -> bytes:
        """The next unpacked bytes, at most so many; none where a member ends or its input is used up."""
        if not self._held:
            self._held, self._rest = bytes(self._rest[:_PIECE_BYTES]), self._rest[_PIECE_BYTES:]
        if self._member.eof:
            self._held = self._held.lstrip(b"\0")  # zeros may fill a file up
            if not self._held:
                return b""
            self._member, self._members = zlib.decompressobj(wbits=_GZIP_WINDOW), self._members + 1
        if self._members > _MOST_MEMBERS:
            self.break_ = f"it has more than {_MOST_MEMBERS:,} members"
            return b""
        try:
            found = self._member.decompress(self._held, most)
        except zlib.error as error:
            self.break_ = str(error)
            return b""
        self._held = self._member.unused_data if self._member.eof else self._member.unconsumed_tail
        return found


@dataclass(frozen=True, kw_only=True)
class Toml:
    """The tables of a TOML file, and its text, in which a complaint finds its line."""

    name: str
    tables: Mapping[str, Any]
    text: str = ""

    def fail(self, message: str, place: Sequence[str | int] = (), *, value: object = None) -> NoReturn:
        """Raises `InputError` about what stands at `place`, such as ('tier', 0, 'size')."""
        field = ".".join(str(part) for part in place) or None
        line = line_of(self.text, place) if place else None
        raise InputError(message, file=self.name, line=line, field=field, value=value)

    def fact(self, value: float, unit: str, rung: Evidence = Evidence.DATASHEET, conditions: str = SAID) -> Fact:
        """A number of the file; the answer is the same wherever the file lies."""
        return Fact(value=value, unit=unit, source=Path(self.name).name, conditions=conditions, evidence=rung)

    def only(self, table: Iterable[str], known: Sequence[str], place: Sequence[str | int] = ()) -> None:
        """Raises `InputError` about the first key of a table that is none of `known`."""
        for key in table:
            if key not in known:
                self.unknown(key, known, place)

    def unknown(self, key: str, known: Iterable[str], place: Sequence[str | int] = ()) -> NoReturn:
        """Raises `InputError` about a key that the table at `place` may not have, with the nearest that it may."""
        known = tuple(known)
        told = nearest_text(key, known) or f"known: {', '.join(known)}"
        self.fail(f"unknown field; {told}", (*place, key))


def shortened(value: object) -> str:
    """What a file says, cut to a length that fits a message."""
    if isinstance(value, int) and value.bit_length() > 128:
        return f"a whole number of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def read_toml(path: str | Path, kind: FileKind) -> Toml:
    """The tables of a person's TOML file; every defect is an InputError with its line."""
    return parse_toml(read_user_file(path, kind).raw, file=str(path))


def parse_toml(data: bytes, *, file: str) -> Toml:
    """The tables of a TOML file's bytes; every defect is an InputError with its line."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise InputError("not UTF-8 text; save the file as UTF-8", file=file, line=line) from None
    import tomllib

    try:
        return Toml(name=file, tables=tomllib.loads(text), text=text)
    except tomllib.TOMLDecodeError as error:
        place = _AT.search(str(error))
        line = int(place[1]) if place else text.count("\n") + 1
        message = _AT.sub("", str(error)).removesuffix("(at end of document)").strip()
        raise InputError(f"not TOML: {message}", file=file, line=line) from None
    except ValueError:
        long = next((n for n, row in enumerate(text.splitlines(), start=1) if _LONG_NUMBER.search(row)), None)
        raise InputError("not usable TOML: a number has too many digits", file=file, line=long) from None
    except RecursionError:
        raise InputError("not usable TOML: tables or arrays are nested too deeply", file=file) from None


def line_of(text: str, place: Sequence[str | int]) -> int | None:
    """Line of the key at `place` ('tier', 0, 'size'); of its table when the key is not there.

    A key inside an inline table is placed on the line of the outermost key that can be found.
    """
    wanted = [str(part) for part in place]
    best: tuple[int, int] | None = None  # (parts matched, line)
    table: list[str] = []
    arrays: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        header = _HEADER.match(line)
        if header is not None:
            table = _entered(_parts(header[2]), arrays, another=header[1] == "[[")
            found = table
        elif "=" in line:
            found = [*table, *_parts(line.split("=", 1)[0])]
        else:
            continue
        depth = len(found)
        if wanted[:depth] == found and (best is None or depth > best[0]):
            best = (depth, number)
    return best[1] if best else None


def _entered(parts: Sequence[str], arrays: dict[str, int], *, another: bool) -> list[str]:
    """The table that a header opens: below each array of tables the last entry; of its own array `another` one."""
    table: list[str] = []
    for number, part in enumerate(parts, start=1):
        table.append(part)
        name = ".".join(table)
        if another and number == len(parts):
            arrays[name] = arrays.get(name, -1) + 1
        if name in arrays:
            table.append(str(arrays[name]))
    return table


def _parts(dotted: str) -> list[str]:
    return [part.strip().strip("\"'") for part in dotted.split(".")]
