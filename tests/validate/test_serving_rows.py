"""Rows of serving tables as jobs: degrees, formats, lengths and units worked by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.cost.formats import form
from ridgeline.errors import RidgelineError
from ridgeline.facts.transfer import run_spread
from ridgeline.plan.deployment import Role
from ridgeline.seams.serving import all_devices
from ridgeline.validate.rows import Row
from ridgeline.validate.serving import ServedRows, decoding_s
from ridgeline.validate.serving_rows import read_served

BASE = {
    "model": "Llama-3.1-8B", "params_b": "8", "active_params_b": "8", "hardware": "H100-SXM-80GB", "n_devices": "1",
    "tp": "1", "precision_weights": "fp16", "engine": "vLLM", "scenario": "fixed-batch", "batch_or_concurrency": "16",
    "isl": "1024", "osl": "128", "metric": "batch_latency_ms", "value": "2000", "unit": "ms", "source": "LIB",
}  # fmt: skip


def row(**cells: str) -> Row:
    return Row(line=2, id="x0001a", cells={**BASE, **cells})


def test_a_static_batch_reads_as_stated() -> None:
    job = read_served(row())
    assert (job.arrivals, job.batch, job.prompt_tokens, job.output_tokens) == ("static", 16, 1024.0, 128.0)
    assert (job.metric, job.statistic, job.unit_si) == ("batch_latency", "", 1e-3)
    assert (job.deployment.engine, job.deployment.weights, all_devices(job.deployment)) == ("vLLM", "fp16", 1)
    assert job.model.name == "llama-3.1-8b"
    assert job.assumptions == ()


@pytest.mark.parametrize(
    ("metric", "unit", "name", "statistic", "unit_si"),
    [
        ("ttft_p99_ms", "ms", "ttft", "p99", 1e-3),
        ("tpot_mean_ms", "ms", "tpot", "mean", 1e-3),
        ("itl_p50_ms", "ms", "itl", "p50", 1e-3),
        ("latency_median_s", "s", "latency", "p50", 1.0),
        ("output_tok_s_per_gpu", "tok/s/GPU", "output_rate_per_device", "", 1.0),
        ("total_tok_s", "tok/s", "total_rate", "", 1.0),
        ("samples_s", "1/s", "samples_rate", "", 1.0),
        ("memory_gb", "GB", "memory", "", 1e9),
        ("avg_power_w", "W", "power", "mean", 1.0),
        ("model_load_s", "s", "load_time", "", 1.0),
        ("ttft_p95_ms", "ms", "ttft", "p95", 1e-3),
        ("p99_itl_ms", "ms", "itl", "p99", 1e-3),
        ("mean_e2el_ms", "ms", "latency", "mean", 1e-3),
        ("request_throughput", "req/s", "samples_rate", "", 1.0),
        ("total_token_throughput", "tok/s", "total_rate", "", 1.0),
        ("interactivity_tok_s_user", "tok/s", "user_rate", "mean", 1.0),
    ],
)
def test_metrics_and_units(metric: str, unit: str, name: str, statistic: str, unit_si: float) -> None:
    job = read_served(row(metric=metric, unit=unit))
    assert (job.metric, job.statistic, job.unit_si) == (name, statistic, unit_si)


def test_every_statistic_that_a_metric_may_name_is_measured() -> None:
    """A word that is read and then has no number would be a defect in place of an answer."""
    loop = {"scenario": "fixed-concurrency", "batch_or_concurrency": "4", "isl": "64", "osl": "8"}
    found = [
        ServedRows().answer(row(**loop, metric=f"{kind}_{word}_ms"))["predicted"]
        for kind in ("ttft", "itl", "latency")
        for word in ("p50", "p90", "p95", "p99", "mean", "median")
    ]
    assert all(value > 0 for value in found)
    for p50, p90, p95, p99 in (found[0:4], found[6:10], found[12:16]):
        assert p50 <= p90 <= p95 <= p99


@pytest.mark.parametrize(
    ("word", "weights"),
    [
        ("FP8-W8A8", "fp8"), ("fp8_e4m3", "fp8"), ("fp8-blockwise", "fp8_block"), ("smoothquant", "int8"),
        ("int8-wo", "int8_wo"), ("bitsandbytes-8bit", "int8_wo"), ("HQQ", "int4_wo"), ("AutoRound", "int4_wo"),
        ("bnb-nf4", "w4.5a16"), ("w4a16_mxfp4", "w4a16_mxfp4"),
    ],
)  # fmt: skip
def test_formats_by_the_words_of_those_who_made_them(word: str, weights: str) -> None:
    assert read_served(row(precision_weights=word)).deployment.weights == weights


@pytest.mark.parametrize(("cell", "kv"), [("fp8_e5m2", "fp8"), ("fp8_e4m3", "fp8"), ("int4", "q4_0")])
def test_caches_by_the_words_of_engines(cell: str, kv: str) -> None:
    assert read_served(row(precision_kv=cell)).deployment.kv == kv


@pytest.mark.parametrize(
    ("model", "hardware", "weights"),
    [
        ("DeepSeek-V3", "H200-SXM-141GB", "fp8_block"),
        ("gpt-oss-120b", "H100-SXM-80GB", "w4a16_mxfp4"),
        ("DeepSeek-V3", "A100-SXM-80GB", "fp8_block"),  # which multiplies no 8-bit floats: read weight-only
        ("Llama-3.1-8B", "H100-SXM-80GB", "bf16"),
    ],
)
def test_a_precision_that_is_not_stated_is_the_checkpoint_s(model: str, hardware: str, weights: str) -> None:
    cells = {"model": model, "hardware": hardware, "params_b": "", "active_params_b": "", "precision_weights": ""}
    found = read_served(row(**cells, n_devices="16", tp="16"))
    assert found.deployment.weights == weights
    assert any("precision not stated" in words for words in found.assumptions)


def test_sixteen_bits_that_do_not_fit_are_the_checkpoint_s_own() -> None:
    """1,342 GB of DeepSeek-V3 in 16 bits: more than 8 x 141 GB, less than 16 x 141 GB."""
    cells = {"model": "DeepSeek-V3", "params_b": "671", "active_params_b": "37", "hardware": "H200-SXM-141GB"}
    narrow = read_served(row(**cells, precision_weights="bf16", n_devices="8", tp="8"))
    assert narrow.deployment.weights == "fp8_block"
    assert any("more than 8 devices hold" in words for words in narrow.assumptions)
    assert read_served(row(**cells, precision_weights="bf16", n_devices="16", tp="16")).deployment.weights == "bf16"


@pytest.mark.parametrize(("size", "tp"), [("0.5", "1"), ("3", "2"), ("8", "1"), ("34", "4"), ("70", "8"), ("405", "8")])
def test_an_unknown_dense_model_is_one_of_its_day(size: str, tp: str) -> None:
    """Its parameters within a layer, and the cache of eight heads: with those of all it would be nine times that."""
    job = read_served(row(model=f"FooLM-{size}B", params_b=size, active_params_b=size, n_devices=tp, tp=tp))
    dims, graph = job.model.dims, job.model.graph
    layers, heads = int(str(dims["layers"])), int(str(dims["heads"]))
    assert graph.params == pytest.approx(float(size) * 1e9, rel=0.6 / layers)
    assert (dims["kv_heads"], dims["gated"]) == (8, True)
    assert heads % int(tp) == 0
    assert any("8 heads of keys and values (assumed" in words for words in job.assumptions)


def test_an_unknown_model_of_an_early_family_keeps_keys_and_values_of_every_head() -> None:
    job = read_served(row(model="Chinchilla-70B", params_b="70", active_params_b="70", n_devices="8", tp="8"))
    assert job.model.dims["kv_heads"] == job.model.dims["heads"]


def test_recurrent_layers_that_are_taken_for_attention_are_told() -> None:
    job = read_served(row(model="RWKV-14B", params_b="14", active_params_b="14"))
    assert "its recurrent layers are taken for attention (assumed)" in job.assumptions


def test_a_word_that_means_nothing_is_refused_with_the_nearest_and_what_is_known() -> None:
    with pytest.raises(RidgelineError, match=r"'outptu_throughput' .*nearest: output_throughput; known: ttft"):
        read_served(row(metric="outptu_throughput"))
    with pytest.raises(RidgelineError, match=r"'multi-stream' .*known: fixed-batch"):
        read_served(row(scenario="multi-stream"))


def test_gigabytes_of_a_source_that_prints_binary_ones() -> None:
    assert read_served(row(metric="memory_gb", unit="GB", source="FT")).unit_si == 2.0**30


def test_memory_of_a_static_batch_by_hand() -> None:
    """Weights, a head's own table, cache, and beside: 17 widths and scores of each prompt token, logits, context.

    Half and twice what is beside, and how far other people's runs lie beyond: squares of logarithms add up.

    GPT-350M of FasterTransformer's guide: 24 layers of width 1024, a vocabulary of 51200, 2048 positions.
    """
    cells = {"model": "GPT-350M", "params_b": "0.35", "active_params_b": "0.35", "hardware": "A100-SXM-80GB"}
    asked = {"engine": "FasterTransformer", "source": "FT", "metric": "memory_gb", "unit": "GB", "value": "4.8"}
    found = ServedRows().answer(row(**cells, **asked, isl="512", osl="32"))
    beside = 16 * 512 * (1024 * 2 * 17 + 512 * 16 * 6) + 16 * 51200 * 40 + 2.46e9
    weights = (12 * 24 * 1024 + 2 * 51200 + 2048) * 1024 * 2
    cache = 16 * 544 * 24 * 2 * 1024 * 2
    assert found["predicted"] * 2**30 == pytest.approx(beside + weights + cache, rel=1e-6)
    whole, runs = beside + weights + cache, run_spread("memory of serving")
    for end, own, run in (("low", whole - 0.5 * beside, runs[0]), ("high", whole + beside, runs[1])):
        far = math.hypot(math.log(own / whole), math.log(run))
        assert abs(math.log(found[end] * 2**30 / whole)) == pytest.approx(far, rel=1e-5)


def test_attention_data_parallel_of_a_note() -> None:
    cells = {"model": "DeepSeek-V3", "params_b": "671", "active_params_b": "37", "hardware": "B200-SXM"}
    note = "file width dp64; dp8; 2026-02-03"
    job = read_served(
        row(**cells, n_devices="8", ep="8", precision_weights="nvfp4", note=note, scenario="fixed-concurrency")
    )
    deployment = job.deployment
    assert (deployment.tp, deployment.dp, deployment.ep, deployment.instances) == (1, 8, 8, 1)
    assert (deployment.weights, deployment.other_weights) == ("nvfp4", "bf16")
    assert job.arrivals == "closed"


def test_attention_dp_without_a_width_takes_the_devices_of_tp() -> None:
    cells = {"model": "Qwen3-235B-A22B", "params_b": "235", "active_params_b": "22", "engine": "TensorRT-LLM"}
    note = "attention DP; ep not stated"
    job = read_served(row(**cells, n_devices="8", tp="4", pp="2", precision_weights="fp8", note=note))
    deployment = job.deployment
    assert (deployment.tp, deployment.pp, deployment.dp, deployment.ep, deployment.kv) == (1, 2, 4, 4, "fp8")


def test_disaggregated_pools_of_a_note() -> None:
    cells = {"model": "DeepSeek-V3", "params_b": "671", "active_params_b": "37", "hardware": "GB200", "tp": ""}
    note = "P 4 x (tp1 dp4 ep4), D 1 x (tp1 dp32 ep32); 2026-02-08"
    job = read_served(row(**cells, n_devices="48", scenario="fixed-concurrency-disagg", note=note, source="IX"))
    assert job.prefill is not None
    assert (job.prefill.role, job.prefill.instances, job.prefill.dp, job.prefill.ep) == (Role.PREFILL, 4, 4, 4)
    assert (job.deployment.role, job.deployment.dp, job.deployment.ep) == (Role.DECODE, 32, 32)
    assert all_devices(job.prefill) + all_devices(job.deployment) == 48 == job.cluster.count


def test_pools_that_miss_the_device_count_are_refused() -> None:
    note = "P 1 x (tp4 dp1 ep1), D 1 x (tp4 dp1 ep1)"
    with pytest.raises(RidgelineError, match="the pools of the note have 8 devices, the row 12"):
        read_served(row(n_devices="12", scenario="fixed-concurrency-disagg", note=note))


def test_lengths_of_inferencex_are_means_of_a_spread() -> None:
    job = read_served(row(source="IX", scenario="fixed-concurrency"))
    assert job.spread == (0.8, 1.0)
    assert job.prompt_tokens == pytest.approx(921.6)
    assert job.output_tokens == pytest.approx(115.2)


def test_mlperf_takes_tp_from_memory_and_lengths_from_the_data_set() -> None:
    cells = {"model": "Llama-2-70B", "params_b": "70", "active_params_b": "70", "n_devices": "8", "tp": "", "isl": ""}
    job = read_served(
        row(
            **cells, osl="290.1", source="MLP", engine="TensorRT-LLM", scenario="poisson-rate", rate_rps="80",
            batch_or_concurrency="", precision_weights="", metric="ttft_p99_ms",
        )
    )  # fmt: skip
    deployment = job.deployment
    assert (deployment.tp, deployment.instances, deployment.weights, deployment.kv) == (2, 4, "fp8", "fp8")
    assert (job.arrivals, job.rate_rps, job.output_tokens) == ("poisson", 80.0, 290.1)
    assert job.lengths is not None
    assert (job.lengths["output"].dataset, round(job.prompt_tokens or 0.0)) == ("OpenOrca", 222)
    assert any("tp not stated: 2" in words for words in job.assumptions)


@pytest.mark.parametrize(("scenario", "status"), [("poisson-rate", "skipped"), ("offline", "scored")])
def test_a_load_that_is_the_highest_within_limits_is_no_prediction(scenario: str, status: str) -> None:
    """Its rate is the result of MLPerf's Server and stated; whatever was measured beside it changes nothing."""
    found = ServedRows().answer(
        row(
            model="Llama-2-70B", params_b="70", active_params_b="70", n_devices="8", tp="", isl="", osl="290.1",
            source="MLP", engine="TensorRT-LLM", scenario=scenario, rate_rps="80", batch_or_concurrency="",
            precision_weights="", metric="output_tok_s", unit="tok/s", value="23000",
        )
    )  # fmt: skip
    assert found["status"] == status
    assert ("reason" in found) == (status == "skipped")


