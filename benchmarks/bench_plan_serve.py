"""How fast the best deployment for traffic is found, in a new process, beside AIConfigurator in the same run.

    PYTHONPATH=src python benchmarks/bench_plan_serve.py

Writes plan_serve.md beside this file. AIConfigurator runs along when it is told where it is: serving_peers.py says how.
`RIDGELINE` may name the installed command (default: this interpreter with -m).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serving_peers import TRIES, Taken, aiconfigurator_command, command_taken, machine_line, prose

COMMAND = [os.environ["RIDGELINE"]] if "RIDGELINE" in os.environ else [sys.executable, "-m", "ridgeline.cli.main"]
QUOTED = {"llama-3.1-70b": "10.8 s | 8.7 s", "deepseek-v3": "29.3 s | 27.8 s"}  # of version 0.12.0, on 2 cores


@dataclass(frozen=True, kw_only=True)
class Job:
    """The same question to both programs."""

    model: str
    devices: int
    load: str
    ours: tuple[str, ...]
    theirs: tuple[str, ...] = ()  # () where it was asked once: its means know of no load
    counted: str = ""  # of theirs: what it evaluates, counted by wrapping its functions once (version 0.12.0)

    @property
    def command(self) -> tuple[str, ...]:
        """Ridgeline's words."""
        traffic = ("--requests", "1000", "--prompt", "4000", "--output", "1000", "--weights", "fp8")
        return ("plan", self.model, "--serve", "--on", f"{self.devices}xH200-SXM", *traffic, *self.ours)

    @property
    def peer_command(self) -> tuple[str, ...]:
        """AIConfigurator's words: its usual lengths are 4,000 and 1,000 tokens too."""
        where = ("--total-gpus", str(self.devices), "--system", "h200_sxm", "--backend", "trtllm")
        return ("cli", "default", "--model-path", *self.theirs, *where)


JOBS = (
    Job(
        model="llama-3.1-70b",
        devices=32,
        load="20 a second",
        ours=("--rate", "20", "--slo", "ttft=1s,tpot=50ms"),
        theirs=("nvidia/Llama-3.1-70B-Instruct-FP8",),
        counted="608 points of means, 15,976 pairings",
    ),
    Job(
        model="deepseek-v3",
        devices=64,
        load="20 a second",
        ours=("--rate", "20", "--slo", "ttft=1s,tpot=50ms"),
        theirs=("deepseek-ai/DeepSeek-V3",),
        counted="4,396 points of means, 216,096 pairings",
    ),
    Job(
        model="deepseek-v3",
        devices=64,
        load="10 a second, which half of the grid can take",
        ours=("--rate", "10", "--slo", "ttft=1s,tpot=100ms"),
    ),
)


def answer_of(words: Sequence[str]) -> dict[str, Any]:
    """What Ridgeline answers to a command."""
    text = subprocess.check_output([*COMMAND, *words, "--json"], text=True)
    found: dict[str, Any] = json.loads(text)
    return found


def shape(one: dict[str, Any]) -> str:
    """A fleet in words."""
    parts = []
    for each in one["deployments"]:
        degrees = " ".join(f"{name} {each[name]}" for name in ("tp", "pp", "dp", "ep") if each[name] > 1)
        role = "" if each["role"] == "whole" else f" {each['role']}"
        parts.append(f"{each['instances']}{role} x ({degrees or 'tp 1'})")
    return " and ".join(parts)


def rows_of(job: Job) -> tuple[list[str], str]:
    """Both programs on one job, and what Ridgeline found."""
    ours = command_taken([*COMMAND, *job.command])
    found = answer_of(job.command)
    best = found["best"][0]
    refused, stopped = sum(found["refused"].values()), sum(found["pruned"].values())
    rows = [
        f"| {job.model}, {job.devices} H200, {job.load} | Ridgeline | **{ours.wall_s:.2f} s** | {ours.cpu_s:.2f} s "
        f"| {found['considered']} fleets replayed, {stopped} of them until they had missed the objective, "
        f"{refused} refused | {(found['considered'] - stopped) * 1000:,} and parts of {stopped * 1000:,} "
        f"| p50, p90, p99 |"
    ]
    command = aiconfigurator_command()
    if job.theirs and command is None:
        rows.append(f"| | AIConfigurator, earlier run | {QUOTED[job.model]} | {job.counted} | 0 | means |")
    elif job.theirs and command is not None:
        theirs = command_taken([command, *job.peer_command])
        rows.append(
            f"| | AIConfigurator {peer_version(command)} | {theirs.wall_s:.2f} s | {theirs.cpu_s:.2f} s "
            f"| {job.counted} | 0 | means |"
        )
        rows.append(f"| | *ratio* | {ratio(theirs, ours)} | | | |")
    kept = best["attained"]
    return rows, (
        f"| {job.model}, {job.load} | {shape(best)} | {best['devices']} | {1e3 * best['ttft']['p50_s']:.0f} "
        f"| {1e3 * best['ttft']['p99_s']:.0f} | {1e3 * best['tpot']['p50_s']:.1f} | {1e3 * best['tpot']['p99_s']:.1f} "
        f"| {kept:.1%} | {best['output_tokens_per_s'] / best['devices']:,.0f} |"
    )


def ratio(theirs: Taken, ours: Taken) -> str:
    """How many times longer the other takes."""
    return f"{theirs.wall_s / ours.wall_s:.1f} | {theirs.cpu_s / ours.cpu_s:.1f}"


def peer_version(command: str) -> str:
    """Version of the installed peer."""
    code = "from importlib.metadata import version; print(version('aiconfigurator'))"
    return subprocess.check_output([str(Path(command).with_name("python")), "-c", code], text=True).strip()


def page() -> list[str]:
    """The lines of the page."""
    for job in JOBS:
        answer_of(job.command)  # compiled loops are stored before anything is timed
    answered = [rows_of(job) for job in JOBS]
    return [
        "# Planning a service: how fast",
        "",
        prose(
            f"Written by `bench_plan_serve.py`. {machine_line()}: trust CPU (user and system seconds) before the clock."
            f" Each command in a new process, medians of {TRIES}, both programs in the same run."
        ),
        "",
        "| job | program | wall | CPU | what it tries | requests replayed | what it knows of each |",
        "|---|---|---|---|---|---|---|",
        *(row for rows, _ in answered for row in rows),
        "",
        prose(
            "Ridgeline is asked for Poisson arrivals, prompts of 4,000 and outputs of 1,000 tokens, and an objective:"
            " every deployment of its grid, pools of prefill and decode included, is replayed on the same 1,000"
            " requests with its own queues. AIConfigurator is asked with its own defaults, which have the same lengths,"
            " for its best by means of a steady state without arrivals; its targets of TPOT and its pairing of pools"
            " are look-ups of those means. What it evaluates was counted once, in version 0.12.0. A replay of"
            " Ridgeline stops when it is certain that its fleet cannot be among the best."
        ),
        "",
        "The commands:",
        "",
        *(f"    ridgeline {' '.join(job.command)}" for job in JOBS),
        *(f"    aiconfigurator {' '.join(job.peer_command)}" for job in JOBS if job.theirs),
        "",
        "What Ridgeline found [ms], *kept*: requests within the objective; tokens/s of a device are of answers:",
        "",
        "| model | best | devices | TTFT p50 | p99 | TPOT p50 | p99 | kept | tokens/s a device |",
        "|---|---|---|---|---|---|---|---|---|",
        *(row for _, row in answered),
        "",
    ]


def main() -> None:
    """Measures everything and writes the page."""
    lines = page()
    Path(__file__).with_name("plan_serve.md").write_text("\n".join(lines), encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
