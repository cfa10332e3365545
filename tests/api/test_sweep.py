"""A sweep answers every case once, goes on after a kill, divides into shards, and tells what it could not answer."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import pytest

import ridgeline as rl
from ridgeline.api import sweep_file, sweeping
from ridgeline.api.sweep_file import SweepCase, read_sweep, shard_of
from ridgeline.api.sweep_pool import flat, run
from ridgeline.cli.main import run as command
from ridgeline.errors import InputError, UnknownNameError

PRODUCTS = """
[sweep]
verb = "op"
[sweep.words]
kind = "gemm"
on = "H100-SXM"
[sweep.grid]
shape = ["64x64x64", "128x128x128", "1024x1024x1024", "none"]
dtype = ["bf16", "fp8"]
"""


class InOneThread:
    """A pool of this process: tests start no others where nothing depends on it."""

    def __init__(self, count: int) -> None:
        self._threads = ThreadPoolExecutor(1)

    def submit(self, function: Any, /, *arguments: Any) -> Future[Any]:
        return self._threads.submit(function, *arguments)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._threads.shutdown(wait=wait, cancel_futures=cancel_futures)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeping, "processes_of", InOneThread)


def written(folder: Path, text: str = PRODUCTS) -> str:
    (folder / "s.toml").write_text(text, encoding="utf-8")
    return str(folder / "s.toml")


@pytest.mark.usefixtures("here")
def test_each_case_is_the_questions_answer(tmp_path: Path) -> None:
    out = tmp_path / "rows.csv"
    told = rl.sweep(written(tmp_path), out=str(out)).as_dict()
    assert [told[name] for name in ("cases", "answered", "refused", "left", "new")] == [8, 6, 2, 0, 8]
    assert told["errors"][0]["cases"] == 2
    rows = list(csv.DictReader(out.read_text(encoding="utf-8").splitlines()))
    assert [row["status"] for row in rows] == ["answered"] * 6 + ["refused"] * 2
    assert rows[6]["error"]
    alone = rl.op("gemm", "1024x1024x1024", dtype="fp8")["rows"][0]
    assert float(rows[5]["seconds"]) == alone["seconds"]


def test_processes_answer_as_one_does(tmp_path: Path) -> None:
    answer = rl.sweep(written(tmp_path, PRODUCTS.replace('"op"', '"op"\ncolumns = ["rows.0.flop"]')), processes=2)
    assert [row["number"] for row in answer.value] == list(range(8))
    assert [row.get("rows.0.flop") for row in answer.value[:4:2]] == [2 * 64**3, 2 * 128**3]


@pytest.mark.usefixtures("here")
def test_shards_share_a_journal_and_none_is_asked_twice(tmp_path: Path) -> None:
    path = written(tmp_path)
    news = [rl.sweep(path, shard=f"{one}/3")["new"] for one in (1, 2, 3)]
    assert news == [3, 3, 2]
    assert len(list((tmp_path / "s.journal").glob("*.jsonl"))) == 3
    whole = rl.sweep(path)
    assert (whole["new"], whole["left"], len(whole["rows"])) == (0, 0, 8)


@pytest.mark.usefixtures("here")
def test_a_changed_sweep_asks_only_what_is_new(tmp_path: Path) -> None:
    rl.sweep(written(tmp_path))
    assert rl.sweep(written(tmp_path, PRODUCTS.replace('"none"', '"64x64x128"')))["new"] == 2


@pytest.mark.usefixtures("here")
def test_a_file_that_words_name_is_part_of_the_question(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    text = '{"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 100, '
    text += '"intermediate_size": 128, "num_hidden_layers": LAYERS}'
    sweep = f'[sweep]\nverb = "predict"\n[sweep.words]\nsubject = "{config}"\non = "1xH100-SXM"\nmicro_batch = 1\n'
    config.write_text(text.replace("LAYERS", "2"), encoding="utf-8")
    first = read_sweep(written(tmp_path, sweep)).cases[0].key
    sweep_file._content.cache_clear()
    config.write_text(text.replace("LAYERS", "4"), encoding="utf-8")
    assert read_sweep(written(tmp_path, sweep)).cases[0].key != first


def test_a_sweep_that_is_killed_goes_on(tmp_path: Path) -> None:
    shapes = ", ".join(f'"{64 * (1 + index % 40)}x{64 * (1 + index // 40)}x4096"' for index in range(1200))
    path = written(tmp_path, PRODUCTS.split("[sweep.grid]")[0] + f"[sweep.grid]\nshape = [{shapes}]\n")
    journal = tmp_path / "s.journal"
    line = [sys.executable, "-c", "from ridgeline.cli.main import main; main()", "sweep", path, "--processes", "1"]
    with subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True) as one:
        until = time.monotonic() + 90
        while time.monotonic() < until and not any(part.stat().st_size for part in journal.glob("*.jsonl")):
            time.sleep(0.01)
        os.killpg(one.pid, signal.SIGKILL)
    part = next(journal.glob("*.jsonl"))
    part.write_text(part.read_text(encoding="utf-8")[:-9], encoding="utf-8")  # a line that was being written
    kept = len(part.read_text(encoding="utf-8").splitlines()) - 1
    assert 0 < kept < 1200
    again = rl.sweep(path, processes=1)
    assert (again["new"], again["left"], again["answered"]) == (1200 - kept, 0, 1200)


class Breaks(InOneThread):
    """A pool that one case ends."""

    def submit(self, function: Any, /, *arguments: Any) -> Future[Any]:
        if any(case.number == 3 for case in arguments[-1]):
            broken: Future[Any] = Future()
            broken.set_exception(BrokenProcessPool("ended"))
            return broken
        return super().submit(function, *arguments)


def test_a_case_that_ends_its_process_costs_itself_alone(tmp_path: Path) -> None:
    found: list[dict[str, Any]] = []
    asked = read_sweep(written(tmp_path))
    run(asked, asked.cases, Breaks, 1, found.extend)
    assert sorted(row["number"] for row in found) == list(range(8))
    assert next(row for row in found if row["number"] == 3)["error"].startswith("the process that answered ended")


@pytest.mark.usefixtures("here")
def test_training_rows_have_intervals_and_named_paths(tmp_path: Path) -> None:
    text = """
