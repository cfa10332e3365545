"""Runs that go wrong end with a reason, stop every rank and leave nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from ridgeline.errors import ClusterError, InputError, NoPlanError  # noqa: E402
from ridgeline.graph.build import from_dims  # noqa: E402
from ridgeline.graph.workload import Workload  # noqa: E402
from ridgeline.plan.plan import Plan  # noqa: E402
from ridgeline.run import launch as launching  # noqa: E402
from ridgeline.run.launch import launch  # noqa: E402
from ridgeline.run.mapping import execution_of  # noqa: E402

MODEL = from_dims(layers=2, hidden=64, heads=4, vocab=128, tied=False, positions="rope")
WORK = Workload(seq_len=16, global_batch=4, precision="fp32", execution="eager")

ENDLESS = """
from ridgeline.graph.build import from_dims
from ridgeline.graph.workload import Workload
from ridgeline.plan.plan import Plan
from ridgeline.run.launch import launch
from ridgeline.run.mapping import execution_of

model = from_dims(layers=2, hidden=64, heads=4, vocab=128, tied=False, positions="rope")
work = Workload(seq_len=16, global_batch=4, precision="fp32", execution="eager")
launch(execution_of(model, work, Plan(dp=2)), repeats=10**7)
"""


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[subprocess.Popen[bytes]]:
    """The processes that a run starts; its folder is made in `tmp_path`."""
    found: list[subprocess.Popen[bytes]] = []
    real = subprocess.Popen

    def popen(*words: object, **named: object) -> subprocess.Popen[bytes]:
        found.append(real(*words, **named))  # type: ignore[call-overload]
        return found[-1]

    monkeypatch.setattr(launching.subprocess, "Popen", popen)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return found


def test_a_run_past_its_limit_is_stopped_whole(started: list[subprocess.Popen[bytes]], tmp_path: Path) -> None:
    with pytest.raises(NoPlanError, match=r"took more than 0\.5 s"):
        launch(execution_of(MODEL, WORK, Plan(dp=2)), limit_s=0.5)
    assert len(started) == 2
    assert all(one.poll() is not None for one in started)
    assert list(tmp_path.iterdir()) == []


def test_a_rank_that_fails_stops_the_others_and_is_told(started: list[subprocess.Popen[bytes]]) -> None:
    asked = execution_of(MODEL, WORK, Plan(dp=2))
    broken = replace(asked, shape=replace(asked.shape, kv_heads=3))
    with pytest.raises(NoPlanError, match=r"rank \d ended with exit code 1: .*Error"):
        launch(broken, repeats=1, limit_s=60)
    assert all(one.poll() is not None for one in started)


def ranks_of(folder: Path) -> list[int]:
    """Processes whose command names a file of `folder`."""
    found = []
    for one in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = one.read_bytes()
        except OSError:  # it has ended meanwhile
            continue
        if b"ridgeline.run.rank" in words and os.fsencode(folder) in words:
            found.append(int(one.parent.name))
    return found


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="processes are looked up in /proc")
@pytest.mark.parametrize("into_s", [0, 5])
def test_a_killed_run_leaves_no_rank_behind(tmp_path: Path, into_s: float) -> None:
    """SIGKILL of the launcher, which can stop nothing then: its ranks see that it is gone and end by themselves.

    Be it while they still load their libraries, or well into the run, the group formed and steps going round.
    """
    told = {**os.environ, "TMPDIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    launcher = subprocess.Popen([sys.executable, "-c", ENDLESS], env=told)
    until = time.monotonic() + 60
    while len(ranks_of(tmp_path)) < 2:
        assert launcher.poll() is None
        assert time.monotonic() < until
        time.sleep(0.05)
    time.sleep(into_s)
    assert len(ranks_of(tmp_path)) == 2
    launcher.kill()
    launcher.wait()
    until = time.monotonic() + 60
    while ranks_of(tmp_path):
        assert time.monotonic() < until, "ranks outlive their launcher"
        time.sleep(0.05)


def test_more_ranks_than_cores_are_refused() -> None:
    with pytest.raises(ClusterError, match="the plan uses 4096 ranks"):
        launch(replace(execution_of(MODEL, WORK, Plan()), dp=4096))


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is here")
def test_a_device_that_is_not_here_is_refused() -> None:
    with pytest.raises(InputError, match="no CUDA device"):
        launch(execution_of(MODEL, WORK, Plan()), device="cuda")
