"""The command `sweep`: one question for each case of a grid or a list, by many processes, kept as they come."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ridgeline.api.answer import Answer
from ridgeline.api.progress import progress_bar, tell
from ridgeline.api.sweep_file import Sweep, limit_of, read_sweep, shard_of
from ridgeline.api.sweep_pool import RayPool, processes_of, run
from ridgeline.api.sweep_rows import SweepJournal, SweptRows, check_out, records, write_table
from ridgeline.report.blocks import Block, Line, Table, blank, listed, reason_of

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
