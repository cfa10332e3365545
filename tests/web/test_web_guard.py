"""What the app must never do: read files of the machine, run on after nobody listens, take more than its bounds."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient
from tests.web.conftest import events

from ridgeline.api.answer import Answer
from ridgeline.api.bounded import Answerers, Limits
from ridgeline.errors import InputError
from ridgeline.web.answers import PageAnswers
from ridgeline.web.asking import WebQuestion, read_question
from ridgeline.web.forms import forms

Ask = Callable[..., list[dict[str, Any]]]
WORDS = sorted({w["name"] for form in forms()["questions"] for g in form["groups"] for w in g["words"]})
LONG = {"subject": "llama-3.1-70b", "on": "512xH100-SXM", "exhaustive": True}


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "~/x.json", "./x.toml", "../x.toml", "profile:/etc/passwd", "vllm:/etc/x.yaml", "C:\\x"]
)
def test_words_that_name_a_path_are_refused(path: str) -> None:
    with pytest.raises(InputError, match="path") as caught:
        read_question(b'{"verb": "simulate", "words": {"trace": "%s"}}' % path.replace("\\", "\\\\").encode())
    assert caught.value.field == "trace"


def test_files_of_the_machine_are_not_read_however_they_are_named(ask: Ask, tmp_path: Path) -> None:
    secret = tmp_path / "secret.json"
    secret.write_text('{"model_type": "gpt2", "secret": "xyzzy"}', encoding="utf-8")
    scenario = f"[model]\nconfig = '{secret}'\n[cluster]\nname = '1xH100-SXM'\n[plan]\ntp = 1\n"
    machine = f"[cluster]\nfile = '{secret}'\n[model]\nname = 'gpt2'\n[plan]\ntp = 1\n"
    served = {"subject": "llama-3.1-8b", "on": "1xH100-SXM", "serve": True, "batch": "2"}
    told = [
        ask("predict", files={"s.toml": scenario}, subject="s.toml"),
        ask("predict", files={"s.toml": machine}, subject="s.toml"),
        ask("predict", technique=f"mixed-blocks(losses={secret},seconds=1)", **served),
    ]
    for *_, last in told:
        assert last["event"] == "refused"
        assert "xyzzy" not in str(last)
        assert "outside" in last["error"]


def test_options_that_write_a_file_are_no_words_of_the_app(ask: Ask, tmp_path: Path) -> None:
    for verb, word in (("predict", "trace"), ("advise", "html")):
        *_, last = ask(verb, subject="gpt2", on="1xH100-SXM", **{word: "out.json"})
        assert last["event"] == "refused"
        assert f"'{word}'" in last["error"]


def test_the_guard_holds_in_a_process_of_its_own(tmp_path: Path) -> None:
    code = """
import os, sys, pathlib
from ridgeline.api.confined import confine
folder = pathlib.Path(sys.argv[1])
confine(folder, "outside what this app may open")
(folder / "mine").write_text("x")
open(os.__file__).close()
for attempt in (
    lambda: open("/etc/passwd"), lambda: os.open("/etc/passwd", os.O_RDONLY), lambda: open(os.__file__, "a"),
    lambda: open(folder / ".." / "other", "w"), lambda: os.system("true"), lambda: __import__("subprocess").run("true"),
    lambda: open("/proc/self/environ"), lambda: os.listdir("/"), lambda: os.remove("/etc/passwd"), os.fork,
    lambda: os.rename(folder / "mine", folder / ".." / "other"), lambda: os.symlink("/etc", folder / ".." / "other"),
    lambda: __import__("socket").socket().connect(("127.0.0.1", 1)),
):
    try:
        attempt()
    except Exception as error:
        assert type(error) is PermissionError, error
    else:
        raise SystemExit("allowed")
