"""The command `fit`: what it needs, what it writes, and names that it does not know."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ridgeline.api import fitting
from ridgeline.calibrate.rungs import Judged
from ridgeline.cli.main import run
from ridgeline.cost.answer import Rung
from ridgeline.facts.transfer import rung_interval


def test_without_the_wheel_the_extra_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(["fit", "--out", str(tmp_path / "fits")]) == 2
    said = capsys.readouterr().err
    assert "public operator tables are not installed" in said
    assert "pip install 'ridgeline[measured]'" in said
    assert not (tmp_path / "fits").exists()


def test_an_unknown_family_is_refused_with_those_known(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(["fit", "--family", "gem", "--out", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert "'gem'" in said
    assert "gemm" in said


def test_tables_and_counts_are_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refit(folder: Path, *, families: tuple[str, ...], processes: int, done: object) -> dict[str, int]:
        assert (folder, processes) == (tmp_path, 3)
        return dict.fromkeys(families, 7)

    monkeypatch.setattr(fitting, "refit", refit)
    words = ["fit", "--family", "gemm", "--family", "decode", "--out", str(tmp_path), "--processes", "3"]
    assert run([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"folder": str(tmp_path), "fits": {"gemm": 7, "decode": 7}}
    assert run(words) == 0
    assert f"{tmp_path}/decode.tsv" in capsys.readouterr().out


def test_judging_writes_the_intervals_of_rungs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Forty measured times, all 10 % above what the rung said; a rung that did not answer is not told."""
    import numpy as np

    one, said = np.full(40, 1.1e-5), {Rung.TABLE: 1e-5, Rung.FITTED: 1e-5, Rung.BORROWED: np.nan}
    known = rung_interval("gemm", "table").low[1]  # from 10 us
    labels = {"family": "gemm", "device": "H100-SXM", "engine": "vllm", "form": "bf16"}
    monkeypatch.setattr(
        fitting,
        "judge",
        lambda family: (
            Judged(
                rung=rung,
                measured=one,
                predicted=np.full(40, time),
                low=np.full(40, time) * known,
                high=one,
                blocks=np.arange(40),
                beside=np.zeros(40, dtype=np.int64),
                **labels,
            )
            for rung, time in said.items()
        ),
    )
    assert run(["fit", "--family", "gemm", "--rungs", "--out", str(tmp_path), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [(row["rung"], row["rows"], row["answered"]) for row in rows] == [("table", 40, 40), ("fitted", 40, 40)]
    assert rows[0]["median_ape"] == pytest.approx(1 - 1 / 1.1)
    comment, header, line = (tmp_path / "fit_rungs.tsv").read_text().splitlines()
    assert comment.startswith("#")
    cells = dict(zip(header.split("\t"), line.split("\t"), strict=True))
    assert (cells["family"], cells["rung"], cells["rows"], cells["low"]) == ("gemm", "table", "40", "1 1 1")
    assert cells["source"].startswith("aiconfigurator-core")
