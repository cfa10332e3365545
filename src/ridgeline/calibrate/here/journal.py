"""The journal beside a profile: finished benchmarks, one line each, from which a killed run goes on."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ridgeline.errors import InputError
from ridgeline.facts.profiles import FORMAT, Measured, sync_folder

SUFFIX = ".journal"


class Journal:
    """What a run has finished, on disk before the next benchmark starts.

    `finished` maps a benchmark to its rows and what it left out; `told` says why an older journal was not used.
    """

    def __init__(self, profile: Path, fingerprint: str) -> None:
        self.path = profile.with_name(profile.name + SUFFIX)
        self._head = {"format": FORMAT, "fingerprint": fingerprint}
        self.finished: dict[str, tuple[tuple[Measured, ...], tuple[str, ...], float]] = {}
        self.told = ""
        lines = self._lines()
        self._begin()
        if lines and lines[0] != self._head:
            self.told = "an older journal is of another machine or version: starting clean"
            lines = []
        for line in lines[1:]:
            rows = tuple(Measured(**row) for row in line["rows"])
            self.add(line["name"], rows, line["left_out"], float(line["seconds"]))
        if self.finished:
            self.told = f"going on from {self.path}: {len(self.finished)} benchmarks are done"

    def _lines(self) -> list[Any]:
        """Whole lines of an older journal; one cut short by a kill, and what follows it, is left out."""
        try:
            text = self.path.read_text(encoding="utf-8")
        except (FileNotFoundError, NotADirectoryError):
            return []
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"cannot be read: {error}; remove it to start clean", file=str(self.path)) from None
        found: list[Any] = []
        for line in text.splitlines():
            try:
                entry = json.loads(line)
                if found:
                    tuple(Measured(**row) for row in entry["rows"])
                    entry["name"], entry["left_out"], float(entry["seconds"])
            except (ValueError, TypeError, KeyError):
                break
            found.append(entry)
        return found or [{}]

    def _begin(self) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("w", encoding="utf-8") as out:
                _put(out, self._head)
        except OSError as error:
            raise InputError(f"cannot be written: {error.strerror or error}", file=str(self.path)) from None
        sync_folder(self.path.parent)

    def add(self, name: str, rows: Sequence[Measured], left_out: Sequence[str], seconds: float) -> None:
        """Writes down a finished benchmark and the time it took [s]; it is on disk when this returns."""
        entry = {
            "name": name,
            "seconds": seconds,
            "left_out": list(left_out),
            "rows": [{**asdict(row), "sizes": dict(row.sizes)} for row in rows],
        }
        with self.path.open("a", encoding="utf-8") as out:
            _put(out, entry)
        self.finished[name] = tuple(rows), tuple(left_out), seconds

    def remove(self) -> None:
        """Removes the journal: the profile holds everything."""
        self.path.unlink(missing_ok=True)


def _put(out: Any, entry: Mapping[str, Any]) -> None:
    out.write(json.dumps(entry, allow_nan=False) + "\n")
    out.flush()
    os.fsync(out.fileno())
