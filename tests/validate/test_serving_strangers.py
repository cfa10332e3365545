"""Rows whose source nobody knows: what their intervals hold for, and cells as strangers write them."""

from __future__ import annotations

import math
import re
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.errors import RidgelineError
from ridgeline.facts.accelerators import accelerator
from ridgeline.seams.serving import instance_devices
from ridgeline.validate.rows import Row, read
from ridgeline.validate.serving import ServedRows, settled
from ridgeline.validate.serving_rows import ServedJob, read_served
from ridgeline.validate.serving_settings import SPREAD, as_likely, known, might_be, usual_releases

CELLS = {
    "model": "Llama-3.1-8B", "params_b": "8", "active_params_b": "8", "hardware": "A100", "n_devices": "1", "tp": "1",
    "precision_weights": "fp8", "engine": "vLLM", "scenario": "fixed-concurrency", "batch_or_concurrency": "4",
    "isl": "128", "osl": "32", "metric": "ttft_ms", "value": "30", "unit": "ms", "source": "ZZ",
}  # fmt: skip


def row(**cells: str) -> Row:
    """A row of a source that nobody knows."""
    return Row(line=2, id="x0001a", cells=CELLS | cells)


def alike(**cells: str) -> tuple[ServedJob, ...]:
    """What the interval of a row holds for as well."""
    one = row(**cells)
    job = settled(read_served(one), one)
    return (*job.as_likely, *job.alike)


def test_nothing_is_added_where_the_source_is_known() -> None:
    assert known("IX")
    assert known("NVSIL")
    assert not known("ZZ")
    job = read_served(row())
    assert might_be(job, "IX", cache_known=True) == ()
    assert [one.deployment.kv for one in might_be(job, "IX")] == ["fp8"]  # of this run it says nothing
    assert len(might_be(job, "ZZ")) == 2
    assert as_likely(job, "IX") == ()


def test_a_stranger_s_run_may_have_been_another_in_one_thing_each() -> None:
    lengths, earlier, later, memory, cache = alike()
    assert (lengths.spread, lengths.prompt_tokens, lengths.output_tokens) == (SPREAD, 128 * 0.9, 32 * 0.9)
    assert (earlier.deployment.version, later.deployment.version) == ("0.6.2", "0.10.2")
    assert memory.cluster.accelerator.name == "A100-SXM-40GB"
    assert cache.deployment.kv == "fp8"
    assert len({one.key for one in (lengths, earlier, later, memory, cache)}) == 5


@pytest.mark.parametrize(
    ("cells", "count"),
    [
        ({"scenario": "fixed-batch"}, 4),  # lengths of a batch are all alike
        ({"engine_version": "0.6.3"}, 3),
        ({"note": "2025-10-29"}, 3),
        ({"hardware": "A100 40GB"}, 4),
        ({"precision_weights": "bf16"}, 4),
        ({"precision_kv": "fp8"}, 4),
        ({"hardware": "B200"}, 2),  # one memory, and the newest release
        ({"hardware": "A100-SXM-80GB", "engine_version": "0.6.3", "precision_weights": "bf16"}, 1),
    ],
)
def test_what_a_row_says_is_not_doubted(cells: dict[str, str], count: int) -> None:
    assert len(alike(**cells)) == count


def test_whether_graphs_ran_is_in_doubt_where_the_engine_calls_them_experimental() -> None:
    on_npu = {
        "hardware": "Ascend 910B",
        "engine": "vLLM-Ascend",
        "precision_weights": "bf16",
        "engine_version": "0.9.1",
    }
    assert [one.deployment.options.graphs for one in alike(**on_npu) if one.differs == "graphs"] == [False]
    assert not [one for one in alike(**on_npu, note="--enforce-eager") if one.differs == "graphs"]
    assert not [one for one in alike() if one.differs == "graphs"]


