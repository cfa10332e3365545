"""A profile out of rows: the device's rates, its host, the tier between local ranks, fits, and how noisy it was."""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from ridgeline.calibrate.here.devices import Found
from ridgeline.calibrate.here.fitting import FEW_ROWS, fit_rows, has_scipy, rows_of
from ridgeline.cost.machine import link_efficiency, machine
from ridgeline.cost.network import group_sizes
from ridgeline.errors import DomainError
from ridgeline.facts.accelerators import accelerator, canonical
from ridgeline.facts.clusters import cluster
from ridgeline.facts.fits import Fit
from ridgeline.facts.mechanisms import constant
from ridgeline.facts.profiles import Measured, Noise, memory_bytes
from ridgeline.facts.records import Accelerator, Cluster, Evidence, Fact, Host, Tier

SOURCE = "ridgeline calibrate"
_RINGS = frozenset({"all_reduce", "all_gather", "reduce_scatter"})  # a send is priced by its link, a broadcast not
_ANY = 2.0**40  # rows of a product without limit
_BEYOND = 2.0  # arrays so many times the cache come from memory
_DISK_BYTES_PER_S = 1e9  # where it was not measured (assumed)
_LOOPBACK_S = 5e-5  # of one hop between local ranks, where it was not measured (assumed)


def accelerator_of(found: Found, rows: Sequence[Measured], *, when: str, tdp_w: float | None = None) -> Accelerator:
    """The device by its measured rates: best and sustained ones by format, memory, and what the system tells."""

    def here(value: float, unit: str, conditions: str) -> Fact:
        return Fact(
            value=value, unit=unit, source=f"{SOURCE} {when}".strip(), conditions=conditions, evidence=Evidence.HERE
        )

    facts: dict[str, Fact] = {}
    sustained: dict[str, Fact] = {}
    by_form: dict[str, list[Measured]] = {}
    for row in rows:
        if row.kind in ("gemm", "reference"):
            by_form.setdefault(row.form, []).append(row)
    for form, some in by_form.items():
        best = max(some, key=lambda row: row.flop / row.best_s)
        steady = max(some, key=lambda row: row.flop / row.seconds)
        facts[f"peak_flop_per_s.{form}"] = here(best.flop / best.best_s, "FLOP/s", f"best repeat, {_shape(best)}")
        sustained[f"matrix.{form}"] = here(
            steady.flop / steady.seconds, "FLOP/s", f"median of {steady.repeats} repeats, {_shape(steady)}"
        )
    streams = _beyond_cache([row for row in rows if row.kind == "stream"], found.cache_bytes)
    if not streams or not by_form:
        raise DomainError("no product or no stream was measured; give a longer --budget")
    best = max(streams, key=lambda row: row.bytes / row.best_s)
    facts["memory_bytes_per_s"] = here(best.bytes / best.best_s, "byte/s", f"best repeat, {best.form} {_shape(best)}")
    steady = max(streams, key=lambda row: row.bytes / row.seconds)
    rate = steady.bytes / steady.seconds
    sustained["hbm"] = here(rate, "byte/s", f"median of {steady.repeats} repeats, {steady.form} {_shape(steady)}")
    passes: dict[tuple[str, float], float] = {}  # of both rounds the one that was disturbed less
    for row in streams:
        if row.form != "read":
            key = (row.form, row.sizes["array_bytes"])
            passes[key] = max(passes.get(key, 0.0), row.bytes / row.seconds)
    written = [one / rate for one in passes.values()]
    share = min(1.0, float(np.median(written))) if written else 1.0
    sustained["stream.share"] = here(share, "1", "copies and triads beyond the cache, median over the sustained rate")
    vector = facts.get("peak_flop_per_s.fp32") or max(
        (fact for name, fact in facts.items() if name.startswith("peak_")), key=lambda fact: fact.value
    )
    facts["vector_flop_per_s"] = vector
    for name, value, unit in (("memory_bytes", found.memory_bytes, "byte"), ("l2_bytes", found.cache_bytes, "byte")):
        facts[name] = here(value, unit, "as the system tells")
    known = accelerator(found.name) if canonical(found.name) and found.kind == "cuda" else None
    links = [row.bytes / row.best_s for row in rows if row.kind == "transfer" and row.form.startswith("h2d")]
    copies = [row.bytes / 2 / row.seconds for row in streams if row.form == "copy"]
    return Accelerator(
        name=found.name,
        vendor=found.vendor,
        architecture=found.architecture,
        year=known.year if known else None,
        peak_flop_per_s={form: facts[f"peak_flop_per_s.{form}"].value for form in by_form},
        vector_flop_per_s=vector.value,
        memory_bytes=found.memory_bytes,
        memory_bytes_per_s=facts["memory_bytes_per_s"].value,
        l2_bytes=found.cache_bytes,
        sm_count=found.units,
        boost_hz=found.clock_hz,
        link_name=known.link_name if known else None,
        link_bytes_per_s=known.link_bytes_per_s if known else None,
        host_bytes_per_s=max(links or copies or [rate / 2]),
        tdp_w=tdp_w or (known.tdp_w if known else None),
        sustained=sustained,
        facts=facts,
        notes="calibrated",
    )


