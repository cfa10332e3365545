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

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

SUFFIX = ".journal"


class Journal:
    """What a run has finished, on disk before the next benchmark starts.

    `finished` maps a benchmark to its rows and what it left out; `told` says why an older journal was not used.
    """

    def __init__(self, profile: Path, fingerprint: str) -> None:
        self.path = profile.with_name(profile.name + SUFFIX)
        self.finished: dict[str, tuple[tuple[Measured, ...], tuple[str, ...], float]] = {}
        self.told = ""
        head = {"format": FORMAT, "fingerprint": fingerprint}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._out = self.path.open("a+", encoding="utf-8", errors="replace")
        except OSError as error:
            raise InputError(f"cannot be written: {error.strerror or error}", file=str(self.path)) from None
        self._lock()
        lines = self._lines()
        self._out.truncate(0)
        self._put(head)
        sync_folder(self.path.parent)
        if lines and lines[0] != head:
            self.told = "an older journal is of another machine or version: starting clean"
            lines = []
        for line in lines[1:]:
            rows = tuple(Measured(**row) for row in line["rows"])
            self.add(line["name"], rows, line["left_out"], float(line["seconds"]))
        if self.finished:
            self.told = f"going on from {self.path}: {len(self.finished)} benchmarks are done"

    def _lock(self) -> None:
        """Holds the journal until it is removed or the process ends, where the system has locks."""
        if fcntl is None:
            return
        try:
            fcntl.flock(self._out, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._out.close()
            raise InputError(
                "another calibration is writing it; wait for it, or give --out another", file=str(self.path)
            ) from None

    def _lines(self) -> list[Any]:
        """Whole lines of an older journal; one cut short by a kill, and what follows it, is left out."""
        self._out.seek(0)
        found: list[Any] = []
        for line in self._out.read().splitlines():
            try:
                entry = json.loads(line)
                if found:
                    tuple(Measured(**row) for row in entry["rows"])
                    entry["name"], entry["left_out"], float(entry["seconds"])
            except (ValueError, TypeError, KeyError):
                break
            found.append(entry)
        return found

    def add(self, name: str, rows: Sequence[Measured], left_out: Sequence[str], seconds: float) -> None:
        """Writes down a finished benchmark and the time it took [s]; it is on disk when this returns."""
        entry = {
            "name": name,
            "seconds": seconds,
            "left_out": list(left_out),
            "rows": [{**asdict(row), "sizes": dict(row.sizes)} for row in rows],
        }
        self._put(entry)
        self.finished[name] = tuple(rows), tuple(left_out), seconds

    def _put(self, entry: Mapping[str, Any]) -> None:
        self._out.write(json.dumps(entry, allow_nan=False) + "\n")
        self._out.flush()
        os.fsync(self._out.fileno())

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Lets go of the journal, which stays for the next run."""
        self._out.close()

    def remove(self) -> None:
        """Removes the journal: the profile holds everything."""
        self.path.unlink(missing_ok=True)
        self._out.close()
