"""The benchmark of sources that nothing was made with: sealed tables stay closed, first answers are written once."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    spec = importlib.util.spec_from_file_location("bench_strangers", BENCHMARKS / "bench_strangers.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    monkeypatch.setattr(made, "FIRST", tmp_path / "first.tsv.gz")
    return made


def test_sealed_tables_are_opened_only_when_asked(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(bench, "answered", lambda path, store: opened.append(path.name) or ())
    monkeypatch.setattr(bench, "commit", lambda: "abc")
    monkeypatch.setattr(bench.os, "nice", lambda by: 0)
    for side in bench.SIDES:
        opened.clear()
        flags = [] if side == "open" else ["--unseal", side]
        monkeypatch.setattr(sys, "argv", ["bench", "--keep", str(tmp_path), *flags])
        bench.main()
        assert opened == [path.name for _, path in bench.tables([], side)]
        assert opened
        assert all(name.endswith(f"-{side}.tsv") for name in opened)


def test_a_first_answer_is_written_once(bench: ModuleType) -> None:
    row = {"id": "u1", "status": "scored", "measured": 2.0, "predicted": 1.0, "low": 0.5, "high": 3.0, "reason": ""}
    bench.write_first([("serving", row)], "abc")
    assert bench.first_answers()["serving", "u1"]["predicted"] == 1.0
    with pytest.raises(SystemExit, match="u1"):
        bench.write_first([("serving", row | {"predicted": 2.0})], "def")
    assert bench.first_answers()["serving", "u1"]["commit"] == "abc"


def test_a_killed_run_goes_on_after_its_last_whole_line(bench: ModuleType, tmp_path: Path) -> None:
    store = tmp_path / "kept.jsonl"
    store.write_text('{"id": "u1"}\n{"id": "u2"}\n{"id": "u', encoding="utf-8")
    assert [row["id"] for row in bench.kept(store)] == ["u1", "u2"]
