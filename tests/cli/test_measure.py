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


SCENARIO = """
[model]
layers = 2
hidden = 64
heads = 4
vocab = 128
tied = false
positions = "rope"

[cluster]
name = "2xH100-SXM"

[workload]
seq_len = 16
global_batch = 4
precision = "fp32"
execution = "eager"

[plan]
dp = 2
zero = 3
"""


def test_a_plan_is_run_and_set_beside_its_prediction(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, table = tmp_path / "run.toml", tmp_path / "own.tsv"
    file.write_text(SCENARIO)
    words = ["measure", str(file), "--repeats", "2", "--append", str(table), "--json"]
    assert run(words) == 0
    answer = json.loads(capsys.readouterr().out)
    rows = {row["name"]: row for row in answer["phases"]}
    assert set(rows) >= {"forward", "optimizer", "step", "peak memory", "all_gather"}
    assert rows["step"]["measured"] > rows["forward"]["measured"] > 0
    assert answer["widest_gap"] in rows
    assert len(answer["steps_s"]) == 2
    assert answer["plan"]["zero"] == 3
    assert answer["remarks"] == ["predicted for H100-SXM, run on this machine's cpu: --on here predicts what ran"]
    assert len(table.read_text().splitlines()) == 3


def test_a_batch_is_run_and_set_beside_its_replay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "config.json"
    config.write_text(
        json.dumps(
            {"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 96,
             "vocab_size": 128,
             "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
        )
    )  # fmt: skip
    words = ["measure", str(config), "--serve", "--on", "1xH100-SXM", "--batch", "2", "--prompt", "8", "--output", "4"]
    assert run([*words, "--repeats", "2", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["phases"]}
    assert list(rows) == ["prefill", "decode step", "batch"]
    for row in rows.values():
        assert row["low"] <= row["predicted"] <= row["high"]
        assert row["measured"] > 0


def test_a_plan_that_does_not_run_ends_with_two_and_names_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "run.toml"
    file.write_text(SCENARIO)
    assert run(["measure", str(file), "--precision", "fp8"]) == 2
    assert f"{file}: field 'workload': precision = fp8 is not run here" in capsys.readouterr().err


def test_a_machine_without_profile_is_told_the_next_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert run(["measure", "gpt2", "--dp", "2"]) == 2
    assert "ridgeline calibrate" in capsys.readouterr().err


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