def test_mlperf_weights_that_fit_in_no_more_than_four_bits() -> None:
    cells = {"model": "Llama-2-70B", "params_b": "70", "active_params_b": "70", "hardware": "RTX-4090", "tp": ""}
    job = read_served(row(**cells, n_devices="2", source="MLP", scenario="offline", precision_weights="", isl=""))
    assert job.deployment.weights == "int4_wo"  # 69 GB in fp8, 51 GB of memory


def test_degrees_left_open_are_the_fewest_that_hold_the_weights() -> None:
    cells = {"model": "Llama-3.1-70B", "params_b": "70", "active_params_b": "70", "n_devices": "8", "tp": ""}
    job = read_served(row(**cells, scenario="offline"))  # 141 GB in 16 bits over 0.8 x 85 GB: more than 2, so 4
    assert (job.deployment.tp, job.deployment.instances) == (4, 2)
    assert read_served(row(**cells)).deployment.tp == 8  # one batch on all devices


def test_llama_cpp_puts_layers_on_devices() -> None:
    job = read_served(row(n_devices="4", tp="", engine="llama.cpp", precision_weights="Q4_K_M", note="n_batch 64"))
    assert (job.deployment.tp, job.deployment.pp, job.deployment.options.token_budget) == (1, 4, 64)
    assert job.deployment.weights == "q4_k"


