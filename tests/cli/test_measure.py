"""The command `measure`: its answers, its exit codes and its refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")

from ridgeline.cli.main import run

KERNELS = Path(__file__).parents[2] / "examples" / "kernels"


@pytest.fixture(autouse=True)
def few_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def test_a_right_kernel_is_timed_against_eager_and_roofline(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["measure", "--kernel", str(KERNELS / "swiglu.py"), "--repeats", "3", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    (row,) = answer["kernels"]
    assert row["correct"]
    assert row["candidate_time"]["repeats"] == 3
    assert row["speedup"] == pytest.approx(row["eager_time"]["median_s"] / row["candidate_time"]["median_s"])
    assert row["roof"]["seconds"] > 0
    assert answer["fast_p"]["fast_0"] == 1


def test_a_cheat_ends_with_one_and_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["measure", "--kernel", str(KERNELS / "scale.py"), "--candidate", "cheat_alias", "--on", "H100-SXM"]
    assert run(command) == 1
    assert "cheat, aliases:" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["measure"], "--kernel"),
        (["measure", "--kernel", "none.py"], "no such file"),
        (["measure", "--kernel", str(KERNELS / "relu.py"), "--candidate", "cheat_zero"], "nearest: cheat_zeros"),
        (["measure", "--kernel", str(KERNELS / "relu.py"), "--device", "tpu"], "needs cpu or cuda"),
    ],
)
def test_what_cannot_be_judged_ends_with_two(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(words) == 2
    assert told in capsys.readouterr().err
