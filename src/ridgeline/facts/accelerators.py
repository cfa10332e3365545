"""Accelerators of `data/accelerators.tsv`, found by any of their names, with rates that others measured on them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache, lru_cache
from types import MappingProxyType
from typing import Any

from ridgeline.errors import UnknownNameError
from ridgeline.facts import store
from ridgeline.facts.records import SPARSE, Accelerator, Evidence, Fact

GIB = 2.0**30
_PEAK = "peak_flop_per_s."
_PEAKS = (
    *("fp64_tflops", "fp32_tflops", "tf32_tflops", "fp16_tflops", "bf16_tflops", "fp8_tflops"),
    *("int8_tops", "int4_tops", "fp4_tflops"),
)
_SKIPPING = ("tf32", "fp16", "bf16", "fp8", "int8", "int4")  # formats whose units skip two zeros of four
_COLUMNS = {
    **{column: (f"{_PEAK}{column.partition('_')[0]}", "FLOP/s", 1e12) for column in _PEAKS},
    "vector_tflops": ("vector_flop_per_s", "FLOP/s", 1e12),
    "mem_gb": ("memory_nominal_bytes", "byte", 1e9),
    "usable_gib": ("memory_bytes", "byte", GIB),
    "mem_bw_gbs": ("memory_bytes_per_s", "byte/s", 1e9),
    "l2_mb": ("l2_bytes", "byte", 2.0**20),
    "sm_count": ("sm_count", "1", 1.0),
    "boost_mhz": ("boost_hz", "Hz", 1e6),
    "link_gbs": ("link_bytes_per_s", "byte/s", 1e9),
    "host_gbs": ("host_bytes_per_s", "byte/s", 1e9),
    "tdp_w": ("tdp_w", "W", 1.0),
    "year": ("year", "1", 1.0),
}
"""Column of the table -> name of the fact, SI unit, factor."""

Key = tuple[str, ...]
_WORD = re.compile(r"[a-z0-9]+")
_RULES = (
    (re.compile(r"\b(rtx|gtx|rx)(?=\d)"), r"\1 "),  # rtx4090 -> rtx 4090
    (re.compile(r"(?<=\d)(ti|super|laptop|xtx|xt)\b"), r" \1"),  # 3080ti -> 3080 ti
    (re.compile(r"\bsxm\d\b"), "sxm"),  # sxm2 .. sxm6 -> sxm
    (re.compile(r"\b(titan|quadro)(?=[a-z])"), r"\1 "),  # titanrtx -> titan rtx
    (re.compile(r"(\d+) ?g(?:i?b)?\b"), r"\1gb"),  # 80 GB, 80GiB, 80G -> 80gb
)
_SILENT = frozenset(
    (
        *("nvidia", "amd", "intel", "google", "aws", "huawei", "habana", "geforce", "tesla", "quadro", "radeon"),
        *("instinct", "gpu", "gpus", "tensor", "core", "graphics", "generation", "edition", "gaming", "gen4", "gen5"),
        *("tm", "r", "g", "gb", "gib"),  # a unit without its number says nothing
    )
)
_MEMORY = re.compile(r"^(?:(\d+)gb|hbm\d?e?|gddr\dx?|g)$")


@lru_cache(maxsize=4096)
def name_key(text: str) -> Key:
    """The words of a name that tell machines apart, in sorted order.

    Case, punctuation, order, vendor words and the SXM revision do not matter.

    >>> name_key("NVIDIA A100-SXM4-80GB") == name_key("a100 80 GB sxm")
    True
    """
    folded, before = " ".join(_WORD.findall(text.casefold())), ""
    while folded != before:  # a rule may make room for one above it
        before = folded
        for pattern, replacement in _RULES:
            folded = pattern.sub(replacement, folded)
    words = folded.split()
    return tuple(sorted({word for word in words if word not in _SILENT} or set(words)))


def split_memory(words: Key) -> tuple[Key, float | None]:
    """The words without memory size and type, and the size [GB] if one was named."""
    size = None
    rest = []
    for word in words:
        found = _MEMORY.match(word)
        if found is None:
            rest.append(word)
        elif found[1]:
            size = float(found[1])
    return tuple(rest), size


@cache
def _rows() -> Mapping[str, store.TableRow]:
    return {row["name"]: row for row in store.read_tsv("accelerators.tsv")}


def _spellings() -> list[tuple[str, str]]:
    """All names, then all aliases, each with its canonical name: a name beats an alias, an earlier row a later one."""
    aliases = [(alias, name) for name, row in _rows().items() for alias in store.listed(row["aliases"])]
    return [*((name, name) for name in _rows()), *aliases]


@cache
def _index() -> Mapping[Key, str]:
    return {name_key(word): name for word, name in reversed(_spellings())}


@cache
def _exact() -> Mapping[str, str]:
    """Names and aliases as they stand: the fast way in, before any word is taken apart."""
    return {word.casefold(): name for word, name in reversed(_spellings())}


@cache
def accelerator_names() -> tuple[str, ...]:
    """Canonical names of all accelerators, in table order."""
    return tuple(_rows())


def canonical(name: str) -> str | None:
    """The table's name for `name`, None when no accelerator is meant.

    A memory size or type that the catalog does not list is dropped if the device has that size
    within 10% ('RTX 3090 24GB').
    """
    found = _exact().get(name.strip().casefold())
    if found is not None:
        return found
    words = name_key(name)
    found = _index().get(words)
    if found is not None:
        return found
    bare, size_gb = split_memory(words)
    found = _index().get(bare) if bare != words else None
    if found is not None and (size_gb is None or _holds(found, size_gb)):
        return found
    meant = meant_by(name)
    return meant[0] if len(meant) == 1 else None


def _holds(name: str, size_gb: float) -> bool:
    return abs(size_gb / float(_rows()[name]["mem_gb"]) - 1) <= 0.1


@lru_cache(maxsize=4096)
def meant_by(name: str) -> tuple[str, ...]:
    """Accelerators of which a name says some of the words, and nothing else; more than one is a question.

    A word of three characters must have a digit, and a size of memory must be the device's own.

    >>> meant_by("6000 ada")
    ('RTX-6000-Ada',)
    """
    bare, size_gb = split_memory(name_key(name))
    words = {word.removesuffix("s") if word.removesuffix("s")[-1:].isdigit() else word for word in bare}
    if not any(len(word) > 2 and any(map(str.isdigit, word)) for word in words):
        return ()
    whole = [found for key, found in _index().items() if set(key) == words]
    near = [one for one in whole if size_gb is None or _holds(one, size_gb)] or [
        found for key, found in _index().items() if words < set(key)
    ]
    return tuple(one for one in dict.fromkeys(near) if size_gb is None or _holds(one, size_gb))


@cache
def accelerators() -> Mapping[str, Accelerator]:
    """All accelerators by canonical name."""
    return MappingProxyType({name: _build(name) for name in accelerator_names()})


def accelerator(name: str) -> Accelerator:
    """The accelerator of that name; case, punctuation, word order and vendor words do not matter.

    >>> accelerator("NVIDIA A100-SXM4-80GB").name
    'A100-SXM-80GB'
    """
    found = canonical(name)
    if found is None:
        known = [word for word, _ in _spellings()]
        raise UnknownNameError("accelerator", name, known, hint="`ridgeline catalog accelerators` shows all")
    return _build(found)


def price_keys(name: str) -> tuple[str, ...]:
    """Names under which `data/prices.tsv` lists an accelerator."""
    return store.listed(_rows()[name]["price_key"])


@cache
def _build(name: str) -> Accelerator:
    row = _rows()[name]
    facts = _facts(row)
    return accelerator_of(facts, row, sustained=_sustained(name, facts), link_name=row["link_name"] or None)


def accelerator_of(
    facts: Mapping[str, Fact], texts: Mapping[str, str], *, sustained: Mapping[str, Fact], link_name: str | None
) -> Accelerator:
    """The device of these facts, each named after its field; `texts` has its name, vendor, architecture and notes."""
    values = {name: fact.value for name, fact in facts.items()}
    peaks = {name.removeprefix(_PEAK): rate for name, rate in values.items() if name.startswith(_PEAK)}
    own: dict[str, Any] = {name: texts[name] for name in ("name", "vendor", "architecture", "notes")}
    own |= {name: values[name] for name in ("vector_flop_per_s", "memory_bytes", "memory_bytes_per_s")}
    for name in ("l2_bytes", "boost_hz", "link_bytes_per_s", "host_bytes_per_s", "tdp_w", "year", "sm_count"):
        own[name] = values.get(name)
    for name in ("year", "sm_count"):
        own[name] = None if own[name] is None else int(own[name])
    return Accelerator(
        **own,
        peak_flop_per_s=MappingProxyType(peaks),
        memory_type=texts.get("mem_type", ""),
        link_name=link_name,
        sustained=sustained,
        facts=facts,
    )


def _facts(row: store.TableRow) -> Mapping[str, Fact]:
    """Every number of a row with its source; of those that the table leaves out, vector rate and usable memory."""
    exceptions = _exceptions(row)
    facts = {}
    for column, (name, unit, scale) in _COLUMNS.items():
        value = store.number(row, column)
        if value is not None:
            dense = column in _PEAKS and row["sparsity_factor"] != "1"
            known = exceptions.get(column, {"conditions": "dense" if dense else "nominal", "evidence": "datasheet"})
            facts[name] = store.fact(value * scale, unit, row, **known)
    _add_sparse(facts, store.number(row, "sparsity_factor") or 1.0)
    if "vector_flop_per_s" not in facts:
        facts["vector_flop_per_s"] = facts["peak_flop_per_s.fp32"]
    if "memory_bytes" not in facts:
        facts["memory_bytes"] = _usable(facts["memory_nominal_bytes"], row["vendor"])
    return MappingProxyType(facts)


def _add_sparse(facts: dict[str, Fact], factor: float) -> None:
    """Add the rates of products that skip two zeros of four, `factor` times the dense ones, where units do that."""
    for form in _SKIPPING if factor > 1.0 else ():
        dense = facts.get(f"{_PEAK}{form}")
        if dense is not None:
            told = f"{factor:g} x the dense rate, skipped zeros counted"
            facts[f"{_PEAK}{form}{SPARSE}"] = replace(dense, value=factor * dense.value, conditions=told)


def _exceptions(row: store.TableRow) -> dict[str, dict[str, str]]:
    """Source, rung and conditions of the columns that a row's own are not those of."""
    found = {}
    for part in store.listed(row["exceptions"], " ;; "):
        fields, source, rung, conditions = part.split("|")
        for field in fields.split(","):
            column = next(c for c in (f"{field}_tflops", f"{field}_tops", field) if c in row)
            found[column] = {"source": source, "evidence": rung, "conditions": conditions}
    return found