def test_cores_of_trainium_are_not_chips() -> None:
    job = read_served(row(hardware="Trainium1", engine="Neuron", n_devices="16", tp="16", precision_weights="bf16"))
    assert (job.deployment.tp, job.deployment.instances) == (8, 2)  # two cores to a chip


def test_shards_of_an_expert_are_not_the_width_of_attention() -> None:
    cells = {"model": "Mixtral-8x7B", "params_b": "46.7", "active_params_b": "12.9", "engine": "TensorRT-LLM"}
    job = read_served(row(**cells, n_devices="4", tp="2", ep="2"))
    assert (job.deployment.tp, job.deployment.ep, job.deployment.instances) == (4, 2, 1)


@pytest.mark.parametrize(
    ("note", "draft"),
    [
        ("speculative: draft JackFram/llama-68m, k=3", 3.0),
        ("speculative off (pair)", None),
        ("MTP nextn=3, real data set", 3.0),
        ("speculative sampling, draft Llama-7B int4", 5.0),
        ("median of 2 runs, spread 0.9%", None),
    ],
)
def test_speculation(note: str, draft: float | None) -> None:
    assert read_served(row(note=note)).speculative == draft


def test_metrics_of_one_run_share_a_key_and_dates_do_not_part_it() -> None:
    first = read_served(row(scenario="fixed-concurrency", metric="ttft_ms", note="2026-04-17"))
    second = read_served(row(scenario="fixed-concurrency", metric="tpot_ms", note="2026-04-18", value="12"))
    other = read_served(row(scenario="fixed-concurrency", metric="ttft_ms", isl="2048"))
    assert first.key == second.key != other.key


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ({"hardware": "Xeon-EMR (CPU only)"}, "no accelerator"),
        ({"metric": "perplexity"}, "no metric of serving"),
        ({"unit": "furlongs"}, "no unit of this metric"),
        ({"scenario": "on a whim"}, "no known way of sending"),
        ({"scenario": "burst-all-at-once", "metric": "ttft_ms", "batch_or_concurrency": ""}, "drain of a queue"),
        ({"scenario": "poisson-rate"}, "rate is not stated"),
        ({"scenario": "fixed-concurrency", "batch_or_concurrency": ""}, "users is not stated"),
        ({"n_devices": "6", "tp": "4"}, "no multiple of tp 4"),
        ({"n_devices": "-3"}, "out of range"),
        ({"isl": "many"}, "is not a number"),
        ({"osl": "0.2", "metric": "output_throughput", "unit": "tok/s"}, "0.2 tokens of output: at least 1"),
        ({"precision_weights": "int3.7"}, "no number format"),
        ({"model": "Mystery-MoE", "params_b": "100", "active_params_b": "0.1"}, "its experts are not stated"),
        ({"model": "Mystery-MoE", "params_b": "0.4", "active_params_b": "0.3"}, "too small for 128 experts"),
        ({"engine": "ktransformers"}, "columns of offload.tsv"),
        ({"model": ""}, "model is not stated"),
    ],
)
def test_rows_that_cannot_be_read_say_why(cells: dict[str, str], message: str) -> None:
    with pytest.raises(RidgelineError, match=message):
        read_served(row(**cells))


