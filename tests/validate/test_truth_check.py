"""Metrics, scores and the answer to check, with a predictor whose numbers are known."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ridgeline.errors import NoPlanError, PlanError
from ridgeline.facts.records import Cluster, Evidence
from ridgeline.facts.transfer import joined, run_spread
from ridgeline.graph.flop import model_flop_per_token
from ridgeline.graph.model import Model
from ridgeline.graph.workload import Workload
from ridgeline.plan.plan import Plan
from ridgeline.report.report import Estimate, OpRow, Report, StageMemory
from ridgeline.validate.check import SEQUENCE_STEP, check
from ridgeline.validate.score import confusion, statistics

COLUMNS = (
    "id",
    "model",
    "params_b",
    "layers",
    "hidden",
    "heads",
    "vocab",
    "seq_len",
    "hardware",
    "n_devices",
    "tp",
    "pp",
    "dp",
    "zero_stage",
    "micro_batch",
    "global_batch",
    "recompute",
    "precision",
    "optimizer",
    "offload",
    "engine",
    "metric",
    "value",
    "unit",
    "source",
    "confidence",
    "notes",
)
BASE = {
    "model": "Llama 3 8B",
    "hardware": "H100 SXM 80GB",
    "n_devices": "8",
    "tp": "1",
    "pp": "1",
    "dp": "8",
    "seq_len": "8192",
    "zero_stage": "FSDP",
    "micro_batch": "1",
    "global_batch": "16",
    "recompute": "none",
    "precision": "bf16",
    "engine": "NeMo 24.07",
    "confidence": "high",
    "unit": "s",
    "metric": "step_time",
    "value": "2",
}
STEP_S, LOW_S, HIGH_S = 2.0, 1.6, 2.5
TOKENS = 16 * 8192
GIB = 2.0**30
PARTS = {
    "weights": 10 * GIB,
    "gradients": 5 * GIB,
    "optimizer": 20 * GIB,
    "activations": 8 * GIB,
    "logits": 2 * GIB,
    "buffers": 1 * GIB,
    "workspace": 0.5 * GIB,
    "context": 1 * GIB,
}


def complete(model: Model, cluster: Cluster, workload: Workload, stated: Mapping[str, Any]) -> Plan:
    return Plan(**{**stated, "dp": stated.get("dp", 1)})


def predict(model: Model, cluster: Cluster, workload: Workload, plan: Plan) -> Report:
    bytes_ = {name: size * (workload.seq_len / 8192 if name == "activations" else 1) for name, size in PARTS.items()}
    flop = 6.0 * model.graph.params * workload.step_tokens
    op = OpRow(
        block="b",
        op="o",
        layers=10,
        forward_s=0.02,
        backward_s=0.04,
        flop=1,
        bytes=1,
        bound="compute",
        evidence=Evidence.DERIVED,
    )
    return Report(
        model=model,
        cluster=cluster,
        workload=workload,
        plan=plan,
        step_time=Estimate(value=STEP_S, low=LOW_S, high=HIGH_S, unit="s", evidence=Evidence.MEASURED),
        bound_s=1.0,
        tokens_per_s=workload.step_tokens / STEP_S,
        model_flop=flop,
        hardware_flop=flop * 4 / 3,
        mfu=0.5,
        hfu=0.6,
        causal_mfu=0.5,
        run_time_s=None,
        energy_j_per_step=1.0,
        power_w=8000.0,
        power_range=(0.9, 1.1),
        usd_per_step=None,
        carbon_kg_per_step=None,
        memory=(
            StageMemory(stage=0, categories=bytes_, capacity_bytes=80 * GIB),
            StageMemory(stage=1, categories={**bytes_, "weights": 0.0}, capacity_bytes=80 * GIB),
        ),
        shares=(),
        limit="",
        ops=(op,),
        assumptions=(),
        sources=(),
        evidence={},
    )


def answers(path: Path, *rows: dict[str, str], **kept: Any) -> list[dict[str, Any]]:
    lines = ["\t".join(COLUMNS)]
    for number, cells in enumerate(rows, start=1):
        full = {"id": f"t-x-{number:04d}", **BASE, **cells}
        lines.append("\t".join(full.get(column, "") for column in COLUMNS))
    file = path / "rows.tsv"
    file.write_text("\n".join(lines) + "\n")
    report = check(file, **{"predictor": predict, "completer": complete, "strict": True, **kept})
    json.dumps(report.as_json(), allow_nan=False)
    return list(report.rows)


def one(path: Path, **cells: str) -> dict[str, Any]:
    (answer,) = answers(path, cells)
    assert answer["status"] == "scored", answer["reason"]
    return answer


@pytest.mark.parametrize(
    ("metric", "unit", "value", "low", "high"),
    [
        ("step_time", "s", 2.0, 1.6, 2.5),
        ("step_time", "ms", 2000.0, 1600.0, 2500.0),
        ("tokens_per_s_per_gpu", "tok/s/GPU", TOKENS / 2 / 8, TOKENS / 2.5 / 8, TOKENS / 1.6 / 8),
        ("tokens_per_s", "tok/s", TOKENS / 2, TOKENS / 2.5, TOKENS / 1.6),
        ("throughput", "samples/s", 8.0, 6.4, 10.0),
        ("throughput", "sequences/sec", 8.0, 6.4, 10.0),
        ("samples_per_s_per_gpu", "samples/s/GPU", 1.0, 0.8, 1.25),
        ("samples_4k_per_s", "4K-token samples/s", 16.0, 12.8, 20.0),
        ("tokens_per_s", "ktok/s", TOKENS / 2e3, TOKENS / 2.5e3, TOKENS / 1.6e3),
        ("throughput", "samples/min", 480.0, 384.0, 600.0),
        ("throughput", "k samples/hour", 28.8, 23.04, 36.0),
        ("forward_time", "ms", 200.0, 160.0, 250.0),
    ],
)
def test_times_and_rates_are_read_off_the_step_and_turn_the_interval(
    tmp_path: Path, metric: str, unit: str, value: float, low: float, high: float
) -> None:
    found = one(tmp_path, metric=metric, unit=unit, value="3")
    assert [found[name] for name in ("predicted", "low", "high")] == pytest.approx([value, low, high])
    assert found["ape"] == pytest.approx(abs(value - 3) / 3)
    assert found["evidence"] == "measured elsewhere"


def test_flop_rates_follow_the_source_s_way_of_counting(tmp_path: Path) -> None:
    seq, hidden, layers, vocab, batch = 2048.0, 6144, 48, 51200, 16
    gpt = {
        "model": "Megatron 22B",
        "params_b": "22",
        "layers": "48",
        "hidden": "6144",
        "heads": "64",
        "vocab": "51200",
        "seq_len": "2048",
        "metric": "tflops_per_gpu",
        "unit": "TFLOP/s/GPU",
        "value": "150",
    }
    common = batch * seq * layers * hidden**2
    model = 72 * common * (1 + seq / (6 * hidden) + vocab / (12 * layers * hidden))
    hardware = 96 * common * (1 + seq / (6 * hidden) + vocab / (16 * layers * hidden))
    pairs = (seq + 1) / (12 * hidden)  # of the diagonal and below
    attended = 72 * common * (1 + pairs + vocab / (12 * layers * hidden))
    plain = one(tmp_path, **gpt, engine="Megatron-Core")
    assert plain["predicted"] == pytest.approx(attended / 2 / 8 / 1e12, rel=1e-6)
    before = one(tmp_path, **gpt, engine="Megatron-Core 0.11")
    assert before["predicted"] == pytest.approx(model / 2 / 8 / 1e12, rel=1e-6)
    recomputed = one(tmp_path, **gpt, engine="Megatron-LM (Jan 2021)", recompute="full")
    assert recomputed["predicted"] == pytest.approx(hardware / 2 / 8 / 1e12, rel=1e-6)
    noted = one(tmp_path, **gpt, engine="Megatron-Core", recompute="full", notes="so this is a hardware-FLOP rate")
    assert noted["predicted"] == pytest.approx(hardware / 2 / 8 / 1e12, rel=1e-6)
    total = one(
        tmp_path, **{**gpt, "metric": "aggregate_pflops", "unit": "PFLOP/s", "value": "1"}, engine="Megatron-Core"
    )
    assert total["predicted"] == pytest.approx(attended / 2 / 1e15, rel=1e-6)


@pytest.mark.parametrize(
    ("metric", "unit"),
    [
        ("tokens_per_s", "furlong"), ("tokens_per_s_per_gpu", "GB"), ("throughput", "ms"), ("tflops_per_gpu", "tok/s"),
        ("mfu", "W"), ("gpu_hours", "GB"), ("mean_node_power", "s"), ("activation_mem", "s"),
        ("model_states_mem", "mile"), ("max_seq_len", "GiB"), ("step_time", "tok/s"),
    ],
)  # fmt: skip
def test_a_unit_that_cannot_be_the_metric_s_is_refused(tmp_path: Path, metric: str, unit: str) -> None:
    (answer,) = answers(tmp_path, {"metric": metric, "unit": unit, "value": "3"})
    assert answer["status"] == "refused"
    assert f"'{unit}' is no unit of {metric}; wanted one" in answer["reason"]


@pytest.mark.parametrize(("unit", "times"), [("TFLOPS", 1.0), ("PFLOP/s", 1e-3), ("GFLOPs/GPU", 1e3), ("", 1.0)])
def test_a_flop_rate_is_in_its_unit_however_it_is_spelt(tmp_path: Path, unit: str, times: float) -> None:
    plain, other = (one(tmp_path, metric="tflops_per_gpu", unit=word, value="4") for word in ("TFLOP/s/GPU", unit))
    assert other["predicted"] == pytest.approx(times * plain["predicted"])


def test_utilisation_is_of_the_bf16_peak(tmp_path: Path) -> None:
    found = one(tmp_path, metric="mfu", unit="%", value="40")
    from ridgeline.facts.accelerators import accelerator
    from ridgeline.graph.load import load

    flop = 3 * model_flop_per_token(load("Llama 3 8B").graph, 8192.0, attention="full") * TOKENS
    assert found["predicted"] == pytest.approx(100 * flop / 2 / 8 / accelerator("H100-SXM").peak_flop_per_s["bf16"])
    hardware = one(tmp_path, metric="hfu", unit="%", value="40", recompute="full")
    assert found["predicted"] < hardware["predicted"] < found["predicted"] * 4 / 3


def test_device_hours_and_power(tmp_path: Path) -> None:
    hours = one(tmp_path, metric="gpu_hours", unit="GPU h", value="9", notes="train_tokens_T=1.0")
    assert hours["predicted"] == pytest.approx(1e12 / TOKENS * STEP_S * 8 / 3600)
    power = one(tmp_path, metric="mean_node_power", unit="W", value="9000")
    assert 4000 < power["predicted"] <= 8000


@pytest.mark.parametrize(
    ("metric", "unit", "notes", "value"),
    [
        ("torch_max_memory_allocated", "B", "", 46.5 * GIB),
        ("torch_max_memory_allocated", "B", "one logging rank (last rank)", 36.5 * GIB),
        ("peak_mem_per_gpu", "GiB", "", 46.5),
        ("peak_mem_per_gpu", "GB", "", 46.5 * GIB / 1e9),
        ("peak_mem_nvidia_smi", "MiB", "", 47.5 * 1024),
        ("peak_mem_per_device", "GiB", "", 47.5),
        ("model_states_mem", "GiB", "", 35.0),
        ("activation_mem", "GiB", "", 8.0 + 4 * 8192 * 128256 / GIB),  # fp32 logits of one sequence
        ("activation_peak_mem", "GiB", "", 11.5),
    ],
)
def test_memory_metrics_add_what_each_tool_counts(
    tmp_path: Path, metric: str, unit: str, notes: str, value: float
) -> None:
    found = one(tmp_path, metric=metric, unit=unit, notes=notes, value="40")
    assert found["predicted"] == pytest.approx(value)
    assert found["evidence"] == "derived"
    if metric == "model_states_mem":  # counted exactly
        assert (found["low"], found["high"]) == (None, None)
    else:
        assert found["low"] < value < found["high"]


def test_the_interval_of_a_memory_row_is_that_of_its_transient_bytes(tmp_path: Path) -> None:
    """46.5 GiB without the context, 35 of them states; the score counts the rows that lie inside."""
    rows = ({"metric": "peak_mem_per_gpu", "unit": "GiB", "value": value} for value in ("50", "65"))
    inside, outside = answers(tmp_path, *rows)
    beyond = [46.5 * end for end in run_spread("memory of training")]
    counters = [46.5, 47.5]  # of an allocator, and of the driver with the context, as the row does not say whose
    ends = joined(46.5, [35 + 0.66 * 11.5, 1.15 * 35 + 1.62 * 11.5, *counters, *beyond])
    assert [inside["low"], inside["high"]] == pytest.approx(ends)
    assert inside["low"] <= inside["measured"] <= inside["high"] < outside["measured"]
    found = statistics([inside, outside])
    assert (found["coverage"], found["scored"]) == (0.5, 2)


def test_fits_is_a_confusion_table_and_nothing_that_fits_is_oom(tmp_path: Path) -> None:
    def nothing(*arguments: object) -> Plan:
        raise NoPlanError("nothing fits")

    fits = {"metric": "fits", "unit": "", "value": "fits"}
    rows = answers(tmp_path, fits, {**fits, "value": "OOM"}, {**fits, "value": "does not fit", "seq_len": "65536"})
    assert [(row["measured"], row["predicted"]) for row in rows] == [("fits", "fits"), ("OOM", "fits"), ("OOM", "OOM")]
    assert confusion(rows) == {"fits as fits": 1, "fits as OOM": 0, "OOM as fits": 1, "OOM as OOM": 1}
    open_plan = {**fits, "tp": "", "pp": "", "dp": "", "zero_stage": "", "engine": "Megatron-Core"}
    (row,) = answers(tmp_path, open_plan, completer=nothing)
    assert (row["status"], row["predicted"], row["ape"]) == ("scored", "OOM", None)


def test_the_longest_sequence_is_found_by_bisection(tmp_path: Path) -> None:
    found = one(tmp_path, metric="max_seq_len", unit="tokens", value="40000")
    free = 80 - (sum(PARTS.values()) - PARTS["activations"]) / GIB  # GiB left for 8 GiB at every 8192 tokens
    longest = free / 8 * 8192 // SEQUENCE_STEP * SEQUENCE_STEP
    assert longest * 0.98 <= found["predicted"] <= longest


def test_time_to_train_is_that_of_the_reference_runs_and_their_evaluations(tmp_path: Path) -> None:
    asked = {
        "model": "Llama2-70B LoRA r16",
        "global_batch": "16",
        "metric": "time_to_train",
        "unit": "min",
        "source": "mlcommons/training_results_v5.0@0fdc28f",
    }
    found, beyond, later = answers(
        tmp_path, asked, {**asked, "global_batch": "256"}, {**asked, "source": "elsewhere/v5.0"}
    )
    evaluated = (4032 / 384 - 4) * 173 / 3  # forward is a third of a step; the first floor(2 + 16 / 8) are left out
    assert found["predicted"] == pytest.approx((4032 + evaluated) / 16 * STEP_S / 60)
    assert found["low"] == pytest.approx((3840 + evaluated) / 16 * LOW_S / 60)
    assert found["low"] < found["predicted"] < found["high"]
    assert "at batch 256" in beyond["reason"]
    assert "depends on convergence" in later["reason"]


def test_statuses_and_reasons(tmp_path: Path) -> None:
    def illegal(*arguments: object) -> Plan:
        raise PlanError("plan: tp 3 does not divide 32 heads; nearest: tp 4")

    rows = answers(
        tmp_path,
        {"confidence": "low"},
        {"metric": "time_to_train", "unit": "min"},
        {"metric": "accuracy", "unit": "1"},
        {"value": "0"},
        {"unit": "GB"},
        {"metric": "throughput", "unit": "img/s"},
        {"model": "levit_256"},
        {},
    )
    assert [row["status"] for row in rows] == ["skipped", *["refused"] * 6, "scored"]
    said = [
        "never scored",
        "depends on convergence",
        "is not a metric",
        "not a positive number",
        "is no unit",
        "images",
        "image",
    ]
    assert all(word in row["reason"] for word, row in zip(said, rows, strict=False))
    open_plan = {"tp": "", "pp": "", "dp": "", "zero_stage": "", "engine": "Megatron-Core"}
    (row,) = answers(tmp_path, open_plan, completer=illegal)
    assert (row["status"], row["reason"]) == ("refused", "plan: tp 3 does not divide 32 heads; nearest: tp 4")


def test_equal_scenarios_are_predicted_once(tmp_path: Path) -> None:
    seen: list[Workload] = []

    def counted(model: Model, cluster: Cluster, workload: Workload, plan: Plan) -> Report:
        seen.append(workload)
        return predict(model, cluster, workload, plan)

    per_device = {"metric": "tokens_per_s", "unit": "tok/s"}
    answers(tmp_path, {}, per_device, {"global_batch": "32"}, {"value": "7"}, predictor=counted)
    assert [workload.global_batch for workload in seen] == [16, 32]


def test_what_is_stated_is_kept_and_only_the_rest_is_chosen(tmp_path: Path) -> None:
    asked: list[Mapping[str, Any]] = []

    def chooser(model: Model, cluster: Cluster, workload: Workload, stated: Mapping[str, Any]) -> Plan:
        asked.append(dict(stated))
        raise NoPlanError("nothing fits")

    whole, part = answers(tmp_path, {}, {"recompute": ""}, completer=chooser)
    assert (whole["status"], part["status"]) == ("scored", "scored")  # a measured run did fit
    (stated,) = asked  # the first row leaves nothing to choose
    assert {name: stated[name] for name in ("tp", "pp", "dp", "zero", "micro_batch")} == {
        "tp": 1,
        "pp": 1,
        "dp": 8,
        "zero": 3,
        "micro_batch": 1,
    }
    assert "recompute" not in stated
    (refused,) = answers(
        tmp_path, {"dp": "", "tp": "", "pp": "", "zero_stage": "", "engine": "Megatron-Core"}, completer=chooser
    )
    assert (refused["status"], refused["reason"]) == ("refused", "nothing fits")


def test_summary_never_pools_metrics(tmp_path: Path) -> None:
    file = tmp_path / "rows.tsv"
    answers(
        tmp_path,
        {"value": "1.6"},
        {"value": "2"},
        {"value": "4"},
        {"metric": "tokens_per_s", "unit": "tok/s", "value": "1"},
        {"confidence": "low"},
        {"metric": "time_to_train"},
    )
    summary = check(file, predictor=predict, completer=complete).summary
    assert (summary["rows"], summary["scored"], summary["refused"], summary["skipped"]) == (6, 4, 1, 1)
    step = summary["metrics"]["step_time"]
    assert (step["scored"], step["skipped"], summary["metrics"]["time_to_train"]["refused"]) == (3, 1, 1)
    assert step["median_ape"] == pytest.approx(0.25)  # errors 0.25, 0 and 0.5
    assert step["mean_ape"] == pytest.approx(0.25)
    assert step["p90_ape"] == pytest.approx(0.45)  # 0.8 of the way from 0.25 to 0.5
    assert step["bias"] == pytest.approx((0.25 + 0 - 0.5) / 3)
    assert (step["within_10"], step["within_25"]) == (pytest.approx(1 / 3), pytest.approx(2 / 3))
    assert step["coverage"] == pytest.approx(2 / 3)  # 1.6 and 2 lie in [1.6, 2.5], 4 does not
    assert step["median_width"] == pytest.approx(0.45)
    assert set(step["by_device"]) == {"H100 SXM 80GB", "H100-SXM"}
    assert step["by_engine"]["NeMo"]["scored"] == 3
    assert step["by_source"]["x"]["scored"] == 3
    assert summary["language_models"] == {"rows": 5, "scored": 4, "scored_share": pytest.approx(0.8)}
    assert summary["skips"] == {"confidence low: inconsistent, never scored": 1}


def test_statistics_of_nothing_are_none_not_zero() -> None:
    found = statistics([SimpleNamespace(status="refused").__dict__])
    assert (found["scored"], found["refused"], found["median_ape"], found["coverage"]) == (0, 1, None, None)


def test_a_prediction_of_nothing_has_an_interval_without_a_width() -> None:
    """A width is a share of what was predicted: of 0 there is none, of 2 with 1 to 3 it is 1."""
    row = {"status": "scored", "ape": 1.0, "measured": 2.0}
    nothing, two = (
        {**row, "predicted": 0.0, "low": 0.0, "high": 1.0},
        {**row, "predicted": 2.0, "low": 1.0, "high": 3.0},
    )
    assert statistics([nothing])["median_width"] is None
    assert statistics([nothing, two])["median_width"] == 1.0
    assert statistics([nothing, two])["coverage"] == 0.5
