"""How fast plans are bounded, searched and simulated, beside other planners on the same job.

    PYTHONPATH=src python benchmarks/bench_search.py

Writes search.md beside this file. `peers.py` says how to let other planners run along; without them their figures of
an earlier run are quoted. `RIDGELINE` may name the installed command (default: this interpreter with -m).
Every time is the least of three; where it says so, in a new process.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from peers import BATCH, DEVICES, H100_ROWS, H100_SEQ_LEN, H100_VOCABULARY, SEQ_LEN, run_peer

from ridgeline.facts.clusters import cluster
from ridgeline.graph.load import load
from ridgeline.graph.workload import Workload
from ridgeline.predict import Predictor
from ridgeline.search.groups import Plans
from ridgeline.search.search import Ranked, Searcher
from ridgeline.search.space import EXHAUSTIVE, Space
from ridgeline.timeline.simulate import simulate

TRIES = 3
# A context is also cut in two, and a stage may have as many chunks as layers allow.
WIDE = replace(EXHAUSTIVE, min_context_tokens=SEQ_LEN // 2, max_chunks=96)
JOBS = {
    "GPT-3 175B, 1,024 A100, batch 1,536": ("gpt3-175b", f"{DEVICES}xA100-SXM-80GB", BATCH),
    "GPT 1T, 3,072 A100, batch 3,072": ("megatron-1t", "3072xA100-SXM-80GB", 3072),
}
SPACES = {"default": Space(), "exhaustive": EXHAUSTIVE, "wide": WIDE}
COMMAND = [os.environ["RIDGELINE"]] if "RIDGELINE" in os.environ else [sys.executable, "-m", "ridgeline.cli.main"]
PLAN = ("plan", "llama-3.1-70b", "--on", "64xH100-SXM", "--train")
# Of an earlier run of this file on 2 cores: calculon caa4b11f, llm-analysis d841e40a.
QUOTED: dict[str, dict[str, Any]] = {
    "calculon": {"commit": "caa4b11f", "space": 11_698_528, "shipped_per_s": 291, "silent_per_s": 1842},
    "llm-analysis": {"commit": "d841e40a", "grid": 1720, "per_s": 3990},
}


@dataclass(frozen=True, kw_only=True)
class Taken:
    """Least wall-clock and processor time of a few calls [s]."""

    wall_s: float
    cpu_s: float


def best(call: Callable[[], object]) -> Taken:
    """The least of a few calls, wall-clock and processor time apart [s]."""
    wall, cpu = [], []
    for _ in range(TRIES):
        begin, used = time.perf_counter(), time.process_time()
        call()
        wall.append(time.perf_counter() - begin)
        cpu.append(time.process_time() - used)
    return Taken(wall_s=min(wall), cpu_s=min(cpu))


def searcher(job: str, space: Space) -> Searcher:
    """A search that has done nothing yet."""
    name, machine, batch = JOBS[job]
    workload = Workload(seq_len=SEQ_LEN, global_batch=batch)
    return Searcher(Predictor(load(name), cluster(machine), workload), space)


def different(group: Plans) -> int:
    """Legal plans of a group that differ in what the machine does [1].

    One data-parallel rank has nothing to shard or exchange; without sharding no weights are gathered; a sharding
    group of at least all ranks is the whole group, and a smaller one must divide them.
    """
    ranks = np.array([entry.degrees.dp * entry.degrees.cp for entry in group.axes.entries])
    gradients = len({reduce for reduce, _ in group.axes.overlaps})
    choices = np.zeros_like(ranks)
    for zero, within in group.axes.sharding:
        flags = gradients if zero == 0 else len(group.axes.overlaps)
        choices += np.where((within == 0) | ((within < ranks) & (ranks % max(within, 1) == 0)), flags, 0)
    choices = np.where(ranks == 1, 1, choices)
    return int(choices.sum()) * len(group.axes.recompute) * len(group.axes.savings)


def bound_row(job: str, name: str) -> tuple[str, float, float]:
    """One row on bounding a space, and different plans a second by the clock and per core."""
    held: list[Searcher] = []

    def bound() -> None:
        held[:] = [searcher(job, SPACES[name])]
        held[0].bound()

    taken = best(bound)
    one = held[0]
    distinct = sum(different(group) for group in one.groups)
    wall, core = distinct / taken.wall_s, distinct / taken.cpu_s
    row = (
        f"| {job} | {name} | {one.legal:,} | {distinct:,} | {one.feasible:,}"
        f" | {taken.wall_s:.2f} s | {taken.cpu_s:.2f} s | {wall:,.0f} | {core:,.0f} |"
    )
    return row, wall, core


def search_row(job: str, name: str) -> str:
    """One row on a whole search."""
    held: list[Ranked] = []

    def search() -> None:
        held[:] = [searcher(job, SPACES[name]).run(top=5)]

    taken, found = best(search), held[0]
    step_s, plan = found.plans[0]
    text = (
        f"tp {plan.tp} pp {plan.pp} cp {plan.cp} dp {plan.dp}, {plan.schedule} x{plan.chunks},"
        f" micro-batch {plan.micro_batch}, ZeRO-{plan.zero}, {plan.recompute} recompute"
    )
    return (
        f"| {job} | {name} | {found.legal:,} | {found.simulated} | {found.gap:.2%} | {taken.wall_s:.2f} s"
        f" | {taken.cpu_s:.2f} s | {step_s:.2f} s | {text} |"
    )


def simulation_row(job: str, count: int = 40) -> str:
    """One row on exact simulations of the plans that the default search finds most promising."""
    one = searcher(job, Space())
    one.bound()
    plans = [one.groups[item.group].plan(item.index) for item in one.candidates(count)]
    done = [one.predictor.evaluate(plan) for plan in plans]
    tasks = statistics.median(item.tasks.tasks for item in done)
    whole = best(lambda: [one.predictor.evaluate(plan) for plan in plans])
    alone = best(lambda: [simulate(item.tasks) for item in done])
    return (
        f"| {job} | {len(plans)} | {tasks:,.0f} | {whole.wall_s / len(plans) * 1e3:.1f} ms"
        f" | {len(plans) / whole.wall_s:,.0f} | {alone.wall_s / len(plans) * 1e3:.2f} ms"
        f" | {len(plans) / alone.wall_s:,.0f} |"
    )


def process_s(*words: str, fresh: bool = False) -> float:
    """Least wall-clock time of the command in a new process; fresh: with no byte code or kernels stored [s]."""
    taken = []
    usual = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    if not fresh:  # fills the caches
        subprocess.run([*COMMAND, *words], check=True, capture_output=True, env=usual)
    for _ in range(TRIES):
        with tempfile.TemporaryDirectory() as empty:
            extra = {"PYTHONPYCACHEPREFIX": empty, "NUMBA_CACHE_DIR": empty} if fresh else {}
            begin = time.perf_counter()
            subprocess.run([*COMMAND, *words], check=True, capture_output=True, env=usual | extra)
            taken.append(time.perf_counter() - begin)
    return min(taken)


def command_rows() -> list[str]:
    """Rows on the command as a person meets it."""
    rows = []
    for words in (("--help",), PLAN, (*PLAN, "--exhaustive")):
        rows.append(
            f"| `ridgeline {' '.join(words)}` | {process_s(*words):.2f} s | {process_s(*words, fresh=True):.2f} s |"
        )
    return rows


def peer_rows(wall: float, core: float, ours: str) -> list[str]:
    """Configurations a second beside the peers'."""
    rows = [
        f"| Ridgeline, {ours}, one core | {core:,.0f} | 1 |",
        f"| Ridgeline, {ours}, this machine | {wall:,.0f} | |",
    ]
    for name, label, key in (
        ("calculon", "calculon, as shipped, one core", "shipped_per_s"),
        ("calculon", "calculon, logging switched off, one core", "silent_per_s"),
        ("llm-analysis", "llm-analysis, logging switched off, one core", "per_s"),
    ):
        found = ANSWERS.setdefault(name, run_peer(name))
        told = found or QUOTED[name]
        source = f"commit {told['commit']}" + ("" if found else ", quoted, not run here")
        rows.append(f"| {label} ({source}) | {told[key]:,.0f} | {core / told[key]:,.0f} |")
    return rows


