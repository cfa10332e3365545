"""Scenario files: what they say, what they refuse and where, and that they survive writing."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ridgeline.errors import InputError
from ridgeline.facts.clusters import carbon_intensity, cluster
from ridgeline.facts.footprints import grid_water
from ridgeline.graph.workload import PRECISIONS, Task
from ridgeline.scenario.training import Scenario, read_scenario, scenario_from_words, write_scenario
from ridgeline.seams.registry import names

GPT2 = """\
[model]
layers = 12
hidden = 768
heads = 12
vocab = 50257
max_positions = 1024

[cluster]
name = "8xH100-SXM"

[workload]
task = "pretrain"
seq_len = 1024
global_batch = 512
tokens = "300B"

[plan]
tp = 2
pp = 2
micro_batch = 4
schedule = "gpipe"
recompute = "selective"
"""


def read(folder: Path, text: str, words: dict[str, Any] | None = None) -> Scenario:
    path = folder / "scenario.toml"
    path.write_text(text, encoding="utf-8")
    return read_scenario(path, words)


def test_a_whole_scenario(tmp_path: Path) -> None:
    scenario = read(tmp_path, GPT2)
    assert scenario.model.dims["hidden"] == 768
    assert scenario.cluster.count == 8
    assert (scenario.workload.tokens, scenario.workload.task) == (300_000_000_000, Task.PRETRAIN)
    assert scenario.plan is not None
    assert (scenario.plan.tp, scenario.plan.pp, scenario.plan.dp) == (2, 2, 2)  # dp takes what is left of 8
    assert (scenario.plan.schedule, scenario.plan.recompute) == ("gpipe", "selective")
    assert scenario.assumed == ()


def test_flags_win_over_the_file(tmp_path: Path) -> None:
    words = {"workload": {"seq_len": "512"}, "cluster": {"name": "16xH100-SXM"}, "plan": {"tp": "4"}}
    scenario = read(tmp_path, GPT2, words)
    assert (scenario.workload.seq_len, scenario.workload.global_batch) == (512, 512)
    assert scenario.plan is not None
    assert (scenario.plan.tp, scenario.plan.dp) == (4, 2)


def test_short_forms_and_defaults(tmp_path: Path) -> None:
    short = read(tmp_path, 'model = "llama-3.1-8b"\ncluster = "8xH100-SXM"\n')
    assert short.plan is None
    assert (short.workload.seq_len, short.workload.global_batch) == (4096, 1024)  # 4 Mi tokens, Llama 2's batch
    assert len(short.assumed) == 2
    tuned = scenario_from_words(
        {"model": {"name": "llama-3.1-8b"}, "cluster": {"name": "8xH100-SXM"}, "workload": {"task": "lora"}}
    )
    assert tuned.workload.global_batch == 64


def test_config_is_found_beside_the_scenario(tmp_path: Path) -> None:
    config = '{"model_type": "gpt2", "n_layer": 2, "n_embd": 64, "n_head": 2, "vocab_size": 100, "n_positions": 64}'
    (tmp_path / "config.json").write_text(config, encoding="utf-8")
    for value in ("config.json", "."):
        scenario = read(tmp_path, f'cluster = "8xH100-SXM"\n[model]\nconfig = "{value}"\n')
        assert scenario.model.dims["hidden"] == 64
        assert scenario.workload.seq_len == 64  # no longer than the model's positions


REFUSED = [
    ("[model", 1, "is not TOML"),
    ('model = "llama-3.1-8b"\ncluster = "8xH100-SXM"\n[workload]\nseq_len = ', 4, "is not TOML"),
    (GPT2.replace("hidden = 768", "hiden = 768"), 3, "field 'model.hiden': unknown field; nearest: hidden"),
    (GPT2.replace("[plan]", "[paln]"), 17, "field 'paln': unknown table; nearest: plan"),
    (GPT2.replace('"300B"', '"300 GB"'), 15, "field 'workload.tokens'"),
    (GPT2.replace("seq_len = 1024", "seq_len = -1"), 13, "field 'workload.seq_len'"),
    (GPT2.replace("micro_batch = 4", "micro_batch = 1979-05-27"), 20, "is a date or time"),
    (GPT2.replace("hidden = 768", "hidden = 0xffffffffffffffffff"), 3, "beyond 1e+18"),
    (GPT2.replace("8xH100-SXM", "8xH100-SMX"), 9, "H100-SXM"),
    (GPT2.replace("tp = 2", "tp = 3"), 17, "does not divide the 8 devices"),
    (GPT2.replace('schedule = "gpipe"', 'schedule = "gpip"'), 21, "nearest: gpipe"),
    (GPT2.replace('task = "pretrain"', 'task = "' + "a" * 5000 + '"'), 12, "5000 characters"),
    (GPT2.replace("micro_batch = 4", "layer_split = " + "[" * 200 + "]" * 200), 20, "nested"),
    ("model = 3", 1, "needs a table [model]"),
    ('model = "llama-3.1-8b"', None, "field 'cluster': missing"),
    ('cluster = "8xH100-SXM"\n[model]\nname = 3', 3, "needs a text"),
    ('cluster = "8xH100-SXM"\n[model]\nname = "llama-9-8b"', 3, "unknown model"),
    ('cluster = "8xH100-SXM"\n[model]\nconfig = "missing.json"', None, "no such file"),
    ('cluster = "8xH100-SXM"\n[model]\nconfig = "/dev/zero"', None, "is a device; a model's config is a regular file"),
    ('cluster = "8xH100-SXM"\n[model]\nname = "/dev/zero"', None, "is a device; a model's config is a regular file"),
    ('cluster = "8xH100-SXM"\n[model]\nlayers = 12', 2, "no hidden, heads, vocab"),
]


@pytest.mark.parametrize(("text", "line", "words"), REFUSED, ids=[words[:40] for _, _, words in REFUSED])
def test_what_cannot_be_used_is_refused_by_place(tmp_path: Path, text: str, line: int | None, words: str) -> None:
    with pytest.raises(InputError) as caught:
        read(tmp_path, text)
    message = str(caught.value)
    assert words in message
    assert re.search(r"\.toml|\.json|/dev/zero", message)
    if line is not None:
        assert caught.value.line == line


def test_a_flag_that_is_wrong_is_named_as_a_flag(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^field '--seq-len': 'long' is not a count"):
        read(tmp_path, GPT2, {"workload": {"seq_len": "long"}})


def test_files_that_are_no_scenario(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_scenario(tmp_path / "none.toml")
    with pytest.raises(InputError, match="is a folder"):
        read_scenario(tmp_path)
    large = tmp_path / "large.toml"
    large.write_bytes(b"#" * 1_000_001)
    with pytest.raises(InputError, match="more than 1,000,000 bytes, the limit of a scenario"):
        read_scenario(large)
    large.write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match=r"large.toml:1: is not UTF-8 text"):
        read_scenario(large)


def test_deep_nesting_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"TOML|nested"):
        read(tmp_path, GPT2 + "layer_split = " + "[" * 100_000)


WORKLOADS = st.fixed_dictionaries(
    {"seq_len": st.integers(1, 10**6), "global_batch": st.integers(1, 10**6)},
    optional={
        "task": st.sampled_from([task.value for task in Task]),
        "tokens": st.one_of(st.integers(1, 10**15), st.integers(1, 900).map(lambda count: f"{count}B")),
        "precision": st.sampled_from(list(PRECISIONS)),
        "optimizer": st.sampled_from(names("optimizers")),
        "mean_document": st.floats(1.0, 1e9),
        "padding": st.one_of(st.floats(0.0, 0.999), st.integers(0, 99).map(lambda share: f"{share}%")),
        "lora_rank": st.integers(1, 512),
    },
)
PLANS = st.fixed_dictionaries(
    {"dp": st.integers(1, 8)},
    optional={
        "tp": st.integers(1, 64),
        "pp": st.integers(1, 64),
        "micro_batch": st.integers(1, 64),
        "schedule": st.sampled_from(names("schedules")),
        "zero": st.integers(0, 3),
        "zero_group": st.integers(1, 64),
        "recompute": st.sampled_from(["none", "selective", "full"]),
        "layer_split": st.lists(st.integers(0, 100), min_size=1, max_size=8),
        "overlap_gradients": st.booleans(),
    },
)
DIMENSIONS = {"layers": 2, "hidden": 64, "heads": 2, "vocab": 100, "max_positions": 128}


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    workload=WORKLOADS,
    plan=st.one_of(st.none(), PLANS),
    name=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20),
)
def test_what_is_written_reads_back_equal(
    tmp_path: Path, workload: dict[str, object], plan: dict[str, object] | None, name: str
) -> None:
    words: dict[str, Any] = {
        "model": {**DIMENSIONS, "name": name},
        "cluster": {"name": "8xB200-SXM"},
        "workload": workload,
        **({} if plan is None else {"plan": plan}),
    }
    if workload.get("task") not in ("lora", "qlora"):
        workload.pop("lora_rank", None)
    if plan is not None and not plan.get("zero"):
        plan.pop("zero_group", None)
    scenario = scenario_from_words(words)
    text = write_scenario(scenario)
    again = read(tmp_path, text)
    assert again == scenario
    assert write_scenario(again) == text


def test_a_named_cluster_stands_in_a_region(tmp_path: Path) -> None:
    """The region of the file, or of a flag laid over it; all else of the cluster stays."""
    file = tmp_path / "a.toml"
    file.write_text('model = "llama-3.1-8b"\n[cluster]\nname = "8xH100-SXM"\nregion = "France"\n[workload]\n')
    there = read_scenario(file).cluster
    assert there.carbon_kg_per_j == carbon_intensity("FR")
    assert there.water_l_per_j is not None
    assert there.water_l_per_j.value == grid_water("FR").value
    gone = {"carbon_kg_per_j": None, "water_l_per_j": None}
    assert replace(there, **gone) == replace(cluster("8xH100-SXM"), **gone)
    moved = read_scenario(file, {"cluster": {"region": "DE"}}).cluster
    assert (moved.name, moved.carbon_kg_per_j) == (there.name, carbon_intensity("Germany"))
    file.write_text(file.read_text().replace("France", "Frnce"))
    with pytest.raises(InputError, match=r"a\.toml:4: field 'cluster\.region': unknown region 'Frnce'; nearest: fr"):
        read_scenario(file)
    with pytest.raises(InputError, match="field '--region': unknown region 'x1'"):
        scenario_from_words({"model": {"name": "llama-3.1-8b"}, "cluster": {"name": "8xH100-SXM", "region": "x1"}})


@pytest.mark.parametrize(
    ("model", "plan", "workload", "etp", "told"),
    [
        ("mixtral-8x7b", {"tp": 8}, {}, 8, True),
        ("mixtral-8x7b", {"tp": 8}, {"framework": "fsdp"}, 8, True),  # no program repeats experts over tensor ranks
        ("mixtral-8x7b", {"tp": 2, "ep": 4}, {}, 2, True),
        ("mixtral-8x7b", {"tp": 2, "ep": 4}, {"framework": "fsdp"}, 1, True),  # torchtitan's default
        ("mixtral-8x7b", {"tp": 8, "ep": 8}, {}, 1, True),  # 64 does not divide 8, which Megatron-LM refuses
        ("mixtral-8x7b", {"tp": 8, "etp": 1}, {}, 1, False),
        ("mixtral-8x7b", {"tp": 1, "ep": 8}, {}, 1, False),
        ("llama-3.1-8b", {"tp": 8}, {}, 1, False),
    ],
)
def test_experts_are_divided_as_the_program_divides_them(
    model: str, plan: dict[str, object], workload: dict[str, object], etp: int, told: bool
) -> None:
    tables = {"model": {"name": model}, "cluster": {"name": "8xH100-SXM"}, "workload": workload, "plan": plan}
    found = scenario_from_words(tables)
    assert found.plan is not None
    assert found.plan.etp == etp
    assert any(text.startswith(f"etp = {etp} ") for text in found.assumed) == told


@pytest.mark.parametrize(
    ("workload", "plan", "field", "words"),
    [
        ("lora_rank = 64", "", "workload.lora_rank", "pretrain has none; say task = 'lora'"),
        ("encoder_seq_len = 512", "", "workload.encoder_seq_len", "has no encoder"),
        ("expert_capacity = 1.25", "", "workload.expert_capacity", "is of experts"),
        ("", "zero_group = 4", "plan.zero_group", "say zero = 1, 2 or 3 as well"),
        ("", "recompute_layers = 4", "plan.recompute_layers", "say recompute = 'full' as well"),
    ],
)
def test_a_word_that_would_change_nothing_is_refused_by_place(
    tmp_path: Path, workload: str, plan: str, field: str, words: str
) -> None:
    text = f'model = "llama-3.1-8b"\ncluster = "8xH100-SXM"\n[workload]\nseq_len = 512\n{workload}\n[plan]\n{plan}\n'
    with pytest.raises(InputError, match=re.escape(words)) as refused:
        read(tmp_path, text)
    assert (refused.value.field, refused.value.line) == (field, 5 if workload else 7)


def test_words_of_choices_are_read_in_any_case(tmp_path: Path) -> None:
    text = 'model = "gpt2"\ncluster = "8xH100-SXM"\n[workload]\nprecision = "BF16"\noptimizer = "AdamW"\n'
    found = read(tmp_path, text).workload
    assert (found.precision, found.optimizer) == ("bf16", "adamw")


def test_sequences_beyond_the_positions_are_told(tmp_path: Path) -> None:
    text = 'model = "gpt2"\ncluster = "8xH100-SXM"\n[workload]\nseq_len = 2048\nglobal_batch = 8\n'
    told = ("sequences of 2,048 tokens are trained although gpt2 has 1,024 positions",)
    assert read(tmp_path, text).assumed == told
    assert read(tmp_path, text.replace("2048", "1024")).assumed == ()


@pytest.mark.parametrize(
    ("model", "line", "words"),
    [
        ('name = "gpt2"\nconfig = "x.json"', 3, "says the whole model"),
        ("layers = 4", 1, "no hidden, heads, vocab; give a name"),
    ],
)
def test_a_model_that_is_said_twice_or_by_half(tmp_path: Path, model: str, line: int, words: str) -> None:
    with pytest.raises(InputError, match=words) as refused:
        read(tmp_path, f'[model]\n{model}\n[cluster]\nname = "H100-SXM"\n')
    assert refused.value.line == line