@pytest.mark.parametrize(
    ("word", "bits"),
    [
        ("nf4", 4.5), ("fp6", 6.01), ("int3", 3.25), ("gptq-int3", 3.25), ("EXL2-2.5bpw", 2.5), ("IQ3_XXS", 3.5),
        ("Q4", 4.89), ("Q5_0", 5.5), ("GPTQ-4bit-g32", 4.625), ("int4", 4.25),
    ],
)  # fmt: skip
def test_formats_of_few_bits_are_read_as_weights_alone(word: str, bits: float) -> None:
    stated = form(read_served(row(precision_weights=word)).deployment.weights or "")
    assert (8 * stated.weight_bytes, stated.matrix) == (pytest.approx(bits), "bf16")


@pytest.mark.parametrize(
    ("total", "active"), [("100", "12"), ("671", "37"), ("80", "3"), ("30", "3.3"), ("1000", "32"), ("47", "13")]
)
@pytest.mark.parametrize("tp", ["1", "4", "8"])
def test_experts_that_are_not_stated_leave_both_counts_as_they_are(total: str, active: str, tp: str) -> None:
    job = read_served(row(model="Mystery", params_b=total, active_params_b=active, n_devices="8", tp=tp))
    counted = job.model.graph
    assert counted.params == pytest.approx(float(total) * 1e9, rel=0.06)
    assert counted.active_params == pytest.approx(float(active) * 1e9, rel=0.15)
    assert any("not in the catalog" in said for said in job.assumptions)


