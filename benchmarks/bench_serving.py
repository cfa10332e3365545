"""How fast traffic is replayed: an hour of Azure, Vidur's job beside Vidur, a day of ServeGen on a fleet.

    PYTHONPATH=src python benchmarks/bench_serving.py

Writes serving_speed.md beside this file. Vidur runs along, on the same requests, when it is told where it is:
serving_peers.py says how. `RIDGELINE` may name the installed command (default: this interpreter with -m).
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from serving_jobs import Job, Timed, azure, day, made, timed
from serving_peers import (
    TRIES,
    VIDUR_BATCH,
    VIDUR_BUDGET,
    VIDUR_RATE,
    VIDUR_TOKENS,
    command_taken,
    machine_line,
    prose,
    vidur,
)

from ridgeline.scenario.serving_words import deployed
from ridgeline.serving.metrics import Objective
from ridgeline.serving.replay import replay_tables
from ridgeline.serving.traffic import arrivals
from ridgeline.serving.traffic.named import named_traffic
from ridgeline.serving.traffic.traffic import Traffic, traffic

COMMAND = [os.environ["RIDGELINE"]] if "RIDGELINE" in os.environ else [sys.executable, "-m", "ridgeline.cli.main"]
REQUESTS = 10_000
CACHE_TOKENS = 53_248  # of Vidur's replica on its job, as its memory planner finds
EARLIER = "36.5 s | | 97,039 | 2,660 to 3,900"  # iterations/s with its metrics and without


def vidurs(theirs: dict[str, Any] | None) -> Job:
    """Vidur's job on the requests that it drew, or on our own draw of the same laws."""

    def drawn() -> Traffic:
        if theirs is not None:
            arrived, prompt, output = np.array(theirs["requests"])[:, :3].T
            return traffic(arrived - arrived[0], prompt, output, name="Vidur's requests")
        seen = named_traffic("azure-conv")
        fits = np.flatnonzero(seen.prompt_tokens + seen.output_tokens <= VIDUR_TOKENS)
        chosen = np.random.default_rng(0).permutation(fits)[:REQUESTS]
        times = arrivals.poisson(VIDUR_RATE, requests=len(chosen))
        return traffic(times, seen.prompt_tokens[chosen], seen.output_tokens[chosen], name="Azure lengths")

    room = int(theirs["cache_tokens"]) if theirs is not None else CACHE_TOKENS
    return Job(
        name="Vidur's job",
        model="llama-2-70b",
        cluster="2xA100-SXM-80GB",
        deployment=deployed(tp=2, token_budget=VIDUR_BUDGET, max_seqs=VIDUR_BATCH, cache_tokens=room),
        traffic=drawn,
        objective=Objective(),
    )


def own_row(job: Job, one: Timed) -> str:
    """One job in a row."""
    found = one.found
    return (
        f"| {job.name} | {job.model} {job.deployment.weights or 'bf16'} tp {job.deployment.tp} on {job.cluster} "
        f"| {one.requests:,} | {one.traffic_s:.2f} s | {one.tables.wall_s:.3f} s | {one.replay.wall_s:.3f} s "
        f"| {one.tables.cpu_s + one.replay.cpu_s:.3f} s | {one.measure.wall_s:.3f} s "
        f"| {found.span_s / one.whole_s:,.0f} |"
    )


def loop_row(job: Job, one: Timed) -> str:
    """Iterations of a job, and what the loop went through for them."""
    found = one.found
    return (
        f"| {job.name} | {found.iterations:,} | {found.runs:,} | {found.iterations / found.runs:.1f} "
        f"| **{one.iterations_per_s:,.0f}** | {found.runs / one.replay.wall_s:,.0f} "
        f"| {one.requests / one.whole_s:,.0f} |"
    )


def vidur_rows(theirs: dict[str, Any] | None, one: Timed) -> list[str]:
    """Vidur's loop beside ours on the same requests."""
    rows = []
    per_s, both_s = one.iterations_per_s, one.requests / one.whole_s
    if theirs is None:
        rows.append(f"| Vidur, earlier run on 2 cores | {EARLIER} | 274 | |")
    else:
        for name, loops in theirs["loops"].items():
            wall, cpu = (statistics.median(loop[part] for loop in loops) for part in (0, 1))
            rate, requests = theirs["iterations"] / wall, len(theirs["requests"]) / wall
            rows.append(
                f"| Vidur {theirs['commit']}, {name} | {wall:.2f} s | {cpu:.2f} s | {theirs['iterations']:,} "
                f"| {rate:,.0f} | {requests:,.0f} | {per_s / rate:,.0f}; {both_s / requests:,.0f} |"
            )
        rows.append(f"| Vidur, earlier run on 2 cores | {EARLIER} | 274 | |")
    rows.append(
        f"| Ridgeline, the loop | {one.replay.wall_s:.4f} s | {one.replay.cpu_s:.4f} s | {one.found.iterations:,} "
        f"| **{per_s:,.0f}** | {one.requests / one.replay.wall_s:,.0f} | |"
    )
    rows.append(
        f"| Ridgeline, with its tables | {one.whole_s:.4f} s | {one.tables.cpu_s + one.replay.cpu_s:.4f} s "
        f"| {one.found.iterations:,} | {one.found.iterations / one.whole_s:,.0f} | {both_s:,.0f} | |"
    )
    return rows


