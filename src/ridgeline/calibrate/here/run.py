"""The whole calibration: benchmarks in their shares of the time, a journal between them, fits, one profile."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ridgeline.calibrate.here import assemble, host
from ridgeline.calibrate.here.benchmarks import LocalBench, benchmarks
from ridgeline.calibrate.here.devices import find, import_torch
from ridgeline.calibrate.here.fitting import call_fits
from ridgeline.errors import InputError
from ridgeline.facts.profiles import (
    FORMAT,
    BenchmarkRow,
    Profile,
    default_path,
    fingerprint,
    sync_folder,
    write_profile,
)

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
        self.finished: dict[str, tuple[tuple[BenchmarkRow, ...], tuple[str, ...], float]] = {}
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
            rows = tuple(BenchmarkRow(**row) for row in line["rows"])
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
                    tuple(BenchmarkRow(**row) for row in entry["rows"])
                    entry["name"], entry["left_out"], float(entry["seconds"])
            except (ValueError, TypeError, KeyError):
                break
            found.append(entry)
        return found

    def add(self, name: str, rows: Sequence[BenchmarkRow], left_out: Sequence[str], seconds: float) -> None:
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


DEFAULT_BUDGET_S = 120.0
LIMITS_S = (2.0, 3600.0)
_MEASURING = 0.93  # of the budget; fits take the rest
Told = Callable[[str, float], None]
"""`told(text, share)` hears of each benchmark before it starts, and the share of the work done [1]."""


def calibrate(
    *,
    budget_s: float = DEFAULT_BUDGET_S,
    out: Path | None = None,
    force: bool = False,
    kind: str = "",
    told: Told = lambda text, share: None,
) -> tuple[Path, Profile]:
    """Measures this machine and writes its profile; returns where it lies and what it holds.

    Goes on from the journal of a killed run of the same machine and versions. Raises InputError rather than
    replace a profile, DomainError without PyTorch.
    """
    path = out or default_path()
    if not LIMITS_S[0] <= budget_s <= LIMITS_S[1]:
        raise InputError(f"{budget_s:g} s, needs {LIMITS_S[0]:g} s to {LIMITS_S[1] / 3600:g} h", field="--budget")
    if path.is_dir():
        raise InputError("is a folder; give a file, e.g. machine.json", file=str(path), field="--out")
    if path.exists() and not force:
        raise InputError("exists; give --force to measure again and replace it, or --out another", file=str(path))
    torch = import_torch()
    found = find(torch, kind)
    with Journal(path, fingerprint({**found.machine, **found.versions, "kind": found.kind})) as journal:
        profile = _calibrated(LocalBench(torch=torch, found=found, folder=path.parent), journal, budget_s, told)
        write_profile(path, profile)
        journal.remove()
    told("done", 1.0)
    return path, profile


def _calibrated(bench: LocalBench, journal: Journal, budget_s: float, told: Told) -> Profile:
    """The benchmarks that the journal lacks, then fits, as a profile."""
    cpu = bench.found.kind == "cpu"
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    for text in (journal.told, busy_text(load, bench.found.units) if cpu else ""):
        if text:
            told(text, 0.0)
    start = time.perf_counter()
    left_out, before_s = _measure(bench, journal, budget_s, told)
    power = _power(bench) if cpu else (None, None, "package power was not read: the device is a GPU")
    told("fits", _MEASURING)
    profile = _profile(bench, left_out, power, budget_s)
    spent_s = before_s + time.perf_counter() - start
    return replace(profile, spent_s=round(spent_s, 3), noise=replace(profile.noise, load=load))


def busy_text(load: float, units: int) -> str:
    """A warning when threads must share cores with other processes; '' where they need not."""
    cores = os.cpu_count() or 1
    if load + units <= 1.25 * cores:
        return ""
    return (
        f"the machine is busy (load {load:.1f} of {cores} processors, {units} threads here): times will be noisy;"
        " measure when it is idle, or with fewer threads by OMP_NUM_THREADS"
    )


def _measure(bench: LocalBench, journal: Journal, budget_s: float, told: Told) -> tuple[list[str], float]:
    """Runs what the journal lacks; each benchmark has its part of the time that is left. What was left out, and the
    seconds that earlier runs spent."""
    plan = benchmarks(bench.found)
    before_s = sum(seconds for _, _, seconds in journal.finished.values())
    start, weight, done = time.perf_counter(), sum(one.weight for one in plan), 0.0
    open_weight = sum(one.weight for one in plan if one.name not in journal.finished)
    left_out: list[str] = []
    for one in plan:
        told(one.name, _MEASURING * done / weight)
        if one.name not in journal.finished:
            left_s = max(0.0, _MEASURING * budget_s - before_s - (time.perf_counter() - start))
            began = time.perf_counter()
            rows, missing = one.run(bench, max(left_s * one.weight / open_weight, 0.01))
            journal.add(one.name, rows, missing, time.perf_counter() - began)
            open_weight -= one.weight
        rows_of, missing_of, _ = journal.finished[one.name]
        bench.rows.extend(rows_of)
        left_out += missing_of
        done += one.weight
    return left_out, before_s


def _power(bench: LocalBench) -> tuple[float | None, float | None, str]:
    """Package power at rest and under products [W], and what to say of it."""
    idle_w = host.package_power_w()
    if idle_w is None:
        return None, None, "package power is absent: no counter under /sys/class/powercap may be read"
    sizes = {"m": 1024.0, "n": 1024.0, "k": 1024.0}
    busy_w = host.package_power_w(bench.kernels.product("fp32", sizes))
    return idle_w, busy_w, f"package power by RAPL: {idle_w:.1f} W at rest, {busy_w or 0.0:.1f} W under fp32 products"


def _profile(
    bench: LocalBench, left_out: list[str], power: tuple[float | None, float | None, str], budget_s: float
) -> Profile:
    found, rows = bench.found, bench.rows
    when = datetime.now(UTC).isoformat(timespec="seconds")
    _, busy_w, said = power
    part = assemble.accelerator_of(found, rows, when=when, tdp_w=busy_w)
    machine_host = assemble.host_of(found, part, rows, bench.folder)
    tiers = assemble.tiers_of(found, part, rows)
    fits, unfitted = assemble.fits_of(part, machine_host, tiers, rows, found.versions, when, kernel=found.kind)
    calls, uncalled = call_fits(rows)
    if not any(fit.family == "collective" for fit in fits):
        tiers = assemble.tiers_of(found, part, rows, by="all_reduce")
    return Profile(
        kind=found.kind,
        count=found.count,
        date=when,
        budget_s=budget_s,
        spent_s=0.0,
        machine=dict(found.machine),
        versions=dict(found.versions),
        accelerator=part,
        host=machine_host,
        tiers=tiers,
        noise=assemble.noise_of(rows),
        fits=fits,
        calls=calls,
        samples=tuple(rows),
        left_out=(*left_out, *unfitted, *uncalled),
        energy=said,
    )
