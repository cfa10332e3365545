"""Processes that a command starts end with it, in whatever session they are, and leave no folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from ridgeline.judge import kernels
from ridgeline.judge import work_folder as module
from ridgeline.judge.work_folder import work_folder

pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="the system tells no environments")

LEFT = "import subprocess; print(subprocess.Popen(['sleep', '300'], start_new_session=True, stdout=-3).pid)"
"""A program that leaves a process in a session of its own, as a candidate kernel may."""


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def running(process: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False


def test_what_a_child_leaves_in_a_session_of_its_own_is_stopped() -> None:
    with work_folder() as (folder, environment):
        told = subprocess.run([sys.executable, "-c", LEFT], env=environment, stdout=subprocess.PIPE, check=True).stdout
        left = int(told)
        assert running(left)
    assert not running(left)
    assert not folder.exists()


def test_a_candidate_that_leaves_a_process_behind_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The judged process starts another in a session of its own, which holds its error stream open."""
    judged = tmp_path / "judged"
    judged.write_text("#!/bin/sh\nsetsid sleep 300 &\nsleep 300\n", encoding="utf-8")
    judged.chmod(0o700)
    monkeypatch.setattr(module.sys, "executable", str(judged))
    begun_s = time.monotonic()
    with work_folder() as (folder, environment):
        told = kernels._run(folder / "request.json", folder / "answer.json", environment, 1.0)
        assert "ran past the limit of 1 s" in told
        assert module._workers(folder)
    assert not module._workers(folder)
    assert time.monotonic() - begun_s < 30


def test_other_processes_are_left_alone() -> None:
    other = subprocess.Popen(["sleep", "300"], start_new_session=True)
    with work_folder():
        pass
    assert running(other.pid)
    other.kill()
    other.wait()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_killed_owner_leaves_nothing(number: signal.Signals, tmp_path: Path) -> None:
    """SIGTERM cleans up by itself; what SIGKILL leaves is removed by the next run."""
    program = (
        "import subprocess, sys, tempfile, time\nfrom ridgeline.judge.work_folder import work_folder\n"
        f"tempfile.tempdir = {str(tmp_path)!r}\n"
        "with work_folder() as (folder, environment):\n"
        f"    print(subprocess.check_output([sys.executable, '-c', {LEFT!r}], env=environment).decode(), flush=True)\n"
        "    time.sleep(300)\n"
    )
    owner = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    left = int(owner.stdout.readline())
    assert len(list(tmp_path.glob("ridgeline-work-*"))) == 1
    owner.send_signal(number)
    owner.stdout.close()
    owner.wait(timeout=60)
    if number == signal.SIGKILL:
        assert running(left)
        with work_folder():
            pass
    else:
        assert owner.returncode == 128 + number
    for _ in range(100):
        if not running(left):
            break
        time.sleep(0.02)
    assert not running(left)
    assert not list(tmp_path.glob("ridgeline-work-*"))


def test_the_folder_of_a_living_owner_stays(tmp_path: Path) -> None:
    kept = tmp_path / f"ridgeline-work-{os.getpid()}-x"
    kept.mkdir()
    module._remove_orphans()
    assert kept.exists()