ANSWERS: dict[str, dict[str, Any] | None] = {}


def our_h100_rows() -> list[float]:
    """What `ridgeline check` predicts for the H100 rows [TFLOP/s per device]."""
    head = "id model params_b layers hidden heads vocab seq_len hardware n_devices tp pp dp global_batch"
    lines = ["\t".join([*head.split(), "engine", "metric", "value", "unit"])]
    for number, (size, layers, hidden, heads, tp, pp, dp, batch, rate) in enumerate(H100_ROWS):
        cells = (number, f"GPT {size}B", size, layers, hidden, heads, H100_VOCABULARY, H100_SEQ_LEN, "H100 SXM 80GB")
        more = (tp * pp * dp, tp, pp, dp, batch, "Megatron-Core r0.8.0", "tflops_per_gpu", rate, "TFLOP/s/GPU")
        lines.append("\t".join(str(cell) for cell in (*cells, *more)))
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder, "h100.tsv")
        table.write_text("\n".join(lines) + "\n", encoding="utf-8")
        said = subprocess.run([*COMMAND, "check", str(table), "--json"], check=True, capture_output=True, text=True)
    return [float(row["predicted"]) for row in json.loads(said.stdout)["rows"]]


def h100_rows() -> list[str]:
    """Errors on the H100 rows, ours and calculon's."""
    found = run_peer("calculon-rows")
    theirs = found["tflop_per_s"] if found else [None] * len(H100_ROWS)
    rows: list[str] = []
    errors: tuple[list[float], list[float]] = ([], [])
    for row, our, their in zip(H100_ROWS, our_h100_rows(), theirs, strict=True):
        measured = row[-1]
        cells = []
        for kept, value in zip(errors, (our, their), strict=True):
            if value is None:
                cells.append("- | -")
                continue
            kept.append(abs(value / measured - 1))
            cells.append(f"{value:.0f} | {value / measured - 1:+.1%}")
        rows.append(f"| {row[0]}B | {'/'.join(str(n) for n in row[4:7])} | {measured} | {' | '.join(cells)} |")
    means = [f"{statistics.mean(kept):.1%}" if kept else "not run here" for kept in errors]
    return [*rows, f"| mean of absolute errors | | | | {means[0]} | | {means[1]} |"]


