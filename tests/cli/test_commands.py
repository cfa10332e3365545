"""The commands, end to end and in this process: what they print, in which form, with which exit code."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ridgeline.cli import main as cli
from ridgeline.cli.main import run
from ridgeline.scenario.training import read_scenario

SMALL = ["gpt2", "--on", "8xA100-SXM-80GB", "--seq-len", "1024", "--global-batch", "64"]
PLANNED = [*SMALL, "--tp", "2", "--pp", "2", "--micro-batch", "2"]


def ask(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = run(words)
    out, err = capsys.readouterr()
    return code, out, err


def ask_json(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any]:
    code, out, _ = ask(capsys, *words, "--json")
    return code, json.loads(out)


def test_predict_says_the_plan_that_was_asked(capsys: pytest.CaptureFixture[str]) -> None:
    code, answer = ask_json(capsys, "predict", *PLANNED)
    assert code == 0
    degrees = {name: answer["plan"][name] for name in ("tp", "pp", "dp", "micro_batch")}
    assert degrees == {"tp": 2, "pp": 2, "dp": 2, "micro_batch": 2}
    step = answer["step_time_s"]
    assert 0 < answer["bound_s"] <= step["value"] * (1 + 1e-9)
    assert step["low"] < step["value"] < step["high"]
    assert answer["tokens_per_s"] == pytest.approx(64 * 1024 / step["value"])
    assert sum(share["seconds"] for share in answer["shares"]) == pytest.approx(step["value"])


def test_predict_prints_the_same_numbers_twice(capsys: pytest.CaptureFixture[str]) -> None:
    first, second = ask(capsys, "predict", *PLANNED), ask(capsys, "predict", *PLANNED)
    assert first == second
    assert first[1].splitlines()[0].startswith("gpt2 (124.4M parameters), pretrain, on 8xA100-SXM-80GB")
    assert max(map(len, first[1].splitlines())) <= 100


def test_predict_from_a_file_and_from_flags_agree(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "scenario.toml"
    path.write_text(
        'model = "gpt2"\ncluster = "8xA100-SXM-80GB"\n[workload]\nseq_len = 1024\nglobal_batch = 64\n'
        "[plan]\ntp = 2\npp = 2\nmicro_batch = 2\n",
        encoding="utf-8",
    )
    assert ask(capsys, "predict", str(path))[:2] == ask(capsys, "predict", *PLANNED)[:2]
    wider = ask_json(capsys, "predict", str(path), "--tp", "4")[1]
    assert (wider["plan"]["tp"], wider["plan"]["dp"]) == (4, 1)


def test_predict_writes_a_trace(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    code, _, err = ask(capsys, "predict", *PLANNED, "--trace", str(path))
    events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    assert (code, f"wrote {len(events)} events" in err) == (0, True)
    assert {"F0", "B0"} <= {span["name"] for span in spans}
    starts = [span["ts"] for span in spans]
    assert starts == sorted(starts)


def test_a_trace_that_cannot_be_written_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = ask(capsys, "predict", *PLANNED, "--trace", "/no/such/folder/trace.json")
    assert (code, "cannot be written" in err) == (2, True)


def test_a_plan_that_does_not_fit_is_explained_and_ends_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["predict", "llama-3.1-70b", "--on", "8xA100-SXM-80GB", "--seq-len", "4096", "--global-batch", "8"]
    code, out, err = ask(capsys, *words)
    assert (code, "DOES NOT FIT" in out) == (1, True)
    assert err.startswith("error: the plan needs ")
    code, answer = ask_json(capsys, *words)
    assert (code, answer["fits"]) == (1, False)


def test_plan_ranks_and_explains(capsys: pytest.CaptureFixture[str]) -> None:
    code, answer = ask_json(capsys, "plan", *SMALL, "--top", "3")
    times = [report["step_time_s"]["value"] for report in answer["best"]]
    assert (code, len(times), times) == (0, 3, sorted(times))
    assert answer["covered"] >= answer["legal"] >= answer["feasible"] >= answer["simulated"] >= 3
    assert answer["bound_gap"] >= 0
    assert all(report["fits"] for report in answer["best"])


def test_the_best_plan_predicts_as_planned(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The plan that `plan` prints, given back to `predict`, has the same step time."""
    best = ask_json(capsys, "plan", *SMALL)[1]["best"][0]
    lines = [f"{key} = {json.dumps(value)}" for key, value in best["plan"].items() if value is not None]
    path = tmp_path / "best.toml"
    path.write_text(
        'model = "gpt2"\ncluster = "8xA100-SXM-80GB"\n[workload]\nseq_len = 1024\nglobal_batch = 64\n[plan]\n'
        + "\n".join(lines),
        encoding="utf-8",
    )
    assert read_scenario(path).plan is not None
    again = ask_json(capsys, "predict", str(path))[1]
    assert again["step_time_s"]["value"] == pytest.approx(best["step_time_s"]["value"], rel=1e-12)


