"""Contracts of every export target: tables that hold, exact round trips, refusals of what its program would refuse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import ridgeline as rl
from ridgeline.errors import InputError, UnknownNameError
from ridgeline.export.fields import ConfigField, field_table
from ridgeline.export.forms import parsed, read_flags_text
from ridgeline.export.reading import read_config
from ridgeline.export.target import target, targets
from ridgeline.facts.store import sources
from ridgeline.scenario.fields import PLAN_FIELDS, WORKLOAD_FIELDS
from ridgeline.scenario.serving_fields import DEPLOYMENT_FIELDS

WORDS = {f"plan.{one.name}" for one in (*PLAN_FIELDS, *DEPLOYMENT_FIELDS)}
WORDS |= {f"workload.{one.name}" for one in WORKLOAD_FIELDS}
WORDS |= {"plan.block_tokens", "plan.micro_batches", "workload.longest", "model.id", "model.name", "devices"}
WORDS |= {f"model.{name}" for name in ("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn")}
WORDS |= {f"model.{name}" for name in ("experts", "top_k", "expert_ffn")}
every = pytest.mark.parametrize("key", targets())
ASKED = {
    "serving": ("qwen3-30b-a3b", {"on": "4xH100-SXM", "tp": 4, "ep": 4, "max_seqs": 64}),
    "degrees without a field": ("qwen3-30b-a3b", {"on": "4xH100-SXM", "tp": 4, "max_seqs": 64}),
    "training": (
        "llama-3.1-8b",
        {"on": "8xH100-SXM", "zero": 3, "micro_batch": 1, "global_batch": 64},
    ),
}


def asked_of(key: str) -> tuple[str, dict[str, Any]]:
    """A model and words that a target can say."""
    subject, words = ASKED["degrees without a field" if key in ("llamacpp", "tgi") else target(key).task]
    return subject, words | ({"task": "full"} if key == "torchtune" else {})


@every
def test_its_table_names_our_words_once_and_each_row_has_a_source(key: str) -> None:
    rows = field_table(key)
    assert rows
    assert {row.ours for row in rows if row.ours} <= WORDS
    names = [(row.name, row.since) for row in rows]
    assert len(names) == len(set(names))
    assert set(target(key).source) <= sources().keys()


@every
def test_a_plan_that_is_exported_and_read_back_is_the_same_plan(key: str, tmp_path: Path) -> None:
    one = target(key)
    subject, words = asked_of(key)
    answer = rl.export(subject, to=key, out=str(tmp_path), **words)
    of_data = (
        {"global_batch": 64, "task": words.get("task")} if one.task == "training" else {}
    )  # the data's, which some leave to their script
    made = next(name for name in answer["files"] if name != "README.md")
    found = read_config(f"{key}:{tmp_path / made}")
    assert not found.unknown
    again = rl.export(subject, words["on"], to=key, from_config=f"{key}:{tmp_path / made}", **of_data)
    assert again["files"][made] == answer["files"][made]
    assert again["predicted"] == answer["predicted"]


@every
def test_the_target_of_a_file_is_found_without_its_name(key: str, tmp_path: Path) -> None:
    subject, words = asked_of(key)
    answer = rl.export(subject, to=key, out=str(tmp_path), **words)
    made = next(name for name in answer["files"] if name != "README.md")
    assert read_config(str(tmp_path / made)).target == key


def test_what_the_program_cannot_say_is_told_with_its_cost() -> None:
    answer = rl.export("llama-3.1-8b", "8xH100-SXM", to="deepspeed", recompute="full", zero=1, micro_batch=1)
    left = {one["word"]: one["change"] for one in answer["left_out"]}
    assert left["plan.recompute"] < 0  # priced: a number, not None
    assert "plan.zero" not in left


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("deepspeed", {"pp": 2, "zero": 1}),
        ("accelerate", {"tp": 2, "zero": 0}),
        ("torchtune", {"cp": 2, "task": "full"}),
    ],
)
def test_a_degree_without_a_field_is_refused_and_the_best_plan_offered(key: str, words: dict[str, Any]) -> None:
    name, offered = next(iter(words)), "the best that it can: --tp 1 --pp 1 --cp 1"
    with pytest.raises(InputError, match=f"cannot say {name} 2: without it another plan would run; {offered}"):
        rl.export("llama-3.1-8b", "8xH100-SXM", to=key, micro_batch=1, global_batch=64, **words)


@pytest.mark.parametrize(("key", "words"), [("vllm", {"tp": 4, "ep": 2}), ("tgi", {"tp": 2, "pp": 2}),
                                            ("trtllm", {"tp": 2, "dp": 2})])  # fmt: skip
def test_a_degree_of_serving_without_a_field_is_refused(key: str, words: dict[str, int]) -> None:
    with pytest.raises(InputError, match="without it another plan would run"):
        rl.export("qwen3-30b-a3b", "4xH100-SXM", to=key, **words)


def test_what_trains_language_models_trains_no_other() -> None:
    with pytest.raises(InputError, match="trains language models, which resnet-50 is not"):
        rl.export("resnet-50", "8xH100-SXM", to="megatron")


@pytest.mark.parametrize("key", ["accelerate", "maxtext", "torchtune"])
def test_what_a_file_says_in_place_of_a_word_that_it_has_not_is_what_is_read(key: str, tmp_path: Path) -> None:
    subject, words = asked_of(key)
    recompute = {"recompute": "selective", "offload_activations": key == "torchtune"}
    answer = rl.export(subject, to=key, out=str(tmp_path), **words, **recompute)
    file = tmp_path / target(key).file
    again = rl.export(subject, words["on"], to=key, from_config=f"{key}:{file}")["files"][file.name]
    assert again == answer["files"][file.name] == file.read_text()


def test_a_config_answers_why_it_is_slow(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("model: Qwen/Qwen3-32B\ntensor-parallel-size: 2\nmax-num-seqs: 32\nport: 8000\nmade-up: 1\n")
    answer = rl.predict(None, "2xH100-SXM", from_config=str(file), batch=8)
    assert answer["from_config"]["target"] == "vllm"
    assert answer["from_config"]["idle"] == ["port"]
    assert answer["from_config"]["unknown"] == ["made-up"]
    assert answer["from_config"]["words"]["plan.max_seqs"] == 32


def test_a_value_that_the_program_would_refuse_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("model: Qwen/Qwen3-32B\ngpu-memory-utilization: 1.5\n")
    with pytest.raises(InputError, match=r"vLLM refuses it: 1.5 is outside 0.01..1"):
        read_config(str(file))


@pytest.mark.parametrize("text", ["a: &x [1]\nb: *x\n", "a: [", "!!python/object/apply:os.system ['true']"])
def test_a_hostile_yaml_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(text)
    with pytest.raises(InputError):
        read_config(str(file))


def test_deep_documents_are_refused() -> None:
    with pytest.raises(InputError, match="nested"):
        parsed("[" * 50 + "]" * 50, ".json", "x.json")


def test_unknown_targets_name_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="vllm"):
        target("vlm")
    with pytest.raises(InputError, match="say a model"):
        rl.predict(None, "1xH100-SXM")


def test_flags_are_read_by_name() -> None:
    found = read_flags_text("python x.py --tp 2 \\\n --eager --list a b --neg -1 --eq=3 # no\n", frozenset({"eager"}))
    assert found == {"tp": 2, "eager": True, "list": ["a", "b"], "neg": -1, "eq": 3} | {"list": ["a", "b"]}


@pytest.mark.parametrize(
    ("convert", "ours", "theirs"),
    [("", 3, 3), ("not", True, False), ("text", 2, "2"), ("times:1024", 2, 2048), ("map:a=b;c=d", "c", "d")],
)
def test_values_convert_and_back(convert: str, ours: object, theirs: object) -> None:
    row = ConfigField(name="x", type="any", convert=convert, source="s")
    assert row.theirs(ours) == theirs
    assert row.our_value(theirs) == ours


def test_a_python_config_is_read_and_never_run(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "import os\nfrom torchtitan.models.llama3 import model_registry\n"
        f"os.mkdir({str(tmp_path / 'run')!r})\n\ndef mine():\n    spec = model_registry('8B')\n"
        "    made = Trainer.Config(model_spec=spec, training=TrainingConfig(seq_len=8192, local_batch_size=2))\n"
        "    made.parallelism.tensor_parallel_degree = 4\n    return made\n"
    )
    found = read_config(str(file))
    assert not (tmp_path / "run").exists()
    assert found.target == "torchtitan"
    wanted = {"model.id": "llama-3.1-8b", "workload.seq_len": 8192, "plan.micro_batch": 2, "plan.tp": 4}
    assert wanted.items() <= found.words.items()


@pytest.mark.parametrize("text", ["def f(:", "x = 1", "(" * 500, "def f():\n    return " + "a(" * 200 + ")" * 200])
def test_a_python_file_that_is_no_config_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "x.py"
    file.write_text(text)
    with pytest.raises(InputError):
        read_config(f"torchtitan:{file}")
