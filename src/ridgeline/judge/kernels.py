"""Judges kernel files, each in a process of its own with a time limit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path

from ridgeline.errors import InputError
from ridgeline.judge.tasks import KernelTask
from ridgeline.judge.verdict import Finding, JudgeSettings, Verdict, from_dict
from ridgeline.judge.work_folder import ending, start, work_folder


def judge_tasks(tasks: Sequence[KernelTask], candidate: str, settings: JudgeSettings) -> tuple[Verdict, ...]:
    """The verdict of each task's candidate; raises InputError for a file that cannot be judged."""
    require_torch()
    return tuple(judge_file(one, candidate, settings) for one in tasks)


def require_torch() -> None:
    """Raises InputError when PyTorch is not installed."""
    if find_spec("torch") is None:
        raise InputError("needs PyTorch, which is not installed: pip install 'ridgeline[measure]'", field="measure")


def require_device(device: str) -> None:
    """Raises InputError for a device that torch does not see here."""
    require_torch()
    if device not in ("cpu", "cuda"):
        raise InputError(f"'{device}' is no device; needs cpu or cuda", field="--device")
    if device == "cuda":
        import torch

        if not torch.cuda.is_available():
            raise InputError("torch sees no CUDA device here; --device cpu runs on the processor", field="--device")


def judge_file(task: KernelTask, candidate: str, settings: JudgeSettings) -> Verdict:
    """The verdict of one candidate, judged in a fresh process that is stopped after `settings.limit_s` seconds."""
    with work_folder() as (folder, environment):
        request, answer = folder / "request.json", folder / "answer.json"
        asked = {
            "path": str(Path(task.path).resolve()), "candidate": candidate, "settings": asdict(settings),
            "solution": str(Path(task.solution).resolve()) if task.solution else "",
        }  # fmt: skip
        request.write_text(json.dumps(asked), encoding="utf-8")
        ending = _run(request, answer, environment, settings.limit_s)
        told = json.loads(answer.read_text(encoding="utf-8")) if answer.exists() and not ending else {}
    if "refused" in told:
        raise InputError(told["refused"])
    if "verdict" in told:
        verdict = from_dict(told["verdict"])
        return Verdict(**{**vars(verdict), "file": task.title})
    crash = Finding(name="crash", detail=ending or "the process ended without an answer")
    return Verdict(file=task.title, candidate=candidate, findings=(crash,), cases=0)


def _run(request: Path, answer: Path, environment: Mapping[str, str], limit_s: float) -> str:
    """Why the child gave no answer, or an empty text; what it leaves running is stopped with its folder."""
    errors = request.with_name("errors")
    child = start("judge.child", str(request), str(answer), errors=errors, environment=environment)
    try:
        child.wait(timeout=limit_s)
    except subprocess.TimeoutExpired:
        return f"ran past the limit of {limit_s:g} s; --limit SECONDS gives more"
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    return f"the process {ending(child, errors)}" if child.returncode else ""