def _usable(nominal: Fact, vendor: str) -> Fact:
    """Memory that programs can use, of the size sold [byte]: the median share of the vendor's devices that tell."""
    share, devices = _usable_share(vendor)
    if not share:
        return replace(nominal, conditions="as sold")
    text = f"sold size in GiB times {share:.4f}, the median of {devices} of the vendor"
    usable = nominal.value / 1e9 * GIB * share
    return replace(nominal, value=usable, conditions=text, evidence=Evidence.DERIVED)


@cache
def _usable_share(vendor: str) -> tuple[float, str]:
    """Median of usable over sold memory of a vendor's devices [1], and how many there are."""
    own = (row for row in _rows().values() if row["vendor"] == vendor and row["usable_gib"])
    shares = sorted(float(row["usable_gib"]) / float(row["mem_gb"]) for row in own)
    return (shares[len(shares) // 2], f"{len(shares)} devices") if shares else (0.0, "")


@cache
def _measured() -> Mapping[str, Mapping[str, Fact]]:
    table: dict[str, dict[str, Fact]] = {}
    for row in store.read_tsv("sustained.tsv"):
        told = f"{row['shape']}; {row['library']}" + (f"; {row['notes']}" if row["notes"] else "")
        found = store.fact(float(row["value"]) * 1e12, row["unit"], row, conditions=told)
        table.setdefault(row["accelerator"], {})[row["key"]] = found
    return table


def _sustained(name: str, facts: Mapping[str, Fact]) -> Mapping[str, Fact]:
    """Measured rates of a device by key ('matrix.bf16', 'hbm') [FLOP/s or byte/s].

    A device may run above the clock that its datasheet assumes; such a rate is held to the
    datasheet's peak, and its conditions say what was measured.
    """
    found = {}
    for key, fact in _measured().get(name, {}).items():
        form = key.rsplit(".", 1)[-1]
        peak = facts.get("memory_bytes_per_s" if key.startswith("hbm") else f"{_PEAK}{form}")
        if peak is not None and fact.value > peak.value:
            told = f"measured {fact.value / 1e12:.4g}e12, held to the datasheet's {peak.value / 1e12:.4g}e12"
            fact = replace(fact, value=peak.value, conditions=f"{fact.conditions}; {told}")
        found[key] = fact
    return MappingProxyType(found)
