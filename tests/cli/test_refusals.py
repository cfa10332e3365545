"""With `--json` what cannot be answered is one JSON object too: what, where, which value, what to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer

from ridgeline.cli import main
from ridgeline.cli.main import run

KEYS = {"error", "exit_code", "kind", "file", "line", "field", "value", "nearest", "next_step"}

SCENARIO = """\
model = "gpt2"
cluster = "8xH100-SXM"
[workload]
seq_len = 512
precision = "bf61"
[plan]
tp = 0
"""


def refused(capsys: pytest.CaptureFixture[str], *words: str, code: int = 2) -> dict[str, Any]:
    assert run([*words, "--json"]) == code
    printed = capsys.readouterr()
    told: dict[str, Any] = json.loads(printed.out)
    assert told.keys() == KEYS
    assert told["exit_code"] == code
    assert told["error"] in printed.err
    return told


@pytest.mark.parametrize(
    ("words", "field", "value", "nearest"),
    [
        (["predict", "gpt2", "--on", "8xH100-SXM", "--tp", "0"], "--tp", "0", []),
        (["predict", "gpt2", "--on", "8xH100-SMX"], "--on", "H100-SMX", ["H100-SXM"]),
        (["predict", "gpt2"], "--on", None, []),
        (["predict", "gpt2", "--serve", "--on", "8xH100-SXM", "--batch", "0"], "--batch", "0", []),
        (["plan", "gpt2", "--on", "8xH100-SXM", "--precision", "bf61"], "--precision", "bf61", ["bf16"]),
        (["plan", "gpt2", "--on", "8xH100-SXM", "--top", "0"], "--top", 0, []),
        (["plan", "gpt2", "--serve", "--on", "8xH100-SXM", "--rate", "fast"], "--rate", "fast", []),
        (["simulate", "gpt2", "--on", "8xH100-SXM", "--rate", "1", "--slo", "ttft=1"], "--slo", "ttft=1", []),
        (["simulate", "gpt2", "--on", "H100-SXM", "--rate", "1", "--engine", "vlm"], "--engine", "vlm", ["vLLM"]),
        (["simulate", "gpt2", "--on", "H100-SXM", "--rate", "1", "--weights", "fp3"], "--weights", "fp3", []),
        (["predict", "gpt2", "--serve", "--on", "H100-SXM", "--kv", "int1"], "--kv", "int1", []),
        (
            ["plan", "gpt2", "--serve", "--on", "H100-SXM", "--trace", "azure-chat"],
            "--trace",
            "azure-chat",
            ["azure-conv"],
        ),
        (["op", "gemm", "16x16"], "SHAPE", "16x16", []),
        (["op", "gem", "16x16x16"], None, "gem", ["gemm"]),
        (["catalog", "modles"], "kind", "modles", ["models"]),
        (["catalog", "models", "gpt3x"], None, "gpt3x", ["gpt3"]),
        (["calibrate", "--budget", "3furlong"], "--budget", "3furlong", []),
        (["measure", "gpt2", "--repeats", "many"], "--repeats", "many", []),
        (["fit", "--family", "gem"], None, "gem", ["gemm"]),
        (["check"], "FILE.tsv|RESULTS.json", None, []),
        (["predict", "gpt2", "--tpp", "2"], "--tpp", None, ["--tp"]),
    ],
    ids=lambda one: " ".join(one) if isinstance(one, list) and len(one) > 1 else "",
)
def test_every_command_says_in_json_what_it_refuses(
    capsys: pytest.CaptureFixture[str], words: list[str], field: str | None, value: object, nearest: list[str]
) -> None:
    told = refused(capsys, *words)
    assert (told["field"], told["value"]) == (field, value)
    assert set(nearest) <= set(told["nearest"])
    assert bool(nearest) <= bool(told["nearest"])


def test_a_word_of_a_file_is_told_by_file_line_and_value(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text(SCENARIO, encoding="utf-8")
    told = refused(capsys, "predict", str(file))
    assert (told["kind"], told["file"], told["line"]) == ("InputError", str(file), 5)
    assert (told["field"], told["value"]) == ("workload.precision", "bf61")
    assert told["next_step"] == "nearest: bf16, fp16, bf16-amp"
    file.write_text(SCENARIO.replace("bf61", "bf16"), encoding="utf-8")
    told = refused(capsys, "predict", str(file))
    assert (told["line"], told["field"], told["value"]) == (7, "plan.tp", 0)


def test_a_rule_that_a_plan_breaks_is_told_by_the_line_of_its_word(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "a.toml"
    file.write_text(SCENARIO.replace("bf61", "bf16").replace("tp = 0", "pp = 2\nchunks = 4"), encoding="utf-8")
    told = refused(capsys, "predict", str(file))
    assert (told["line"], told["field"]) == (8, "plan")
    file.write_text('model = "gpt3x"\ncluster = "8xH100-SXM"\n', encoding="utf-8")
    assert refused(capsys, "predict", str(file))["line"] == 1


def test_a_config_and_a_cluster_are_told_by_file_line_and_value(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config = tmp_path / "config.json"
    config.write_text(
        '{\n"model_type": "llama",\n"hidden_size": -4, "num_hidden_layers": 2,\n"num_attention_heads": 4,'
        ' "vocab_size": 9, "intermediate_size": 8\n}',
        encoding="utf-8",
    )
    told = refused(capsys, "predict", str(config), "--on", "H100-SXM")
    assert (told["file"], told["line"], told["field"], told["value"]) == (str(config), 3, "hidden_size", -4)
    cluster = tmp_path / "m.toml"
    cluster.write_text('accelerator = "H100-SXM"\ncount = "many"\n', encoding="utf-8")
    told = refused(capsys, "predict", "gpt2", "--on", str(cluster))
    assert (told["file"], told["line"], told["field"], told["value"]) == (str(cluster), 2, "count", "many")


def test_a_table_that_is_not_there_is_told_by_its_path(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = str(tmp_path / "none.tsv")
    assert refused(capsys, "check", path)["file"] == path


def test_a_timeline_that_cannot_be_written_leaves_one_object(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = str(tmp_path / "none" / "t.json")
    assert refused(capsys, "predict", "gpt2", "--on", "H100-SXM", "--trace", path)["file"] == path


def test_what_is_impossible_has_the_same_keys(capsys: pytest.CaptureFixture[str]) -> None:
    told = refused(capsys, "simulate", "llama-3.1-70b", "--on", "1xL40S", "--rate", "1", code=1)
    assert told["kind"] == "NoPlanError"


@pytest.mark.parametrize(
    "words",
    [
        ["predict", "qwen3-32b", "--serve", "--on", "1xRTX-4090"],
        ["predict", "qwen3-32b", "--serve", "--on", "1xRTX-4090", "--batch", "1"],
        ["predict", "mixtral-8x7b", "--serve", "--on", "1xL40S", "--offload", "fetched", "--dram", "1GB"],
        ["plan", "llama-3.1-70b", "--serve", "--on", "1xL40S", "--rate", "1"],
        ["plan", "llama-3.1-70b", "--serve", "--rate", "1", "--rent", "T4=1"],
        ["plan", "llama-3.1-70b", "--on", "1xL40S"],
        ["predict", "llama-3.1-70b", "--on", "1xL40S"],
    ],
    ids=" ".join,
)
def test_exit_code_1_prints_one_object(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    assert run([*words, "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told.keys() >= KEYS or told["fits"] is False


@pytest.mark.parametrize(
    ("words", "field"),
    [
        (["op", "launch", "\u00b2"], "SHAPE"),
        (["op", "gemm", "16x16x\u00b2"], "SHAPE"),
        (["op", "gemm", "9" * 5000 + "x1x1"], "SHAPE"),
        (["plan", "gpt2", "--serve", "--rate", "1", "--rent", "L40S=\u00b2"], "--rent"),
        (["simulate", "gpt2", "--on", "H100-SXM", "--rate", "1", "--draft-tree", "4x\u00b2"], "--draft-tree"),
    ],
    ids=lambda one: " ".join(one)[:60] if isinstance(one, list) else "",
)
def test_digits_of_other_scripts_are_no_numbers(
    capsys: pytest.CaptureFixture[str], words: list[str], field: str
) -> None:
    assert refused(capsys, *words)["field"] == field


def test_bits_of_a_checkpoint_that_are_no_number_are_told_by_their_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config = tmp_path / "config.json"
    config.write_text(
        '{\n"model_type": "llama",\n"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,\n'
        '"vocab_size": 9, "intermediate_size": 8, "quantization_config":\n{"quant_method": "gptq",\n"bits": [4]}}',
        encoding="utf-8",
    )
    told = refused(capsys, "simulate", str(config), "--on", "H100-SXM", "--rate", "1")
    assert (told["file"], told["line"], told["field"]) == (str(config), 6, "bits")


@pytest.mark.parametrize("command", ["predict", "plan", "simulate"])
def test_a_value_nested_a_thousand_deep_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: str
) -> None:
    file = tmp_path / "a.toml"
    file.write_text(SCENARIO.replace('model = "gpt2"', "model = " + "[" * 1000 + "]" * 1000), encoding="utf-8")
    assert refused(capsys, command, str(file))["file"] == str(file)


def test_a_byte_order_mark_of_a_diffusion_scenario_is_no_word(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "a.toml"
    words = 'model = "flux.1-dev"\ncluster = "1xH100-SXM"\n[workload]\ntask = "diffusion"\nwidth = 512\n'
    file.write_text(words + "height = 512\nsteps = 4\n", encoding="utf-8-sig")
    assert run(["predict", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)


def test_without_json_nothing_is_printed_beside_the_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["predict", "gpt2", "--on", "8xH100-SXM", "--tp", "0"]) == 2
    assert capsys.readouterr().out == ""


def test_a_defect_is_told_in_json(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: object) -> int:
        raise ZeroDivisionError("seven")

    monkeypatch.setattr(main, "run", broken)
    monkeypatch.setattr("sys.argv", ["ridgeline", "catalog", "models", "--json"])
    with pytest.raises(SystemExit) as ended:
        main.main()
    told = json.loads(capsys.readouterr().out)
    assert (ended.value.code, told["exit_code"], told["kind"]) == (70, 70, "Defect")
    assert told["error"].startswith("internal error: ZeroDivisionError: seven")


@pytest.mark.parametrize("stopped", [typer.Abort, KeyboardInterrupt])
def test_a_person_who_stops_the_program_sees_no_defect(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, stopped: type[BaseException]
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise stopped

    monkeypatch.setattr("ridgeline.api.catalog.catalog", interrupted)
    assert run(["catalog", "models"]) == 130
    assert "defect" not in capsys.readouterr().err