def test_no_plan_ends_with_1_and_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "llama-3.1-405b", "--on", "1xRTX-4090", "--seq-len", "8192", "--global-batch", "8"]
    code, _, err = ask(capsys, *words)
    assert code == 1
    assert "error: no plan of llama-3.1-405b fits on 1 x RTX-4090" in err


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["plan", "gpt2"], "field '--on': say which machine"),
        (["plan", "gpt-2-xxl-9", "--on", "8xA100-SXM-80GB"], "unknown model"),
        (["plan", "gpt2", "--on", "8xA1000-SXM"], "unknown"),
        (["plan", "missing.toml"], "missing.toml: no such file"),
        (["predict", *SMALL, "--tp", "3"], "does not divide the 8 devices"),
        (["predict", *SMALL, "--precision", "bf61"], "nearest: bf16"),
        (["predict", *SMALL, "--taks", "lora"], "--taks"),
        (["catalog", "acelerators"], "acelerators"),
        (["catalog", "accelerators", "H1000"], "unknown accelerator"),
        (["check", "missing.tsv"], "missing.tsv"),
        (["bogus"], "bogus"),
    ],
)
def test_bad_input_ends_with_2_and_says_where(capsys: pytest.CaptureFixture[str], words: list[str], part: str) -> None:
    code, out, err = ask(capsys, *words)
    assert (code, out) == (2, "")
    assert part in err


