"""What a plan becomes, and what is refused with the value and the next step; rows that are appended."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ridgeline.errors import InputError, ModelError, PlanError, RidgelineError, WorkloadError
from ridgeline.facts.clusters import cluster
from ridgeline.facts.frameworks import framework_policy
from ridgeline.graph.build import build, from_dims
from ridgeline.graph.load import load
from ridgeline.graph.model import Model
from ridgeline.graph.workload import Task, Workload
from ridgeline.plan.deployment import Deployment
from ridgeline.plan.plan import Plan
from ridgeline.predict import Predictor
from ridgeline.predict.explain import explain
from ridgeline.run.append import COLUMNS, append_rows, hardware_cell, rows_of
from ridgeline.run.gap import PlanComparison, generation_of, phases_of
from ridgeline.run.mapping import as_it_runs, execution_of, parameters, shape_of
from ridgeline.run.measured import MeasuredRun
from ridgeline.scenario.settings import changed_memory, read_settings
from ridgeline.training.optimizer import RankUpdate, optimizer_seconds
from ridgeline.validate.check import check
from ridgeline.validate.rows import read

WORK = Workload(seq_len=16, global_batch=8, precision="fp32", execution="eager")
MODEL = from_dims(layers=4, hidden=64, heads=4, vocab=128, tied=False, positions="rope")


@pytest.mark.parametrize(
    ("words", "data"),
    [
        ({}, ""),
        ({"dp": 2}, "ddp"),
        ({"dp": 2, "tp": 2}, "all-reduce"),
        ({"dp": 2, "zero": 1}, "zero-1"),
        ({"dp": 2, "tp": 2, "zero": 1}, "all-reduce-1"),
        ({"dp": 2, "pp": 2, "zero": 1}, "all-reduce-1"),
        ({"dp": 2, "zero": 2}, "shard-2"),
        ({"dp": 2, "pp": 2, "zero": 3}, "shard-3"),
        ({"zero": 3}, ""),
    ],
)
def test_states_are_divided_as_the_plan_says(words: dict[str, Any], data: str) -> None:
    asked = execution_of(MODEL, WORK, Plan(**words))
    assert asked.data == data
    assert asked.ranks == Plan(**words).devices
    assert asked.micro_batches * asked.dp * asked.micro_batch == WORK.global_batch


def test_layers_are_split_as_the_prediction_splits_them() -> None:
    assert execution_of(MODEL, WORK, Plan(pp=3)).layer_split == Predictor(MODEL, cluster("4xH100-SXM"), WORK).split(
        Plan(pp=3)
    )
    assert execution_of(MODEL, WORK, Plan(pp=2, layer_split=(3, 1))).layer_split == (3, 1)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ({"loss": "chunked"}, "loss = chunked is not run here; needs whole"),
        ({"tp": 3}, "tp = 3 does not divide heads = 4"),
        ({"cp": 3}, "cp = 3"),
        ({"cp": 2, "context_style": "ulysses"}, "context_style = ulysses"),
        ({"cp": 2, "tp": 2, "sequence_parallel": True}, "sequence_parallel with cp"),
        ({"ep": 2, "dp": 2}, "a divisor of the 0 experts"),
        ({"schedule": "zb-h1", "pp": 2}, "schedule = zb-h1"),
        ({"recompute": "selective", "dp": 2, "zero": 2}, "recompute = selective with zero = 2 or 3"),
        ({"offload_optimizer": True}, "offload_optimizer"),
        ({"dp": 2, "tp": 2, "etp": 2}, "etp = 2 with ep = 1"),
        ({"pp": 4, "micro_batch": 4}, "1f1b over pp = 4"),
        ({"micro_batch": 3}, "global batch 8"),
    ],
)
def test_plans_that_do_not_run_are_refused_with_the_value(words: dict[str, Any], told: str) -> None:
    with pytest.raises(RidgelineError, match=told):
        execution_of(MODEL, WORK, Plan(**words))


def test_experts_are_divided_with_all_else() -> None:
    """Every feed-forward is one of columns and rows over the tensor ranks (`divide._layer_plan`), experts' too."""
    model = from_dims(layers=2, hidden=64, heads=4, vocab=128, max_positions=64, experts=4, top_k=2)
    assert execution_of(model, WORK, Plan(tp=2, dp=2, etp=2)).tp == 2
    with pytest.raises(RidgelineError, match="etp = 1 with ep = 1 is not run here; needs 2"):
        execution_of(model, WORK, Plan(tp=2, dp=2))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ({"task": Task.LORA}, "task = lora"),
        ({"precision": "fp8"}, "precision = fp8"),
        ({"precision": "bf16"}, "master copy"),
        ({"optimizer": "muon"}, "optimizer = muon"),
        ({"padding": 0.1}, "padding"),
    ],
)
def test_workloads_that_do_not_run_are_refused(words: dict[str, Any], told: str) -> None:
    with pytest.raises(RidgelineError, match=told):
        execution_of(MODEL, replace(WORK, **words), Plan())


