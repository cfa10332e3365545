"""The command: its objectives, its page and picture, and what it refuses."""

from __future__ import annotations

import contextlib
import io
import json
import shlex
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from ridgeline.cli.main import run

TRAINED = "llama-3.1-8b --on 8xH100-SXM --zero 3 --seq-len 4096 --global-batch 64"
SERVED = "qwen2.5-0.5b --serve --on 2xH100-SXM"


def ran(line: str) -> tuple[int, str, str]:
    out, error = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        code = run(shlex.split(line))
    return code, out.getvalue(), error.getvalue()


def advice(words: str) -> dict[str, Any]:
    code, out, error = ran(f"advise {words} --json")
    assert code == 0, error
    return json.loads(out)  # type: ignore[no-any-return]


@pytest.mark.parametrize("objective", ["time", "memory", "dollars", "joules"])
def test_every_objective_of_training_is_bettered_by_its_stack(objective: str) -> None:
    found = advice(f"{TRAINED} --for {objective}")
    assert found["objective"] == objective
    assert found["best"] <= found["value"]
    if objective == "dollars":  # of the same devices: in proportion to time
        assert found["stack_gain"]["value"] == pytest.approx(advice(TRAINED)["stack_gain"]["value"], rel=1e-6)
    if objective == "memory":
        assert found["value"] == found["memory_bytes"]


@pytest.mark.parametrize(
    ("words", "unit"),
    [
        ("--batch 4", "output tokens/s"), ("--concurrency 4", "output tokens/s"),
        ("--batch 4 --for joules", "J a token"),
        ("--batch 4 --for memory", "tokens of cache"), ("--rate 2", "s"),
        ("--rate 2 --slo ttft=1s,tpot=50ms", "requests/s"),
        ("--rate 2 --slo ttft=1s,tpot=50ms --for dollars", "USD a million output tokens"),
    ],
)  # fmt: skip
def test_serving_is_asked_for_what_its_traffic_has(words: str, unit: str) -> None:
    found = advice(f"{SERVED} {words} --prompt 256 --output 32")
    assert found["unit"] == unit
    assert found["value"] > 0.0
    assert found["limits"]


def test_the_highest_rate_does_not_hang_on_how_long_requests_come() -> None:
    """Twenty requests in ten seconds would all fit the queue of a rate that no device keeps up with."""
    words = f"{SERVED} --rate 2 --slo ttft=1s,tpot=50ms --prompt 256 --output 32"
    assert advice(f"{words} --duration 10")["value"] == advice(words)["value"]


LENGTHS = (
    "qwen2.5-0.5b --on 4xA100-SXM-40GB --cp 4 --zero 3 --seq-len 32768 --global-batch 64"
    " --lengths 'lognormal(median=1500,sigma=1.6)'"
)


def test_unlike_lengths_are_divided_as_predict_divides_them() -> None:
    """Not priced as sequences of the longest: what is told now, and of the best stack, is what `predict` says."""
    found = advice(LENGTHS)
    code, out, _ = ran(f"predict {LENGTHS} --json")
    assert code == 0
    step_s = json.loads(out)["step_time"]["value"]
    assert found["value"] == pytest.approx(step_s, rel=1e-9)
    code, out, _ = ran(f"predict {LENGTHS} {found['stack_words']} --json")
    assert code == 0
    assert found["best"] == pytest.approx(json.loads(out)["step_time"]["value"], rel=1e-9)
    assert any("--length-balance" in one["written"] for one in found["helps"])


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (f"{TRAINED} --for goodput", "say --for time of training"),
        (f"{SERVED} --batch 1 --for goodput", "--slo"),
        (f"{SERVED} --concurrency 4 --slo ttft=1s --for goodput", "say --rate, or --for time"),
        (f"{SERVED} --offload host", "tries the places of weights itself"),
        ("examples/advise-flux-100-a-minute.toml --for joules", "one of time, memory, goodput, dollars"),
        (f"{TRAINED} --for beauty", "beauty"),
        (f"{LENGTHS} --for memory", "of sequences of unlike lengths is time or dollars"),
        (f"{TRAINED} --html /no/such/folder/a.html", "cannot be written"),
    ],
)
def test_what_it_cannot_answer_is_told(words: str, told: str) -> None:
    code, _, error = ran(f"advise {words}")
    assert code == 2
    assert told in error


def test_nothing_that_fits_exits_1_and_tells_what_helps() -> None:
    code, out, error = ran("advise llama-3.1-405b --on 1xT4 --seq-len 131072 --global-batch 1 --precision fp16")
    assert code == 1
    assert "no stack of what was tried" in error
    assert "too much left" in out


def test_weights_that_fit_nowhere_are_put_beside_the_devices() -> None:
    words = "mixtral-8x7b --serve --on 1xRTX-4090 --batch 1 --cpu Xeon-Gold-6454S --dram 512GB --prompt 128 --output 16"
    found = advice(words)
    assert not found["fits"]
    assert found["value"] is None
    assert found["stack"][0]["written"].startswith("--offload")
    assert found["best"] > 0.0


def test_a_page_and_a_picture_are_written(tmp_path: Path) -> None:
    page, picture = tmp_path / "a.html", tmp_path / "a.svg"
    assert ran(f"advise {TRAINED} --html {page} --svg waterfall:{picture}")[0] == 0
    drawn = ElementTree.fromstring(picture.read_text(encoding="utf-8"))
    stack = advice(TRAINED)["stack"]
    names = [one.text for one in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert all(one["written"] in names for one in stack)
    assert "<svg" in page.read_text(encoding="utf-8")
    assert "http:" not in page.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")


def test_pictures_are_advised_in_their_own_words() -> None:
    found = advice("examples/advise-flux-100-a-minute.toml")
    assert found["unit"] == "pictures a minute"
    assert 'execution = "graph"' in found["stack_words"]


def test_images_of_prompts_are_in_the_load() -> None:
    told = advice("qwen2.5-0.5b --serve --on 1xH100-SXM --rate 1 --prompt 45 --output 20 --technique images")["load"]
    assert "2,973 prompt" in told  # 45 words, 576 + 48 x 49 tokens of an image of 600 x 600 pixels
