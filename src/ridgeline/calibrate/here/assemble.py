"""A profile out of rows: the device's rates, its host, the tier between local ranks, fits, and how noisy it was."""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from ridgeline.calibrate.here.devices import Found
from ridgeline.calibrate.here.fitting import FEW_ROWS, FEWEST, fit_rows, has_scipy, rows_of
from ridgeline.calibrate.here.kernels import TRIAD_BYTES
from ridgeline.cost.machine import link_efficiency, machine
from ridgeline.cost.network import group_sizes
from ridgeline.errors import DomainError
from ridgeline.facts.accelerators import accelerator, canonical
from ridgeline.facts.clusters import cluster
from ridgeline.facts.fits import Fit
from ridgeline.facts.mechanisms import constant
from ridgeline.facts.profiles import BenchmarkRow, Noise, memory_bytes
from ridgeline.facts.records import DISPATCH, DIVIDED, DRIFT, SHARE, Accelerator, Cluster, Evidence, Fact, Host, Tier

SOURCE = "ridgeline calibrate"
_LAUNCHES = {"eager": DISPATCH, "divided": DIVIDED, "divided backward": f"{DIVIDED}.backward"}
_PEAK = "peak_flop_per_s."
_RINGS = frozenset({"all_reduce", "all_gather", "reduce_scatter"})  # a send is priced by its link, a broadcast not
_ANY = 2.0**40  # rows of a product without limit
_BEYOND = 2.0  # arrays so many times the cache come from memory
_DISK_BYTES_PER_S = 1e9  # where it was not measured (assumed)
_LOOPBACK_S = 5e-5  # of one hop between local ranks, where it was not measured (assumed)


def accelerator_of(found: Found, rows: Sequence[BenchmarkRow], *, when: str, tdp_w: float | None = None) -> Accelerator:
    """The device by its measured rates: best and sustained ones by format, memory, and what the system tells."""
    facts, sustained = rates_of(rows, found.cache_bytes, f"{SOURCE} {when}".strip())
    for name, value in (("memory_bytes", found.memory_bytes), ("l2_bytes", found.cache_bytes)):
        facts[name] = _here(value, "byte", SOURCE, "as the system tells")
    peaks = {name.removeprefix(_PEAK): fact.value for name, fact in facts.items() if name.startswith(_PEAK)}
    known = accelerator(found.name) if canonical(found.name) and found.kind == "cuda" else None
    links = [row.bytes / row.best_s for row in rows if row.kind == "transfer" and row.form.startswith("h2d")]
    return Accelerator(
        name=found.name,
        vendor=found.vendor,
        architecture=found.architecture,
        year=known.year if known else None,
        peak_flop_per_s=peaks,
        vector_flop_per_s=facts["vector_flop_per_s"].value,
        memory_bytes=found.memory_bytes,
        memory_bytes_per_s=facts["memory_bytes_per_s"].value,
        l2_bytes=found.cache_bytes,
        sm_count=found.units,
        boost_hz=found.clock_hz,
        link_name=known.link_name if known else None,
        link_bytes_per_s=known.link_bytes_per_s if known else None,
        host_bytes_per_s=max(links) if links else sustained["hbm"].value / 2,  # a copy reads and writes
        tdp_w=tdp_w or (known.tdp_w if known else None),
        sustained=sustained,
        facts=facts,
        notes="calibrated",
    )


def _here(value: float, unit: str, source: str, conditions: str) -> Fact:
    return Fact(value=value, unit=unit, source=source, conditions=conditions, evidence=Evidence.HERE)