@pytest.mark.parametrize("name", ["deepseek-v3", "bert-base-uncased", "gemma-2-9b"])
def test_other_architectures_are_refused(name: str) -> None:
    with pytest.raises(ModelError, match="is not run here"):
        shape_of(load(name))


def latent(**words: Any) -> Model:
    config = {
        "architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", "hidden_size": 64,
        "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4,
        "q_lora_rank": None, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 12,
        "vocab_size": 128, "max_position_embeddings": 64, "tie_word_embeddings": False, "hidden_act": "silu",
        "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "first_k_dense_replace": 0,
        "n_shared_experts": 2,
    }  # fmt: skip
    return build({**config, **words}, name="latent", source="test")


@pytest.mark.parametrize("words", [{}, {"q_lora_rank": 24}, {"attention_bias": True, "q_lora_rank": 24}])
def test_latent_attention_has_the_weights_of_its_graph(words: dict[str, Any]) -> None:
    which = latent(**words)
    shape = shape_of(which)
    assert (shape.head_dim, shape.v_dim, shape.kv_rank, shape.rope_dim) == (24, 12, 16, 8)
    assert shape.q_rank == (words.get("q_lora_rank") or 0)
    assert parameters(shape) == which.graph.params


def test_latent_attention_runs_neither_as_a_batch_nor_along_the_sequence() -> None:
    with pytest.raises(PlanError, match="sequence_parallel with latent attention"):
        execution_of(latent(), WORK, Plan(tp=2, etp=2, sequence_parallel=True))
    with pytest.raises(ModelError, match="a batch with latent attention"):
        generation_of(latent(), Deployment())


def comparison(which: Model = MODEL, **words: Any) -> PlanComparison:
    workload = replace(WORK, framework=replace(framework_policy("ddp"), persistent_gradients=False))
    predictor = Predictor(which, cluster("4xH100-SXM"), workload)
    evaluation = predictor.evaluate(Plan(**words))
    report = explain(predictor, evaluation)
    step = {"forward": 1.0, "backward": 2.5, "gradient exchange": 0.0, "optimizer": 0.5, "step": 4.0}
    seen = MeasuredRun(
        phases_s=(step, step),
        losses=(5.0, 4.9),
        memory_bytes=(1e9, 2e9),
        collectives={"recv": {"calls": 1, "seconds": 9.0}, "all_reduce": {"calls": 2, "seconds": 1.25, "moving": 0.25}},
        device="cpu",
    )
    phases = phases_of(predictor, evaluation, report, seen)
    return PlanComparison(report=report, measured=seen, phases=phases, gaps={"forward": 1.0, "backward": 3.0})


def test_phases_add_up_to_the_step_on_both_sides() -> None:
    found = comparison(dp=2, tp=2)
    parts = [one for one in found.phases if one.unit == "s" and one.name != "step" and not one.within]
    assert sum(one.predicted for one in parts) == pytest.approx(found.step.predicted)
    assert sum(one.measured for one in parts) == pytest.approx(found.step.measured) == 4.0