def test_neuron_s_engine_is_told_beside_the_name_of_what_it_serves() -> None:
    one = row(hardware="Trainium2", engine="vLLM (optimum-neuron)", precision_weights="bf16")
    assert read_served(one).deployment.engine == "Optimum-Neuron"


def test_an_interval_holds_for_all_that_a_run_may_have_been() -> None:
    answers = ServedRows()
    mine = answers.answer(row())
    assert mine["low"] < mine["predicted"] < mine["high"]
    for cells in ({"hardware": "A100-SXM-40GB"}, {"engine_version": "0.6.2"}, {"precision_kv": "fp8"}):
        other = answers.answer(row(**cells))
        assert mine["low"] <= other["predicted"] <= mine["high"]


def test_of_lengths_alike_and_drawn_neither_is_likelier() -> None:
    """Users whose lengths are all alike come back together and wait for each other's prompts, others do not."""
    answers = ServedRows()
    cells = {"engine_version": "0.6.3", "hardware": "A100-SXM-80GB", "batch_or_concurrency": "16", "isl": "2048"}
    one = settled(read_served(row(**cells)), row(**cells))
    (drawn,) = one.as_likely
    both = [answers.answer(row(**cells))["predicted"]]
    both += [1e3 * answers._served(each).metrics.ttft.mean for each in (one, drawn)]
    assert both[0] == pytest.approx((both[1] * both[2]) ** 0.5)
    assert both[2] < 0.9 * both[1]


SPELLINGS: Mapping[str, tuple[str, ...]] = {
    "hardware": (
        "H100 SXM5 80GB", "NVIDIA H200", "8xMI300X", "8x NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB", "H100-PCIe",
        "AMD Instinct MI300X", "NVIDIA GeForce RTX 4090", "L40S", "TPU v5e", "GB200 NVL72", "A10G", "", "quantum", "8x",
    ),
    "model": (
        "meta-llama/Llama-3.1-8B-Instruct", "mistralai/Mistral-7B-v0.1", "Qwen/Qwen2.5-72B-Instruct", "my-own-model",
        "llama3.1 8b", "LLAMA 3 70B", "google/gemma-2-9b-it", "openai/gpt-oss-120b", "", "deepseek-ai/DeepSeek-V3",
    ),
    "params_b": ("8", "", "70.6", "1,000", "-3", "many"),
    "engine": (
        "vllm==0.6.3", "TRT-LLM", "SGLang v0.4.1.post2", "tgi 2.0", "lmdeploy", "llama.cpp b4500", "", "homemade",
    ),
    "engine_version": ("", "0.6.3", "v0.5.5-cu129", "main", "2024-10-01", "9f1d2c3", "(6918)", "0", "1e9"),
    "scenario": (
        "closed loop", "Offline throughput", "single stream", "batch", "poisson-rate", "16 concurrent users", "",
        "chaos",
    ),
    "batch_or_concurrency": ("", "1", "16", "1,024", "0", "-1", "lots", "2.5"),
    "rate_rps": ("", "2", "inf"),
    "isl": ("", "128", "1,024", "4k", "0", "nan"),
    "osl": ("", "32", "1,024", "0"),
    "precision_weights": ("", "FP8", "bfloat16", "W4A16", "AWQ", "int4 (GPTQ)", "Q4_K_M", "w8a8", "fp7"),
    "n_devices": ("", "1", "8", "3", "0", "eight"),
    "tp": ("", "1", "8", "16", "TP8"),
    "metric": ("ttft_ms", "Mean TTFT (ms)", "output_tok_s", "request_throughput", "tokens/s", "goodput"),
    "unit": ("ms", "", "tok/s", "parsecs"),
}  # fmt: skip


