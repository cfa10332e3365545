"""Python's functions answer as the command does: the same words, defaults, refusals and numbers."""

from __future__ import annotations

import importlib
import json
import shlex
from pathlib import Path

import pytest

import ridgeline as rl
from ridgeline.api import verbs
from ridgeline.api.answer import Answer
from ridgeline.api.verb import VERBS, ask, read_line
from ridgeline.claims.files import papers
from ridgeline.cli.main import run
from ridgeline.errors import InputError, NoPlanError, UnknownNameError

GPT2 = {"on": "1xA100-SXM-80GB", "micro_batch": 8, "global_batch": 8, "seq_len": 1024}


def printed(capsys: pytest.CaptureFixture[str], line: str) -> str:
    run(shlex.split(line))
    return capsys.readouterr().out


def test_a_function_answers_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    answer = rl.predict("gpt2", **GPT2)
    line = "predict gpt2 --on 1xA100-SXM-80GB --micro-batch 8 --global-batch 8 --seq-len 1024"
    assert answer.table() == printed(capsys, line)
    assert json.loads(answer.to_json()) == json.loads(printed(capsys, line + " --json"))


def test_a_checkpoint_keeps_its_format_in_python_too(capsys: pytest.CaptureFixture[str]) -> None:
    line = "predict deepseek-v3 --serve --on 8xH200-SXM --tp 8 --batch 4 --prompt 256 --output 16 --json"
    answer = rl.predict("deepseek-v3", "8xH200-SXM", serve=True, tp=8, batch=4, prompt=256, output=16)
    assert json.loads(answer.to_json()) == json.loads(printed(capsys, line))


def test_every_question_is_a_function_and_every_function_a_question() -> None:
    ask("catalog", kind="models")
    functions = {name for name in rl.__all__ if name != "Answer"}
    assert functions == set(VERBS) - {"fit"}  # refits what ships: a maintainer's command
    assert all(callable(getattr(rl, name)) and getattr(rl, name) is getattr(verbs, name) for name in functions)


def test_a_room_of_a_verbs_name_leaves_the_function_in_place() -> None:
    importlib.import_module("ridgeline.predict")
    importlib.import_module("ridgeline.plan")
    assert rl.predict is verbs.predict
    assert rl.plan is verbs.plan
    with pytest.raises(AttributeError, match="no attribute 'foretell'"):
        rl.foretell  # noqa: B018


def test_a_word_that_is_not_there_names_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="'microbatch'; nearest: micro_batch"):
        rl.predict("gpt2", on="1xA100-SXM-80GB", microbatch=8)
    with pytest.raises(InputError, match="what to list"):
        ask("catalog")
    with pytest.raises(InputError, match="one of: measured, datasheet"):
        rl.predict("gpt2", **GPT2, evidence="guessed")
    with pytest.raises(InputError, match="101 is out of range"):
        rl.plan("gpt2", "1xA100-SXM-80GB", top=101)


def test_what_does_not_fit_is_answered_and_says_so() -> None:
    answer = rl.predict("llama-3.1-70b", on="1xRTX-4090", micro_batch=1)
    assert answer.impossible is not None
    assert "on stage 0" in answer.impossible
    assert answer["fits"] is False
    with pytest.raises(NoPlanError) as told:
        rl.plan("llama-3.1-405b", on="1xRTX-4090", max_micro_batch=1)
    assert told.value.beside == {"best": []}


def test_a_list_of_the_answer_is_a_data_frame() -> None:
    pandas = pytest.importorskip("pandas")
    frame = rl.op("gemm", "1024x1024x1024", on="A100-SXM-80GB,H100-SXM").to_frame()
    assert isinstance(frame, pandas.DataFrame)
    assert len(frame) == 2
    assert frame["seconds"].gt(0).all()


def test_a_list_must_be_there() -> None:
    answer = Answer(lambda: {"rows": [{"a": 1}], "one": 2}, list)
    with pytest.raises(InputError, match="'none' is no list of the answer; lists: rows"):
        answer.to_frame("none")


@pytest.mark.parametrize(
    "line",
    [
        "predict gpt2 --on 1xA100-SXM-80GB --serve --batch=4",
        "plan qwen3-32b --serve --on 8xH100-SXM --no-pools --top 3 --slo ttft=1s,tpot=50ms",
        "score a.json b.json --metric fast-p --column speedup=x --column task=y",
        "op gemm 64x64x64 fp8 --on H100-SXM,MI300X --backward",
    ],
)
def test_a_line_is_read_as_the_command_line_reads_it(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    heard = []

    def hear(own: dict[str, object], words: dict[str, object]) -> Answer:
        heard.append({name: value for name, value in {**own, **words}.items() if value is not None})
        return Answer(dict, list)

    question, words = read_line(shlex.split(line))
    monkeypatch.setattr(type(VERBS[question]), "answer", lambda self, own, words: hear(own, words))
    assert run(shlex.split(line)) == 0
    ask(question, **words)
    assert heard[0] == heard[1]


def test_lines_of_all_claims_are_read() -> None:
    for paper in papers().values():
        for claim in paper.claims:
            first = {name: values[0] for name, values in claim.settings.items()}
            for each in claim.answers.values():
                question, words = read_line(shlex.split(each.command.format(**first)))
                assert set(words) <= set(VERBS[question].words())


def test_a_line_without_its_value_is_refused() -> None:
    with pytest.raises(InputError, match="needs a value"):
        read_line(["predict", "gpt2", "--on"])
    with pytest.raises(UnknownNameError, match="--onn"):
        read_line(["predict", "gpt2", "--onn", "x"])


def test_the_public_surface_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "python.md").read_text(encoding="utf-8")
    assert all(f"rl.{name}" in page for name in rl.__all__)
