"""Judges kernel files, each in a process of its own with a time limit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path

from ridgeline.errors import InputError
from ridgeline.run.verdict import Finding, Settings, Verdict, from_dict


def kernel_files(path: str) -> tuple[str, ...]:
    """The kernel files that a path names: itself, or the .py files of a folder in name order."""
    found = Path(path)
    if found.is_dir():
        files = tuple(str(one) for one in sorted(found.glob("*.py")) if not one.name.startswith("_"))
        if not files:
            raise InputError("holds no .py file", file=path)
        return files
    if not found.is_file():
        raise InputError("no such file or folder", file=path)
    if found.suffix != ".py":
        raise InputError("is no Python file; a kernel file is named NAME.py", file=path)
    return (path,)


def judge_files(files: Sequence[str], candidate: str, settings: Settings) -> tuple[Verdict, ...]:
    """The verdict of each file's candidate; raises InputError for a file that cannot be judged."""
    require_torch()
    return tuple(judge_file(one, candidate, settings) for one in files)


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


def judge_file(path: str, candidate: str, settings: Settings) -> Verdict:
    """The verdict of one candidate, judged in a fresh process that is stopped after `settings.limit_s` seconds."""
    with tempfile.TemporaryDirectory(prefix="ridgeline-") as folder:
        request, answer = Path(folder, "request.json"), Path(folder, "answer.json")
        asked = {"file": str(Path(path).resolve()), "candidate": candidate, "settings": asdict(settings)}
        request.write_text(json.dumps(asked), encoding="utf-8")
        ending = _run([str(request), str(answer)], settings.limit_s)
        told = json.loads(answer.read_text(encoding="utf-8")) if answer.exists() and not ending else {}
    if "refused" in told:
        raise InputError(told["refused"])
    if "verdict" in told:
        verdict = from_dict(told["verdict"])
        return Verdict(**{**vars(verdict), "file": path})
    return Verdict(file=path, candidate=candidate, findings=(_crash(ending),), cases=0)


def _crash(ending: str) -> Finding:
    return Finding(name="crash", detail=ending or "the process ended without an answer")


def _run(arguments: list[str], limit_s: float) -> str:
    """Why the child gave no answer, or an empty text; the whole group of processes is stopped at the limit."""
    source = str(Path(__file__).parents[2])
    paths = os.pathsep.join(filter(None, (source, os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-m", "ridgeline.run.child", *arguments]
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": paths},
        start_new_session=True,
        text=True,
        errors="replace",
    ) as child:
        try:
            _, told = child.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.communicate()
            return f"ran past the limit of {limit_s:g} s; --limit SECONDS gives more"
        except BaseException:
            os.killpg(child.pid, signal.SIGKILL)
            raise
    if child.returncode == 0:
        return ""
    last = told.strip().splitlines()[-1:] or [""]
    ended = f"signal {-child.returncode}" if child.returncode < 0 else f"exit code {child.returncode}"
    return f"the process ended with {ended}: {last[0][:300]}"
