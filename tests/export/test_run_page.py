"""The README beside exported files: what it tells, and that its commands are those of the question."""

from __future__ import annotations

import shlex

import ridgeline as rl
from ridgeline.api.verb import read_line


def test_it_tells_the_start_the_prediction_with_its_interval_and_how_to_measure_it() -> None:
    page = rl.export("qwen3-32b", "2xH100-SXM", tp=2, max_seqs=64, to="vllm")["files"]["README.md"]
    for part in ("## Start", "vllm serve", "## Predicted", "80 % interval", "limited by", "## Measure", "vllm bench"):
        assert part in page


def test_the_command_it_gives_asks_the_same_question() -> None:
    words = {"tp": 2, "zero": 1, "micro_batch": 1, "global_batch": 64}
    answer = rl.export("llama-3.1-8b", "8xH100-SXM", to="deepspeed", **words)
    page = answer["files"]["README.md"]
    line = next(one for one in page.splitlines() if one.startswith("ridgeline predict "))
    verb, said = read_line(shlex.split(line.partition("#")[0])[1:])
    assert verb == "predict"
    assert {name: str(said[name]) for name in words} == {name: str(value) for name, value in words.items()}
    again = rl.predict(**said)
    assert again["step_time_s"] == answer["predicted"]["step_time_s"]


def test_what_is_left_out_has_a_row_with_its_cost() -> None:
    answer = rl.export("llama-3.1-8b", "8xH100-SXM", to="deepspeed", recompute="full", zero=1, micro_batch=1)
    told = next(one for one in answer["left_out"] if one["word"] == "plan.recompute")
    assert f"| `plan.recompute` | full | {told['change']:+.1%} |" in answer["files"]["README.md"].splitlines()
