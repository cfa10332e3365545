"""What a person gets wrong on a command line is named, never dropped and never a traceback."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ridgeline.api.flags import LIMIT_NAMES, PLAN_NAMES, WORKLOAD_NAMES
from ridgeline.cli.main import run
from ridgeline.errors import RidgelineError
from ridgeline.graph.load import load
from ridgeline.scenario.serving_fields import BATCH_FIELDS, DEPLOYMENT_FIELDS, TRAFFIC_FIELDS

TRAINING = WORKLOAD_NAMES | PLAN_NAMES | LIMIT_NAMES
PLAIN = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100, "max_position_embeddings": 64,
}  # fmt: skip


def ask(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = run(words)
    return code, capsys.readouterr().err


def of_serving(*tables: tuple[object, ...]) -> list[str]:
    fields = [field for table in tables for field in table]
    return sorted({field.flag for field in fields if field.name not in TRAINING and not field.switch})  # type: ignore[attr-defined]


@pytest.mark.parametrize("flag", of_serving(BATCH_FIELDS, DEPLOYMENT_FIELDS))
def test_a_word_of_serving_is_not_dropped_where_training_is_predicted(
    capsys: pytest.CaptureFixture[str], flag: str
) -> None:
    code, said = ask(capsys, "predict", "gpt2", "--on", "H100-SXM", flag, "1")
    assert code == 2
    assert flag in said
    assert "add --serve" in said


@pytest.mark.parametrize("flag", of_serving(TRAFFIC_FIELDS, DEPLOYMENT_FIELDS))
def test_a_word_of_serving_is_not_dropped_where_training_is_planned(
    capsys: pytest.CaptureFixture[str], flag: str
) -> None:
    code, said = ask(capsys, "plan", "gpt2", "--on", "H100-SXM", flag, "1")
    assert code == 2
    assert flag in said


@pytest.mark.parametrize("command", [["predict"], ["plan"], ["simulate", "--rate", "1"]])
@pytest.mark.parametrize(
    "name", ["llama" * 1000, "\x00", "a" * 300 + "/config.json", "", "x" * 5000 + ".json", "~" * 999]
)
def test_a_text_that_can_be_no_path_is_an_unknown_model(
    capsys: pytest.CaptureFixture[str], command: list[str], name: str
) -> None:
    code, said = ask(capsys, *command, name, "--on", "H100-SXM")
    assert code == 2
    assert said.startswith("error: ")


def test_loads_of_experts_are_read_for_a_batch_too(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["predict", "mixtral-8x7b", "--on", "8xH100-SXM", "--serve", "--batch", "2", "--output", "4"]
    missing = str(tmp_path / "loads.csv")
    code, said = ask(capsys, *words, "--expert-loads", missing)
    assert code == 2
    assert missing in said


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(name=st.text(st.characters(codec="utf-8", exclude_characters=" "), min_size=1, max_size=12))
def test_a_library_that_nobody_measured_is_refused(capsys: pytest.CaptureFixture[str], name: str) -> None:
    code, said = ask(capsys, "op", "gemm", "16x16x16", f"--library={name}")
    if name.casefold() not in ("vllm", "sglang", "trtllm", "nccl", "oneccl"):
        assert code == 2
        assert "known: vllm, sglang" in said


def test_a_picture_that_cannot_be_written_names_the_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = str(tmp_path / "none" / "roof.svg")
    code, said = ask(capsys, "op", "gemm", "512x512x512", "--picture", path)
    assert code == 2
    assert path in said
    assert "cannot be written" in said


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None)
@given(key=st.sampled_from([*PLAIN, "text_config", "quantization_config", "layer_types", "auto_map"]), value=values)
def test_a_folder_of_a_stranger_is_a_model_or_an_error_with_its_file(key: str, value: object) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "config.json"
        file.write_text(json.dumps({**PLAIN, key: value}), encoding="utf-8")
        (Path(folder) / "modeling_own.py").write_text("raise SystemExit('run')", encoding="utf-8")
        try:
            said = "" if load(folder).graph.params > 0 else "no parameters"
        except RidgelineError as error:
            said = str(error)
        assert said == "" or str(file) in said


def test_a_config_may_begin_with_a_mark_of_its_encoding_and_names_its_quantization(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**PLAIN, "quantization_config": {"quant_method": "fp8"}}), encoding="utf-8-sig")
    assert any("quantized (fp8)" in note for note in load(file).notes)


@pytest.mark.parametrize("kind", ["jamba", "falcon_h1", "kimi_linear", "evilnet", "whisper"])
def test_an_architecture_that_is_not_known_says_what_to_do(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**PLAIN, "model_type": kind, "auto_map": {"AutoModel": "own.X"}}), encoding="utf-8")
    with pytest.raises(RidgelineError, match="model_type 'explicit' with layers"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("words", "flag"),
    [
        (["--rent", "L40S"], "--rent"), (["--on", "8xL40S", "--min-devices"], "--min-devices"),
        (["--on", "8xL40S", "--quantize"], "--quantize"), (["--on", "8xL40S", "--no-pools"], "--no-pools"),
    ],
)  # fmt: skip
def test_a_switch_of_serving_is_not_dropped_where_training_is_planned(
    capsys: pytest.CaptureFixture[str], words: list[str], flag: str
) -> None:
    code, said = ask(capsys, "plan", "gpt2", *words)
    assert (code, said.strip()) == (2, f"error: field '{flag}': is an option of serving; add --serve, or leave it out")


@pytest.mark.parametrize("words", [["--on", "8xL40S"], ["--min-devices"], ["--quantize"], ["--no-pools"]])
def test_a_word_that_renting_has_no_use_for_is_not_dropped(
    capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    code, said = ask(capsys, "plan", "gpt2", "--serve", "--rate", "1", "--rent", "L40S", *words)
    assert (code, f"field '{words[0]}'" in said, "leave one of them out" in said) == (2, True, True)


def test_what_is_impossible_is_an_answer_in_json_too(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (
        ["simulate", "llama-3.1-70b", "--on", "1xL40S", "--rate", "1"],
        ["predict", "llama-3.1-70b", "--serve", "--on", "1xL40S", "--batch", "1"],
        ["predict", "mixtral-8x7b", "--serve", "--on", "1xL40S", "--offload", "fetched", "--dram", "1GB"],
        ["plan", "llama-3.1-70b", "--serve", "--on", "1xL40S", "--rate", "1"],
    ):
        assert run([*words, "--json"]) == 1
        printed = capsys.readouterr()
        assert json.loads(printed.out)["error"] in printed.err


def test_cells_send_nothing_to_the_terminal(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    trace = tmp_path / "t.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n0,9,9\n\x1b[31m\0,1,1\n1,2\n", encoding="utf-8")
    assert run(["simulate", "gpt2", "--on", "1xH100-SXM", "--trace", str(trace)]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "line 3, arrival_s: '\N{REPLACEMENT CHARACTER}[31m\N{REPLACEMENT CHARACTER}' is not a number" in told
    assert "line 4: 2 cells, the header has 3" in told
    assert run(["simulate", "gp\x1b[31mt2", "--on", "1xH100-SXM", "--rate", "1"]) == 2
    assert "\x1b" not in capsys.readouterr().err


def test_a_byte_order_mark_is_no_word(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text(
        'model = "gpt2"\ncluster = "1xH100-SXM"\n[workload]\nrate = 2\nrequests = 3\n', encoding="utf-8-sig"
    )
    assert run(["simulate", str(file)]) == 0
    assert "3 requests" in capsys.readouterr().out


def test_pools_are_not_said_where_machines_are_rented(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("gpt2", "--serve", "--rate", "1", "--rent", "L40S", "--prefill", "1xtp1", "--decode", "1xtp1")
    code, said = ask(capsys, "plan", *words)
    assert (code, "field '--prefill'" in said) == (2, True)


def test_loads_of_another_model_are_told_by_their_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "loads.csv"
    file.write_text("layer,expert,load\n0,0,1\n0,1,2\n", encoding="utf-8")
    for model, told in (("mixtral-8x7b", "mixtral-8x7b has 8 experts a layer"), ("gpt2", "gpt2 has no experts")):
        code, said = ask(capsys, "simulate", model, "--on", "8xH200", "--rate", "1", "--expert-loads", str(file))
        assert code == 2
        assert f"{file}: field 'expert_loads': loads of experts 0 to 1 are given, {told}" in said
    code, said = ask(capsys, "simulate", "gpt2", "--on", "8xH200", "--rate", "1", "--expert-loads", "absent.csv")
    assert (code, "absent.csv: field 'expert_loads': no such file" in said, "Errno" in said) == (2, True, False)
