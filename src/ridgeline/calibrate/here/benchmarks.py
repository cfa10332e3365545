"""The benchmarks of a machine, each within its share of the time: what it measures, and what it leaves out and why."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ridgeline.calibrate.here import calls, host, ranks
from ridgeline.calibrate.here.assemble import accelerator_of
from ridgeline.calibrate.here.devices import Found
from ridgeline.calibrate.here.fitting import least_certain
from ridgeline.calibrate.here.kernels import (
    PRODUCT,
    Call,
    KernelClock,
    Kernels,
    Sizes,
    attention_work,
    measured,
    more_attention,
    more_products,
    products,
    prompts,
    steps,
    streams,
)
from ridgeline.cost.formats import form as form_of
from ridgeline.facts.profiles import BenchmarkRow

FORMS = ("fp32", "bf16", "fp16", "int8", "fp8")
ADAPTIVE = 12  # shapes of each family and format that are chosen by what is known so far
_LONGEST = 0.3  # of a benchmark's share, that one shape may take by what is known
_START_S = 5.0  # of local ranks, importing torch
_CACHE_SHARE = 64  # of the memory, what copies that leave the cache may take for each format, twice
_SHORTEST_S = 8.0  # share below which collectives are left out
_CALLS = {"fp32": 12.0, "bf16": 6.0}  # weights of what training steps on a processor are made of
_SCALES = {"cuda": 4}  # squares grow by it, batches of attention too

Found_ = tuple[list[BenchmarkRow], list[str]]


@dataclass(kw_only=True)
class LocalBench:
    """What every benchmark is given: torch, the device, its clock and kernels, the folder, and the rows so far."""

    torch: Any
    found: Found
    folder: Path
    rows: list[BenchmarkRow] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.clock = KernelClock(kind=self.found.kind, torch=self.torch)
        cache_bytes = min(self.found.cache_bytes, self.found.memory_bytes / _CACHE_SHARE)
        self.kernels = Kernels(torch=self.torch, device=self.found.kind, cache_bytes=cache_bytes)
        self.scale = _SCALES.get(self.found.kind, 1)


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """A named benchmark, its weight in the division of time, and how it is run within so many seconds."""

    name: str
    weight: float
    run: Callable[[LocalBench, float], Found_]


def benchmarks(found: Found) -> list[Benchmark]:
    """The benchmarks of a kind of device, in order; the reference kernel stands first, in the middle and last."""
    weights = {"fp32": 8.0, "bf16": 8.0, "fp16": 3.0, "int8": 3.0, "fp8": 3.0}
    products = [Benchmark(name=f"gemm {form}", weight=weights[form], run=_products(form)) for form in FORMS]
    attention = [Benchmark(name=kind, weight=9.0, run=_attention(kind)) for kind in ("prefill", "decode")]
    processor = [
        Benchmark(name="prefill fp32", weight=4.0, run=_attention("prefill", "fp32")),
        *(Benchmark(name=f"calls {form}", weight=weight, run=_calls(form)) for form, weight in _CALLS.items()),
    ]
    gpu = [Benchmark(name="transfers", weight=4.0, run=_transfers)] if found.kind == "cuda" else []
    return [
        Benchmark(name="reference before", weight=1.0, run=_reference),
        Benchmark(name="streams", weight=4.0, run=_streams),
        *products,
        Benchmark(name="reference middle", weight=1.0, run=_reference),
        *attention,
        *(processor if found.kind == "cpu" else []),
        Benchmark(name="streams again", weight=3.0, run=_streams),
        Benchmark(name="launches", weight=1.0, run=_launches),
        *gpu,
        Benchmark(name="collectives", weight=25.0 if found.kind == "cpu" else 15.0, run=_collectives),
        Benchmark(name="disk", weight=3.0, run=lambda bench, share_s: host.disk(bench.folder, share_s)),
        Benchmark(name="reference after", weight=1.0, run=_reference),
    ]


def _reference(bench: LocalBench, share_s: float) -> Found_:
    flop = 2 * PRODUCT["m"] * PRODUCT["n"] * PRODUCT["k"]
    times = bench.clock.repeats(bench.kernels.product("fp32", PRODUCT), share_s)
    return [measured("reference", "fp32", PRODUCT, times, flop=flop)], []


def _streams(bench: LocalBench, share_s: float) -> Found_:
    end = time.perf_counter() + share_s
    rows: list[BenchmarkRow] = []
    names = ("triad", "copy", "read")
    sizes = streams(bench.found.cache_bytes, bench.found.memory_bytes)
    for size in sizes:
        for name in names:
            if len(rows) >= len(names) and time.perf_counter() > end:
                return rows, [f"streams: {len(sizes) * len(names) - len(rows)} sizes, no time left"]
            call, moved = bench.kernels.stream(name, size)
            times = bench.clock.repeats(call, share_s / (len(sizes) * len(names)))
            rows.append(measured("stream", name, {"array_bytes": size}, times, moved=moved))
    return rows, []


def _products(form: str) -> Callable[[LocalBench, float], Found_]:
    what = form_of(form)

    def work(sizes: Sizes) -> tuple[float, float]:
        m, n, k = (sizes[name] for name in "mnk")
        return 2 * m * n * k, m * k * what.input_bytes + n * k * what.weight_bytes + m * n * what.output_bytes

    def run(bench: LocalBench, share_s: float) -> Found_:
        more = more_products(seed=FORMS.index(form), scale=bench.scale)
        plan = products(bench.scale)
        if form in ("int8", "fp8"):  # kernels of narrow formats take more than 16 rows, in steps
            plan, more = _rounded(plan), _rounded(more)
        return _measure(
            bench, "gemm", form, plan, more, share_s, lambda sizes: bench.kernels.product(form, sizes), work
        )

    return run


def _rounded(plan: Sequence[Sizes]) -> list[Sizes]:
    """The shapes in steps of 16 from 32 on, each once."""
    rows = (tuple((name, max(32.0, round(size / 16) * 16.0)) for name, size in sizes.items()) for sizes in plan)
    return [dict(row) for row in dict.fromkeys(rows)]


def _attention(kind: str, form: str = "bf16") -> Callable[[LocalBench, float], Found_]:
    def run(bench: LocalBench, share_s: float) -> Found_:
        plan = prompts(bench.scale) if kind == "prefill" else steps(bench.scale)
        more = more_attention(kind, seed=1, scale=bench.scale) if form == "bf16" else ()
        return _measure(
            bench, kind, form, plan, more, share_s,
            lambda sizes: bench.kernels.attention(kind, sizes, form=form),
            lambda sizes: attention_work(kind, sizes, form),
        )  # fmt: skip

    return run


def _calls(form: str) -> Callable[[LocalBench, float], Found_]:
    """The calls of a training step in a format, by the whole processor."""

    def run(bench: LocalBench, share_s: float) -> Found_:
        found = bench.found
        timer = calls.Calls(torch=bench.torch, threads=found.units, cache_bytes=found.cache_bytes)
        plan, end = calls.plan(form), time.perf_counter() + share_s
        rows: list[BenchmarkRow] = []
        for call, sizes in plan:
            if time.perf_counter() > end:
                return rows, [f"calls {form}: {len(plan) - len(rows)} of {len(plan)}, no time left"]
            rows.append(timer.row(call, form, sizes, share_s / len(plan)))
        return rows, []

    return run


def _measure(
    bench: LocalBench,
    kind: str,
    form: str,
    plan: Sequence[Sizes],
    more: Sequence[Sizes],
    share_s: float,
    call: Callable[[Sizes], Call],
    work: Callable[[Sizes], tuple[float, float]],
) -> Found_:
    """Times of the planned shapes, then of those least certain, until the share is spent."""
    begin = time.perf_counter()
    end = begin + share_s
    rows: list[BenchmarkRow] = []
    left = [dict(sizes) for sizes in more]
    slots = len(plan) + (ADAPTIVE if more else 0)
    long = missed = 0
    for index in range(slots):
        chosen: Sizes | None = plan[index] if index < len(plan) else None
        if time.perf_counter() > end:
            missed = slots - index
            break
        if chosen is None:
            part = accelerator_of(bench.found, [*bench.rows, *rows], when="")
            chosen = least_certain(kind, form, rows, part, left, kernel=bench.found.kind)
            if chosen is None:
                break
            left.remove(dict(chosen))
        flop, moved = work(chosen)
        slowest = min((row.flop / row.seconds for row in rows if row.flop >= flop / 16), default=0.0)
        if slowest and flop / slowest > _LONGEST * share_s:
            long += 1
            continue
        try:
            times = bench.clock.repeats(call(chosen), max(end - time.perf_counter(), 0.01) / (slots - index))
        except (RuntimeError, ValueError, NotImplementedError, AttributeError) as error:
            return rows, [f"{kind} {form}: torch says {str(error).splitlines()[0][:100]}"]
        note = "" if index < len(plan) else "least certain"
        rows.append(measured(kind, form, chosen, times, flop=flop, moved=moved, note=note))
    told = [f"{kind} {form}: {missed} of {slots} shapes, no time left"] if missed else []
    return rows, told + ([f"{kind} {form}: {long} of {slots} shapes would take too long"] if long else [])


def _launches(bench: LocalBench, share_s: float) -> Found_:
    issue, count = bench.kernels.launches()
    times = [one / count for one in bench.clock.repeats(issue, share_s / 2)]
    rows = [measured("launch", "eager", {"kernels": count}, times)]
    if bench.found.kind == "cuda":
        replay, count = bench.kernels.replay()
        times = [one / count for one in bench.clock.repeats(replay, share_s / 2)]
        rows.append(measured("launch", "graph", {"kernels": count}, times))
    return rows, []


def _transfers(bench: LocalBench, share_s: float) -> Found_:
    """Copies between host and device, and a stream of the host's own memory."""
    rows: list[BenchmarkRow] = []
    plan = [(way, size) for size in (2.0**26, 2.0**16, 2.0**20) for way in _WAYS]
    for way, size in plan:
        times = bench.clock.repeats(bench.kernels.transfer(way, size), share_s / (len(plan) + 2))
        rows.append(measured("transfer", way, {"bytes": size}, times, moved=size))
    call, moved = Kernels(torch=bench.torch, device="cpu").stream("triad", 2.0**28)
    times = KernelClock(kind="cpu", torch=bench.torch).repeats(call, share_s / (len(plan) + 2))
    rows.append(measured("host_stream", "triad", {"array_bytes": 2.0**28}, times, moved=moved))
    return rows, []


_WAYS = ("h2d pinned", "d2h pinned", "h2d pageable", "d2h pageable")


def _collectives(bench: LocalBench, share_s: float) -> Found_:
    found = bench.found
    most = found.units if found.kind == "cpu" else found.count
    groups = [size for size in (2, 4) if size <= most]
    if not groups:
        return [], [f"collectives: {most} {'core' if found.kind == 'cpu' else 'device'} has no peer"]
    if found.kind == "mps":
        return [], ["collectives: one device"]
    if share_s < _SHORTEST_S:
        return [], [f"collectives: {share_s:.1f} s are too short to start local ranks; give a --budget of 90s or more"]
    return ranks.collectives(
        kind=found.kind,
        groups=groups,
        threads=found.units,
        budget_s=share_s - _START_S,
        most_bytes=2.0**24 if found.kind == "cpu" else 2.0**28,
        cache_bytes=found.cache_bytes,
    )