def written(cells: Mapping[str, str]) -> Row:
    """A row as it is read from a file with these cells."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.tsv"
        names = [*CELLS, *(name for name in cells if name not in CELLS)]
        path.write_text("\t".join(names) + "\n" + "\t".join((CELLS | dict(cells))[name] for name in names) + "\n")
        return read(path).rows[0]


def reason(one: Row) -> str | None:
    """Why a row is refused; None where it is read, to a job that can be replayed."""
    try:
        job = settled(read_served(one), one)
    except RidgelineError as error:
        return str(error)
    assert instance_devices(job.deployment) >= 1
    assert len({job.key, *(other.key for other in job.alike)}) == 1 + len(job.alike)
    return None


@settings(max_examples=300, deadline=None)
@given(cells=st.fixed_dictionaries({}, optional={name: st.sampled_from(words) for name, words in SPELLINGS.items()}))
def test_a_row_is_read_or_refused_with_a_reason(cells: dict[str, str]) -> None:
    why = reason(written(cells))
    assert why is None or re.match(r"field '\w+': .{10}|.*rows\.tsv:2|\d+ devices ", why), why


@settings(max_examples=100, deadline=None)
@given(cells=st.fixed_dictionaries({}, optional={name: st.text(max_size=12) for name in SPELLINGS}))
def test_no_text_ends_in_a_traceback(cells: dict[str, str]) -> None:
    assert reason(row(**cells)) != ""


@pytest.mark.parametrize(
    ("cells", "names"),
    [
        ({"hardware": "quantum"}, "'quantum'"),
        ({"precision_weights": "fp7"}, "'fp7'"),
        ({"scenario": "chaos"}, "'chaos'"),
        ({"batch_or_concurrency": "lots"}, "'lots'"),
        ({"metric": "goodput"}, "'goodput'"),
        ({"metric": "Tokens/s"}, "'Tokens/s'"),
        ({"unit": "parsecs"}, "'parsecs'"),
        ({"tp": "TP8"}, "'TP8'"),
        ({"isl": "nan"}, "'nan'"),
    ],
)
def test_a_refusal_names_the_value(cells: dict[str, str], names: str) -> None:
    why = reason(row(**cells))
    assert why is not None
    assert names in why


@pytest.mark.parametrize(
    ("cells", "device", "prompt", "arrivals"),
    [
        ({"hardware": "8xMI300X", "isl": "1,024"}, "MI300X", 1024, "closed"),
        ({"hardware": "H100 SXM5 80GB", "isl": "8k"}, "H100-SXM", 8192, "closed"),
        ({"hardware": "NVIDIA H200", "scenario": "single stream"}, "H200-SXM", 128, "static"),
        ({"scenario": "16 concurrent users", "metric": "Mean TTFT (ms)"}, "A100-SXM-80GB", 128, "closed"),
    ],
)
def test_other_spellings_are_read(cells: dict[str, str], device: str, prompt: float, arrivals: str) -> None:
    job = read_served(written(cells))
    assert (job.cluster.accelerator.name, job.prompt_tokens, job.arrivals) == (device, prompt, arrivals)


@pytest.mark.parametrize(
    ("cells", "cache"),
    [
        ({"precision_weights": "nvfp4"}, "fp8"),  # the newest vLLM reads hf_quant_config.json
        ({"precision_weights": "nvfp4", "engine_version": "0.11.0"}, ""),
        ({"precision_weights": "nvfp4", "engine": "SGLang v0.5.9"}, "fp8"),
        ({"precision_weights": "fp8", "engine": "SGLang v0.5.9"}, ""),
        ({"precision_weights": "fp8", "engine": "TRT-LLM"}, "fp8"),
        ({"precision_weights": "nvfp4", "precision_kv": "bf16"}, "bf16"),
    ],
)
def test_a_checkpoint_tells_the_cache_s_format(cells: dict[str, str], cache: str) -> None:
    assert read_served(row(hardware="B200", **cells)).deployment.kv == cache


def test_a_pool_may_hold_no_more_than_the_recipes_of_its_engine() -> None:
    cells = {
        "hardware": "GB200", "n_devices": "20", "tp": "", "engine": "TRT-LLM", "engine_version": "1.2.0",
        "model": "DeepSeek-R1", "params_b": "671", "precision_weights": "nvfp4", "scenario": "fixed-concurrency-disagg",
        "batch_or_concurrency": "12", "note": "P 1 x (tp1 dp4 ep4), D 4 x (tp4 dp1 ep4)",
    }  # fmt: skip
    pooled = next(one for one in alike(**cells) if one.key[-1] == "pooled")
    assert (pooled.deployment.options.max_seqs, pooled.deployment.options.graph_max) == (2, 2)  # 12 / 4 = 3
    assert all(one.key[-1] != "pooled" for one in alike(**cells | {"engine": "SGLang"}))


def test_a_day_stands_for_a_release_that_nobody_states() -> None:
    one = row(note="2025-10-29", engine="SGLang")
    job = settled(read_served(one), one)
    assert job.deployment.version == "0.5.2"
    assert "release not stated: 0.5.2, the newest on the day of the run" in job.assumptions
    assert settled(read_served(row()), row()).deployment.version == "0.6.6.post1"


@pytest.mark.parametrize(
    ("engine", "model", "device", "releases"),
    [
        ("vLLM", "Llama-2-70B", "A100-SXM-80GB", ("0.2.6", "0.2.0", "0.6.2")),  # of 2023-07: 2024-03, 2023-10, 2024-10
        ("vLLM", "BLOOM-176B", "A100-SXM-80GB", ("0.2.0",)),  # of 2022-07: before the first that is known, to 2023-10
        ("TensorRT-LLM", "GPT-J-6B", "H200-SXM", ("0.16.0", "0.13.0", "1.0.0")),  # its device is of 2024
        ("vLLM", "Llama-3.1-8B", "B200-SXM", ()),
        ("vLLM", "my-own-model", "H100-SXM", ()),
        ("Transformers", "Llama-2-70B", "H100-SXM", ()),
    ],
)
def test_a_release_that_nobody_states_is_as_old_as_model_and_device(
    engine: str, model: str, device: str, releases: tuple[str, ...]
) -> None:
    assert usual_releases(engine, model, accelerator(device)) == releases


@pytest.mark.parametrize(
    ("cells", "engine", "version"),
    [
        ({"engine": ""}, "vLLM", "0.6.6.post1"),
        ({"engine": "NIM", "engine_version": "1.2"}, "TensorRT-LLM", "0.16.0"),  # a front's own is another's
        ({"engine": "homemade"}, "vLLM", ""),
        ({"engine": "homemade", "hardware": "Apple M4 Max 64GB"}, "llama.cpp", "b3700"),
        ({"engine": "homemade", "precision_weights": "Q4_K_M"}, "llama.cpp", "b3700"),
        ({"engine": "mlx-lm", "engine_version": "0.28.2", "hardware": "M4 Max 64GB"}, "MLX-LM", "0.28.2"),
    ],
)
def test_who_answers_for_an_engine_and_in_which_release(cells: dict[str, str], engine: str, version: str) -> None:
    one = row(**{"precision_weights": "bf16", **cells})
    found = settled(read_served(one), one).deployment
    assert (found.engine, found.version) == (engine, version)


def test_a_stand_in_runs_in_a_release_of_its_own() -> None:
    others = {one.key[-1]: one.deployment.version for one in alike(engine="") if one.key[-1] in ("SGLang", "TGI")}
    assert others == {"SGLang": "0.4.1.post3", "TGI": ""}


def test_a_word_for_weights_inputs_and_cache() -> None:
    found = read_served(row(precision_weights="W4A8KV4")).deployment
    assert (found.weights, found.kv) == ("w4afp8", "q4_0")


def test_eight_bit_mlx_weights_hold_scales_and_the_head_too() -> None:
    one = row(engine="MLX", hardware="M4 Max 64GB", precision_weights="8bit")
    assert read_served(one).deployment.weights == "q8_0"  # 8.5 bits: 8, and a scale and a bias of 16 for 64 weights


@pytest.mark.parametrize(
    ("note", "ahead"),
    [("context depth 32768 before the test", 32768), ("pp512 @ d4096", 4096), ("N_KV = 8192", 8192), ("-d 2048", 2048),
     ("draft depth 3", 0), ("-dev 4096", 0), ("", 0)],
)  # fmt: skip
def test_a_note_may_tell_the_depth_behind_which_a_prompt_is_timed(note: str, ahead: float) -> None:
    cells = {"scenario": "single-stream", "metric": "prefill_tok_s", "unit": "tok/s", "osl": "0", "isl": "512"}
    assert read_served(row(note=note, **cells)).ahead_tokens == ahead
    assert read_served(row(note=note, **{**cells, "metric": "decode_tok_s", "osl": "32"})).ahead_tokens == 0


def test_a_prompt_behind_a_cache_takes_what_both_take_less_what_the_cache_took() -> None:
    cells = {"scenario": "single-stream", "metric": "prefill_tok_s", "unit": "tok/s", "osl": "0"}
    rows = ServedRows()

    def rate(tokens: int, note: str = "") -> float:
        return float(rows.answer(row(isl=str(tokens), note=note, **cells))["predicted"])

    apart_s = (8192 + 512) / rate(8192 + 512) - 8192 / rate(8192)
    assert rate(512, "context depth 8192") == pytest.approx(512 / apart_s)
    assert rate(512, "context depth 8192") < rate(512)


def test_kernels_that_a_note_names_follow_a_release() -> None:
    cells = {"engine": "AutoAWQ", "engine_version": "0.1.6", "precision_weights": "int4", "scenario": "single-stream"}
    assert read_served(row(note="AWQ GEMV kernels", **cells)).deployment.version == "0.1.6 gemv"
    assert read_served(row(note="AWQ GEMM kernels", **cells)).deployment.version == "0.1.6"
    assert read_served(row(note="AWQ GEMV kernels", **{**cells, "engine": "vLLM"})).deployment.version == "0.1.6"


@pytest.mark.parametrize(
    ("cell", "engine", "weights"),
    [("MLX q4", "MLX-LM", "q4_0"), ("MLX q4 g32", "MLX-LM", "q4_1"), ("mlx q8", "MLX-LM", "q8_0"),
     ("Q8_K_XL", "llama.cpp", "q8_0"), ("UD-Q2_K_XL", "llama.cpp", "q2_k"), ("UD-Q4_K_XL", "llama.cpp", "q4_k")],
)  # fmt: skip
def test_formats_are_read_by_the_words_of_those_who_publish_files(cell: str, engine: str, weights: str) -> None:
    assert read_served(row(precision_weights=cell, engine=engine)).deployment.weights == weights


def test_what_is_unsaid_adds_up_by_setting() -> None:
    """Each setting moves an end as far as its farthest alternative; squares of logarithms add up over settings."""
    answers, one = ServedRows(), row(engine_version="", hardware="A100")
    job = settled(read_served(one), one)
    found = answers._served(job)
    value = found.metrics.ttft.mean / job.unit_si
    (low, high), kinds = answers._composed(job, found, value)[1], ("release", "device", "cache")
    alone = [
        replace(job, as_likely=(), alike=tuple(other for other in job.alike if other.differs in kept))
        for kept in ((), *((kind,) for kind in kinds))
    ]
    middle = answers._composed(replace(job, alike=()), found, value)[0]
    ends = [answers._composed(each, found, value)[1] for each in alone]
    none = ends[0]
    for side, sign in ((0, -1.0), (1, 1.0)):
        own = math.log(none[side] / value)
        extra = [math.log(each[side] / value) ** 2 - own**2 for each in ends[1:]]
        likely = [value, *(1e3 * answers._served(each).metrics.ttft.mean for each in job.as_likely)]
        drawn = max(0.0, *(sign * math.log(each / middle) for each in likely))
        far = math.sqrt(own**2 + sum(extra) + drawn**2)
        assert math.log((low, high)[side] / middle) == pytest.approx(sign * far)
    assert none[0] < value < none[1]
