"""Processors that no table names: by cores, clock, memory and instructions, or by the family of their name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from ridgeline.errors import InputError, UnknownNameError
from ridgeline.facts import store
from ridgeline.facts.cpus import Cpu, cpu, cpus
from ridgeline.facts.records import Evidence, Fact

HOW = "say what it is: '32 cores, 3.1 GHz, 8 channels DDR5-4800, avx512' (cores and memory at least)"
_LIMITS = {
    "cores": (1.0, 1024.0, "cores of one socket"), "clock_ghz": (0.1, 10.0, "GHz"), "channels": (1.0, 64.0, "channels"),
    "mts": (200.0, 20_000.0, "MT/s"), "mem_gbs": (1.0, 20_000.0, "GB/s of one socket"),
}  # fmt: skip
_SPEEDS = {"DDR3": 1600.0, "DDR4": 3200.0, "DDR5": 4800.0, "LPDDR4": 4267.0, "LPDDR5": 6400.0}  # where none is said
_COUNTED = {"single": 1, "dual": 2, "quad": 4, "six": 6, "hexa": 6, "eight": 8, "octa": 8, "twelve": 12}
_USUAL_CLOCK_GHZ, _USUAL_UNITS = 2.5, "avx2"  # assumed of a processor of which nobody says more
_MARKS = re.compile(r"\((?:r|tm)\)|[®™]|\b(?:cpu|processor)\b", re.IGNORECASE)  # between the words of a name
_CORES_A_CHANNEL = 6  # assumed, both ways: 4 to 12 among the processors of cpus.tsv with DDR


@dataclass(frozen=True, kw_only=True)
class Told:
    """What words tell of one socket: cores [1], clock [1e9 Hz], channels [1], transfers [1e6 per s], rate [1e9 byte/s].

    `memory` is a kind of memory, `units` the name of a row of `data/cpu_units.tsv`; None where nothing is said.
    """

    cores: float | None = None
    clock_ghz: float | None = None
    channels: float | None = None
    mts: float | None = None
    mem_gbs: float | None = None
    memory: str = ""
    units: str = ""

    @property
    def enough(self) -> bool:
        """Whether it tells how fast weights are read, or how many cores read them."""
        memory = self.mem_gbs is not None or self.channels is not None or bool(self.memory)
        return memory or self.cores is not None


def told_of(text: str) -> Told:
    """What a text tells of a socket; raises `InputError` for a number beyond what a socket has."""
    memory = re.search(r"\b((?:LP)?DDR[2-6])(X?)(?:[- ]?(\d{3,5}))?\b|\b(MRDIMM)-(\d{4,5})", text, re.IGNORECASE)
    words = "|".join(_COUNTED)
    named = re.search(rf"\b({words})[- ]channel", text, re.IGNORECASE)
    found = {
        "cores": _number(r"(?<![\d.])(\d{1,5})[- ]?(?:physical |cpu )?(?:cores?\b|c/\d+t\b)", text),
        "clock_ghz": _number(r"(?<![\d.])(\d{1,3}(?:\.\d{1,3})?)\s*GHz", text),
        "channels": _number(r"(?<![\d.])(\d{1,3})[- ](?:memory )?channels?\b", text),
        "mts": _number(r"(?<![\d.])(\d{3,5})\s*MT/s", text),
        "mem_gbs": _number(r"(?<![\d.])(\d{1,5}(?:\.\d{1,3})?)\s*GB/s", text),
    }
    if found["channels"] is None and named:
        found["channels"] = float(_COUNTED[named[1].casefold()])
    kind = ""
    if memory:
        kind = (memory[1] or memory[4]).upper() + (memory[2] or "").upper()
        speed = memory[3] or memory[5]
        found["mts"] = float(speed) if speed else found["mts"]
    for name, value in found.items():
        low, high, unit = _LIMITS[name]
        if value is not None and not low <= value <= high:
            raise InputError(f"'{text[:60]}': {value:g} {unit}; needs {low:g} to {high:g}", field="cpu")
    units = next((row["name"] for row in _units().values() if re.search(row["words"], text, re.IGNORECASE)), "")
    return Told(memory=kind, units=units, **found)


def _number(pattern: str, text: str) -> float | None:
    match = re.search(pattern, text, re.IGNORECASE)
    return float(match[1]) if match else None


@cache
def _units() -> Mapping[str, store.TableRow]:
    return {row["name"]: row for row in store.read_tsv("cpu_units.tsv")}


@cache
def families() -> tuple[store.TableRow, ...]:
    """Rows of `data/cpu_families.tsv`, in the order in which they are tried."""
    return store.read_tsv("cpu_families.tsv")


def family_of(text: str) -> store.TableRow | None:
    """The family whose members are named like that, as makers and operating systems write names; None where none is.

    >>> family_of("Intel(R) Xeon(R) CPU E5-2680 v4 @ 2.40GHz")["name"]
    'Xeon E5 v4'
    """
    name = _MARKS.sub(" ", text)
    return next((row for row in families() if re.search(row["words"], name, re.IGNORECASE)), None)


def described_cpu(text: str, more: str = "") -> Cpu | None:
    """One socket by what a text tells, then by the family of its name; `more` tells of the memory alone.

    None where neither says anything. Everything is of the rung assumed, and `assumed` tells what was put where nothing
    was said. Domain: the base clock of all cores. Source: data/cpu_families.tsv, data/cpu_units.tsv.
    """
    said, of_memory = told_of(text), told_of(more)
    row = family_of(text)
    if row is None and not said.enough and not of_memory.enough:
        return None
    kin = dict(row) if row is not None else {}
    channels, memory, mem_bytes = _memory(said, of_memory, kin)
    cores = int(said.cores or float(kin.get("cores") or 0) or _CORES_A_CHANNEL * channels)
    clock = said.clock_ghz or float(kin.get("clock_ghz") or _USUAL_CLOCK_GHZ)
    units = said.units or kin.get("units") or _USUAL_UNITS
    given = {"cores": said.cores, "clock": said.clock_ghz, "instructions": said.units}
    put = {"cores": f"{cores} cores", "clock": f"{clock:g} GHz", "instructions": units}
    guessed = [words for name, words in put.items() if not given[name]]
    name = _name(text, kin)
    whence = f"as {kin['name']} have" if kin else "as nothing more is said"
    told = f"processor {name} assumed: {mem_bytes / 1e9:.4g} GB/s"
    if said.mem_gbs is None and of_memory.mem_gbs is None:
        told += f" of {channels} x {memory}"
    if guessed:
        told += f"; {', '.join(guessed)} {whence}"
    source = kin.get("source") or _units()[units]["source"]
    facts = _facts(cores, clock, units, source)
    return Cpu(
        name=name, aliases=(), vendor=kin.get("vendor", ""), year=int(kin.get("year") or 2022), cores=cores,
        clock_hz=clock * 1e9, channels=channels, memory_type=memory, peak=facts, assumed=told,
        memory=Fact(
            value=mem_bytes, unit="byte/s", source=source, conditions=f"{channels} channels {memory}, one socket",
            evidence=Evidence.ASSUMED,
        ),
    )  # fmt: skip


def _name(text: str, kin: Mapping[str, str]) -> str:
    name = " ".join(re.sub(r"[^\w.+() -]", " ", text).split())[:60]
    return name or kin.get("name", "")


def _memory(said: Told, more: Told, kin: Mapping[str, str]) -> tuple[int, str, float]:
    """Channels, kind and speed of memory, and its nominal rate [byte/s]."""
    usual_kind, _, usual_mts = kin.get("mem_type", "").rpartition("-")
    kind = said.memory or more.memory or usual_kind or "DDR4"
    cores = said.cores or float(kin.get("cores") or 0)
    channels = int(said.channels or more.channels or float(kin.get("channels") or 0) or _channels(cores))
    same = kind == usual_kind and usual_mts
    mts = said.mts or more.mts or (float(usual_mts) if same else _SPEEDS.get(kind.rstrip("X"), 3200.0))
    width = 2.0 if kind.startswith("LP") else 8.0  # bytes of one channel
    rate = said.mem_gbs or more.mem_gbs
    return channels, f"{kind}-{mts:g}", rate * 1e9 if rate else channels * mts * 1e6 * width


def _channels(cores: float) -> int:
    """Channels of a processor of so many cores: two of a desktop's, 4 of a workstation's, 8 of a server's [1]."""
    return 2 if cores <= 16 else 4 if cores <= 24 else 8


def _facts(cores: int, clock_ghz: float, units: str, source: str) -> Mapping[str, Fact]:
    """Products by format: cores x clock x operations of a cycle [FLOP/s]."""
    row = _units()[units]
    words = f"{cores} cores x {clock_ghz:g} GHz x operations a cycle of {units}"
    return {
        name: Fact(
            value=cores * clock_ghz * 1e9 * float(row[name]), unit="FLOP/s", source=source, conditions=words,
            evidence=Evidence.ASSUMED,
        )
        for name in ("fp32", "bf16", "int8")
        if row[name]
    }  # fmt: skip


def cpu_of(text: str) -> Cpu:
    """The processor of that name in `data/cpus.tsv`, else one described; raises `UnknownNameError` for neither."""
    try:
        return cpu(text)
    except UnknownNameError:
        found = described_cpu(text)
        if found is None:
            hint = f"`ridgeline catalog processors` shows all; or {HOW}"
            raise UnknownNameError("processor", text[:80], cpus(), hint=hint) from None
        return found