def test_plan_keeps_what_was_stated(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", *SMALL, "--tp", "4", "--zero", "1", "--max-pp", "1", "--schedule", "1f1b"]
    code, answer = ask_json(capsys, *words)
    plans = [report["plan"] for report in answer["best"]]
    assert (code, len(plans) > 0) == (0, True)
    assert {(plan["tp"], plan["pp"], plan["zero"], plan["schedule"]) for plan in plans} == {(4, 1, 1, "1f1b")}


def test_no_plan_has_a_json_form(capsys: pytest.CaptureFixture[str]) -> None:
    code, answer = ask_json(capsys, "plan", "llama-3.1-405b", "--on", "1xRTX-4090")
    assert (code, answer["best"]) == (1, [])
    assert answer["error"].startswith("no plan of llama-3.1-405b fits")


def test_datasheet_rates_alone_are_faster(capsys: pytest.CaptureFixture[str]) -> None:
    """Without measured rates a matrix runs at its datasheet's peak, which no device sustains."""
    words = ["predict", "llama-3.1-8b", "--on", "8xH100-SXM", "--global-batch", "16", "--zero", "3"]
    measured = ask_json(capsys, *words)[1]
    datasheet = ask_json(capsys, *words, "--evidence", "datasheet")[1]
    assert measured["evidence"]["matrix rate"] == "measured elsewhere"
    assert datasheet["evidence"]["matrix rate"] != "measured elsewhere"
    assert datasheet["step_time_s"]["value"] < measured["step_time_s"]["value"]


@pytest.mark.parametrize("kind", ["models", "accelerators", "clusters", "processors"])
def test_catalog_lists_and_tells(capsys: pytest.CaptureFixture[str], kind: str) -> None:
    code, listed = ask_json(capsys, "catalog", kind)
    assert (code, listed.keys(), listed["kind"], len(listed["entries"]) > 20) == (0, {"kind", "entries"}, kind, True)
    name = listed["entries"][0]["name"]
    assert ask_json(capsys, "catalog", kind, name)[1]["name"] == name
    assert name in ask(capsys, "catalog", kind, name)[1]
    assert len(ask(capsys, "catalog", kind)[1].splitlines()) == len(listed["entries"]) + 2


def test_catalog_facts_carry_source_and_evidence(capsys: pytest.CaptureFixture[str]) -> None:
    _, answer = ask_json(capsys, "catalog", "accelerators", "h100 sxm")
    for fact in answer["facts"].values():
        assert set(fact) == {"value", "unit", "source", "conditions", "evidence"}
        assert fact["source"]
    assert answer["facts"]["peak_flop_per_s.bf16"]["value"] == pytest.approx(989.4e12, rel=1e-3)


ROWS = """\
id\tmodel\tparams_b\tseq_len\thardware\tn_devices\tdp\tmicro_batch\tglobal_batch\tprecision\tmetric\tvalue\tunit\tconfidence
a1\tGPT-2\t0.124\t1024\tA100-SXM-80GB\t8\t8\t8\t64\tbf16\ttokens_per_s\t1000000\ttokens/s\thigh
a2\tGPT-2\t0.124\t1024\tNoSuchDevice-9\t8\t8\t8\t64\tbf16\ttokens_per_s\t1000000\ttokens/s\thigh
a3\tGPT-2\t0.124\tlong\tA100-SXM-80GB\t8\t8\t8\t64\tbf16\ttokens_per_s\t1000000\ttokens/s\thigh
"""


def test_check_answers_row_by_row(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "rows.tsv"
    path.write_text(ROWS, encoding="utf-8")
    code, answer = ask_json(capsys, "check", str(path))
    keys = {"id", "status", "reason", "metric", "unit", "measured", "predicted", "low", "high", "ape", "evidence"}
    assert code == 0
    assert [row["id"] for row in answer["rows"]] == ["a1", "a2", "a3"]
    assert all(keys <= set(row) for row in answer["rows"])
    assert [row["status"] for row in answer["rows"]] == ["scored", "refused", "refused"]
    assert answer["rows"][0]["ape"] == pytest.approx(abs(answer["rows"][0]["predicted"] / 1e6 - 1))
    code, out, _ = ask(capsys, "check", str(path))
    assert (code, "a2" in out) == (0, True)


def test_check_shows_progress_on_a_terminal_only(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rows.tsv"
    path.write_text(ROWS, encoding="utf-8")
    piped = ask(capsys, "check", str(path))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    shown = ask(capsys, "check", str(path))
    assert (piped[2], piped[1]) == ("", shown[1])
    assert "checking" in shown[2]


def test_a_defect_says_that_it_is_one(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: object) -> int:
        raise ZeroDivisionError("by nought")

    monkeypatch.setattr(cli, "run", broken)
    with pytest.raises(SystemExit) as ending:
        cli.main()
    assert ending.value.code == 70
    assert "internal error: ZeroDivisionError: by nought\nthis is a defect" in capsys.readouterr().err


def test_a_defect_is_not_hidden_from_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("by nought")

    monkeypatch.setattr("ridgeline.api.planning.predict", broken)
    with pytest.raises(ZeroDivisionError):
        run(["predict", *SMALL])


def test_the_module_runs_as_a_program() -> None:
    words = [sys.executable, "-m", "ridgeline.cli.main", "predict", "none.toml"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: none.toml: no such file\n"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("plan", "gpt2", "--on", "1xA100-SXM-80GB", "--seq-len", "1024", "--global-batch", "8"), "searching plans"),
        (("simulate", "gpt2", "--on", "1xA100-SXM-80GB", "--concurrency", "1", "--requests", "2", "--prompt", "64",
          "--output", "8"), "replaying 2 requests"),
    ],
)  # fmt: skip
def test_long_work_shows_itself_on_a_terminal_only(
    words: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, err = ask(capsys, *words)
    assert (code, told in err) == (0, False)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    shown = ask(capsys, *words)
    assert shown[:2] == (0, out)
    assert told in shown[2]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full is Linux's")
@pytest.mark.parametrize("words", [["catalog", "models"], ["catalog", "models", "--json"], ["plan", "--help"]])
def test_an_answer_that_cannot_be_written_is_no_defect(words: list[str]) -> None:
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "ridgeline.cli.main", *words]
        found = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (found.returncode, "the answer cannot be written: No space left on device" in found.stderr) == (2, True)
    assert "defect" not in found.stderr
    assert "Traceback" not in found.stderr


def test_a_plan_that_flags_contradict_names_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, told = ask(capsys, "predict", "gpt2", "--on", "1xA100-SXM-80GB", "--tp", "2", "--seq-len", "1024")
    assert (code, told.startswith("error: field 'plan': tp * pp * cp = 2 does not divide")) == (2, True)


def test_a_rate_with_a_unit_is_told_that_it_has_none(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, told = ask(capsys, "simulate", "gpt2", "--on", "1xA100-SXM-80GB", "--rate", "5ms")
    assert (code, told) == (2, "error: field '--rate': '5ms' is in s; wanted a number without a unit\n")
