"""TOML text that people wrote: parsed, and any complaint about it placed on its line."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from typing import Any

from ridgeline.errors import InputError

_AT = re.compile(r"\(at line (\d+), column \d+\)")
_LONG_NUMBER = re.compile(r"[\d_]{640,}")  # Python refuses to read longer whole numbers, from 640 digits up
_HEADER = re.compile(r"^\s*(\[\[?)\s*([^\[\]]+?)\s*\]\]?")


def parse_toml(data: bytes, *, file: str) -> tuple[dict[str, Any], str]:
    """The tables of a TOML file and its text; every defect is an InputError with its line."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise InputError("not UTF-8 text; save the file as UTF-8", file=file, line=line) from None
    try:
        return tomllib.loads(text), text
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