def test_collectives_are_rows_of_moving_time_and_receiving_is_none() -> None:
    rows = {one.name: one for one in comparison(dp=2, tp=2).phases if one.within}
    assert list(rows) == ["all_reduce"]
    assert rows["all_reduce"].measured == 0.25
    assert rows["all_reduce"].predicted > 0
    assert not [one for one in comparison().phases if one.within]


def test_memory_is_the_largest_rank_and_the_widest_gap_is_named_with_its_share() -> None:
    found = comparison()
    (row,) = [one for one in found.phases if one.unit == "byte"]
    assert row.measured == 2e9
    assert (found.widest, found.widest_share) == ("backward", 0.75)


@pytest.mark.parametrize(
    ("words", "framework"),
    [({}, "torch"), ({"dp": 2}, "ddp"), ({"dp": 2, "tp": 2}, "torch"), ({"zero": 3, "dp": 2}, "fsdp")],
)
def test_memory_is_predicted_for_the_library_that_runs(words: dict[str, Any], framework: str) -> None:
    policy = execution_of(MODEL, WORK, Plan(**words)).policy
    assert policy.name == framework_policy(framework).name
    own = {"ddp": {"persistent_gradients": False}, "fsdp": {"selective": "core-attention"}}.get(framework, {})
    assert changed_memory(policy) == {"gradient_passes": 1.0, **own}


def test_an_update_without_a_norm_reads_gradients_once() -> None:
    machine = Predictor(MODEL, cluster("4xH100-SXM"), WORK).machine
    work = replace(WORK, framework="torch")
    once = replace(WORK, framework=replace(framework_policy("torch"), gradient_passes=1.0))
    update = RankUpdate(numbers=1e6, moved_bytes=16e6)
    usual, bare = (float(optimizer_seconds(update, workload=one, machine=machine)) for one in (work, once))
    assert bare / usual == pytest.approx(28 / 36)  # weights 8, moments 16, gradients 4, against 4 three times
    apart = [replace(one, fused_optimizer=False) for one in (work, once)]
    usual, bare = (float(optimizer_seconds(update, workload=one, machine=machine)) for one in apart)
    assert bare / usual == pytest.approx(80 / 88)


def test_moments_of_weights_in_bf16_are_kept_and_priced_in_bf16() -> None:
    work = replace(WORK, precision="bf16-pure", optimizer="adamw")
    assert as_it_runs(work).optimizer == "adamw-bf16"
    assert as_it_runs(replace(work, optimizer="sgd")).optimizer == "sgd"
    assert as_it_runs(WORK) == WORK
    with pytest.raises(WorkloadError, match="adamw-bf16 is run here with precision = bf16-pure alone"):
        execution_of(MODEL, replace(WORK, optimizer="adamw-bf16"), Plan())


def test_rows_are_appended_under_the_files_own_columns(tmp_path: Path) -> None:
    file = tmp_path / "own.tsv"
    rows = rows_of(comparison(dp=2), engine="torch 2.13")
    append_rows(str(file), rows)
    append_rows(str(file), rows)
    table = read(str(file))
    assert table.kind == "training"
    assert [row.problem for row in table.rows] == [None] * 4
    assert [row.text("metric") for row in table.rows] == ["step_time", "tokens_per_s_per_gpu"] * 2
    assert table.rows[0].number("layers") == 4
    assert float(table.rows[1].text("value")) == pytest.approx(8 * 16 / 4.0 / 4)
    assert list(tmp_path.iterdir()) == [file]


NARROW = from_dims(
    layers=5, hidden=96, heads=4, kv_heads=2, head_dim=48, ffn=208, gated=True, activation="silu", norm="rms",
    bias={"qkv": True, "out": False, "mlp": False}, tied=False, positions="rope", vocab=144,
)  # fmt: skip
SPREAD = from_dims(layers=2, hidden=64, heads=4, vocab=128, tied=False, positions="rope", experts=6, top_k=3,
                   expert_ffn=40)  # fmt: skip


