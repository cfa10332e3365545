"""A socket of `data/cpus.tsv` as the device that a model runs on: its memory, sustained rates and peaks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from ridgeline.errors import ClusterError, UnknownNameError
from ridgeline.facts.accelerators import accelerator_of
from ridgeline.facts.cpus import Cpu, cpu, cpu_constants
from ridgeline.facts.described_cpus import described_cpu, family_of, told_of
from ridgeline.facts.records import OWN_HOST, Accelerator, Evidence, Fact

_SIZE = re.compile(r"^(.*?)[\s-]+(\d+)\s*GB$", re.IGNORECASE)
_MODULE_BYTES = 64e9  # of one DDR module a channel (assumed)
_LINK_BYTES_PER_S = 60e9  # between two sockets, one way (assumed: three links of 16 to 32 GT/s)
_SYSTEM = 0.03  # of the memory, of the operating system and its caches (assumed)


def processor_device(words: str) -> Accelerator | None:
    """The socket that `words` name as a device, None where they name none: 'epyc-9654', 'epyc-9654-768gb'.

    Without a size a channel of DDR has one module of 64 GB, which is assumed; raises `ClusterError` for other memory.
    """
    sized = _SIZE.match(words.strip())
    for find in (_named, _described):
        found = find(words)
        if found is not None:
            return _device(found, None)
        found = None if sized is None else find(sized[1])
        if found is not None and sized is not None:
            return _device(found, float(sized[2]) * 1e9)
    return None


def _named(words: str) -> Cpu | None:
    for spelling in (words, words.strip().replace(" ", "-"), words.strip().replace("-", " ")):
        try:
            return cpu(spelling)
        except UnknownNameError:
            continue
    return None


def _described(words: str) -> Cpu | None:
    """A socket that is said to have cores and memory, or whose family is known by its name."""
    if _SIZE.match(words.strip()):
        return None
    told = told_of(words)
    described = told.cores is not None and bool(told.memory or told.mem_gbs)
    family = family_of(words.replace("-", " "))
    alone = family is not None and not family["conditions"].startswith("beside a GPU")  # whose name means that device
    return described_cpu(words) if described or alone else None


def _device(one: Cpu, size_bytes: float | None) -> Accelerator:
    low_power = one.memory_type.startswith("LP")
    if size_bytes is None and low_power:
        raise ClusterError(f"'{one.name}' comes with several sizes of memory; say which, e.g. {one.name}-16gb")
    told = "as said" if size_bytes is not None else f"one module of 64 GB in each of {one.channels} channels"
    rung = Evidence.DATASHEET if size_bytes is not None else Evidence.ASSUMED
    nominal = size_bytes or one.channels * _MODULE_BYTES
    memory = Fact(value=nominal, unit="byte", source=one.memory.source, conditions=told, evidence=rung)
    usable = replace(memory, value=nominal * (1 - _SYSTEM), evidence=Evidence.ASSUMED, conditions=f"{told}, less 3 %")
    peak = {**one.peak, "bf16": one.peak.get("bf16", one.peak["fp32"]), "fp16": one.peak["fp32"]}
    joined = "links between two sockets"
    link = replace(memory, value=_LINK_BYTES_PER_S, unit="byte/s", evidence=Evidence.ASSUMED, conditions=joined)
    facts = {f"peak_flop_per_s.{name}": fact for name, fact in peak.items()} | {
        "vector_flop_per_s": one.peak["fp32"], "memory_bytes": usable, "memory_nominal_bytes": memory,
        "memory_bytes_per_s": one.memory, "link_bytes_per_s": link,
        "year": replace(memory, value=float(one.year), unit="1", conditions="launched", evidence=Evidence.DATASHEET),
        "sm_count": replace(memory, value=float(one.cores), unit="1", conditions="cores", evidence=Evidence.DATASHEET),
        "boost_hz": replace(memory, value=one.clock_hz, unit="Hz", conditions="all cores", evidence=Evidence.DATASHEET),
    }  # fmt: skip
    texts = {
        "name": one.name, "vendor": one.vendor, "architecture": OWN_HOST, "mem_type": one.memory_type,
        "notes": one.assumed
        or "a processor; products in fp16, and in bf16 where it has no such instruction, run on fp32 units",
    }  # fmt: skip
    return accelerator_of(facts, texts, sustained=_sustained(one, peak, low_power), link_name="processor link")


def _sustained(one: Cpu, peak: Mapping[str, Fact], low_power: bool) -> dict[str, Fact]:
    """What memory and products reach in practice, by the constants of `data/cpu_mechanisms.tsv`."""
    constants = cpu_constants()
    stream, read = constants["stream.lpddr" if low_power else "stream.ddr"], constants["read.share"]
    core = constants["core.bytes_per_s"]
    rate = min(one.memory.value * stream.value * read.value, one.cores * core.value)
    told = f"{stream.value:g} of the wire rate x {read.value:g}, at most {core.value:g} byte/s a core"
    told += f"; {one.assumed.replace(':', ',')}" if one.assumed else ""
    rung = Evidence.ASSUMED if one.assumed else Evidence.DERIVED
    hbm = replace(stream, value=rate, unit="byte/s", conditions=told, evidence=rung)
    found = {"hbm": hbm}
    tiles = peak["bf16"].value > 8.0 * peak["fp32"].value  # AMX
    native = "bf16" in one.peak
    shares = {
        "fp32": "product.vector", "fp16": "product.vector",
        "bf16": "product.amx.bf16" if tiles else "product.vector.bf16" if native else "product.vector",
    } | ({"int8": "product.amx.int8"} if tiles else {})  # fmt: skip
    for name, key in shares.items():
        fact = constants[key]
        told = f"{fact.value:g} of the peak ({key}: {fact.conditions})"
        found[f"matrix.{name}"] = replace(
            fact, value=peak[name].value * fact.value, unit="FLOP/s", conditions=told, evidence=rung
        )
    return found