def rates_of(rows: Sequence[BenchmarkRow], cache_bytes: float, source: str) -> tuple[dict[str, Fact], dict[str, Fact]]:
    """Peaks by their names in `Accelerator.facts`, and sustained rates: best repeats, and best medians."""

    def here(row: BenchmarkRow, seconds: float, unit: str, words: str) -> Fact:
        work = row.flop if unit == "FLOP/s" else row.bytes
        shape = "x".join(f"{size:g}" for size in row.sizes.values())
        return _here(work / seconds, unit, source, f"{words}, {row.form} {shape}")

    facts: dict[str, Fact] = {}
    sustained: dict[str, Fact] = {}
    products = [row for row in rows if row.kind in ("gemm", "reference")]
    streams = _beyond_cache([row for row in rows if row.kind == "stream"], cache_bytes)
    if not streams or not products:
        raise DomainError("no product or no stream was measured; give a longer --budget")
    for form in dict.fromkeys(row.form for row in products):
        some = [row for row in products if row.form == form]
        best = max(some, key=lambda row: row.flop / row.best_s)
        steady = max(some, key=lambda row: row.flop / row.seconds)
        facts[_PEAK + form] = here(best, best.best_s, "FLOP/s", "best repeat")
        sustained[f"matrix.{form}"] = here(steady, steady.seconds, "FLOP/s", f"median of {steady.repeats} repeats")
    best = max(streams, key=lambda row: row.bytes / row.best_s)
    steady = max(streams, key=lambda row: row.bytes / row.seconds)
    facts["memory_bytes_per_s"] = here(best, best.best_s, "byte/s", "best repeat")
    sustained["hbm"] = here(steady, steady.seconds, "byte/s", f"median of {steady.repeats} repeats")
    written = _written_share(streams, sustained["hbm"].value)
    told = "copies and triads beyond the cache, median over the sustained rate"
    sustained["stream.share"] = _here(written, "1", source, told)
    for row in rows:
        name = _LAUNCHES.get(row.form) if row.kind == "launch" else None
        if name is not None:
            words = f"{row.sizes['kernels']:.0f} tiny kernels issued one by one" if name == DISPATCH else row.form
            sustained[name] = _here(row.seconds, "s", source, f"of {words}")
    reference = [row.seconds for row in rows if row.kind == "reference"]
    if reference:
        told = f"longest over shortest of {len(reference)} times of one product"
        sustained[DRIFT] = _here(max(reference) / min(reference), "1", source, told)
    sustained |= _shares(rows, source)
    fastest = max((name for name in facts if name.startswith(_PEAK)), key=lambda name: facts[name].value)
    facts["vector_flop_per_s"] = facts.get(f"{_PEAK}fp32", facts[fastest])
    return facts, sustained


def _shares(rows: Sequence[BenchmarkRow], source: str) -> dict[str, Fact]:
    """What one of several ranks that compute at once gets of the rates of the whole processor, by ranks [1]."""
    found: dict[str, Fact] = {}
    for name, kind, form in (("product", "reference", "fp32"), ("triad", "stream", "triad")):
        whole = [row for row in rows if row.kind == kind and row.form == form]
        if kind == "stream":
            whole = [row for row in whole if row.sizes["array_bytes"] == TRIAD_BYTES]
        alone = [(row.flop or row.bytes) / row.seconds for row in whole]
        for row in rows:
            if row.kind == "together" and row.form == name and alone:
                share = (row.flop or row.bytes) / row.seconds / float(np.median(alone))
                told = f"{row.sizes['ranks']:.0f} ranks at once, over the processor alone"
                found[f"{SHARE}.{name}.{row.sizes['ranks']:.0f}"] = _here(min(1.0, share), "1", source, told)
    return found


def _written_share(streams: Sequence[BenchmarkRow], rate: float) -> float:
    """Median rate of streams that write, over the sustained rate [1]; of both rounds the one disturbed less."""
    passes: dict[tuple[str, float], float] = {}
    for row in streams:
        if row.form != "read":
            key = (row.form, row.sizes["array_bytes"])
            passes[key] = max(passes.get(key, 0.0), row.bytes / row.seconds)
    return min(1.0, float(np.median(list(passes.values()))) / rate) if passes else 1.0


def _beyond_cache(rows: Sequence[BenchmarkRow], cache_bytes: float) -> list[BenchmarkRow]:
    """Streams whose arrays do not fit in the cache; the longest ones where none is so long."""
    found = [row for row in rows if row.sizes["array_bytes"] >= _BEYOND * cache_bytes]
    longest = max((row.sizes["array_bytes"] for row in rows), default=0.0)
    return found or [row for row in rows if row.sizes["array_bytes"] == longest]