def _shape(row: Measured) -> str:
    return "x".join(f"{size:g}" for size in row.sizes.values())


def _beyond_cache(rows: Sequence[Measured], cache_bytes: float) -> list[Measured]:
    """Streams whose arrays do not fit in the cache; the longest ones where none is so long."""
    found = [row for row in rows if row.sizes["array_bytes"] >= _BEYOND * cache_bytes]
    longest = max((row.sizes["array_bytes"] for row in rows), default=0.0)
    return found or [row for row in rows if row.sizes["array_bytes"] == longest]


def host_of(found: Found, part: Accelerator, rows: Sequence[Measured], folder: Path) -> Host:
    """The host: memory, its rate, the way to the device, the disk under the profile's folder; its power is unknown."""
    reads = [row.bytes / row.seconds for row in rows if row.kind == "disk" and row.form == "read"]
    own = [row.bytes / row.seconds for row in rows if row.kind == "host_stream"]
    return Host(
        devices=found.count,
        dram_bytes=memory_bytes() or found.memory_bytes,
        dram_bytes_per_s=max(own) if own else part.memory_bytes_per_s,
        device_bytes_per_s=part.host_bytes_per_s or part.memory_bytes_per_s,
        nvme_bytes=float(shutil.disk_usage(folder).free),
        nvme_bytes_per_s=reads[0] if reads else _DISK_BYTES_PER_S,
        idle_w=0.0,
        evidence=Evidence.HERE if reads else Evidence.ASSUMED,
    )


def tiers_of(found: Found, part: Accelerator, rows: Sequence[Measured]) -> tuple[Tier, ...]:
    """The tier that joins local ranks: those of the catalog's machine for GPUs it knows, else a shared bus.

    The bus has the rate and the latency with which the closed form of an all-reduce (`cost/network.py`) gives the
    measured times of the largest and the smallest buffer.
    """
    if found.kind == "cuda" and found.count > 1 and canonical(found.name):
        return cluster(f"{found.count}x{found.name}").tiers
    size = max(found.units if found.kind == "cpu" else found.count, 1)
    tier = Tier(name="shared memory", size=size, bytes_per_s=part.memory_bytes_per_s / 2, latency_s=_LOOPBACK_S,
                topology="bus")  # fmt: skip
    reduced = [row for row in rows if row.kind == "collective" and row.note == "all_reduce"]
    if not reduced:
        fact = Fact(value=tier.bytes_per_s, unit="byte/s", source="assumed", evidence=Evidence.ASSUMED,
                    conditions="half of the memory rate: collectives were not measured")  # fmt: skip
        return (replace(tier, fact=fact),)
    count = max(row.sizes["ranks"] for row in reduced)
    some = sorted((row for row in reduced if row.sizes["ranks"] == count), key=lambda row: row.bytes)
    short, long = some[0], some[-1]
    hops = 2 * math.ceil(math.log2(count))
    hop_s = max(1e-7, (short.seconds - constant("collective.start")) / hops)
    streamed = max(long.seconds - short.seconds, 0.1 * long.seconds)
    rate = 2 * (2 * (count - 1) / count * long.bytes / streamed) / link_efficiency(tier).value
    words = f"from all-reduces of {short.bytes:g} and {long.bytes:g} bytes over {count:g} ranks"
    fact = Fact(value=rate, unit="byte/s", source=SOURCE, conditions=words, evidence=Evidence.HERE)
    return (replace(tier, bytes_per_s=rate, latency_s=hop_s, fact=fact),)


