"""Slurm: an sbatch script."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import ClassVar

from ridgeline.export.target import Target
from ridgeline.export.wrapper import ClusterRun, Wrapper


@dataclass(frozen=True, kw_only=True)
class Slurm(Wrapper):
    """An sbatch script: nodes, GPUs a node, one task a node that starts the program, and the time that it may take.

    The time is the upper end of the predicted interval, rounded up to the hour; without `--tokens` it is left to the
    partition. Instances of a deployment are an array of jobs.
    """

    key: ClassVar[str] = "slurm"
    source: ClassVar[tuple[str, ...]] = ("slurm",)
    title: ClassVar[str] = "Slurm"
    file: ClassVar[str] = "job.sbatch"
    start: ClassVar[str] = "sbatch {file}"

    def script(self, one: Target, job: ClusterRun) -> str:
        """The script: options of sbatch, where ranks meet, and one srun."""
        options = {
            "job-name": job.name, "nodes": job.nodes, "ntasks-per-node": 1, "gpus-per-node": job.devices,
            "exclusive": "", "output": "%x-%j.out",
        }  # fmt: skip
        if job.copies > 1:
            options["array"] = f"0-{job.copies - 1}"
        if job.wall_s is not None:
            options["time"] = _time(job.wall_s)
        head = [f"#SBATCH --{name}{f'={value}' if value != '' else ''}" for name, value in options.items()]
        meet = [
            'MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
            "export MASTER_ADDR",
        ] if job.nodes > 1 else []  # fmt: skip
        quoted = job.launch.replace("'", "'\\''")
        each = f"srun --kill-on-bad-exit=1 bash -c 'export NODE_RANK=$SLURM_NODEID; {quoted}'"
        run = each if job.nodes > 1 else f"srun {job.launch}"
        body = ["set -euo pipefail", 'cd "$SLURM_SUBMIT_DIR"', *meet, run]
        return "\n".join(["#!/bin/bash", *head, "", *body, ""])


def _time(wall_s: float) -> str:
    """Days-hours as sbatch reads a limit, rounded up to the hour."""
    hours = ceil(wall_s / 3600.0)
    return f"{hours // 24}-{hours % 24:02d}:00:00"
