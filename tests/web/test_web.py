"""The page, its forms and its answers, through the app as a browser asks it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ridgeline as rl

TestClient = pytest.importorskip("starlette.testclient").TestClient

from ridgeline.api.verb import VERBS  # noqa: E402
from ridgeline.web.app import opened  # noqa: E402
from ridgeline.web.asking import MOST_BYTES, WebQuestion, command_of  # noqa: E402
from ridgeline.web.forms import QUESTIONS, WRITING, forms  # noqa: E402

STATIC = Path(__file__).parents[2] / "src" / "ridgeline" / "web" / "static"
SMALL = {"subject": "gpt2", "on": "8xH100-SXM", "zero": "1", "micro_batch": "2", "global_batch": "16"}
Ask = Callable[..., list[dict[str, Any]]]


def test_the_page_loads_nothing_from_elsewhere(client: TestClient) -> None:
    page = client.get("/")
    assert page.status_code == 200
    assert "default-src 'none'" in page.headers["content-security-policy"]
    for address in re.findall(r'(?:src|href)="([^"#]+)"', page.text):
        assert address.startswith(("/static/", "data:,"))
        if address.startswith("/static/"):
            assert client.get(address).status_code == 200
    for script in STATIC.glob("*.js"):
        assert "http" not in script.read_text(encoding="utf-8").replace("https://ui", "")


def test_forms_hold_every_word_of_the_questions_but_those_that_write() -> None:
    for form in forms()["questions"]:
        names = [word["name"] for word in form["own"]] + [w["name"] for g in form["groups"] for w in g["words"]]
        assert len(names) == len(set(names))
        one = VERBS[form["name"]]
        writing = {name for name, option in one.own.items() if option.flag in WRITING}
        fields = {field.name for table in one.fields.values() for field in table}
        assert set(names) == (set(one.own) - writing - {"train"}) | fields
    assert [form["name"] for form in forms()["questions"]] == list(QUESTIONS)
    assert {"llama-3.1-8b"} <= set(forms()["names"]["subject"])
    assert {"8xH100-SXM", "dgx-h100"} <= set(forms()["names"]["on"])


def test_an_answer_is_that_of_the_library(ask: Ask) -> None:
    *_, last = ask("predict", **SMALL)
    answer = rl.predict(**SMALL)
    told = {number["name"]: number for number in last["numbers"]}
    assert last["event"] == "answer"
    assert last["html"] == answer.body()
    for name in ("value", "low", "high", "unit"):
        assert told["step_time_s"][name] == answer["step_time_s"][name]
    assert last["command"] == "ridgeline predict gpt2 --on 8xH100-SXM --zero 1 --micro-batch 2 --global-batch 16"


@pytest.mark.parametrize(
    ("words", "word"),
    [
        ({"micro_batch": "many"}, "micro_batch"),
        ({"on": "8xH100-SXN"}, "on"),
        ({"subject": "lama-3.1-8b"}, "subject"),
        ({"evidence": "hearsay"}, "evidence"),
        ({"recompute": "ful"}, "recompute"),
    ],
)
def test_an_error_is_told_at_its_field(ask: Ask, words: dict[str, str], word: str) -> None:
    *_, last = ask("predict", **{**SMALL, **words})
    assert (last["event"], last["word"]) == ("refused", word)
    assert last["error"]


def test_what_does_not_fit_is_answered_and_told_impossible(ask: Ask) -> None:
    *_, last = ask("predict", subject="llama-3.1-70b", on="1xH100-SXM", micro_batch="1", global_batch="1")
    assert last["event"] == "answer"
    assert "needs" in last["impossible"]


def test_a_config_comes_along_as_a_file(ask: Ask) -> None:
    config = (Path(rl.__file__).parent / "data" / "models" / "gpt2.json").read_text(encoding="utf-8")
    *_, mine = ask("predict", files={"config.json": config}, **{**SMALL, "subject": "config.json"})
    *_, other = ask(
        "predict", files={"config.json": config.replace('"n_layer": 12', '"n_layer": 24')},
        **{**SMALL, "subject": "config.json"},
    )  # fmt: skip
    *_, shipped = ask("predict", **SMALL)
    step = [next(n["value"] for n in one["numbers"] if n["name"] == "step_time_s") for one in (mine, other, shipped)]
    assert step[0] == step[2] < step[1]  # a second file of the same name is read anew
    assert "/" not in str(mine.get("command", "/")).replace("config.json", "")


def test_a_scenario_file_is_asked_for_and_blamed_by_name(ask: Ask) -> None:
    text = "[model]\nname = 'gpt2'\n[cluster]\nname = '8xH100-SXM'\n[workload]\nglobal_batch = 16\n[plan]\nzero = 9\n"
    *_, last = ask("predict", files={"s.toml": text}, subject="s.toml")
    assert last["event"] == "refused"
    assert last["error"].startswith("s.toml:8: field 'plan.zero'")
    assert last["word"] == "zero"
    *_, last = ask("predict", files={"s.toml": text}, subject="s.toml", zero="1")
    assert last["event"] == "answer"


def test_a_scenario_fills_the_form_where_it_can(client: TestClient) -> None:
    plain = "model = 'gpt2'\n[cluster]\nname = '8xH100-SXM'\n[workload]\nglobal_batch = 16\n[plan]\ntp = 2\n"
    assert opened(plain) == {
        "words": {"subject": "gpt2", "on": "8xH100-SXM", "global_batch": "16", "tp": "2"}, "serve": False
    }  # fmt: skip
    assert opened(plain + "layer_split = [6, 6]\n")["words"] is None
    assert opened(plain.replace("global_batch = 16", "rate = 2"))["serve"]
    assert client.post("/open", json=plain).json()["words"]["tp"] == "2"
    assert client.post("/open", json="[model").status_code == 400


def test_searches_tell_progress_and_answer(ask: Ask) -> None:
    *told, last = ask("plan", subject="gpt2", on="1xH100-SXM", global_batch="8", seq_len="1024", top="1")
    assert "searching plans" in [one["text"] for one in told if one["event"] == "progress"]
    assert last["event"] == "answer"
    assert {number["name"] for number in last["numbers"]} >= {"step_time_s"}


def test_advice_and_traffic_are_answered(ask: Ask) -> None:
    *_, advice = ask("advise", **SMALL)
    *_, traffic = ask(
        "simulate", subject="llama-3.1-8b", on="1xH100-SXM", rate="2", prompt="512", output="64", requests="40"
    )
    assert (advice["event"], traffic["event"]) == ("answer", "answer")
    first = traffic["numbers"][0]
    assert (first["name"], first["unit"]) == ("ttft_p50_s", "s")
    assert first["low"] < first["value"] < first["high"]
    assert "idle_devices" not in {number["name"] for number in traffic["numbers"]}
    now, best = advice["numbers"][:2]
    assert (now["name"], best["name"], best["unit"]) == ("now", "best", "s")
    assert best["value"] < now["value"]


@pytest.mark.parametrize("name", ["../app.py", "%2e%2e/app.py", "app.py", "..%2fapp.py", "/etc/passwd"])
def test_no_other_file_is_served(client: TestClient, name: str) -> None:
    assert client.get(f"/static/{name}").status_code == 404


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "10.0.0.1:8642", ""])
def test_other_host_names_are_refused(client: TestClient, host: str) -> None:
    for path in ("/", "/forms", "/static/app.js"):
        assert client.get(path, headers={"host": host}).status_code == 400
    assert client.post("/ask", json={"verb": "predict", "words": SMALL}, headers={"host": host}).status_code == 400


def test_other_pages_cannot_ask(client: TestClient) -> None:
    question = {"verb": "predict", "words": SMALL}
    assert client.post("/ask", json=question, headers={"origin": "http://evil.example"}).status_code == 400
    assert client.post("/ask", content="{}", headers={"content-type": "text/plain"}).status_code == 400
    own = client.post("/ask", json=question, headers={"origin": "http://127.0.0.1"})
    assert own.status_code == 200


def test_large_requests_are_refused(client: TestClient) -> None:
    told = client.post("/ask", json={"verb": "predict", "words": SMALL, "files": {"a": "x" * MOST_BYTES}})
    assert told.status_code == 400
    assert "bytes" in told.json()["error"]


def test_a_question_is_said_as_a_command_line() -> None:
    words = {"subject": "my model", "on": "2xH100-SXM", "serve": True, "pools": False, "rate": "2", "sp": "true"}
    told = command_of(WebQuestion(verb="plan", words=words))
    assert told == "ridgeline plan 'my model' --on 2xH100-SXM --serve --no-pools --rate 2 --sp"
