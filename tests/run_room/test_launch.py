"""Runs that go wrong end with a reason, stop every rank and leave nothing behind."""

from __future__ import annotations

import subprocess
import tempfile
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


def test_more_ranks_than_cores_are_refused() -> None:
    with pytest.raises(ClusterError, match="the plan uses 4096 ranks"):
        launch(replace(execution_of(MODEL, WORK, Plan()), dp=4096))


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is here")
def test_a_device_that_is_not_here_is_refused() -> None:
    with pytest.raises(InputError, match="no CUDA device"):
        launch(execution_of(MODEL, WORK, Plan()), device="cuda")