def answers(theirs: dict[str, Any] | None, one: Timed) -> list[str]:
    """What both answer: quantiles of what a request sees."""
    first, last = one.found.first_s - one.found.came_s, one.found.end_s - one.found.came_s
    rows = [_answer("Ridgeline", first, last - first, one.found.output, one.found.span_s)]
    if theirs is not None:
        arrived, _, output, began, ended = np.array(theirs["requests"]).T
        rows.append(_answer("Vidur", began - arrived, ended - began, output, theirs["end_s"]))
    return rows


def _answer(name: str, ttft: Any, rest: Any, output: Any, span_s: float) -> str:
    tpot = (rest / np.maximum(output - 1, 1))[output > 1]
    shown = [f"{1e3 * np.percentile(values, share):.1f}" for values in (ttft, tpot) for share in (50, 99)]
    return f"| {name} | {' | '.join(shown)} | {span_s:,.0f} s |"


def new_process() -> str:
    """The same hour from nothing: the parts in a new process, and the command."""
    parts = []
    for _ in range(TRIES):
        begun = time.perf_counter()
        inner = json.loads(subprocess.check_output([sys.executable, __file__, "new"], text=True))
        parts.append((time.perf_counter() - begun - sum(inner), *inner))
    start, tables, replay = (statistics.median(one[part] for one in parts) for part in range(3))
    words = ("simulate", "llama-3.1-70b", "--on", "8xH100-SXM", "--tp", "8", "--trace", "azure-conv")
    command = command_taken([*COMMAND, *words])
    return prose(
        f"Azure's hour in a new process: {start:.2f} s to start, import and read the trace, {tables:.2f} s for tables"
        f" with all files behind them, {replay:.2f} s for the replay with loading the compiled loop. The command,"
        f" `ridgeline {' '.join(words)}`: {command.wall_s:.2f} s, CPU {command.cpu_s:.2f} s."
    )


def parts_here() -> None:
    """Prints what tables and replay take in this process, in which nothing has run yet [s]."""
    job = azure()
    asked = job.traffic()
    marks = [time.perf_counter()]
    one, tables = made(job, asked)
    marks.append(time.perf_counter())
    replay_tables([one], [tables], asked, router="least-loaded")
    marks.append(time.perf_counter())
    print(json.dumps(np.diff(marks).tolist()))


def about_vidur(theirs: dict[str, Any] | None) -> str:
    """What was compared, in words."""
    room = int(theirs["cache_tokens"]) if theirs else CACHE_TOKENS
    start = "Vidur was not told where it is: figures of an earlier run stand for it."
    if theirs:
        start = (
            f"Vidur under Python {theirs['python']}; before its loop it takes {theirs['import_s']:.1f} s to import and"
            f" {theirs['ready_s']:.1f} s to load tables kept from an earlier run, made by forests trained for a minute"
            " over a grid of one (250 trees, depth 16). Its table of attention is the one before its newest (blob"
            " ee3dec76); its plots and its Chrome trace are off."
        )
    return prose(
        f"{REQUESTS:,} requests of Azure's lengths (at most {VIDUR_TOKENS:,} tokens), Poisson at {VIDUR_RATE:g}/s, on"
        f" Llama-2-70B, tp 2, A100-SXM-80GB: budget of {VIDUR_BUDGET} tokens, {VIDUR_BATCH} sequences, a cache of"
        f" {room:,} tokens; the same requests, in the same run. Loops only; the last column divides Ridgeline's rates"
        f" by theirs: iterations/s of the loop, and requests/s with tables. {start}"
    )


def page() -> list[str]:
    """The lines of the page."""
    theirs = vidur(REQUESTS)
    jobs = [vidurs(theirs), azure(), day()]
    done = [timed(job) for job in jobs]
    return [
        "# Serving: how fast",
        "",
        prose(
            f"Written by `bench_serving.py`. {machine_line()}. NumPy {version('numpy')}, Numba {version('numba')};"
            f" one core is used. Medians of {TRIES}; *CPU* is user and system time. *Tables*: dividing the model and"
            " pricing every iteration. *Replay*: the loop over requests. *Metrics*: quantiles from the replay."
        ),
        "",
        "| traffic | deployment | requests | drawing it | tables | replay | CPU of both | metrics | x real time |",
        "|---|---|---|---|---|---|---|---|---|",
        *(own_row(job, one) for job, one in zip(jobs, done, strict=True)),
        "",
        prose(
            "A *turn* of the loop is a run of iterations: an instance that only decodes goes at once, in closed form"
            " and exactly, to the step at which a request ends or arrives."
        ),
        "",
        "| traffic | iterations | turns | iterations a turn | iterations/s | turns/s | requests/s, tables too |",
        "|---|---|---|---|---|---|---|",
        *(loop_row(job, one) for job, one in zip(jobs, done, strict=True)),
        "",
        new_process(),
        "",
        "## Beside Vidur",
        "",
        about_vidur(theirs),
        "",
        "| loop | wall | CPU | iterations | iterations/s | requests/s | Ridgeline over it |",
        "|---|---|---|---|---|---|---|",
        *vidur_rows(theirs, done[0]),
        "",
        "What they answer [ms]: Vidur by its forests, Ridgeline by its mechanisms of vLLM; no measurement is here.",
        "",
        "| program | TTFT p50 | p99 | TPOT p50 | p99 | last token |",
        "|---|---|---|---|---|---|",
        *answers(theirs, done[0]),
        "",
    ]


def main() -> None:
    """Measures everything and writes the page."""
    lines = page()
    Path(__file__).with_name("serving_speed.md").write_text("\n".join(lines), encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    parts_here() if sys.argv[1:] == ["new"] else main()