@pytest.mark.parametrize("tp", ["1", "2", "4", "8"])
@pytest.mark.parametrize("size", ["7", "13", "34", "49", "253"])
def test_derived_heads_divide_among_the_shards_and_stay_the_same_over_degrees(size: str, tp: str) -> None:
    job = read_served(row(model="Mystery", params_b=size, active_params_b=size, n_devices=tp, tp=tp))
    assert job.model.dims["heads"] % int(tp) == 0
    assert job.model.dims == read_served(row(model="Mystery", params_b=size, active_params_b=size)).model.dims


def test_an_engine_without_a_policy_is_answered_by_others_and_its_interval_holds_for_them_all() -> None:
    cells = {"scenario": "fixed-concurrency", "batch_or_concurrency": "8", "metric": "tpot_ms", "source": "NEW"}
    rows = ServedRows()
    found = rows.answer(row(**cells, engine="JetStream"))
    newest = {"vLLM": "0.30.0", "SGLang": "0.5.10.post1", "TensorRT-LLM": "1.2.1", "TGI": ""}
    each = [rows.answer(row(**cells, engine=name, engine_version=release)) for name, release in newest.items()]
    assert found["predicted"] == each[0]["predicted"]
    assert found["evidence"] == "assumed"
    assert found["low"] <= min(one["predicted"] for one in each)
    assert found["high"] >= max(one["predicted"] for one in each)
    assert any("JetStream" in said for said in found["assumptions"])


