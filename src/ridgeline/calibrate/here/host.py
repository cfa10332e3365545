"""The host's side: a disk's rates in the profile's folder, and the package power that the system counts."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from ridgeline.calibrate.here.kernels import measured
from ridgeline.facts.profiles import BenchmarkRow

DISK_BYTES = 256 * 2**20  # written and read at most
_BLOCK_BYTES = 4 * 2**20
_NAME = ".ridgeline-disk-test"
_COUNTERS = "/sys/class/powercap"
_WATCHED_S = 0.5


def disk(folder: Path, budget_s: float) -> tuple[list[BenchmarkRow], list[str]]:
    """Sequential write (with its sync) and read of a file in a folder, which is removed; and what was left out."""
    path = folder / _NAME
    block = os.urandom(_BLOCK_BYTES)
    try:
        free = os.statvfs(folder)
        size = min(DISK_BYTES, free.f_bavail * free.f_frsize // 4) if hasattr(os, "statvfs") else DISK_BYTES
        start = time.perf_counter()
        written = 0
        with path.open("wb") as out:
            while written == 0 or (written < size and time.perf_counter() - start < budget_s / 2):
                written += out.write(block)
            out.flush()
            os.fsync(out.fileno())
        write_s = time.perf_counter() - start
        read_s, cold = _read(path, budget_s / 2)
    except OSError as error:
        return [], [f"disk: {error.strerror or error} in {folder}"]
    finally:
        path.unlink(missing_ok=True)
    note = "" if cold else "the system kept the file in memory"
    sizes = {"bytes": float(written)}
    rows = [measured("disk", "write", sizes, [write_s], moved=written)]
    rows.append(measured("disk", "read", sizes, [read_s * written], moved=written, note=note))
    return rows, [] if cold else ["disk read: the system cannot be told to forget the file, so the rate is memory's"]


def _read(path: Path, budget_s: float) -> tuple[float, bool]:
    """Seconds for each byte read, and whether the file came from the disk."""
    with path.open("rb", buffering=0) as source:
        cold = hasattr(os, "posix_fadvise")
        if cold:
            os.posix_fadvise(source.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        start, done = time.perf_counter(), 0
        while done == 0 or time.perf_counter() - start < budget_s:
            got = len(source.read(_BLOCK_BYTES))
            if not got:
                break
            done += got
        return (time.perf_counter() - start) / max(done, 1), cold


def package_energy_uj(root: str = _COUNTERS) -> dict[str, int]:
    """Energy counters of the processor packages that may be read [1e-6 J]."""
    found = {}
    for path in sorted(Path(root).glob("intel-rapl:[0-9]*/energy_uj")):
        if path.parent.name.count(":") > 1:
            continue
        try:
            found[path.parent.name] = int(path.read_text())
        except (OSError, ValueError):
            continue
    return found


def package_power_w(call: Callable[[], object] | None = None, root: str = _COUNTERS) -> float | None:
    """Mean power of the packages while a call is repeated, or at rest [W]; None where no counter may be read."""
    before, start = package_energy_uj(root), time.perf_counter()
    if not before:
        return None
    while time.perf_counter() - start < _WATCHED_S:
        if call is None:
            time.sleep(_WATCHED_S / 10)
        else:
            call()
    spent, after = time.perf_counter() - start, package_energy_uj(root)
    moved = [after[name] - before[name] for name in before if after.get(name, -1) >= before[name]]
    return sum(moved) * 1e-6 / spent if moved else None
