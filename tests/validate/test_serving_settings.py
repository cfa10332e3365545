"""RunSettings of published benchmarks: what the scripts of their sources say, worked by hand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.errors import InputError
from ridgeline.facts import run_settings as serving_settings
from ridgeline.facts import store
from ridgeline.facts.benchmark_settings import KINDS, UNUSED, amount, benchmark_settings
from ridgeline.facts.run_settings import RunSettings
from ridgeline.validate import serving
from ridgeline.validate.rows import Row
from ridgeline.validate.serving_rows import read_served

ROWS = 882
GOOD = {
    "code": "IX", "engine": "", "versions": "", "model": "", "device": "", "precision": "", "condition": "",
    "key": "beam_width", "value": "4", "unit": "beam", "source": "vllm, a file", "evidence": "datasheet", "note": "",
}  # fmt: skip


def settings_of(*about: object, then: str | None = None, **run: object) -> RunSettings:
    """Settings by source, engine, version, model, device, precision, users, prompt and answer."""
    code, engine, version, model, device, precision, users, prompt, answer = about
    names = {"code": code, "engine": engine, "model": model, "device": device, "precision": precision}
    more = {"concurrency": users, "isl": prompt, "osl": answer, "disaggregated": 0.0} | run
    more["disaggregated"] = float(more["disaggregated"])
    return serving_settings.settings_of(names, more, version=str(version), then=then)  # type: ignore[arg-type]


def deepseek(engine: str, version: str, users: int, prompt: int, **more: object) -> RunSettings:
    """RunSettings of a DeepSeek-R1 run on B200."""
    words = {"device": "B200-SXM", "precision": "nvfp4", "answer": 1024} | more
    device, precision, answer = str(words.pop("device")), str(words.pop("precision")), float(str(words.pop("answer")))
    return settings_of("IX", engine, version, "DeepSeek-R1", device, precision, users, prompt, answer, **words)


def test_the_table_is_whole() -> None:
    table = benchmark_settings()
    assert len(table) == ROWS
    keys = [(s.code, s.engine, s.versions, s.model, s.device, s.precision, s.condition, s.key) for s in table]
    assert len(set(keys)) == ROWS  # a second row of the same runs and key would never hold


def test_every_key_is_an_attribute_and_nothing_else_is() -> None:
    assert {getattr(RunSettings(), key) for key in KINDS} == {None}
    with pytest.raises(AttributeError, match="token_budgets"):
        RunSettings().token_budgets  # noqa: B018


@pytest.mark.parametrize(("day", "tf32"), [("2026-04-08", None), ("2026-04-21", True), ("2026-04-22", True)])
def test_routers_of_32_bits_go_to_the_matrix_units_since_a_day(day: str, tf32: bool | None) -> None:
    found = settings_of(
        "IX", "vLLM", "0.19.0", "MiniMax-M2.5", "B200-SXM", "nvfp4", 64, 1024, 1024, devices=4, date=day
    )
    assert found.tf32 is tf32


@pytest.mark.parametrize(("users", "interval"), [(4, 10), (15, 10), (16, 30), (128, 30)])
def test_sglang_looks_for_requests_more_rarely_when_there_are_many(users: int, interval: int) -> None:
    found = deepseek("SGLang", "0.5.9", users, 8192, devices=4)
    assert (found.receive_interval, found.stream_interval, found.stream_first) == (interval, 10, True)
    assert (found.token_budget, found.max_seqs, found.memory_fraction, found.kv) == (16384, 256, 0.85, "fp8")


def test_sglang_on_h200_keeps_the_cache_of_the_model_and_polls_every_step() -> None:
    found = deepseek("SGLang", "0.5.9", 16, 1024, device="H200-SXM-141GB", precision="fp8", devices=8)
    assert (found.kv, found.receive_interval, found.max_seqs) == ("", 1, 512)
    assert any("kv of the model (derived" in line for line in found.told)


@pytest.mark.parametrize(
    ("version", "users", "prompt", "budget"),
    [
        ("1.1.0rc2.post2", 4, 1024, 1152),  # 4 + 1024 + 64 = 1092, to the next multiple of 64
        ("1.1.0rc2.post2", 64, 8192, 8320),  # 64 + 8192 + 64
        ("1.2.0rc6.post2", 4, 1024, 8192),  # never below 8192
        ("1.2.0rc6.post3", 64, 1024, 1344),  # 4 x 64 + 1024 + 64
    ],
)
def test_the_token_budget_follows_users_and_prompt(version: str, users: int, prompt: int, budget: int) -> None:
    assert deepseek("TensorRT-LLM", version, users, prompt, devices=8, date="2025-12-15").token_budget == budget


def test_one_release_marks_speculation() -> None:
    drafted = deepseek("TensorRT-LLM", "1.2.0rc6.post3", 64, 1024, devices=8, dp=1)
    apart = deepseek("TensorRT-LLM", "1.2.0rc6.post3", 256, 1024, devices=8, dp=8)
    plain = deepseek("TensorRT-LLM", "1.2.0rc6.post2", 64, 1024, devices=8, dp=1)
    assert [found.draft_tokens for found in (drafted, apart, plain)] == [3, 1, 0]
    assert (apart.max_seqs, apart.attention_wait_steps) == (32, 60)
    assert any("draft_tokens 3 (derived" in line for line in drafted.told)


def test_a_day_tells_what_a_release_does_not() -> None:
    days = ("2025-12-15", "2026-01-14", "")
    found = [deepseek("TensorRT-LLM", "1.1.0rc2.post2", 16, 1024, devices=4, dp=1, date=day) for day in days]
    assert [settings.draft_tokens for settings in found] == [0, 3, None]
    assert [settings.warmups_per_user for settings in found] == [0, 0, None]


def test_runs_that_could_be_either_say_so() -> None:
    doubtful = deepseek("SGLang", "0.5.9", 64, 1024, precision="fp8", devices=8, ep=1, dp=1)
    certain = deepseek("SGLang", "0.5.9", 256, 1024, precision="fp8", devices=8, ep=1, dp=1)
    assert doubtful.draft_tokens is None
    assert doubtful.doubt is not None
    assert (certain.draft_tokens, certain.doubt) == (2, None)


def test_blank_releases_are_filled_and_decide_what_follows() -> None:
    found = settings_of("IX", "vLLM", "", "Llama-3.1-70B", "H100-SXM-80GB", "fp8", 64, 1024, 1024, devices=4)
    assert (found.version, found.max_seqs, found.token_budget) == ("0.10.2", 64, 8192)
    before = settings_of("X", "TensorRT-LLM", "0.21", "Any", "H100", "fp8", 1, 1, 1)
    after = settings_of("X", "TensorRT-LLM", "1.2.0rc6", "Any", "H100", "fp8", 1, 1, 1)
    assert (before.stream_first, after.stream_first) == (False, True)


def test_a_container_stands_for_the_engine_within() -> None:
    found = deepseek("TensorRT-LLM", "0.8.1.post2", 512, 1024, device="GB200", disaggregated=True)
    assert (found.version, found.stream_first, found.token_budget) == ("1.2.0rc6.post2", True, None)


def test_the_sides_of_a_disaggregated_run_differ() -> None:
    words = {"device": "GB200", "precision": "fp8", "disaggregated": True}
    prompts = deepseek("SGLang", "0.5.8.post1", 2048, 1024, dp=8, role="prefill", **words)
    answers = deepseek("SGLang", "0.5.8.post1", 2048, 1024, dp=32, role="decode", **words)
    assert (prompts.token_budget, prompts.graphs, prompts.memory_fraction) == (16384, False, 0.75)
    assert (answers.token_budget, answers.graph_max, answers.memory_fraction) == (None, 768, 0.82)
    assert prompts.stream_interval == answers.stream_interval == 50
    assert answers.receive_interval is None


@pytest.mark.parametrize(
    ("version", "device", "spread"), [("0.16.0", "H200-SXM-141GB", False), ("0.18.0", "H200-SXM-141GB", True)]
)
def test_experts_are_spread_where_the_script_always_spreads_them(version: str, device: str, spread: bool) -> None:
    found = settings_of("IX", "vLLM", version, "MiniMax-M2.5", device, "fp8", 16, 1024, 1024, devices=8, ep=1)
    assert found.expert_parallel is spread
    newest = settings_of("IX", "vLLM", "0.19.0", "MiniMax-M2.5", "B200-SXM", "fp8", 16, 8192, 1024)
    assert (newest.token_budget, newest.stream_interval, newest.block_tokens) == (16384, 20, 32)


def test_gpt_j_searches_four_beams_in_mlperf_alone() -> None:
    words = ("TensorRT-LLM", "", "GPT-J-6B", "H100-SXM-80GB", "")
    found = settings_of("MLP", *words, None, None, None, scenario="offline")
    assert (found.beam_width, found.max_seqs, found.most_output_tokens) == (4, 192, 128)
    assert settings_of("LIB", *words, 1, 128, 128).beam_width == 1


def test_interactive_limits_are_tighter() -> None:
    words = ("MLP", "TensorRT-LLM", "", "Llama-2-70B", "B200-SXM", "", None, None, None)
    limits = [settings_of(*words, scenario=name).tpot_limit_s for name in ("poisson-rate", "poisson-interactive")]
    assert limits == [0.2, 0.04]


def test_a_source_nobody_described_gets_the_engine_alone() -> None:
    found = settings_of("NOBODY", "vLLM", "0.19.0", "Llama", "H100", "fp8", 4, 128, 128)
    assert found == RunSettings(values={"stream_first": True}, told=found.told)
    assert len(found.told) == 1
    assert settings_of("NOBODY", "other", "", "", "", "", None, None, None) == RunSettings()


@given(users=st.integers(1, 10**6), prompt=st.integers(1, 10**6))
def test_a_rounded_amount_is_the_next_multiple(users: int, prompt: int) -> None:
    found = amount("concurrency+isl+64 up 64", {"concurrency": users, "isl": prompt})
    assert found is not None
    assert found % 64 == 0
    assert 0 <= found - (users + prompt + 64) < 64


def test_an_amount_divides_down_and_needs_its_numbers() -> None:
    assert amount("concurrency/8 least 1", {"concurrency": 4}) == 1
    assert amount("2*concurrency/8+1", {"concurrency": 7}) == 2
    assert amount("45000/dp", {"dp": 32}) == 1406
    assert amount("45000/dp", {"dp": 0}) is None
    assert amount("concurrency/instances/dp", {"concurrency": 1280, "instances": 3, "dp": 8}) == 53
    assert amount("concurrency/instances/dp", {"concurrency": 1280, "instances": 3, "dp": None}) is None
    assert amount("max_seqs", {"max_seqs": 48.0}) == 48
    assert amount("2*isl", {"isl": None}) is None
    with pytest.raises(InputError, match="no number"):
        amount("2*tokens", {})


@given(users=st.integers(1, 10**6), instances=st.integers(1, 64), ranks=st.integers(1, 64))
def test_a_power_of_two_is_the_largest_that_users_fill(users: int, instances: int, ranks: int) -> None:
    run = {"concurrency": users, "instances": instances, "dp": ranks}
    found = amount("concurrency/instances/dp power", run)
    assert found is not None
    assert found in {2**power for power in range(21)}
    assert found == 1 or found * instances * ranks <= users
    assert users < 2 * found * instances * ranks


@pytest.mark.parametrize(
    ("device", "precision", "shape", "users", "instances", "ranks", "batch"),
    [
        # max_batch_size of decode in srt-slurm, recipes/trtllm at c88ef731
        ("GB200", "fp8", (1024, 1024), 2151, 1, 16, 128),  # ctx1_gen1_dep16_batch128_eplb0_mtp0_2151
        ("GB300", "nvfp4", (1024, 8192), 245, 7, 1, 32),  # ctx1_gen7_tep8_batch32_eplb0_mtp0
        ("H100-SXM-80GB", "fp8", (8192, 1024), 154, 2, 1, 64),  # ctx1_gen2_tep16_batch64_eplb0_mtp0
        ("GB200", "nvfp4", (1024, 1024), 6144, 2, 4, 768),  # ctx1_gen2_dep4_batch768_eplb0_mtp0
        ("GB200", "nvfp4", (1024, 1024), 48, 4, 1, 32),  # ctx1_gen4_tep8_batch32_eplb0_mtp0, 12 to 192 users
        ("B200-SXM", "fp8", (1024, 1024), 1920, 5, 8, 48),  # ctx1_gen5_dep8_batch48_eplb0_mtp0_1920
        ("B200-SXM", "fp8", (8192, 1024), 640, 1, 8, 640),  # ctx2_gen1_dep8_batch640_eplb0_mtp0_640
    ],
)
def test_pools_of_tensorrt_llm_hold_what_their_users_fill(
    device: str, precision: str, shape: tuple[int, int], users: int, instances: int, ranks: int, batch: int
) -> None:
    prompt, answer = shape
    found = deepseek(
        "TensorRT-LLM", "0.8.1.post2", users, prompt, answer=answer, device=device, precision=precision,
        instances=instances, dp=ranks, devices=8, date="2026-03-01", role="decode", disaggregated=True,
    )  # fmt: skip
    assert (found.max_seqs, found.graph_max) == (batch, batch)


def test_users_that_no_recipe_has_are_answered_too() -> None:
    words = {"device": "GB200", "precision": "fp8", "disaggregated": True, "role": "decode", "dp": 16, "instances": 1}
    assert [deepseek("TensorRT-LLM", "", users, 1024, **words).max_seqs for users in (100, 1000, 3000)] == [4, 32, 128]


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, str]]]:
    """A table of one good row that a test may spoil."""
    rows = [dict(GOOD)]
    monkeypatch.setattr(store, "read_tsv", lambda _: tuple(rows))
    benchmark_settings.cache_clear()
    yield rows
    benchmark_settings.cache_clear()


@pytest.mark.parametrize(
    ("column", "cell", "words"),
    [
        ("key", "beams", "no setting"),
        ("value", "", "no formula"),
        ("value", "four", "no number"),
        ("value", "4x", "no term"),
        ("source", "vllm", "no source and place"),
        ("source", "nobody, a file", "no source and place"),
        ("evidence", "derived", "without a note"),
        ("evidence", "rumour", "no evidence"),
        ("condition", "users>4", "compares no number"),
        ("condition", "concurrency~4", "compares no number"),
    ],
)
def test_a_bad_row_is_refused(table: list[dict[str, str]], column: str, cell: str, words: str) -> None:
    assert len(benchmark_settings()) == 1
    benchmark_settings.cache_clear()
    table[0][column] = cell
    with pytest.raises(InputError, match=words):
        benchmark_settings()


def test_a_flag_is_yes_or_no(table: list[dict[str, str]]) -> None:
    table[0].update(key="graphs", value="1")
    with pytest.raises(InputError, match="needs yes or no"):
        benchmark_settings()


@pytest.mark.parametrize(
    ("engine", "version", "budget"),
    [
        ("TensorRT-LLM", "1.0.0rc3", 2540),  # 16 + 1024 + 1500
        ("vLLM", "0.12.0", 2540),
        ("SGLang", "0.5.6.post2", 2524),  # prompts alone: 1024 + 1500
        ("SGLang", "0.5.1.post1", None),
    ],
)
def test_deployments_of_aiconfigurator_bound_an_iteration(engine: str, version: str, budget: int | None) -> None:
    words = ("Qwen3-32B", "H100-SXM-80GB", "", 16, 1024, 128)
    assert settings_of("NVSIL", engine, version, *words).token_budget == budget
    assert settings_of("NVSIL", engine, version, *words, disaggregated=True).token_budget is None


def test_sglang_of_aiconfigurator_mixes_prompts_with_what_runs() -> None:
    words = ("Qwen3-32B", "H100-SXM-80GB", "", 16, 1024, 128)
    newer, older = (settings_of("NVSIL", "SGLang", version, *words) for version in ("0.5.6.post2", "0.5.1.post1"))
    assert (newer.mixed, older.mixed, newer.without_assumed().mixed) == (True, None, None)


def test_limits_that_are_assumed_may_be_the_engine_s_own() -> None:
    assumed = settings_of("NVSIL", "TensorRT-LLM", "1.0.0rc3", "Qwen3-32B", "H100-SXM-80GB", "", 16, 1024, 128)
    own = assumed.without_assumed()
    assert (assumed.token_budget, assumed.chunked, own.token_budget, own.chunked) == (2540, False, None, None)
    assert (own.statistic, own.requests_per_user) == ("mean", 10)  # no limits: they stay
    said = settings_of("IX", "vLLM", "", "Llama-3.1-70B", "H100-SXM-80GB", "fp8", 64, 1024, 1024, devices=4)
    assert said.without_assumed().token_budget == said.token_budget == 8192


def test_prompts_are_held_back_where_tensorrt_llm_waits() -> None:
    held = RunSettings(values={"attention_wait_steps": 60, "batch_wait_steps": 20, "batch_wait_share": 0.9})
    assert held.waits(8) == {"receive_interval": 60, "hold": "all"}
    assert held.waits(1) == {"receive_interval": 20, "hold": "full", "hold_share": 0.9}
    assert RunSettings(values={"receive_interval": 10, "batch_wait_steps": 20}).waits(1) == {"receive_interval": 10}
    assert RunSettings().waits(8) == {}


RUN = Row(
    line=2,
    id="x0001a",
    cells={
        "model": "Llama-3.1-8B", "params_b": "8", "active_params_b": "8", "hardware": "H100-SXM-80GB", "n_devices": "1",
        "tp": "1", "precision_weights": "fp16", "engine": "vLLM", "scenario": "fixed-batch",
        "batch_or_concurrency": "16", "isl": "1024", "osl": "128", "metric": "output_tok_s", "value": "2000",
        "unit": "tok/s", "source": "LIB",
    },
)  # fmt: skip
WITH = {  # settings that count only beside others, and the others
    "same_prompts": {"greedy": True}, "greedy": {"same_prompts": True},
    "batch_wait_share": {"batch_wait_steps": 7, "batch_wait_share": None},
}  # fmt: skip
OF_A_RUN = ("deployment", "statistic", "speculative", "fronts", "rounds", "open_s", "requests", "limits")
TOLD_ALONE = {"client", "doubt"}  # text for the reader of a row


@pytest.mark.parametrize("key", KINDS)
def test_a_setting_changes_the_run_or_says_that_it_is_not_modelled(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    job = read_served(RUN)
    job = replace(
        job,
        deployment=replace(
            job.deployment,
            dp=2 if key.startswith(("attention_", "expert_ranks")) else 1,
            ep=2 if key == "expert_ranks" else 1,
        ),
        arrivals="poisson" if key.endswith("_limit_s") else job.arrivals,
    )
    values = {
        "flag": True,
        "count": 1 if key.endswith("_ranks") else 3,
        "number": 0.5,
        "text": {"kv": "fp8", "preemption": "swap", "tuned_limits": "trtllm-bench"}.get(key, "p90"),
    }
    runs = []
    for value in (None, values[KINDS[key]]):
        field = key
        said = RunSettings(values={**WITH.get(key, {}), field: value})
        with monkeypatch.context() as patch:
            patch.setattr(serving, "settings_of", lambda *_, said=said, **__: said)
            found = serving.settled(job, RUN)
        runs.append([getattr(found, name) for name in OF_A_RUN])
    assert (runs[0] == runs[1]) is (key in UNUSED | TOLD_ALONE)


def test_where_nobody_says_whether_mean_or_median_the_interval_holds_both() -> None:
    """Users begin at once: the mean counts the first round, which the median does not see."""
    asked = {"scenario": "fixed-concurrency", "batch_or_concurrency": "32", "engine_version": "0.12.0", "unit": "ms"}
    rows = serving.ServedRows()

    def answer(metric: str, source: str = "NVSIL") -> dict[str, float]:
        return rows.answer(replace(RUN, cells=RUN.cells | asked | {"metric": metric, "value": "100", "source": source}))

    unsaid, mean, median = (answer(f"ttft{word}_ms") for word in ("", "_mean", "_p50"))
    assert unsaid["predicted"] == mean["predicted"] != median["predicted"]
    assert unsaid["low"] <= min(mean["low"], median["predicted"])
    assert unsaid["high"] >= max(mean["high"], median["predicted"])
    assert unsaid["low"] < mean["low"]  # the median is below all that the mean may be
    assert answer("ttft_ms", "IX")["low"] == answer("ttft_mean_ms", "IX")["low"]  # whose results are called means


def test_what_is_not_modelled_is_told_apart() -> None:
    found = settings_of("NOBODY", "vLLM", "0.19.0", "Llama", "H100", "fp8", 4, 128, 128)
    assert [line.split(" (")[0] for line in found.told] == ["known, not modelled: stream_first True"]
    both = settings_of("IX", "vLLM", "", "Llama-3.1-70B", "H100-SXM-80GB", "fp8", 64, 1024, 1024, devices=4).told
    assert not [line for line in both if "max_seqs" in line and "not modelled" in line]


@pytest.mark.parametrize(
    ("device", "instances", "users", "room"),
    [("GB200", 4, 5, 1), ("GB200", 4, 96, 32), ("GB300", 4, 96, 32), ("B200-SXM", 5, 90, 32), ("B200-SXM", 6, 450, 64)],
)
def test_decode_instances_hold_what_their_recipes_say(device: str, instances: int, users: int, room: int) -> None:
    """The name of a recipe tells its batch, as in ctx1_gen4_tep8_batch32."""
    words = {"device": device, "disaggregated": True, "role": "decode", "devices": 8, "dp": 1, "instances": instances}
    found = deepseek("TensorRT-LLM", "", users, 1024, date="2026-03-23", **words)
    assert (found.max_seqs, found.graph_max, found.kv) == (room, room, "fp8")


def test_runs_before_february_2026_had_larger_batches() -> None:
    words = {"device": "GB200", "disaggregated": True, "role": "decode", "devices": 8, "dp": 1, "instances": 4}
    assert deepseek("TensorRT-LLM", "", 96, 1024, date="2025-12-19", **words).max_seqs == 128


@pytest.mark.parametrize(
    ("engine", "device", "fronts"),
    [("TensorRT-LLM", "GB200", 10), ("TensorRT-LLM", "GB300", 1), ("TensorRT-LLM", "H200", 1), ("SGLang", "GB300", 10)],
)
def test_some_deployments_have_many_front_ends(engine: str, device: str, fronts: int) -> None:
    words = {"device": device, "disaggregated": True, "role": "decode", "devices": 8, "dp": 1, "instances": 4}
    assert deepseek(engine, "", 96, 1024, date="2026-03-23", **words).frontends == fronts


@pytest.mark.parametrize(
    ("device", "fresh", "assumed"), [("B200", True, False), ("H200", True, True), ("B300", True, True)]
)
def test_containers_of_their_own_hold_no_compiled_kernels(device: str, fresh: bool, assumed: bool) -> None:
    words = ("Qwen3.5-397B-A17B", f"{device}-SXM", "fp8", 16, 1024, 1024)
    found = settings_of("IX", "SGLang", "0.5.9", *words, devices=8, ep=1, dp=1)
    assert found.fresh_kernels is fresh
    assert ("fresh_kernels" in found.assumed) is assumed
    assert found.without_assumed().fresh_kernels is (None if assumed else fresh)
    build = settings_of("IX", "SGLang", "nightly-dev-20260402-d7256eb6", *words, devices=8, ep=1, dp=1)
    assert build.version == "0.5.10"


def test_a_later_release_runs_the_scripts_as_they_were_last() -> None:
    words = ("MiniMax-M2.5", "B300-SXM", "nvfp4", 64, 8192, 1024)
    read, later = (settings_of("IX", "vLLM", version, *words, devices=4, ep=1) for version in ("0.19.0", "0.21.0"))
    assert (later.token_budget, later.graph_max, later.memory_fraction, later.kv) == (16384, 2048, 0.9, "fp8")
    assert replace(read, told=()) == replace(later, told=())
    newer = deepseek("TensorRT-LLM", "1.3.0rc9", 64, 1024, devices=8, dp=1, scenario="fixed-concurrency")
    assert (newer.token_budget, newer.graph_max, newer.memory_fraction) == (8192, 64, 0.8)
    assert newer.draft_tokens is None  # which release marks speculation is not known


@pytest.mark.parametrize(("ranks", "most", "budget"), [(8, 32, 1152), (4, 64, 1216), (1, 256, 2112)])
def test_each_attention_rank_holds_its_share_of_the_users(ranks: int, most: int, budget: int) -> None:
    """Budgets are 2 x 32 + 1088, 2 x 64 + 1088, and of one rank 4 x 256 + 1088."""
    found = deepseek("TensorRT-LLM", "1.2.0rc6.post3", 256, 1024, precision="fp8", devices=8, dp=ranks)
    assert (found.max_seqs, found.graph_max, found.token_budget) == (most, most, budget)