[sweep]
verb = "predict"
[sweep.words]
subject = "gpt2"
on = "1xA100-SXM-80GB"
global_batch = 8
[[sweep.case]]
micro_batch = 8
[[sweep.case]]
micro_batch = 3
"""
    first, second = rl.sweep(written(tmp_path, text)).value
    assert first["step_time_s_low"] < first["step_time_s"] < first["step_time_s_high"]
    assert second["status"] == "refused"
    named = text.replace('"predict"', '"predict"\ncolumns = ["memory.0.total_bytes", "no.such"]')
    first = rl.sweep(written(tmp_path, named)).value[0]
    assert first["memory.0.total_bytes"] > 1e9
    assert first["no.such"] is None


@pytest.mark.usefixtures("here")
def test_parquet_holds_the_same(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    out = tmp_path / "rows.parquet"
    rows = rl.sweep(written(tmp_path), out=str(out)).value
    table = parquet.read_table(out)
    assert table.num_rows == 8
    assert table.column("seconds").to_pylist() == [row.get("seconds") for row in rows]


@pytest.mark.usefixtures("here")
def test_exit_codes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["sweep", written(tmp_path)]) == 0
    assert "8 cases of op: 6 answered" in capsys.readouterr().out
    nothing = PRODUCTS.replace('["64x64x64", "128x128x128", "1024x1024x1024", "none"]', '["none"]')
    assert command(["sweep", written(tmp_path, nothing), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["refused"] == 2
    assert command(["sweep", str(tmp_path / "none.toml")]) == 2


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "begins with \\[sweep\\]"),
        ("sweep = 3", "begins with \\[sweep\\]"),
        ('[sweep]\nverb = "export"', "s.toml:2: .*one of them: predict"),
        ('[sweep]\nverb = "op"\n[sweep.grid]\nshap = ["a"]', "s.toml:4: .*nearest: shape"),
        ('[sweep]\nverb = "op"\n[sweep.grid]\nshape = "a"', "s.toml:4: .*list of values"),
        ('[sweep]\nverb = "op"\n[sweep.words]\npicture = "a.svg"', "s.toml:4"),
        ('[sweep]\nverb = "op"\ncase = 3', "s.toml:3: .*list of tables"),
        ('[sweep]\nverb = "op"\ncolumns = 3', "s.toml:3"),
        ('[sweep]\nverb = "op"\n[sweep.grid]\n' + "\n".join(f"{w} = {[0] * 100}" for w in ("skew", "window", "on")),
         "1,000,000 cases, the limit is 100,000"),
    ],
)  # fmt: skip
def test_files_that_cannot_be_used_are_refused(text: str, told: str, tmp_path: Path) -> None:
    with pytest.raises((InputError, UnknownNameError), match=told):
        read_sweep(written(tmp_path, text))


@pytest.mark.parametrize("text", ["0/3", "4/3", "3", "a/b", "1/", "/2", "-1/3", "1/0"])
def test_shards_that_are_none(text: str) -> None:
    with pytest.raises(InputError, match="3/16"):
        shard_of(text)


def test_tables_that_cannot_be_written_are_told_first(tmp_path: Path) -> None:
    for out, told in (("rows.txt", "neither"), (str(tmp_path / "no" / "rows.csv"), "folder")):
        with pytest.raises(InputError, match=told):
            rl.sweep(written(tmp_path), out=out)
    assert not (tmp_path / "s.journal").exists()


def test_what_is_flat() -> None:
    fact = {"value": 1.0, "low": 0.5, "high": 2.0, "unit": "s", "evidence": "assumed"}
    answer = {"time": fact, "model": {"name": "x"}, "ttft": {"p99_s": 3.0}, "best": [{"a": 1}, {"a": 2}], "list": [1]}
    assert dict(flat(answer)) == {
        "time": 1.0, "time_low": 0.5, "time_high": 2.0, "time_evidence": "assumed", "ttft.p99_s": 3.0, "a": 1,
    }  # fmt: skip


def test_cases_are_the_grid_times_the_list(tmp_path: Path) -> None:
    asked = read_sweep(written(tmp_path, PRODUCTS + "[[sweep.case]]\nwindow = 0\n[[sweep.case]]\nwindow = 8\n"))
    assert len(asked.cases) == 16
    assert isinstance(asked.cases[0], SweepCase)
    assert asked.cases[8].words == {"window": 8, "shape": "64x64x64", "dtype": "bf16"}
    assert len({case.key for case in asked.cases}) == 16


SLOW = """
[sweep]
verb = "predict"
limit_case = "1ms"
[sweep.words]
subject = "gpt2"
on = "8xA100-SXM-80GB"
[[sweep.case]]
tp = 1
[[sweep.case]]
tp = 5
"""


def test_a_case_over_its_time_is_refused_and_kept(tmp_path: Path) -> None:
    told = rl.sweep(written(tmp_path, SLOW), processes=1).as_dict()
    assert "took longer than 1 ms" in [each["error"] for each in told["errors"]]
    again = rl.sweep(written(tmp_path, SLOW), processes=1).as_dict()
    assert again["new"] == 0
    longer = rl.sweep(written(tmp_path, SLOW), processes=1, limit_case="2min", journal=str(tmp_path / "j")).as_dict()
    assert longer["answered"] == 1


@pytest.mark.parametrize("text", ["-1s", "0", "soon"])
def test_a_limit_that_is_no_time_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(InputError):
        rl.sweep(written(tmp_path), limit_case=text)


DRAWN = """
[sweep]
verb = "op"
columns = ["rows.0.seconds", "rows.0.energy_j"]
[sweep.words]
kind = "gemm"
[sweep.grid]
shape = ["64x64x64", "1024x1024x1024", "none 3", "none 4"]
on = ["H100-SXM", "A100-SXM-80GB"]
"""


@pytest.mark.usefixtures("here")
def test_a_sweep_is_drawn_and_refusals_are_counted_by_reason(tmp_path: Path) -> None:
    answer = rl.sweep(written(tmp_path, DRAWN))
    assert "4 of 8 cases" in answer.figure("refused").title
    for name in ("by-shape", "by-on", "front"):
        assert "rows.0.seconds" in answer.figure(name).svg
    assert answer.figure("by-shape").svg.count("<circle") == 4
    assert answer.html().count("<figure") == 4
