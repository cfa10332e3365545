"""Named recipes: what they set in a run, what wins over them, and that `check` takes the same."""

from __future__ import annotations

from dataclasses import replace

import pytest

import ridgeline as rl
from ridgeline.api.asking import serving_scenario_of
from ridgeline.errors import InputError, UnknownNameError
from ridgeline.facts.accelerators import accelerator
from ridgeline.facts.benchmark_settings import benchmark_settings
from ridgeline.facts.recipes import recipe, recipes
from ridgeline.graph.load import load
from ridgeline.scenario.serving import ServingScenario
from ridgeline.validate.rows import Row
from ridgeline.validate.serving import ServedRows, by_recipe

H200 = "inferencex/dsr1-fp8-h200"
CELLS = {
    "model": "DeepSeek-R1", "params_b": "671", "active_params_b": "37", "hardware": "H200-SXM-141GB", "n_devices": "8",
    "tp": "8", "ep": "1", "precision_weights": "fp8", "engine": "SGLang", "engine_version": "0.5.9",
    "scenario": "fixed-concurrency", "batch_or_concurrency": "4", "isl": "256", "osl": "64", "metric": "tpot_ms",
    "value": "10", "unit": "ms", "source": "IX", "note": "2026-03-25",
}  # fmt: skip


def asked(name: str = H200, on: str = "8xH200-SXM", model: str = "deepseek-r1", **words: str) -> ServingScenario:
    """A scenario of 16 users under a recipe."""
    usual = {"tp": "8", "concurrency": "16", "prompt": "1024", "output": "1024"}
    return serving_scenario_of(model, on, {**usual, "recipe": name, **words})


def test_every_rule_of_a_source_is_in_a_recipe_and_every_recipe_has_one() -> None:
    held = {rule for one in recipes().values() for rule in one.rules}
    assert not [rule for rule in benchmark_settings() if rule.code and rule not in held]
    for one in recipes().values():
        assert one.rules, one.name
        assert not one.device or accelerator(one.device)
        assert all(load(name) for name in one.models.split()), one.name


def test_a_near_spelling_is_found_or_suggested() -> None:
    assert recipe("InferenceX/DSR1_FP8_H200").name == H200
    with pytest.raises(UnknownNameError, match="inferencex/dsr1-fp8-h200"):
        recipe("inferencex/dsr1-fp8-h20")


def test_a_recipe_sets_what_the_script_passes_and_says_so() -> None:
    one = asked()
    (pool,) = one.deployments
    assert (pool.engine, pool.version, pool.options.max_seqs) == ("SGLang", "0.5.9", 512)
    assert one.traffic["requests"] == 160
    assert one.traffic["prompt"] == (819, 1024)
    assert any("max_seqs 512" in line and "dsr1_fp8_h200.sh" in line for line in one.assumed)


def test_conditions_are_those_of_the_run() -> None:
    name, on = "inferencex/dsr1-fp8-b200", "8xB200-SXM"
    few, many = (asked(name, on, concurrency=users).deployments[0] for users in ("4", "128"))
    assert few.technique != many.technique  # SGLang looks for requests every 10 iterations, of many users every 30


def test_what_is_said_wins() -> None:
    one = asked(max_seqs="64")
    assert one.deployments[0].options.max_seqs == 64
    assert any("max_seqs is as you say, the recipe has 512" in line for line in one.assumed)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"engine": "vllm"}, "is of SGLang, and the engine is vllm"),
        ({"on": "8xB200-SXM"}, "take inferencex/dsr1-fp8-b200"),
        ({"model": "qwen3-32b"}, "and the model is qwen3-32b"),
    ],
)
def test_a_recipe_of_another_run_is_refused_with_those_that_fit(words: dict[str, str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        asked(**words)


def test_a_release_that_no_rule_names_is_told() -> None:
    one = asked("inferencex/minimaxm2.5-fp8-h100", "8xH100-SXM", "minimax-m2.5", engine="vllm 0.3")
    assert one.deployments[0].version == "0.3"
    assert any("in none of its rules" in line for line in one.assumed)


def test_a_row_without_its_source_gives_the_same_answer_by_recipe() -> None:
    row = Row(line=2, id="x0001a", cells=CELLS)
    bare = replace(row, cells={**CELLS, "source": "", "recipe": H200})
    assert ServedRows().answer(by_recipe(bare, "")) == ServedRows().answer(row)
    assert by_recipe(replace(row, cells={**CELLS, "source": ""}), H200).source == "IX"
    assert by_recipe(row, H200) is row  # its source is known
    with pytest.raises(InputError, match="is of SGLang"):
        by_recipe(replace(bare, cells={**bare.cells, "engine": "vLLM"}), "")


def test_it_is_listed_and_read() -> None:
    assert {one["recipe"] for one in rl.catalog("recipes")["entries"]} == set(recipes())
    found = rl.catalog("recipes", H200).as_dict()
    assert {"max_seqs", "memory_fraction", "kv"} <= {one["setting"] for one in found["settings"]}
    assert all(one["source"] for one in found["settings"])
