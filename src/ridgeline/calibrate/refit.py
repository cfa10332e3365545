"""Refits everything that public rows can tell, in parallel, resuming where a killed run stopped."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from ridgeline.calibrate.public import fit_sample, rows_of
from ridgeline.cost.families.registry import mechanism
from ridgeline.cost.readers import READERS
from ridgeline.cost.samples import family_tables, samples
from ridgeline.errors import DomainError
from ridgeline.facts.fits import Fit
from ridgeline.facts.opdata import INSTALL, OpTable, root

# Small least squares run ten times slower when every process wants every core for its linear algebra.
_ONE_THREAD = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
PROGRESS = "fits.partial.jsonl"
Done = Callable[[str, int, int], None]


def refit(
    folder: Path, *, families: Sequence[str] = (), processes: int = 2, done: Done = lambda place, at, total: None
) -> dict[str, int]:
    """Writes one table of fits per family to `folder`; returns the number of fits of each.

    `done(place, at, total)` hears of each table of measurements. A killed run leaves `fits.partial.jsonl`, from
    which the next one goes on. Raises `DomainError` when the public tables are not installed.
    """
    if root() is None:
        raise DomainError(f"the public operator tables are not installed: {INSTALL}")
    folder.mkdir(parents=True, exist_ok=True)
    wanted = tuple(families) or tuple(READERS)
    progress = folder / PROGRESS
    finished = _finished(progress)
    jobs = [(family, table) for family in wanted for table in family_tables(family)]
    left = [job for job in jobs if _key(*job) not in finished]
    os.environ.update(dict.fromkeys(_ONE_THREAD, "1"))
    workers = ProcessPoolExecutor(processes, mp_context=get_context("spawn"))
    with progress.open("a", encoding="utf-8") as out, workers as pool:
        waiting = {pool.submit(fit_table, *job): job for job in left}
        for at, future in enumerate(as_completed(waiting), start=len(jobs) - len(left) + 1):
            key = _key(*waiting[future])
            finished[key] = future.result()
            out.write(json.dumps({"key": key, "fits": finished[key]}) + "\n")
            out.flush()
            done(key, at, len(jobs))
    counts = {}
    for family in wanted:
        found = [_restored(fit) for job in jobs if job[0] == family for fit in finished[_key(*job)]]
        counts[family] = len(found)
        _write(folder / f"{family}.tsv", rows_of(found, mechanism(family)))
    progress.unlink()
    return counts


def _key(family: str, table: OpTable) -> str:
    return f"{family} {table.place}"


def fit_table(family: str, table: OpTable) -> list[dict[str, Any]]:
    """Every fit of one table of measurements, as plain dictionaries."""
    found = (fit_sample(sample) for sample in samples(family, table))
    return [asdict(fit) for fit in found if fit is not None]


def _finished(progress: Path) -> dict[str, list[dict[str, Any]]]:
    """What an earlier run left; a line cut short by a kill is left out."""
    found = {}
    if progress.exists():
        for line in progress.read_text(encoding="utf-8").splitlines():
            try:
                entry = json.loads(line)
            except json.JSONDecodeError:
                continue
            found[entry["key"]] = entry["fits"]
    return found


def _restored(fields: dict[str, Any]) -> Fit:
    """A fit from its dictionary; JSON has no tuples."""
    sequences = {name: tuple(fields[name]) for name in ("low", "high", "timed_by")}
    ranges = {name: {key: tuple(value) for key, value in fields[name].items()} for name in ("domain", "span")}
    return Fit(**{**fields, **sequences, **ranges, "timed": tuple(map(tuple, fields["timed"]))})


def _write(path: Path, lines: Iterable[str] | Iterator[str]) -> None:
    """The lines to a file that appears whole or not at all."""
    partial = path.with_suffix(".partial")
    partial.write_text("\n".join(lines) + "\n", encoding="utf-8")
    partial.replace(path)
