"""Events of a profiler's trace (PyTorch's Kineto, Chrome, Perfetto's JSON), one at a time and within bounds."""

from __future__ import annotations

import codecs
import json
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from ridgeline.errors import InputError
from ridgeline.facts.user_files import MIB, FileKind, open_user_file

MOST_BYTES = 16 * 1024 * MIB
_KIND = FileKind(what="a profiler's trace", most_bytes=MOST_BYTES, streams=True, packed=True)
_PIECE_BYTES = MIB
_MOST_VALUE = 16 * MIB  # characters of one event, or of one entry beside them
_GZIP = b"\x1f\x8b"
_DECODER = json.JSONDecoder(strict=False)


def trace_events(path: str, *, field: str | None = None) -> Iterator[Mapping[str, Any]]:
    """The events of a trace in the order of the file, gzipped or not, without holding the file.

    A trace is an object with `traceEvents`, or a list of events whose closing bracket may be missing, as Chrome
    allows. Raises `InputError` with file, line and character for what is damaged, and beyond 16 GiB unpacked.
    """
    with open_user_file(path, _KIND, field=field) as (stream, _):
        text = _Text(_plain(iter(lambda: stream.read(_PIECE_BYTES) or b"", b""), path), path)
        yield from _events(text)
        if text.peek():
            text.fail("is no JSON: it goes on after its end")


def _plain(pieces: Iterator[bytes], name: str) -> Iterator[bytes]:
    """The unpacked bytes of these pieces, counted; raises `InputError` for too many and for a gzip file cut short."""
    first = next(pieces, b"")
    total = 0
    for piece in _unpacked(first, pieces, name) if first[:2] == _GZIP else _joined(first, pieces):
        total += len(piece)
        if total > MOST_BYTES:
            raise InputError(
                f"holds more than {MOST_BYTES:,} bytes, the limit of a profiler's trace; profile fewer steps", file=name
            )
        yield piece


def _joined(first: bytes, pieces: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield from pieces


def _unpacked(first: bytes, pieces: Iterator[bytes], name: str) -> Iterator[bytes]:
    member = zlib.decompressobj(wbits=31)
    for piece in _joined(first, pieces):
        held = piece
        while held:
            if member.eof:
                held = held.lstrip(b"\0")
                if not held:
                    break
                member = zlib.decompressobj(wbits=31)
            yield member.decompress(held, _PIECE_BYTES)
            held = member.unused_data if member.eof else member.unconsumed_tail
    if not member.eof:
        raise InputError("is gzipped and its end is missing; copy it again", file=name)


class _Text:
    """Text that comes in pieces, of which only what is not yet read is held."""

    def __init__(self, pieces: Iterator[bytes], name: str) -> None:
        self._pieces, self.name = pieces, name
        self._decode = codecs.getincrementaldecoder("utf-8-sig")(errors="replace").decode
        self._held, self._at = "", 0
        self._gone, self._lines = 0, 1  # characters and lines before what is held

    def fail(self, told: str, place: int | None = None) -> NoReturn:
        """Raises `InputError` about a place of the held text, by default where reading stands."""
        at = self._at if place is None else place
        line = self._lines + self._held.count("\n", 0, at)
        raise InputError(f"{told} (character {self._gone + at + 1:,})", file=self.name, line=line)

    def _more(self) -> bool:
        piece = next(self._pieces, b"")
        self._lines += self._held.count("\n", 0, self._at)
        self._gone += self._at
        self._held, self._at = self._held[self._at :] + self._decode(piece, not piece), 0
        return bool(piece)

    def peek(self) -> str:
        """The next character that is no space; '' at the end."""
        while True:
            while self._at < len(self._held) and self._held[self._at] in " \t\r\n":
                self._at += 1
            if self._at < len(self._held):
                return self._held[self._at]
            if not self._more():
                return ""

    def take(self, mark: str) -> None:
        """Passes one character; raises `InputError` where another stands there."""
        found = self.peek()
        if found != mark:
            self.fail(f"is no JSON: '{mark}' expected, {repr(found) if found else 'the end of the file'} found")
        self._at += 1

    def value(self) -> Any:
        """The JSON value that stands here."""
        self.peek()
        while True:
            try:
                found, end = _DECODER.raw_decode(self._held, self._at)
                if end < len(self._held) or not self._more():  # a number may go on in the next piece
                    self._at = min(end, len(self._held))
                    return found
                continue
            except json.JSONDecodeError as error:
                told, place = error.msg, error.pos
            except RecursionError:
                self.fail("is nested too deeply")
            except ValueError:
                self.fail("holds a number of too many digits")
            if len(self._held) - self._at > _MOST_VALUE:
                self.fail(f"is no JSON: {told}, or an event of more than {_MOST_VALUE:,} characters", place)
            at = self._at
            if not self._more():
                self.fail(f"is no JSON, or its end is missing: {told}", place - at)


def _events(text: _Text) -> Iterator[Mapping[str, Any]]:
    first = text.peek()
    if first == "[":
        yield from _array(text, open_end=True)
        return
    if first != "{":
        kind = "is empty" if not first else "is no JSON trace"
        text.fail(f"{kind}; a trace in Perfetto's binary form is turned into JSON by 'traceconv json'")
    text.take("{")
    found = False
    while text.peek() != "}":
        key = text.value()
        text.take(":")
        if key == "traceEvents":
            if text.peek() != "[":
                text.fail("field 'traceEvents' is no list")
            found = True
            yield from _array(text, open_end=False)
        else:
            text.value()
        if text.peek() != "}":
            text.take(",")
    text.take("}")
    if not found:
        text.fail("has no field 'traceEvents'; is this a trace of PyTorch's profiler?")


def _array(text: _Text, *, open_end: bool) -> Iterator[Mapping[str, Any]]:
    text.take("[")
    while (mark := text.peek()) != "]":
        if not mark and open_end:
            return
        event = text.value()
        if isinstance(event, dict):
            yield event
        mark = text.peek()
        if mark == "," or (mark != "]" and not (open_end and not mark)):
            text.take(",")
    text.take("]")
