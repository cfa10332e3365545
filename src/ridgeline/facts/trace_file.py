"""Reads a trace of requests from strangers: when each came, how long its prompt and its answer are.

A row that cannot be used is named by line and field and dropped; the others are answered. Rows out of order are kept,
sorted by arrival, and a note says how many. Times count from the first request.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ridgeline.errors import InputError
from ridgeline.facts import trace_text
from ridgeline.facts.trace_text import Chunk, Dropped, TraceText
from ridgeline.facts.user_files import TRACE, UserFile, as_user_file, read_user_file

LARGEST_TOKENS = 10_000_000  # of one prompt or answer; the longest context that models of 2025 state
LARGEST_TIME_S = 1e10  # 317 years; above it a unit is mistaken
LARGEST_BLOCKS = 50_000_000  # prefix blocks of a whole file
MOST_DROPPED = 1_000_000  # rows that are named one by one
LARGEST_PRIORITY = 10**9
LARGEST_ID = 2**62
DEFAULT_BLOCK_TOKENS = 512
_RANGE = re.compile(r"\s*(\d{1,19}(-\d{1,19})?(\s+|$))*", re.ASCII)

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class TraceFile:
    """The usable rows of a trace file, sorted by arrival.

    `rows` counts the file's rows, used and dropped. Request i names the prefix blocks
    prefix_blocks[prefix_start[i]:prefix_start[i+1]]; `session` and `client` index `session_names` and
    `client_names`, -1 where blank; `wait_s` [s] is from the end of a session's turn to the next, 0 where blank.
    """

    name: str
    rows: int
    line: Ints
    arrival_s: Floats
    prompt_tokens: Ints
    output_tokens: Ints
    prefix_start: Ints
    prefix_blocks: Ints
    prefix_block_tokens: int
    session: Ints
    session_names: tuple[str, ...] = field(repr=False)
    client: Ints
    client_names: tuple[str, ...] = field(repr=False)
    priority: Ints
    wait_s: Floats
    dropped: tuple[Dropped, ...] = field(repr=False)
    notes: tuple[str, ...]


def read_trace(path: str | Path, *, block_tokens: int = DEFAULT_BLOCK_TOKENS) -> TraceFile:
    """The requests of a trace file; raises `InputError` when none of it can be used."""
    return _parsed(read_user_file(path, TRACE), block_tokens)


def parse_trace(raw: bytes, name: str, *, block_tokens: int = DEFAULT_BLOCK_TOKENS) -> TraceFile:
    """The requests of a trace file's content; `block_tokens` [token] is the size of one prefix block.

    Raises `InputError` when none of it can be used.
    """
    return _parsed(as_user_file(raw, TRACE, name), block_tokens)


def _parsed(file: UserFile, block_tokens: int) -> TraceFile:
    name = file.name
    if block_tokens < 1:
        raise InputError(f"block_tokens = {block_tokens}, a prefix block needs >= 1 token", file=name)
    text = trace_text.split(file)
    parts: list[_TraceRows] = []
    dropped: list[Dropped] = []
    blocks, dated = 0, None
    for chunk in text.chunks:
        if dated is None and chunk.lines:
            dated = _holds_dates(chunk.cells["arrival"][:100])
        part = _TraceRows(chunk, text, block_tokens, LARGEST_BLOCKS - blocks, dated=dated or False)
        blocks += len(part.blocks)
        parts.append(part)
        dropped.extend(part.dropped)
        if len(dropped) > MOST_DROPPED:
            reason = f"more than {MOST_DROPPED:,} rows cannot be used; the first: {dropped[0]}"
            raise InputError(reason, file=name)
    if not sum(len(part.line) for part in parts):
        if not dropped:
            raise InputError("no rows below the header", file=name)
        fault = min(dropped, key=lambda each: each.line)
        reason = f"no row can be used ({len(dropped)} dropped); the first: {fault.reason}"
        raise InputError(reason, file=name, line=fault.line, field=fault.field or None)
    return _joined(parts, dropped, name, block_tokens if "prefix" in text.columns else 0)


def _joined(parts: Sequence[_TraceRows], dropped: list[Dropped], name: str, block_tokens: int) -> TraceFile:
    arrival = np.concatenate([part.arrival for part in parts])
    late = int(np.count_nonzero(np.diff(arrival) < 0))
    order = np.argsort(arrival, kind="stable") if late else np.arange(len(arrival))
    counts = np.concatenate([part.block_counts for part in parts])
    start, blocks = take_runs(_starts(counts), np.concatenate([part.blocks for part in parts]), order)
    first = float(arrival[order[0]])
    notes = []
    if late:
        rows = (
            "1 row arrives before the row above it" if late == 1 else f"{late:,} rows arrive before the row above them"
        )
        notes.append(f"{rows}; all were sorted by arrival")
    if first:
        notes.append(f"times count from the first request, at {first:g} s in the file")
    dropped.sort(key=lambda each: each.line)
    sessions, session_names = _named([name for part in parts for name in part.session], order)
    clients, client_names = _named([name for part in parts for name in part.client], order)
    return TraceFile(
        name=name,
        rows=len(arrival) + len(dropped),
        line=np.concatenate([part.line for part in parts])[order],
        arrival_s=arrival[order] - first,
        prompt_tokens=np.concatenate([part.prompt for part in parts])[order],
        output_tokens=np.concatenate([part.output for part in parts])[order],
        prefix_start=start,
        prefix_blocks=in_place(start, blocks),
        prefix_block_tokens=block_tokens if len(blocks) else 0,
        session=sessions,
        session_names=session_names,
        client=clients,
        client_names=client_names,
        priority=np.concatenate([part.priority for part in parts])[order],
        wait_s=np.concatenate([part.wait for part in parts])[order],
        dropped=tuple(dropped),
        notes=tuple(notes),
    )


class _TraceRows:
    """The usable rows of one chunk as arrays, and the others with their reasons."""

    def __init__(self, chunk: Chunk, text: TraceText, block_tokens: int, most_blocks: int, *, dated: bool) -> None:
        self._chunk, self._columns = chunk, text.columns
        self._bad: dict[int, tuple[str, str]] = {}
        arrival = self._arrivals(text.unit_s, dated=dated)
        prompt = self._whole("prompt", 1, LARGEST_TOKENS)
        output = self._whole("output", 1, LARGEST_TOKENS)
        priority = self._whole("priority", -LARGEST_PRIORITY, LARGEST_PRIORITY, blank="0")
        wait = self._waits()
        first, run, counts = self._prefixes(prompt, block_tokens)
        good = np.ones(len(chunk.lines), dtype=bool)
        good[list(self._bad)] = False
        self.line = np.asarray(chunk.lines, dtype=np.int64)[good]
        self.arrival, self.prompt, self.output = arrival[good], prompt[good], output[good]
        self.priority, self.wait = priority[good], wait[good]
        runs = np.repeat(good, counts)
        if int(run[runs].sum()) > most_blocks:
            message = f"the prompts name more than {LARGEST_BLOCKS:.0e} prefix blocks; split the trace"
            raise InputError(message, file=text.name)
        self.blocks = expand(first[runs], run[runs])
        ends = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(np.where(runs, run, 0))])
        edges = ends[_starts(counts)]
        self.block_counts = np.diff(edges)[good]
        self.session = self._names("session", good)
        self.client = self._names("client", good)
        self.dropped = chunk.dropped + [
            Dropped(line=chunk.lines[i], field=column, reason=reason) for i, (column, reason) in self._bad.items()
        ]

    def _arrivals(self, unit_s: float, *, dated: bool) -> Floats:
        cells = self._chunk.cells["arrival"]
        values = self._numbers("arrival", cells, _moment if dated else _number, "a date" if dated else "a number")
        if not dated:
            values *= unit_s
            self._fault("arrival", values < 0, "is negative; times count up from 0")
            self._fault("arrival", values > LARGEST_TIME_S, f"is above {LARGEST_TIME_S:.0e} s; is the unit right?")
        return values

    def _waits(self) -> Floats:
        cells = self._chunk.cells.get("wait")
        if cells is None:
            return np.zeros(len(self._chunk.lines))
        values = self._numbers("wait", [cell.strip() or "0" for cell in cells], _number, "a number")
        self._fault("wait", values < 0, "is negative; a turn comes after the one before it")
        self._fault("wait", values > LARGEST_TIME_S, f"is above {LARGEST_TIME_S:.0e} s; is the unit right?")
        return values

    def _whole(self, name: str, least: int, most: int, blank: str = "") -> Ints:
        cells = self._chunk.cells.get(name)
        if cells is None:
            return np.full(len(self._chunk.lines), int(blank or least), dtype=np.int64)
        if blank:
            cells = [cell.strip() or blank for cell in cells]
        values = self._numbers(name, cells, _number, "a number")
        self._fault(name, values < least, f"is below the least, {least}")
        self._fault(name, values > most, f"is above the limit of {most}")
        self._fault(name, values != np.round(values), "is not a whole number")
        return np.clip(np.nan_to_num(values, nan=least), least, most).astype(np.int64)

    def _numbers(self, name: str, cells: list[str], parse: Callable[[str], float | None], kind: str) -> Floats:
        """A column's values; where a cell is none, 1 stands in and the row is bad."""
        values: Floats | None = None
        if parse is _number and not any("_" in cell for cell in cells):
            try:
                values = np.array(list(map(float, cells)), dtype=np.float64)
            except ValueError:
                values = None
        if values is None:
            parsed = [parse(cell) for cell in cells]
            values = np.array([1.0 if value is None else value for value in parsed], dtype=np.float64)
            self._fault(name, np.array([value is None for value in parsed], dtype=bool), f"is not {kind}")
        self._fault(name, ~np.isfinite(values), "is not finite")
        values[~np.isfinite(values)] = 1.0
        return values

    def _fault(self, name: str, where: NDArray[np.bool_], reason: str) -> None:
        for i in np.flatnonzero(where).tolist():
            cell = self._chunk.cells[name][i].strip()
            self._bad.setdefault(i, (self._columns[name], f"'{cell[:40]}' {reason}" if cell else "is blank"))

    def _prefixes(self, prompt: Ints, block_tokens: int) -> tuple[Ints, Ints, Ints]:
        """First block and length of every range, and ranges per row."""
        cells = self._chunk.cells.get("prefix")
        if cells is None:
            return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(len(prompt), np.int64)
        wrong = [_RANGE.fullmatch(cell) is None for cell in cells]
        if any(wrong):
            self._fault("prefix", np.array(wrong), "is not a list of block ids such as '0-13 20 22-30'")
            cells = ["" if bad else cell for cell, bad in zip(cells, wrong, strict=True)]
        counts = np.array([len(cell.split()) for cell in cells], dtype=np.int64)
        ranges = " ".join(cells).split()
        first = _ids([each.partition("-")[0] for each in ranges])
        last = _ids([each.rpartition("-")[2] for each in ranges])
        run = np.clip(last - first + 1, 0, LARGEST_TOKENS + 1)
        row = np.repeat(np.arange(len(counts)), counts)
        total = np.bincount(row, weights=run, minlength=len(counts))
        most = -(-prompt // block_tokens)
        outside = np.bincount(row, weights=(last < first) | (last >= LARGEST_ID), minlength=len(counts)) > 0
        self._fault("prefix", outside, f"has a range that ends before it starts, or an id above {LARGEST_ID:.0e}")
        self._fault("prefix", total > most, f"names more blocks of {block_tokens} tokens than the prompt has")
        return first, run, counts

    def _names(self, name: str, good: NDArray[np.bool_]) -> list[str]:
        cells = self._chunk.cells.get(name)
        if cells is None:
            return []
        return [cell.strip() for cell, keep in zip(cells, good.tolist(), strict=True) if keep]


def expand(first: Ints, length: Ints) -> Ints:
    """Integers of the runs first, first + 1, ..., one run after another.

    >>> expand(np.array([0, 20]), np.array([3, 2])).tolist()
    [0, 1, 2, 20, 21]
    """
    start = _starts(length)
    return np.repeat(first - start[:-1], length) + np.arange(start[-1], dtype=np.int64)


def take_runs(start: Ints, values: Ints, chosen: Ints) -> tuple[Ints, Ints]:
    """Starts and values of the chosen runs, where run i is values[start[i]:start[i+1]]."""
    length = np.diff(start)[chosen]
    return _starts(length), values[expand(start[chosen], length)]


def in_place(start: Ints, blocks: Ints) -> Ints:
    """Ids 0..K-1 of the blocks of each run by what they and all before them are, as prefix caches know them.

    A cache of keys and values depends on every token before it, so engines hash a block with its predecessor's hash.
    Source: vllm, vllm/v1/core/kv_cache_utils.py (hash_block_tokens).

    >>> in_place(np.array([0, 2, 4]), np.array([7, 7, 7, 8])).tolist()
    [0, 1, 0, 2]
    """
    content, found = dense(blocks), np.zeros(len(blocks), dtype=np.int64)
    length, before = np.diff(start), np.zeros(len(start) - 1, dtype=np.int64)
    runs, many, known = np.flatnonzero(length > 0), int(content.max(initial=0)) + 1, 0
    place = 0
    while len(runs):
        at = start[runs] + place
        found[at] = known + dense(before[runs] * many + content[at])
        before[runs] = found[at] - known
        known, place = int(found[at].max()) + 1, place + 1
        runs = runs[length[runs] > place]
    return found


def dense(ids: Ints) -> Ints:
    """The same ids as 0..K-1, in their order."""
    return np.unique(ids, return_inverse=True)[1].reshape(-1).astype(np.int64)


def _starts(length: Ints) -> Ints:
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(length, dtype=np.int64)])


def _ids(texts: list[str]) -> Ints:
    return np.array([min(int(text), LARGEST_ID) for text in texts], dtype=np.int64)


def _named(names: list[str], order: Ints) -> tuple[Ints, tuple[str, ...]]:
    """Indices by first appearance, -1 for a blank, and the names."""
    places: dict[str, int] = {}
    if any(names):
        indices = [places.setdefault(names[i], len(places)) if names[i] else -1 for i in order.tolist()]
        return np.array(indices, dtype=np.int64), tuple(places)
    return np.full(len(order), -1, dtype=np.int64), ()


def _holds_dates(cells: Sequence[str]) -> bool:
    """Whether more of the cells are dates than numbers; numbers of a file of dates are bad, and the reverse."""
    return sum(_moment(cell) is not None for cell in cells) > sum(_number(cell) is not None for cell in cells)


def _number(cell: str) -> float | None:
    try:
        return None if "_" in cell else float(cell)
    except ValueError:
        return None


def _moment(cell: str) -> float | None:
    """Seconds since 1970 of a date with its time of day; without a zone it is taken as UTC [s]."""
    if _number(cell) is not None:
        return None
    try:
        moment = datetime.fromisoformat(cell.strip())
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None