def machine_line() -> str:
    """What it ran on."""
    cpu = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.processor(),
    )
    names = ", ".join(f"{name} {version(name)}" for name in ("numpy", "numba"))
    return f"{os.cpu_count()} cores ({cpu}), shared with other work; Python {platform.python_version()}, {names}"


def page() -> list[str]:
    """The whole page, measured now."""
    first, second = JOBS
    cases = [(first, name) for name in SPACES] + [(second, "default"), (second, "exhaustive")]
    bounds = {case: bound_row(*case) for case in cases}
    searches = [search_row(*case) for case in cases]
    _, wall, core = bounds[first, "wide"]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    theirs = peer_rows(wall, core, "wide space")
    calculon = ANSWERS["calculon"] or QUOTED["calculon"]
    return [
        "# Search: how fast",
        "",
        "Written by `PYTHONPATH=src python benchmarks/bench_search.py` on " + machine_line() + ".",
        f"Every time is the least of {TRIES}. How the search works: `docs/search.md`.",
        "",
        "## Bounds",
        "",
        "Every plan of a space gets a lower bound of its step time, its memory and whether it fits. *Different*: legal",
        "plans the machine could tell apart; only they make the rates. *Default*, *exhaustive*: `search.space`.",
        "*Wide*: exhaustive, with context shards down to 1,024 tokens and up to 96 chunks a stage; calculon's",
        f"own space of the first job has {calculon['space']:,} configurations.",
        "",
        "| job | space | plans | different | fit | wall | processor | different/s | different/s per core |",
        "|---|---|---|---|---|---|---|---|---|",
        *(row for row, _, _ in bounds.values()),
        "",
        "## Whole searches",
        "",
        "Bound everything, simulate until no bound can beat the best found. *Gap*: how far the best can be from the",
        f"best of the space, proven. Most memory at any time so far: {peak:.1f} GiB.",
        "",
        "| job | space | plans | simulated | gap | wall | processor | best step | best plan |",
        "|---|---|---|---|---|---|---|---|---|",
        *searches,
        "",
        "## Exact simulations",
        "",
        "The most promising plans of the default spaces: lowered, ordered, simulated; and the simulation alone.",
        "",
        "| job | plans | tasks (median) | whole | per second | timeline alone | per second |",
        "|---|---|---|---|---|---|---|",
        *(simulation_row(job) for job in JOBS),
        "",
        "## The command, in a new process",
        "",
        "*Fresh*: as after an install, with no byte code of any module and no compiled kernel stored.",
        "",
        "| command | wall | wall, fresh |",
        "|---|---|---|",
        *command_rows(),
        "",
        "## Beside other planners",
        "",
        f"GPT-3 175B on {DEVICES:,} A100, batch {BATCH:,}, in the same run. calculon: its own search over an even",
        "sample of its own space. llm-analysis: a grid of tp, pp, recompute, ZeRO and micro-batch; it models no",
        "pipeline bubble. What one configuration is differs: calculon answers with some 96 figures, Ridgeline's bound",
        "with a proven least step time and the peak of memory. `benchmarks/peers.py` says how to let them run.",
        "",
        "| planner | configurations/s | Ridgeline per core over it |",
        "|---|---|---|",
        *theirs,
        "",
        "## Nine H100 rows of Megatron-LM's README",
        "",
        "TFLOP/s per device, measured end to end with data loading and logging (github.com/NVIDIA/Megatron-LM,",
        "README.md, Megatron-Core 0.8, sequences of 4,096). Neither planner is told micro-batch, chunks or recompute:",
        "each takes its own fastest plan that fits. The rates divide the same model FLOP, logits included, by the",
        "predicted step, so that errors are those of the time; calculon spends no time on logits.",
        "",
        "| model | tp/pp/dp | measured | Ridgeline | error | calculon | error |",
        "|---|---|---|---|---|---|---|",
        *h100_rows(),
        "",
    ]


def main() -> None:
    """Measure everything and write the page."""
    searcher(next(iter(JOBS)), Space()).run(top=1)  # kernels compiled and files read before anything is timed
    lines = page()
    Path(__file__).with_name("search.md").write_text("\n".join(lines), encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