def test_what_a_device_a_user_and_a_token_get_follow_from_the_whole() -> None:
    rows = ServedRows()
    cells = {"scenario": "fixed-concurrency", "batch_or_concurrency": "4", "isl": "256", "osl": "32", "unit": ""}
    got = {
        name: rows.answer(row(**cells, n_devices="2", tp="2", metric=name))["predicted"]
        for name in ("total_tok_s", "total_tok_s_per_gpu", "output_tok_s", "tpot_ms", "tok_s_per_user",
                     "avg_power_w", "energy_j_per_token")
    }  # fmt: skip
    assert got["total_tok_s_per_gpu"] == pytest.approx(got["total_tok_s"] / 2)
    assert got["tok_s_per_user"] == pytest.approx(1e3 / got["tpot_ms"])
    assert got["energy_j_per_token"] == pytest.approx(2 * got["avg_power_w"] / got["output_tok_s"])


def test_a_card_behind_a_small_computer() -> None:
    job = read_served(row(hardware="Pi 5 - 16GB (AMD Pro W7700)", precision_weights="Q4_K_M", engine="llama.cpp"))
    assert job.cluster.accelerator.name == "Pro-W7700"
    assert job.cluster.accelerator.host_bytes_per_s == 0.5e9


@given(
    st.sampled_from(sorted([*BASE, "pp", "ep", "rate_rps", "note", "precision_kv", "engine_version"])),
    st.text(max_size=30) | st.sampled_from(["0", "nan", "inf", "1e99", "P 0 x (tp0 dp0 ep0)", "dp0", "tp", "8 "]),
)
def test_whatever_a_cell_holds_the_answer_is_a_job_or_a_reason(name: str, text: str) -> None:
    try:
        job = read_served(row(**{name: text}))
    except RidgelineError as error:
        words = str(error)
    else:
        words = job.model.name if all_devices(job.deployment) <= job.cluster.count else ""
    assert words


def test_the_first_tokens_of_a_static_batch_are_there_when_the_last_of_them_is() -> None:
    """A call that makes one token for each of 16 prompts of 1,024: as long by its TTFT as by its latency."""
    answers = ServedRows()
    cells = {"engine_version": "0.5.5", "osl": "1", "unit": "ms", "value": "400"}
    first = answers.answer(row(**cells, metric="ttft_ms"))
    whole = answers.answer(row(**cells, metric="batch_latency_ms"))
    assert first["predicted"] == pytest.approx(whole["predicted"], rel=1e-12)
    alone = answers.answer(row(**cells, metric="ttft_ms", batch_or_concurrency="1"))
    assert 12 * alone["predicted"] < first["predicted"] < 20 * alone["predicted"]


def test_a_package_of_two_dies_is_two_ranks_where_its_source_counts_packages() -> None:
    """Four MI250 are eight devices to programs, in one node; another source's MI250 is what it says."""
    job = read_served(row(hardware="MI250", n_devices="4", tp="4"))
    assert (job.deployment.tp, all_devices(job.deployment), job.cluster.count) == (8, 8, 8)
    assert (job.cluster.accelerator.name, job.cluster.node_devices) == ("MI250-die", 8)
    layers = read_served(row(hardware="MI250", n_devices="2", tp="", engine="llama.cpp", scenario="single-stream"))
    assert (layers.deployment.tp, layers.deployment.pp) == (1, 4)
    whole = read_served(row(hardware="MI250", n_devices="4", tp="4", source="OTHER"))
    assert (whole.deployment.tp, whole.cluster.accelerator.name) == (4, "MI250")