def host_of(found: Found, part: Accelerator, rows: Sequence[BenchmarkRow], folder: Path) -> Host:
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


def tiers_of(found: Found, part: Accelerator, rows: Sequence[BenchmarkRow], *, by: str = "send") -> tuple[Tier, ...]:
    """The tier that joins local ranks: those of the catalog's machine for GPUs it knows, else a shared bus.

    The bus has the rate and the latency with which the closed form (`cost/network.py`) of the collective `by` gives
    the measured times of its largest and its smallest buffer: of a send, where all others have a fit of their own,
    else of an all-reduce, whose additions are then in the rate.
    """
    if found.kind == "cuda" and found.count > 1 and canonical(found.name):
        return cluster(f"{found.count}x{found.name}").tiers
    size = max(found.units if found.kind == "cpu" else found.count, 1)
    tier = Tier(name="shared memory", size=size, bytes_per_s=part.memory_bytes_per_s / 2, latency_s=_LOOPBACK_S,
                topology="bus")  # fmt: skip
    seen = [row for row in rows if row.kind == "collective" and row.note == by]
    if not seen:
        fact = Fact(value=tier.bytes_per_s, unit="byte/s", source="assumed", evidence=Evidence.ASSUMED,
                    conditions="half of the memory rate: collectives were not measured")  # fmt: skip
        return (replace(tier, fact=fact),)
    count = max(row.sizes["ranks"] for row in seen)
    some = sorted((row for row in seen if row.sizes["ranks"] == count), key=lambda row: row.bytes)
    short, long = some[0], some[-1]
    sent = by == "send"
    hops = 1 if sent else 2 * math.ceil(math.log2(count))
    share = 1.0 if sent else 2 * (count - 1) / count
    hop_s = max(1e-7, (short.seconds - (0.0 if sent else constant("collective.start"))) / hops)
    streamed = max(long.seconds - short.seconds, 0.1 * long.seconds)
    rate = 2 * (share * long.bytes / streamed) / link_efficiency(tier).value
    words = f"from {by.replace('_', '-')}s of {short.bytes:g} and {long.bytes:g} bytes over {count:g} ranks"
    fact = Fact(value=rate, unit="byte/s", source=SOURCE, conditions=words, evidence=Evidence.HERE)
    return (replace(tier, bytes_per_s=rate, latency_s=hop_s, fact=fact),)


def fits_of(
    part: Accelerator,
    host: Host,
    tiers: tuple[Tier, ...],
    rows: Sequence[BenchmarkRow],
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
    groups: dict[tuple[str, str], list[BenchmarkRow]] = {}
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
            if not few or (suffix == "some" and len(some) - len(few) < FEWEST):
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


def _on_network(row: BenchmarkRow, part: Accelerator, host: Host, tiers: tuple[Tier, ...]) -> BenchmarkRow:
    """A collective's row with where its group lies, and whether its result replaces what it was given."""
    ranks = int(row.sizes["ranks"])
    local = Cluster(name="here", accelerator=part, count=ranks, tiers=tiers, host=host)
    where = {name: float(np.asarray(value)) for name, value in group_sizes(machine(local), ranks, 1).items()}
    in_place = float(row.note == "all_reduce")
    return replace(row, sizes={**row.sizes, "in_place": in_place, **where})


def noise_of(rows: Sequence[BenchmarkRow]) -> Noise:
    """How steady the machine was."""
    spreads = [row.spread for row in rows if row.repeats > 2]
    reference = tuple(row.seconds for row in rows if row.kind == "reference")
    return Noise(
        spread_median=float(np.median(spreads)) if spreads else 0.0,
        spread_p90=float(np.quantile(spreads, 0.9)) if spreads else 0.0,
        drift=max(reference) / min(reference) - 1 if reference else 0.0,
        reference_s=reference,
    )
