"""Starts the ranks of an execution on this machine, waits for them, and stops them all when one fails."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from ridgeline.errors import ClusterError, NoPlanError
from ridgeline.judge.kernels import require_device
from ridgeline.judge.work_folder import ending, start, work_folder
from ridgeline.run.mapping import Execution
from ridgeline.run.measured import MeasuredRun, merged

_POLL_S = 0.05
_KEEPING = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40)}
"""glibc gives no freed memory back to the system: a step's tensors lie where the last step's lay, as the allocators of
GPUs and of tuned processes have it. Where the caller's environment says otherwise, that holds."""


def launch(
    asked: Execution,
    *,
    repeats: int = 5,
    device: str = "cpu",
    seed: int = 0,
    limit_s: float = 900.0,
    generate: Mapping[str, int] | None = None,
) -> MeasuredRun:
    """Runs an execution on local ranks: training steps, or with `generate` (batch, prompt, output) static batches.

    Raises ClusterError where devices lack, NoPlanError where it fails.
    """
    require_device(device)
    threads = _require_ranks(asked, device)
    with work_folder() as (folder, environment):
        request = folder / "request.json"
        told = {
            "execution": asdict(asked),
            "repeats": repeats,
            "device": device,
            "threads": threads,
            "seed": seed,
            "limit_s": limit_s,
            "generate": None if generate is None else dict(generate),
        }
        request.write_text(json.dumps(told), encoding="utf-8")
        _wait(request, asked.ranks, limit_s, environment)
        answer = folder / "answer.json"
        if not answer.exists():
            raise NoPlanError("the run ended without an answer; its ranks were stopped")
        return merged(json.loads(answer.read_text(encoding="utf-8")), device, one_group=asked.one_group)


def _require_ranks(asked: Execution, device: str) -> int:
    if device == "cuda":
        import torch

        have = torch.cuda.device_count()
        if asked.ranks > have:
            raise ClusterError(f"the plan uses {asked.ranks} devices, {have} are here; lower tp, pp or dp")
        return 1
    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if asked.ranks > max(4, threads):
        raise ClusterError(f"the plan uses {asked.ranks} ranks, this machine has {threads} cores; lower tp, pp or dp")
    return int(os.environ.get("OMP_NUM_THREADS") or threads)


def _wait(request: Path, ranks: int, limit_s: float, asked: Mapping[str, str]) -> None:
    loopback = "lo0" if sys.platform == "darwin" else asked.get("GLOO_SOCKET_IFNAME", "lo")
    environment = {**_KEEPING, **asked, "GLOO_SOCKET_IFNAME": loopback}
    running: list[tuple[subprocess.Popen[bytes], Path]] = []
    try:
        for rank in range(ranks):
            errors, words = request.with_name(f"{rank}.err"), (str(request), str(rank), str(os.getpid()))
            running.append((start("run.rank", *words, errors=errors, environment=environment), errors))
        _until_done(running, time.monotonic() + limit_s, limit_s)
    finally:
        for one, _ in running:
            if one.poll() is None:
                os.killpg(one.pid, signal.SIGKILL)
            one.wait()


def _until_done(running: list[tuple[subprocess.Popen[bytes], Path]], end: float, limit_s: float) -> None:
    while True:
        states = [one.poll() for one, _ in running]
        for rank, (one, errors) in enumerate(running):
            if states[rank]:
                raise NoPlanError(f"rank {rank} {ending(one, errors)}")
        if None not in states:
            return
        if time.monotonic() > end:
            raise NoPlanError(f"the run took more than {limit_s:g} s and was stopped; --limit SECONDS gives more")
        time.sleep(_POLL_S)