def test_metrics_of_one_phase_are_of_prompts_before_any_decode() -> None:
    """Sixteen prompts of 2,048 tokens in budgets of 512: 32 steps of decode are over before the last prompt, mixed."""
    cells = {"engine": "llama.cpp", "isl": "2048", "osl": "32", "source": "OTHER", "unit": "tok/s", "value": "100"}
    rows = ServedRows()
    rates = [rows.answer(row(metric=name, **cells))["predicted"] for name in ("prefill_tok_s", "decode_tok_s")]
    whole_s = rows.answer(row(metric="batch_latency_ms", **{**cells, "unit": "ms"}))["predicted"] * 1e-3
    apart_s = 16 * 2048 / rates[0] + 16 * 31 / rates[1]
    assert apart_s > 0.99 * whole_s  # mixing hides steps behind prompts, so that whole is shorter
    one = rows.answer(row(metric="decode_tok_s", **{**cells, "batch_or_concurrency": "1"}))["predicted"]
    assert one < rates[1] < 16 * one


def test_decode_under_load_is_of_the_time_in_which_any_request_decodes() -> None:
    """From 1 to 5 s and from 6 to 8 s; four clients get at most four times what one gets, and more than one."""
    times = {"first_s": np.array([2.0, 1.0, 6.0, 9.0]), "end_s": np.array([5.0, 4.0, 8.0, np.nan])}
    assert decoding_s(**times, done=np.array([True, True, True, False])) == pytest.approx(6.0)
    cells = {"metric": "decode_tok_s", "unit": "tok/s", "value": "100", "scenario": "closed-loop"}
    alone = ServedRows().answer(row(**{**cells, "scenario": "single-stream", "batch_or_concurrency": "1"}))["predicted"]
    loaded = ServedRows().answer(row(**cells, batch_or_concurrency="4"))["predicted"]
    assert alone < loaded < 4.0 * alone


@pytest.mark.parametrize(("cell", "kv"), [("", "fp8"), ("fp8", "fp8"), ("bf16", "bf16"), ("auto", "")])
def test_a_cache_of_16_bits_is_one_though_the_engine_would_narrow_it(cell: str, kv: str) -> None:
    """ModelOpt's checkpoints carry an 8-bit cache, which the engine takes unless 16 bits are asked for."""
    cells = {"engine": "TensorRT-LLM", "engine_version": "1.0", "precision_weights": "fp8", "precision_kv": cell}
    assert read_served(row(**cells)).deployment.kv == kv


def test_gpt_oss_in_llama_cpp_keeps_attention_in_8_bits() -> None:
    """59.02 GiB of 116.8 billion weights: 16 bits for those outside the experts would make it 60.6."""
    cells = {"model": "gpt-oss-120b", "precision_weights": "mxfp4", "source": "OTHER"}
    ours, others = (read_served(row(**cells, engine=name)).deployment.other_weights for name in ("llama.cpp", "vLLM"))
    assert (ours, others) == ("q8_0", "bf16")


@pytest.mark.parametrize("cell", ["fp4", "nvfp4", "fp8", "mxfp4"])
def test_gpt_oss_is_served_in_its_one_format_whatever_a_table_calls_it(cell: str) -> None:
    """TensorRT-LLM's performance page heads its columns FP4 on Blackwell and FP8 on Hopper."""
    job = read_served(row(model="gpt-oss-20b", engine="TensorRT-LLM", engine_version="1.2", precision_weights=cell))
    assert (job.deployment.weights, job.deployment.other_weights) == ("w4a16_mxfp4", "bf16")


@pytest.mark.parametrize(("engine", "bytes_per_s"), [("vLLM", 1638.4e9), ("llama.cpp", 3276.8e9)])
def test_programs_that_see_each_stack_as_a_device_run_on_half_of_a_max_1550(engine: str, bytes_per_s: float) -> None:
    job = read_served(row(hardware="Max1550", engine=engine, source="LIB", n_devices="1", precision_weights="fp16"))
    assert job.cluster.accelerator.memory_bytes_per_s == pytest.approx(bytes_per_s)