def fits_of(
    part: Accelerator,
    host: Host,
    tiers: tuple[Tier, ...],
    rows: Sequence[Measured],
    versions: Mapping[str, str],
    when: str,
    *,
    kernel: str = "",
) -> tuple[tuple[Fit, ...], tuple[str, ...]]:
    """Fits of every family and format with enough rows; and what has none, and why.

    `kernel` is the kind of device, whose kernels have traits of their own. A processor multiplies one row, and few
    rows, by other kernels than many, so these have fits of their own where there are enough rows of them.
    """
    if not has_scipy():
        return (), ("fits: SciPy is not installed, so rates answer alone: pip install 'ridgeline[fit]'",)
    found, left_out = [], []
    groups: dict[tuple[str, str], list[Measured]] = {}
    for row in rows:
        if row.kind in ("gemm", "prefill", "decode") or (row.kind == "collective" and row.note in _RINGS):
            groups.setdefault((row.kind, row.form), []).append(row)
    labels = {"version": versions.get("torch", ""), "source": f"{SOURCE} {when}", "date": when[:10]}
    for (family, form), some in groups.items():
        if family == "collective":
            some = [_on_network(row, part, host, tiers) for row in some]
        domain: dict[str, tuple[float, float, float]] = {}
        for suffix, least, most in FEW_ROWS if (family, kernel) == ("gemm", "cpu") else ():
            few = [row for row in some if least <= row.sizes["m"] <= most]
            if not few:
                continue
            known = rows_of(family, form, few, part, kernel=f"{kernel} {suffix}")
            fit, _ = fit_rows(known, domain={"m": (least, most, 1.0)}, **labels)
            if fit is not None:
                found.append(fit)
                some = [row for row in some if not least <= row.sizes["m"] <= most]
                domain = {"m": (1.0, _ANY, 1.0)}
        fit, why_not = fit_rows(rows_of(family, form, some, part, kernel=kernel), domain=domain, **labels)
        if fit is None:
            left_out.append(why_not)
        else:
            found.append(fit)
    return tuple(found), tuple(left_out)


def _on_network(row: Measured, part: Accelerator, host: Host, tiers: tuple[Tier, ...]) -> Measured:
    """A collective's row with where its group lies; the library's own copies are in its time."""
    ranks = int(row.sizes["ranks"])
    local = Cluster(name="here", accelerator=part, count=ranks, tiers=tiers, host=host)
    where = {name: float(np.asarray(value)) for name, value in group_sizes(machine(local), ranks, 1).items()}
    return replace(row, sizes={**row.sizes, "in_place": 0.0, **where})


def noise_of(rows: Sequence[Measured]) -> Noise:
    """How steady the machine was."""
    spreads = [row.spread for row in rows if row.repeats > 2]
    reference = tuple(row.seconds for row in rows if row.kind == "reference")
    return Noise(
        spread_median=float(np.median(spreads)) if spreads else 0.0,
        spread_p90=float(np.quantile(spreads, 0.9)) if spreads else 0.0,
        drift=max(reference) / min(reference) - 1 if reference else 0.0,
        reference_s=reference,
    )