@pytest.mark.parametrize(
    ("which", "words"),
    [
        (NARROW, {"dp": 2, "micro_batch": 2}),
        (NARROW, {"pp": 2, "layer_split": (2, 3), "overlap_gradients": False}),
        (SPREAD, {"dp": 2, "ep": 2, "recompute": "full"}),
        (load("gpt2"), {"tp": 2}),
        (load("llama-3.2-1b"), {"dp": 2, "zero": 3}),
    ],
)
def test_check_predicts_of_an_appended_row_what_was_predicted_when_it_ran(
    which: Model, words: dict[str, Any], tmp_path: Path
) -> None:
    found = comparison(which, **words)
    file = tmp_path / "own.tsv"
    append_rows(str(file), rows_of(found, engine="ridgeline measure, torch 2.13"))

    def never(*words: object) -> Plan:
        raise AssertionError("nothing is left to choose")

    step, rate = check(file, completer=never, strict=True).rows
    seen = found.report.step_time
    assert (step["predicted"], step["low"], step["high"]) == (seen.value, seen.low, seen.high)
    assert step["measured"] == found.step.measured
    tokens = found.report.workload.step_tokens
    assert rate["predicted"] == pytest.approx(tokens / seen.value / 4)  # two of four devices are idle


def test_a_table_without_the_column_gets_it_and_its_rows_stay(tmp_path: Path) -> None:
    file = tmp_path / "own.tsv"
    append_rows(str(file), rows_of(comparison(), engine="torch"))
    lines = [line.rsplit("\t", 1)[0] for line in file.read_text().splitlines()]  # as an earlier version wrote it
    file.write_text("\n".join(lines) + "\n")
    append_rows(str(file), rows_of(comparison(), engine="torch"))
    after = file.read_text().splitlines()
    assert after[0] == lines[0] + "\tsettings"
    assert after[1:3] == lines[1:]
    assert [bool(row.text("settings")) for row in read(str(file)).rows] == [False, False, True, True]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "is no JSON"),
        ("[]", "lacks config, workload, habits, plan"),
        ('{"config":1,"workload":{},"habits":{},"plan":{}}', "config is no object"),
        ('{"config":{},"workload":{"seq":1},"habits":{},"plan":{}}', "seq: unknown field; nearest: seq_len"),
        ('{"config":{},"workload":{},"habits":{},"plan":{}}', "leaves out what a run needs"),
        ('{"config":{},"workload":{"seq_len":8,"global_batch":1},"habits":{},"plan":{}}', "model_type"),
    ],
)
def test_settings_that_were_cut_or_edited_are_refused_with_the_field(text: str, told: str) -> None:
    with pytest.raises(RidgelineError, match=told):
        read_settings(text, name="own")


@pytest.mark.parametrize(
    ("name", "part", "cell"),
    [
        ("2xhere", "AMD EPYC, 2 cores (d3a3e1) / 2", "here (AMD EPYC, 2 cores)"),
        ("profile:/a b/one.json", "AMD EPYC, 1 core (00aa11)", "profile:/a b/one.json (AMD EPYC, 1 core)"),
        ("2xH100-SXM", "H100-SXM", "H100-SXM"),
    ],
)
def test_a_machine_of_ones_own_is_named_by_its_profile(name: str, part: str, cell: str) -> None:
    known = cluster("2xH100-SXM")
    own = replace(known, name=name, accelerator=replace(known.accelerator, name=part))
    assert hardware_cell(own) == cell


def test_a_table_of_something_else_is_left_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "other.tsv"
    file.write_text("a\tb\n1\t2\n")
    with pytest.raises(InputError, match="has no column id, metric"):
        append_rows(str(file), [])
    assert file.read_text() == "a\tb\n1\t2\n"


def test_columns_of_a_file_in_another_order_are_kept(tmp_path: Path) -> None:
    file = tmp_path / "own.tsv"
    file.write_text("\t".join(reversed(COLUMNS)))
    append_rows(str(file), [{"id": "x", "metric": "m", "value": "1", "unit": "s", "notes": "tab\tand\nline"}])
    header, line = file.read_text().splitlines()
    assert dict(zip(header.split("\t"), line.split("\t"), strict=True))["notes"] == "tab and line"