"""
    (tmp_path / "in").mkdir()
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "in")], check=True, cwd=tmp_path / "in")


def limits(root: Path, **bounds: Any) -> Limits:
    return Limits(**{"root": root, "processes": 1, "memory_bytes": 4 << 30, **bounds})


async def _last(answers: PageAnswers, asked: WebQuestion) -> dict[str, Any]:
    found: dict[str, Any] = {}
    async for message in answers.messages(asked):
        found = message
    return found


QUICK = WebQuestion(verb="predict", words={"subject": "gpt2", "on": "1xH100-SXM", "micro_batch": "1"})


def test_a_question_that_nobody_awaits_makes_room_without_a_new_process(tmp_path: Path) -> None:
    async def run(answers: PageAnswers) -> None:
        assert (await _last(answers, QUICK))["event"] == "answer"
        process = answers._answerers._all[0]
        messages = answers.messages(WebQuestion(verb="plan", words=LONG))
        assert (await anext(messages))["event"] == "progress"
        await messages.aclose()  # type: ignore[attr-defined]
        began = time.monotonic()
        assert (await _last(answers, QUICK))["event"] == "answer"
        assert time.monotonic() - began < 60
        assert len(answers._answerers._all) == 1
        assert answers._answerers._all[0].alive
        assert not process.alive or answers._answerers._all == [process]
        assert list(tmp_path.iterdir()) == []

    with PageAnswers(limits(tmp_path)) as answers:
        asyncio.run(run(answers))


def test_a_question_ends_at_its_bound_of_time_and_the_next_is_answered(tmp_path: Path) -> None:
    async def run(answers: PageAnswers) -> None:
        last = await _last(answers, WebQuestion(verb="plan", words=LONG))
        assert (last["event"], last["exit_code"]) == ("refused", 2)
        assert "longer than 2 s" in last["error"]
        assert (await _last(answers, QUICK))["event"] == "answer"

    with PageAnswers(limits(tmp_path, seconds=2)) as answers:
        asyncio.run(run(answers))


def test_questions_wait_for_a_free_process_and_too_many_are_refused(tmp_path: Path) -> None:
    async def run(answers: PageAnswers) -> None:
        first = answers.messages(WebQuestion(verb="plan", words=LONG))
        assert (await anext(first))["event"] == "progress"
        second, told = answers.messages(QUICK), ""
        while "waiting" not in told:
            told = (await anext(second)).get("text", "")
        assert "too many questions" in (await _last(answers, QUICK))["error"]
        await first.aclose()  # type: ignore[attr-defined]
        assert [message["event"] async for message in second][-1] == "answer"

    with PageAnswers(limits(tmp_path, waiting=1)) as answers:
        asyncio.run(run(answers))


def test_a_process_that_died_idle_is_replaced(tmp_path: Path) -> None:
    with Answerers(limits(tmp_path)) as answerers:
        assert "answer" in answerers.ask(QUICK.verb, QUICK.words)
        answerers._all[0]._process.kill()
        answerers._all[0]._process.join()
        assert "answer" in answerers.ask(QUICK.verb, QUICK.words)


def greedy(answer: Answer) -> dict[str, Any]:
    """A form that takes much for one answer."""
    return {"answer": len(bytearray(4 << 30)) if "gpt2" in answer.table() else 0}


@pytest.mark.skipif(sys.platform != "linux", reason="address space is bounded on Linux")
def test_memory_of_a_process_is_bounded(tmp_path: Path) -> None:
    with Answerers(limits(tmp_path), greedy) as answerers:
        assert "memory" in str(answerers.ask("predict", QUICK.words)["refused"])
        assert answerers.ask("predict", {**QUICK.words, "subject": "llama-3.1-8b"}) == {"answer": 0}


VALUES = st.one_of(
    st.text(max_size=40), st.integers(), st.booleans(), st.floats(), st.none(), st.lists(st.integers(), max_size=3),
    st.sampled_from(["1", "8", "fp8", "true", "1e999", "nan", "[1,2]", "adamw(beta=1)", "\0", "0x", "64k", "-1"]),
)  # fmt: skip
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda one: st.lists(one, max_size=4) | st.dictionaries(st.text(max_size=8), one, max_size=4),
    max_leaves=12,
)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(body=st.one_of(st.binary(max_size=200), ANYTHING.map(lambda one: __import__("json").dumps(one).encode())))
def test_any_bytes_are_refused_in_form(client: TestClient, body: bytes) -> None:
    for path in ("/ask", "/open"):
        told = client.post(path, content=body, headers={"content-type": "application/json"})
        assert told.status_code in (200, 400)
        if told.status_code == 400:
            assert told.json()["event"] == "refused"


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    verb=st.sampled_from(["predict", "predict", "simulate"]),
    words=st.dictionaries(st.sampled_from(WORDS), VALUES, max_size=3),
    files=st.dictionaries(st.sampled_from(["s.toml", "config.json", "../x"]), st.text(max_size=80), max_size=1),
)
def test_any_words_are_answered_or_refused(
    client: TestClient, verb: str, words: dict[str, Any], files: dict[str, str]
) -> None:
    import json

    asked = {"subject": next(iter(files), "gpt2"), "on": "1xH100-SXM", "requests": "5", **words}
    if verb != "simulate":
        asked.pop("requests", None)
    body = json.dumps({"verb": verb, "words": asked, "files": files}).encode()
    last = events(client.post("/ask", content=body, headers={"content-type": "application/json"}))[-1]
    assert last["event"] in ("answer", "refused")
    assert last.get("kind") != "Defect", last
    if last["event"] == "refused":
        assert last["error"]
        assert "Traceback" not in last["error"]
