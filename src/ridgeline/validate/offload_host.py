"""The host of a row of measured offloading: its processors, their memory, and what a row leaves to what is usual."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ridgeline.facts.cpus import Cpu, cpu, cpus
from ridgeline.facts.described_cpus import described_cpu, family_of
from ridgeline.facts.readings import reading
from ridgeline.validate.rows import Row

_UNITS: dict[str, float] = {"gib": 2.0**30, "gb": 1e9, "tb": 1e12, "tib": 2.0**40, "mb": 1e6, "mib": 2.0**20}
USUAL_HOST = "Core i9-13900K"  # where a row tells nothing of the processor
_LARGE_HOST, _DESKTOP_BYTES = "Threadripper PRO 5975WX", 192e9  # assumed: what four modules of a desktop hold
SIZE = r"(\d{1,6}(?:\.\d{1,3})?)\s*(GiB|GB|TiB|TB|MiB|MB)\b"


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
    """The host that a row names, None when it names none; processors of no table are as the row describes them."""
    cell = row.text("cpu").strip()
    if not cell or cell.casefold() in ("none", "not stated", "n/a", "-"):
        return None
    said: list[str] = []
    found = _cpu(cell, row.text("host_mem"), said)
    sockets = _sockets(cell, found, row.source, said)
    cores = found.cores * sockets
    used = re.search(r"(\d{1,4}) (?:of \d+ cores|threads)", cell) or re.search(
        r"\b(\d{1,4}) threads\b", f"{row.text('placement')} {row.text('note')}"
    )
    if used and 1 <= int(used[1]) <= cores:
        cores = int(used[1])
        said.append(f"{cores} cores in use as stated")
    text = row.text("host_mem")
    rate = _rate(text, found, said) * sockets
    limit = re.search(rf"limit {SIZE}", text, re.IGNORECASE)
    return HostSide(
        cpu=found,
        sockets=sockets,
        cores=cores,
        memory_bytes_per_s=rate,
        memory_bytes=None if limit else _size(text),
        limit_bytes=sized_bytes(limit[1], limit[2]) if limit else None,
        assumptions=tuple(said),
    )


def _cpu(cell: str, memory: str, said: list[str]) -> Cpu:
    """The processor whose name or alias, the longest, stands in the cell; else one by its family and what is told."""
    text = cell.casefold()
    known = [(alias, each) for each in cpus().values() for alias in (each.name, *each.aliases)]
    known.sort(key=lambda pair: -len(pair[0]))
    alias, found = next(((alias, each) for alias, each in known if alias.casefold() in text), ("", None))
    if found is not None and (re.search(r"\d", alias) or not _numbered(cell)):
        return found  # not a generation that stands beside the name of another of its processors
    made = described_cpu(cell, memory)
    if made is None:
        usual = cpu(USUAL_HOST)
        said.append(f"processor {cell[:60]} is not known: {usual.name} of a desktop assumed")
        return usual
    said.append(made.assumed)
    return made


def usual_host(held_bytes: float) -> Cpu:
    """The processor that is assumed where none is named, by what its memory has to hold [byte]."""
    return cpu(USUAL_HOST if held_bytes <= _DESKTOP_BYTES else _LARGE_HOST)


def memory_of(row: Row) -> float | None:
    """Host memory that a row states [byte]."""
    return _size(row.text("host_mem"))


def _numbered(cell: str) -> bool:
    """Whether a cell names a processor of a known family by its number."""
    family = family_of(cell)
    return family is not None and re.search(r"\d{3}", cell) is not None and not family["conditions"].startswith("which")


def _sockets(cell: str, found: Cpu, source: str, said: list[str]) -> int:
    stated = re.match(r"^\s*(?:([1-8])\s*x\s|(dual|two)\b(?![ -]channel))", cell, re.IGNORECASE)
    if stated:
        return int(stated[1] or 2)
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
    sticks = re.search(rf"(\d{{1,2}})\s*x\s*{SIZE}", text, re.IGNORECASE)
    if sticks:
        return int(sticks[1]) * sized_bytes(sticks[2], sticks[3])
    match = re.search(SIZE, text, re.IGNORECASE)
    return sized_bytes(match[1], match[2]) if match else None


def sized_bytes(number: str, unit: str) -> float:
    """A size that `SIZE` matched [byte]."""
    return float(number) * _UNITS[unit.casefold()]
