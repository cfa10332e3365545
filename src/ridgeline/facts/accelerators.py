"""Accelerators of `data/accelerators.tsv`, found by any of their names."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

from ridgeline.errors import UnknownNameError
from ridgeline.facts import naming, rows, store
from ridgeline.facts.records import Accelerator, Evidence, Fact
from ridgeline.facts.sustained import sustained_facts

FILE = "data/accelerators.tsv"
GIB = 2.0**30
# Peak column of the table -> number format.
PEAKS = {
    "fp64_tflops": "fp64",
    "fp32_tflops": "fp32",
    "tf32_tflops": "tf32",
    "fp16_tflops": "fp16",
    "bf16_tflops": "bf16",
    "fp8_tflops": "fp8",
    "int8_tops": "int8",
    "fp4_tflops": "fp4",
}
# Other columns -> (name of the fact, SI unit, factor).
_COLUMNS = {
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


@cache
def _rows() -> Mapping[str, dict[str, str]]:
    return {row["name"]: row for row in store.read_tsv("accelerators.tsv")}


@cache
def _index() -> Mapping[naming.Key, str]:
    return naming.index((name, rows.names(row["aliases"])) for name, row in _rows().items())


@cache
def _exact() -> Mapping[str, str]:
    """Names and aliases as they stand: the fast way in, before any word is taken apart."""
    table = {name.casefold(): name for name in _rows()}
    for name, row in _rows().items():
        for alias in rows.names(row["aliases"]):
            table.setdefault(alias.casefold(), name)
    return table


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
    words = naming.key(name)
    found = _index().get(words)
    if found is not None:
        return found
    bare, size_gb = naming.split_memory(words)
    found = _index().get(bare) if bare != words else None
    if found is None or size_gb is None:
        return found
    return found if abs(size_gb / float(_rows()[found]["mem_gb"]) - 1) <= 0.1 else None


def accelerator(name: str) -> Accelerator:
    """The accelerator of that name; case, punctuation, word order and vendor words do not matter.

    >>> accelerator("NVIDIA A100-SXM4-80GB").name
    'A100-SXM-80GB'
    """
    found = canonical(name)
    if found is None:
        known = [*accelerator_names(), *(alias for row in _rows().values() for alias in rows.names(row["aliases"]))]
        raise UnknownNameError("accelerator", name, known, hint="`ridgeline catalog accelerators` shows all")
    return _build(found)


@cache
def accelerators() -> Mapping[str, Accelerator]:
    """All accelerators by canonical name."""
    return MappingProxyType({name: _build(name) for name in accelerator_names()})


def price_keys(name: str) -> tuple[str, ...]:
    """Names under which `data/prices.tsv` lists an accelerator."""
    return rows.names(_rows()[name]["price_key"])


def peak_facts(name: str) -> dict[str, Fact]:
    """Datasheet matrix rates by number format [FLOP/s]."""
    facts = _facts(name)
    return {fmt: facts[f"peak_flop_per_s.{fmt}"] for fmt in PEAKS.values() if f"peak_flop_per_s.{fmt}" in facts}


@cache
def _facts(name: str) -> Mapping[str, Fact]:
    row = _rows()[name]
    exceptions = _exceptions(row)
    default = (row["source"], "dense" if row["sparsity_factor"] != "1" else "nominal", "datasheet")
    facts = {}
    for column in (*PEAKS, *_COLUMNS):
        value = rows.number(row, column)
        if value is None:
            continue
        source, conditions, rung = exceptions.get(column, default)
        if column in PEAKS:
            fact_name, unit, scale = f"peak_flop_per_s.{PEAKS[column]}", "FLOP/s", 1e12
        else:
            fact_name, unit, scale = _COLUMNS[column]
            conditions = conditions if column in exceptions else "nominal"
        facts[fact_name] = rows.fact(value * scale, unit, source, conditions, rung, file=FILE)
    return MappingProxyType(facts | _completed(facts, name))


def _exceptions(row: Mapping[str, str]) -> dict[str, tuple[str, str, str]]:
    found = {}
    for part in rows.names(row["exceptions"], " ;; "):
        fields, source, rung, conditions = part.split("|")
        for field in fields.split(","):
            column = next(c for c in (f"{field}_tflops", f"{field}_tops", field) if c in row)
            found[column] = (source, conditions, rung)
    return found


def _completed(facts: Mapping[str, Fact], name: str) -> dict[str, Fact]:
    """The required facts that the table leaves to a rule: vector rate and usable memory."""
    more = {}
    if "vector_flop_per_s" not in facts:
        more["vector_flop_per_s"] = facts["peak_flop_per_s.fp32"]
    if "memory_bytes" not in facts:
        nominal = facts["memory_nominal_bytes"]
        share, devices = _usable_share(_rows()[name]["vendor"])
        gib = nominal.value / 1e9 * GIB
        more["memory_bytes"] = Fact(
            value=gib * share if share else nominal.value,
            unit="byte",
            source=nominal.source,
            conditions=f"sold size in GiB times {share:.4f}, the median of {devices} of the vendor"
            if share
            else "as sold",
            evidence=Evidence.DERIVED if share else nominal.evidence,
        )
    return more


@cache
def _usable_share(vendor: str) -> tuple[float, str]:
    """Median of usable over sold memory of a vendor's devices [1], and how many there are."""
    shares = sorted(
        float(row["usable_gib"]) / float(row["mem_gb"])
        for row in _rows().values()
        if row["vendor"] == vendor and row["usable_gib"]
    )
    return (shares[len(shares) // 2], f"{len(shares)} devices") if shares else (0.0, "")


@cache
def _build(name: str) -> Accelerator:
    row = _rows()[name]
    facts = _facts(name)

    def value(fact_name: str) -> float | None:
        return facts[fact_name].value if fact_name in facts else None

    year, sm_count = value("year"), value("sm_count")
    return Accelerator(
        name=name,
        vendor=row["vendor"],
        architecture=row["architecture"],
        year=None if year is None else int(year),
        peak_flop_per_s=MappingProxyType({fmt: fact.value for fmt, fact in peak_facts(name).items()}),
        vector_flop_per_s=facts["vector_flop_per_s"].value,
        memory_bytes=facts["memory_bytes"].value,
        memory_bytes_per_s=facts["memory_bytes_per_s"].value,
        l2_bytes=value("l2_bytes"),
        sm_count=None if sm_count is None else int(sm_count),
        boost_hz=value("boost_hz"),
        memory_type=row["mem_type"],
        link_name=row["link_name"] or None,
        link_bytes_per_s=value("link_bytes_per_s"),
        host_bytes_per_s=value("host_bytes_per_s"),
        tdp_w=value("tdp_w"),
        sustained=sustained_facts(name, peak_facts(name), facts["memory_bytes_per_s"]),
        facts=facts,
        notes=row["notes"],
    )
