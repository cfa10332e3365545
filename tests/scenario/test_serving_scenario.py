"""A serving scenario: from a file or from flags, one meaning; what is wrong is told by its place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ridgeline.errors import InputError, PlanError, RidgelineError
from ridgeline.facts.clusters import cluster
from ridgeline.plan.deployment import Role
from ridgeline.scenario.serving import ServingScenario, deployments_of, read_serving, serving_from_words
from ridgeline.scenario.serving_words import deployed, said
from ridgeline.scenario.training import read_scenario
from ridgeline.seams.serving import Speculation, of

FILE = """\
[model]
name = "llama-3.1-8b"

[cluster]
name = "8xH100-SXM"

[workload]
rate = 2
prompt = "100-200"
slo = "ttft=1s,tpot=50ms"

[plan]
engine = "sglang 0.4"
tp = 2
kv = "fp8"
router = "prefix"
preemption = "swap"
"""
TABLES: dict[str, dict[str, object]] = {
    "model": {"name": "llama-3.1-8b"},
    "cluster": {"name": "8xH100-SXM"},
    "workload": {"rate": "2", "prompt": "100-200", "slo": "ttft=1s,tpot=50ms"},
    "plan": {"engine": "sglang 0.4", "tp": "2", "kv": "fp8", "router": "prefix", "preemption": "swap"},
}
EIGHT = cluster("8xH100-SXM")


def written(folder: Path, text: str = FILE) -> Path:
    path = folder / "scenario.toml"
    path.write_text(text, encoding="utf-8")
    return path


def plan(**words: Any) -> ServingScenario:
    return serving_from_words({**TABLES, "plan": words})


def test_a_file_and_flags_mean_the_same(tmp_path: Path) -> None:
    found, told = read_serving(written(tmp_path), {}), serving_from_words(TABLES)
    for name in ("traffic", "deployments", "router", "stated", "engine_file"):
        assert getattr(found, name) == getattr(told, name), name
    assert (found.model.name, found.cluster.name) == (told.model.name, told.cluster.name)
    assert (found.file, told.file) == (str(tmp_path / "scenario.toml"), None)


def test_words_become_a_deployment_on_all_devices() -> None:
    (one,) = serving_from_words(TABLES).deployments
    said = {"engine": "sglang", "version": "0.4", "tp": 2, "kv": "fp8", "preemption": "swap", "router": "prefix"}
    assert one == deployed(**said, instances=4)
    assert serving_from_words(TABLES).router == "prefix"


def test_flags_win_word_by_word(tmp_path: Path) -> None:
    found = read_serving(written(tmp_path), {"plan": {"tp": "4"}, "workload": {"rate": "7"}})
    assert (found.deployments[0].tp, found.deployments[0].instances, found.deployments[0].kv) == (4, 2, "fp8")
    assert (found.traffic["rate"], found.traffic["prompt"]) == (7.0, (100, 200))


def test_what_nobody_says_is_left_to_the_engine() -> None:
    (one,) = plan().deployments
    assert one == deployed(engine="vllm", instances=8)
    assert plan().router == ""


@pytest.mark.parametrize(("words", "instances"), [({"tp": 8}, 1), ({"tp": 3}, 2), ({"tp": 2, "dp": 2}, 2)])
def test_instances_fill_the_devices(words: dict[str, int], instances: int) -> None:
    assert deployments_of(words, EIGHT)[0].instances == instances


def test_pools_take_the_common_words() -> None:
    words = {"engine": "sglang", "weights": "fp8", "attention_weights": "bf16", "prefill": "2xtp1", "decode": "1xtp4"}
    first, second = plan(**words).deployments
    assert (first.role, first.instances, first.tp) == (Role.PREFILL, 2, 1)
    assert (second.role, second.instances, second.tp) == (Role.DECODE, 1, 4)
    assert {one.weights for one in (first, second)} == {"fp8"}
    assert {one.other_weights for one in (first, second)} == {"bf16"}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ({"prefill": "1xtp1"}, "a prefill pool alone cannot serve; give both"),
        ({"decode": "1xtp1"}, "a decode pool alone cannot serve"),
        ({"prefill": "4xtp1", "decode": "4xtp2"}, "12 devices are asked for, 8xH100-SXM has 8"),
        ({"prefill": "1xtp1", "decode": "1xtp1", "instances": 2}, "instances are said beside pools"),
        ({"tp": 16}, "16 devices are asked for, 8xH100-SXM has 8; take fewer instances or smaller degrees"),
        ({"tp": 4, "instances": 3}, "12 devices are asked for"),
        ({"ep": 2}, "ep = 2 does not divide"),
        ({"prefill": "1xtp0", "decode": "1xtp1"}, "tp = 0, needs >= 1"),
    ],
)
def test_words_that_contradict_each_other(words: dict[str, Any], told: str) -> None:
    with pytest.raises(PlanError) as refused:
        plan(**words)
    assert told in str(refused.value)
    assert "field" not in str(refused.value)  # it is no single word's fault


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("tp = 2", "tp = 0", ":14: field 'plan.tp': '0' is out of range"),
        ("tp = 2", "tpp = 2", ":14: field 'plan.tpp': unknown field; nearest: tp"),
        ("tp = 2", "tp = 16", ":12: field 'plan': deployment: 16 devices are asked for"),
        ("rate = 2", "rat = 2", ":8: field 'workload.rat': unknown field; nearest: rate"),
        ("rate = 2", "rate = 1979-05-27", ":8: field 'workload.rate'"),
        ('slo = "ttft=1s,tpot=50ms"', 'slo = "soon"', ":10: field 'workload.slo': 'soon' is no bound"),
        ('name = "8xH100-SXM"', 'name = "8xH900"', ":5: field 'cluster.name': unknown cluster 'H900'"),
        ("[plan]", "[plans]", ":12: field 'plans': unknown table; nearest: plan"),
        ("tp = 2", "schedule = '1f1b'", ":14: field 'plan.schedule': unknown field"),
    ],
)
def test_a_bad_word_is_told_by_file_line_and_field(tmp_path: Path, old: str, new: str, told: str) -> None:
    path = written(tmp_path, FILE.replace(old, new))
    with pytest.raises(InputError) as refused:
        read_serving(path, {})
    assert str(refused.value).startswith(f"{path}{told}")


def test_paths_are_relative_to_the_scenario(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("arrival_s,input_tokens,output_tokens\n0,1,1\n", encoding="utf-8")
    (tmp_path / "own.toml").write_text("", encoding="utf-8")
    text = FILE.replace("rate = 2", 'trace = "mine.csv"').replace("kv =", 'engine_file = "own.toml"\nkv =')
    found = read_serving(written(tmp_path, text), {})
    assert found.traffic["trace"] == str(tmp_path / "mine.csv")
    assert found.engine_file == str(tmp_path / "own.toml")
    named = read_serving(written(tmp_path, FILE.replace("rate = 2", 'trace = "azure-conv"')), {})
    assert named.traffic["trace"] == "azure-conv"


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(RidgelineError, match="no such file"):
        read_serving("/no/such/scenario.toml", {})


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ({"adapter_rank": 8}, "'--adapter-rank': is about adapters, which is not said"),
        ({"adapter_on": "all"}, "'--adapter-on': is about adapters"),
        ({"acceptance": 0.7}, "'--acceptance': is about draft_tokens"),
        ({"draft_share": 0.1}, "'--draft-share': is about draft_tokens"),
        ({"draft_prompt_share": 0.1}, "'--draft-prompt-share': is about draft_tokens"),
        ({"adapters": 4, "prefix_cache": "true"}, "'--prefix-cache': finds nothing beside adapters"),
        ({"priority_levels": 3}, "'--priority-levels': is about priority_period"),
        ({"micro_batches": 3}, "'--micro-batches': is about expert_devices"),
        ({"kv_chunk": 4}, "'--kv-chunk': is about kv_fetched"),
        ({"dram": "64GB"}, "'--dram': is about offload"),
        ({"draft_tokens": 3}, "'--draft-tokens': drafts are accepted with a probability that is not said"),
    ],
)  # fmt: skip
def test_words_that_would_change_nothing_are_refused(words: dict[str, object], told: str) -> None:
    machine = {"model": {"name": "llama-3.1-8b"}, "cluster": {"name": "1xH100-SXM"}, "workload": {"rate": 1.0}}
    with pytest.raises(InputError, match=told):
        serving_from_words({**machine, "plan": words})


def test_a_tree_of_drafts_is_read_with_the_acceptance_of_each_candidate() -> None:
    machine = {"model": {"name": "llama-3.1-8b"}, "cluster": {"name": "1xH100-SXM"}, "workload": {"rate": 1.0}}
    asked = serving_from_words({**machine, "plan": {"draft_tree": "4x2x1", "acceptance": "0.6, 0.15,0.08,0.04"}})
    one = asked.deployments[0]
    words = said(one)
    assert (words["draft_tree"], words["next_acceptance"]) == ((4, 2, 1), (0.15, 0.08, 0.04))
    assert of(one, Speculation).drafted == 20
    assert of(one, Speculation).gained == pytest.approx(1 + 0.87 + 0.87 * 0.75 + 0.87 * 0.75 * 0.6)
    listed = serving_from_words({**machine, "plan": {"draft_tree": "4x2x1", "acceptance": [0.6, 0.15, 0.08, 0.04]}})
    assert listed.deployments == asked.deployments
    for words, told in (
        ({"draft_tree": "4xx1", "acceptance": 0.6}, "'4xx1' is no tree; write candidates"),
        ({"draft_tree": "64x64", "acceptance": 0.6}, "draft_tree = 64/64 holds 4,160 tokens, at most 1,024"),
        ({"draft_tree": "2"}, "'--draft-tree': drafts are accepted with a probability that is not said"),
    ):
        with pytest.raises((InputError, PlanError), match=told):
            serving_from_words({**machine, "plan": words})
    with pytest.raises(PlanError, match="leave draft_tokens or draft_tree out"):
        serving_from_words({**machine, "plan": {"draft_tree": "2", "draft_tokens": 2, "acceptance": "0.6,0.1"}})


@pytest.mark.parametrize("end", [1, 1.0, "100%"])
def test_a_share_may_be_all(end: object) -> None:
    """Bounds name what is allowed: `needs 0 <= value <= 1`, and 1 is."""
    machine = {"model": {"name": "llama-3.1-8b"}, "cluster": {"name": "1xH100-SXM"}, "workload": {"rate": 1.0}}
    asked = serving_from_words({**machine, "plan": {"draft_tokens": 2, "acceptance": end}})
    assert of(asked.deployments[0], Speculation).gained == 3.0
    with pytest.raises(InputError, match=r"'1\.01' is out of range; needs 0 <= value <= 1"):
        serving_from_words({**machine, "plan": {"draft_tokens": 2, "acceptance": 1.01}})


def test_a_scenario_of_the_other_kind_is_told_its_command(tmp_path: Path) -> None:
    head = 'model = "gpt2"\ncluster = "1xH100-SXM"\n[workload]\n'
    training, serving = tmp_path / "training.toml", tmp_path / "serving.toml"
    training.write_text(head + 'task = "pretrain"\n', encoding="utf-8")
    serving.write_text(head + "rate = 2\n", encoding="utf-8")
    with pytest.raises(
        InputError, match=r"training\.toml:4: field 'workload\.task': is an option of training, not of serv"
    ):
        read_serving(training, {})
    with pytest.raises(
        InputError, match=r"serving\.toml:4: field 'workload\.rate': is an option of serving; `ridgeline sim"
    ):
        read_scenario(serving)


def test_a_backend_of_experts_is_the_engines_own_word() -> None:
    """Each engine takes its own words, in any case, into both pools; others are refused with those that are."""

    def read(**plan: object) -> ServingScenario:
        tables = {"model": {"name": "deepseek-v3"}, "cluster": {"name": "16xH100-SXM"}, "plan": plan}
        return serving_from_words(tables)

    (one,) = read(engine="sglang 0.5.9", tp=16, expert_backend="DeepEP").deployments
    assert one.options.expert_backend == "deepep"
    pools = read(engine="trtllm", prefill="1xdp8,ep8", decode="1xdp8,ep8", expert_backend="wideep").deployments
    assert [pool.options.expert_backend for pool in pools] == ["WIDEEP", "WIDEEP"]
    for engine, word, told in (
        ("vllm", "deepep", "no backend of vllm; take one of flashinfer_trtllm"),
        ("llama.cpp", "deepep", "none of its backends was measured; leave it out"),
        ("sglang", "deepp", "nearest: deepep"),
    ):
        with pytest.raises(InputError, match=told):
            read(engine=engine, tp=16, expert_backend=word)
