"""The host of an offloading row: which processor, how many sockets, and what its memory moves a second."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ridgeline.errors import InputError
from ridgeline.facts.cpus import Cpu, cpus
from ridgeline.facts.readings import reading
from ridgeline.validate.rows import Row

_UNITS = {"gib": 2.0**30, "gb": 1e9, "tb": 1e12, "tib": 2.0**40, "mb": 1e6, "mib": 2.0**20}
_SIZE = r"(\d{1,6}(?:\.\d{1,3})?)\s*(GiB|GB|TiB|TB|MiB|MB)\b"


@dataclass(frozen=True, kw_only=True)
class HostSide:
    """The host of a row: `sockets` of `cpu`, `cores` in use [1], all sockets' memory [byte/s] and its size [byte].

    `limit_bytes` is what a row lets the model keep in memory, the rest being on disk.
    """

    cpu: Cpu
    sockets: int
    cores: int
    memory_bytes_per_s: float
    memory_bytes: float | None
    limit_bytes: float | None
    assumptions: tuple[str, ...]

    def peak_flop_per_s(self, name: str) -> float:
        """Products in a format by the cores in use, an upper bound [FLOP/s]."""
        return self.cpu.peak_flop_per_s(name) * self.cores / self.cpu.cores


def host_of(row: Row) -> HostSide | None:
    """The host that a row names, None when it names none; raises `InputError` for an unknown processor."""
    cell = row.text("cpu").strip()
    if not cell or cell.casefold() in ("none", "not stated", "n/a", "-"):
        return None
    found = _cpu(cell)
    said: list[str] = []
    sockets = _sockets(cell, found, row.source, said)
    cores = found.cores * sockets
    used = re.search(r"(\d{1,4}) (?:of \d+ cores|threads)", cell)
    if used and 1 <= int(used[1]) <= cores:
        cores = int(used[1])
        said.append(f"{cores} cores in use as stated")
    text = row.text("host_mem")
    rate = _rate(text, found, said) * sockets
    limit = re.search(rf"limit {_SIZE}", text, re.IGNORECASE)
    return HostSide(
        cpu=found,
        sockets=sockets,
        cores=cores,
        memory_bytes_per_s=rate,
        memory_bytes=None if limit else _size(text),
        limit_bytes=_bytes(limit[1], limit[2]) if limit else None,
        assumptions=tuple(said),
    )


def _cpu(cell: str) -> Cpu:
    """The processor whose name or alias, the longest, stands in the cell."""
    text = cell.casefold()
    known = [(alias, each) for each in cpus().values() for alias in (each.name, *each.aliases)]
    known.sort(key=lambda pair: -len(pair[0]))
    found = next((each for alias, each in known if alias.casefold() in text), None)
    if found is None:
        raise InputError(f"'{cell[:60]}' is no processor of the catalog: add a row to data/cpus.tsv", field="cpu")
    return found


def _sockets(cell: str, found: Cpu, source: str, said: list[str]) -> int:
    stated = re.match(r"^\s*([1-8])\s*x\s", cell)
    if stated:
        return int(stated[1])
    total = re.search(r"(?<!of )(?<!of)(?<!\d)(\d{1,4})[- ]core|, (\d{1,4}) cores", cell)
    if total:
        count = int(total[1] or total[2])
        sockets = max(1, round(count / found.cores))
        said.append(f"'{cell[:50]}': {sockets} sockets of {found.name}")
        return min(sockets, 8)
    usual = reading("sockets", runs=source, words=cell.strip())
    if usual is None:
        return 1
    said.append(usual.told)
    return int(usual.number)


def _rate(text: str, found: Cpu, said: list[str]) -> float:
    """Memory of one socket: stated channels and speed, else the fastest that the maker allows [byte/s]."""
    speed = re.search(r"DDR\dX?-(\d{4,5})", text)
    channels = re.search(r"(\d{1,2})[- ]channels?", text)
    if speed is None and channels is None:
        said.append(f"memory of {found.name}: {found.channels} channels {found.memory_type}, the fastest it takes")
        return found.memory.value
    count = int(channels[1]) if channels and 1 <= int(channels[1]) <= 24 else found.channels
    per_channel = found.memory.value / found.channels
    if speed:
        per_channel = min(float(speed[1]), 20000.0) * 1e6 * 8
    return count * per_channel


def _size(text: str) -> float | None:
    sticks = re.search(rf"(\d{{1,2}})\s*x\s*{_SIZE}", text, re.IGNORECASE)
    if sticks:
        return int(sticks[1]) * _bytes(sticks[2], sticks[3])
    match = re.search(_SIZE, text, re.IGNORECASE)
    return _bytes(match[1], match[2]) if match else None


def _bytes(number: str, unit: str) -> float:
    return float(number) * _UNITS[unit.casefold()]
