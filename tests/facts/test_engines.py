"""Policies of engines: versions, conditions, evidence, and files that people write."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.errors import DomainError, InputError, RidgelineError, UnknownNameError
from ridgeline.facts.engines import (
    EnginePolicy,
    EngineUse,
    ModelTraits,
    _resolve,
    engine_policy,
    engine_policy_from_file,
)
from ridgeline.facts.frameworks import FrameworkPolicy
from ridgeline.facts.policies import ENGINES, FRAMEWORKS, PolicyFiles, ReleasePolicy, version_key
from ridgeline.facts.records import Evidence
from ridgeline.facts.store import source
from ridgeline.facts.user_files import Toml

_H100 = 85.0e9  # what the driver reports
_GIB = 2**30
_DOCS = Path(__file__).parents[2] / "docs" / "engines.md"
_SMALL = """
name = "Mine"
[[policy]]
from = "0"
token_budget = 1024
graph_sizes = [1, 2, "4..8/4"]
[[policy.when]]
offline = true
token_budget = 4096
[[policy]]
from = "2.1"
max_seqs = 7
"""


def policy_of(name: str, version: str = "", **use: Any) -> EnginePolicy:
    return engine_policy(name, version, EngineUse(**use))


def policy_of_file(path: Path, version: str = "", **use: Any) -> EnginePolicy:
    return engine_policy_from_file(path, version, EngineUse(**use))


def _write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_versions_are_ordered_by_number_and_dates_are_the_newest() -> None:
    ordered = ["0", "0.2.6", "0.6.3.post1", "0.6.6", "v0.10.2", "1.0.0rc1", "1.3"]
    assert sorted(ordered, key=version_key) == ordered
    assert version_key("1.0") == version_key("v1") == version_key("1.0.0")
    for newest in ("", "nightly-20250101", "main", "2024-09-05"):
        assert version_key(newest) > version_key("99")
    assert version_key("b3000") == (3000.0,)


@given(st.text(max_size=30))
def test_any_text_is_a_version(text: str) -> None:
    assert len(version_key(text)) >= 1
    assert policy_of("vLLM", text, memory_bytes=_H100).scheduler in ("mixed", "prefill-first")


def test_names_are_matched_without_case_and_punctuation() -> None:
    assert policy_of("TRT_LLM", memory_bytes=_H100) == policy_of("TensorRT-LLM", memory_bytes=_H100)
    assert policy_of("trtllm", memory_bytes=_H100).name == "TensorRT-LLM"
    with pytest.raises(UnknownNameError, match=r"unknown engine 'vlm'; nearest: vLLM"):
        policy_of("vlm", memory_bytes=_H100)


def test_vllm_runs_prompts_apart_then_mixes_them() -> None:
    old = policy_of("vLLM", "0.2.7", memory_bytes=_H100, context_tokens=4096)
    assert (old.scheduler, old.chunked, old.token_budget, old.watermark) == ("prefill-first", False, 4096, 0.01)
    assert old.graph_sizes[:5] == (1, 2, 4, 8, 16)
    assert old.graph_sizes[-1] == 256
    assert not policy_of("vLLM", "0.2.5", memory_bytes=_H100).graph_sizes
    assert old.all_reduce == "nccl"
    long = policy_of("vLLM", "0.6.3", memory_bytes=_H100, context_tokens=131_072)
    assert (long.scheduler, long.chunked, long.token_budget) == ("mixed", True, 512)
    assert policy_of("vLLM", "0.6.6.post1", memory_bytes=_H100, context_tokens=131_072).token_budget == 2048
    new = policy_of("vLLM", "0.8.5", memory_bytes=_H100)
    assert (new.scheduler, new.chunked, new.prefix_cache, new.admits) == ("mixed", True, True, "chunk")


@pytest.mark.parametrize(
    ("version", "memory", "offline", "device", "budget", "seqs"),
    [
        ("0.8.5", 24e9, False, "", 2048, 256),
        ("0.8.5", 24e9, True, "", 8192, 256),
        ("0.8.5", _H100, False, "H100", 8192, 1024),
        ("0.8.5", _H100, True, "H100", 16384, 1024),
        ("0.8.5", _H100, False, "A100-SXM", 8192, 1024),  # the exception for it came with 0.9
        ("0.10.2", _H100, False, "A100-SXM", 2048, 256),
        ("0.10.2", _H100, True, "A100-SXM", 8192, 256),
        ("0.20.2", 192e9, False, "B200", 8192, 1024),
        ("0.33.0", 192e9, False, "B200", 16384, 1024),
    ],
)
def test_vllm_v1_defaults_follow_memory_use_and_device(
    version: str, memory: float, offline: bool, device: str, budget: int, seqs: int
) -> None:
    policy = policy_of("vLLM", version, memory_bytes=memory, offline=offline, device=device, context_tokens=131_072)
    assert (policy.token_budget, policy.max_seqs) == (budget, seqs)


def test_vllm_host_time_is_the_fit_of_the_profile_with_an_api_server_beside_it() -> None:
    online = policy_of("vLLM", "0.5.3", memory_bytes=_H100)
    offline = policy_of("vLLM", "0.5.3", memory_bytes=_H100, offline=True)
    assert (offline.step_host_s, offline.seq_host_s) == (pytest.approx(0.97e-3), pytest.approx(48.7e-6))
    assert online.seq_host_s - offline.seq_host_s == pytest.approx(33 / 29 * 42.3e-6, rel=0.02)
    assert online.group_host_s > 0
    assert online.facts["seq_host_s"].evidence is Evidence.DERIVED
    assert offline.facts["seq_host_s"].evidence is Evidence.MEASURED
    assert not policy_of("vLLM", "0.12", memory_bytes=_H100).overlapped_host
    assert policy_of("vLLM", "0.14.1", memory_bytes=_H100).overlapped_host


@pytest.mark.parametrize(
    ("version", "memory", "ranks", "fraction", "budget", "largest"),
    [
        ("0.2.0", _H100, 8, 0.84, 16384, 128),
        ("0.2.13", _H100, 1, 0.88, 8192, 128),
        ("0.3.2", _H100, 1, 0.88, 8192, 160),
        ("0.4.1", _H100, 8, 0.81, 8192, 160),
        ("0.4.1", 24e9, 1, 0.88, 2048, 8),
        ("0.4.6", 141 * _GIB, 8, 1 - 13 / 141, 8192, 256),
        ("0.4.9", 80 * _GIB, 4, 1 - 11.5 / 80, 8192, 160),
        ("0.5.1", 80 * _GIB, 4, 1 - 11.5 / 80, 8192, 160),
        ("0.5.6", 24 * _GIB, 1, 1 - (3_632 + 128) / (24 * 1024), 2048, 24),
        ("0.5.3", 80 * _GIB, 1, 1 - (13_312 + 128) / (80 * 1024), 8192, 256),
        ("0.5.3", 180 * _GIB, 8, 1 - (26_112 + 1024) / (180 * 1024), 16384, 512),
    ],
)
def test_sglang_leaves_memory_by_size_and_ranks(
    version: str, memory: float, ranks: int, fraction: float, budget: int, largest: int
) -> None:
    policy = policy_of("SGLang", version, memory_bytes=memory, ranks=ranks)
    assert policy.memory_of == "static"
    assert policy.memory_fraction == pytest.approx(fraction, abs=1e-6)
    assert (policy.token_budget, policy.graph_sizes[-1]) == (budget, largest)


def test_sglang_overlaps_its_scheduler_since_0_4() -> None:
    assert not policy_of("sglang", "0.3.6", memory_bytes=_H100).overlapped_host
    policy = policy_of("sglang", "0.4.0", memory_bytes=_H100)
    assert policy.overlapped_host
    assert (policy.admits, policy.output_estimate_floor) == ("estimate", 0.098)


def test_tensorrt_llm_guarantees_no_eviction() -> None:
    policy = policy_of("TensorRT-LLM", "0.9", memory_bytes=_H100)
    assert (policy.memory_of, policy.memory_fraction, policy.admits) == ("free", 0.9, "whole")
    assert (policy.block_tokens, policy.max_seqs, policy.prefix_cache) == (128, 256, False)
    later = policy_of("TensorRT-LLM", "0.18.2", memory_bytes=_H100)
    assert (later.block_tokens, later.max_seqs, later.prefix_cache) == (32, 2048, True)
    assert not policy_of("TensorRT-LLM", "0.19", memory_bytes=_H100).overlapped_host
    assert policy_of("TensorRT-LLM", "0.20", memory_bytes=_H100).overlapped_host


def test_vllm_on_amd_shares_keys_from_0_6_2_and_in_amds_fork_before() -> None:
    def shared(version: str, architecture: str) -> bool:
        return not policy_of("vllm", version, memory_bytes=192e9, architecture=architecture).keys_per_query

    assert not shared("0.6.1", "AMD cdna3")
    assert not shared("0.6.1", "AMD cdna2")
    assert shared("0.6.2", "AMD cdna3")
    assert shared("0.4.3+rocm614", "AMD cdna3")
    assert shared("0.6.1", "NVIDIA hopper")


def test_llama_cpp_reads_keys_for_each_query_head_until_flash_attention_is_its_default() -> None:
    def shared(engine: str, version: str) -> bool:
        return not policy_of(engine, version, memory_bytes=24e9, architecture="NVIDIA ada").keys_per_query

    assert not shared("llama.cpp", "b2900")
    assert shared("llama.cpp", "b6918")
    assert not shared("ollama", "0.1")


def test_vllm_gives_heads_whole_contexts_where_it_reads_keys_for_each() -> None:
    for version, architecture in (("0.6.1", "AMD cdna3"), ("0.6.2", "AMD cdna3"), ("0.4.3+rocm614", "AMD cdna3")):
        policy = policy_of("vllm", version, memory_bytes=192e9, architecture=architecture)
        assert policy.block_heads == (512 if policy.keys_per_query else 0)
        assert policy.graph_context == 8192


def test_reductions_of_the_library_wait_in_graphs_on_amd_until_0_8() -> None:
    """(16.37 - 14.57) s over 256 steps of 161 reductions, (15.88 - 14.38) s over 256 of 121, less 15 and 11 us."""

    def wait(version: str, architecture: str) -> float:
        return policy_of("vllm", version, memory_bytes=64e9, architecture=architecture).graph_reduce_s

    by_hand = ((16.37 - 14.57) / 256 / 161 - 15e-6, (15.88 - 14.38) / 256 / 121 - 11e-6)
    assert wait("0.6.1", "AMD cdna2") == wait("0.7", "AMD cdna3") == pytest.approx(sum(by_hand) / 2, rel=0.02)
    for version, architecture in (("0.6.1", "NVIDIA hopper"), ("0.8", "AMD cdna3"), ("0.6.1+rocm", "AMD cdna3")):
        assert wait(version, architecture) == 0.0


def test_ranks_that_launch_apart_wait_by_what_a_launch_takes() -> None:
    def wait(engine: str, version: str = "", architecture: str = "NVIDIA ampere") -> float:
        return policy_of(engine, version, memory_bytes=80e9, architecture=architecture).apart_reduce_s

    by_ranks = (34.8e-6, 15.1e-6, 9.1e-6, 29.2e-6, 27.7e-6, 8.5e-6)  # 2, 4 and 8 ranks of A100, of H100
    assert wait("DeepSpeed-MII") == wait("Megatron-LM") == pytest.approx(sum(by_ranks) / 6, rel=0.02)
    assert wait("TensorRT-LLM", "0.12") == pytest.approx(21e-6 * 3.0 / 13.48, rel=0.02)
    assert wait("FasterTransformer") == pytest.approx(43e-6 - 23e-6)  # the same call to a library of 2022 and of 2025
    assert wait("TensorRT-LLM", "1.0") == wait("DeepSpeed", architecture="Intel gaudi") == wait("vLLM") == 0.0


def test_sglang_compiles_scans_for_each_number_of_tokens_until_0_5_16() -> None:
    def scans(version: str, model: str = "qwen3.5-397b-a17b") -> tuple[int, float]:
        traits = ModelTraits(name=model, experts=True, hidden=4096)
        policy = policy_of("SGLang", version, memory_bytes=180e9, model=traits)
        return policy.scan_kernels, policy.scan_build_s

    # copies of queries, keys, values and the convolution's input, a comparison, zeros, the inverse's second kernel
    beside = 4 + 1 + 1 + 1
    assert scans("0.5.9") == (beside + 3, 0.09)  # four projections in place of one
    assert scans("0.5.9", "qwen3-next-80b-a3b") == (beside + 2, 0.09)  # two, and a split
    assert scans("0.5.10.post1") == (beside - 2 + 2, 0.09)  # keys, values and inverse in two kernels, not four
    assert scans("0.5.16") == (beside - 2 + 2, 0.0)
    assert policy_of("vLLM", "", memory_bytes=180e9).scan_build_s == 0.0


def test_llama_cpp_waits_for_the_choice_of_experts_until_april_2025() -> None:
    """DeepSeek-V2-Lite on an RX 6800: 26 layers of 3 products, of which ten launches of 8 us were spared as well."""

    def wait(version: str, architecture: str) -> float:
        return policy_of("llama.cpp", version, memory_bytes=64e9, architecture=architecture).choice_wait_s

    by_hand = (1 / 27.26 - 1 / 52.74) / (26 * 3) - 10 * 8e-6
    assert wait("b3700", "AMD cdna2") == pytest.approx(by_hand, rel=0.01)
    assert wait("b3700", "NVIDIA hopper") == pytest.approx(8e-6 + 15e-6 + 3e-6)
    assert wait("b6000", "AMD cdna3") == wait("b6000", "NVIDIA hopper") == 0.0


def test_products_of_few_rows_stream_slower_on_cdna2_until_0_7() -> None:
    def shares(version: str, architecture: str) -> tuple[float, float, float]:
        policy = policy_of("vllm", version, memory_bytes=64e9, architecture=architecture)
        return policy.skinny_share_least, policy.skinny_share, policy.skinny_share_most

    least, middle, most = shares("0.6.1", "AMD cdna2")
    assert least == pytest.approx(447 / 900, rel=0.01)  # GB/s of the library's product of one row, and of its vectors'
    assert most == pytest.approx(1 / 1.2, rel=0.01)  # a fifth faster with another kernel
    assert middle == pytest.approx((least * most) ** 0.5, rel=0.01)
    for version, architecture in (("0.6.1", "AMD cdna3"), ("0.7", "AMD cdna2"), ("0.6.1+rocm", "AMD cdna2")):
        assert shares(version, architecture)[1] == 1.0


def test_products_are_untuned_on_cdna3_until_0_7_but_for_amds_fork() -> None:
    shares = {
        (version, architecture): policy_of("vllm", version, memory_bytes=192e9, architecture=architecture).tuned_share
        for version in ("0.6.1", "0.7", "0.6.1+rocm")
        for architecture in ("AMD cdna3", "AMD cdna2", "NVIDIA ampere")
    }
    assert {key: share for key, share in shares.items() if share != 1.0} == {("0.6.1", "AMD cdna3"): 0.10}
    grew, part = sorted((4.5, 4.8, 5.4, 5.9, 7.2))[2], 0.5  # throughput by tuning; products' part of a tuned run
    assert part / (grew - 1.0 + part) == pytest.approx(0.10, rel=0.03)


def test_no_graphs_are_captured_on_intels_gpus_whatever_sizes_later_versions_name() -> None:
    for version in ("0.5.2", "0.6.3", "0.12", ""):
        policy = policy_of("vllm", version, memory_bytes=128e9, architecture="Intel xe")
        assert policy.graph_sizes == ()
        assert policy.eager_kernel_host_s > 3e-5
        assert policy_of("vllm", version, memory_bytes=128e9, architecture="Intel gaudi").graph_sizes


@pytest.mark.parametrize("name", ENGINES.names())
def test_every_number_of_a_shipped_policy_has_a_source_that_is_known(name: str) -> None:
    for version in ("0", ""):
        for offline in (False, True):
            policy = policy_of(name, version, memory_bytes=_H100, offline=offline, ranks=8, device="H100-SXM")
            assert policy.sources
            for text in policy.sources:
                assert source(text).title
            for key in ENGINES.keys.values():
                if key.measured and getattr(policy, key.name):
                    assert policy.facts[key.name].conditions
            assert policy.evidence in tuple(Evidence)


@pytest.mark.parametrize("name", ENGINES.names())
def test_an_engine_never_fills_more_than_the_device(name: str) -> None:
    for memory in (16e9, 24e9, 40e9, _H100, 150e9, 190e9, 288e9):
        policy = policy_of(name, memory_bytes=memory, ranks=8)
        assert 0 < policy.memory_fraction <= 1
        assert policy.graph_sizes == tuple(sorted(policy.graph_sizes))


def test_the_page_names_every_key_and_condition() -> None:
    page = _DOCS.read_text(encoding="utf-8")
    for name in (*ENGINES.keys, *ENGINES.conditions):
        assert f"| `{name}` |" in page
    for name in ENGINES.names():
        assert name in page


@pytest.mark.parametrize(
    ("files", "kind"),
    [(ENGINES, EnginePolicy), (FRAMEWORKS, FrameworkPolicy)],
    ids=lambda one: getattr(one, "what", ""),
)
def test_the_table_of_keys_is_that_of_the_fields_and_holds_their_defaults(
    files: PolicyFiles, kind: type[ReleasePolicy]
) -> None:
    own = {one.name: one for one in fields(kind) if one.name not in ("name", "version", "facts")}
    read = {name: key for name, key in files.keys.items() if key.kind != "gone"}
    assert own.keys() == read.keys()
    for name, key in read.items():
        default = own[name].default
        if key.kind in ("number", "count", "flag", "word") and default is not None:
            assert key.read(default) == default, name


def test_keys_that_nothing_asks_for_are_read_of_older_files(tmp_path: Path) -> None:
    older = _SMALL.replace("token_budget = 1024", "graph_padding = false\noutput_estimate = 0.7\ntoken_budget = 1024")
    old, new = (policy_of_file(_write(tmp_path, text), memory_bytes=_H100) for text in (older, _SMALL))
    assert older != _SMALL
    assert old == new


def test_a_file_of_ones_own_is_an_engine(tmp_path: Path) -> None:
    path = _write(tmp_path, _SMALL)
    policy = policy_of_file(path, memory_bytes=_H100)
    assert (policy.name, policy.token_budget, policy.max_seqs, policy.graph_sizes) == ("Mine", 1024, 7, (1, 2, 4, 8))
    assert policy_of_file(path, "2.0", memory_bytes=_H100).max_seqs == 256
    assert policy_of_file(path, memory_bytes=_H100, offline=True).token_budget == 4096
    assert policy.sources == ("mine.toml",)


@pytest.mark.parametrize(
    ("old", "new", "wanted"),
    [
        (
            "token_budget = 1024",
            "token_buget = 1024",
            r"mine.toml:5: field 'policy.0.token_buget': .*nearest: token_budget",
        ),
        ("token_budget = 1024", "token_budget = 0", r":5: .*from 1 to 1e\+09 token; got 0"),
        ("token_budget = 1024", "token_budget = 1.5", r":5: .*needs a whole number of token"),
        ("token_budget = 1024", "token_budget = true", r":5: .*needs a whole number"),
        ("token_budget = 1024", "memory_fraction = nan", r":5: .*from 0 to 1"),
        ("token_budget = 1024", "scheduler = 'mixd'", r":5: .*nearest: mixed"),
        ("token_budget = 1024", "chunked = 1", r":5: .*true or false"),
        ("4..8/4", "8..4", r":6: .*first <= last"),
        ("4..8/4", "1..9999999", r":6: .*first <= last"),
        ("offline = true", "max_seqs = 3", r"needs a condition"),
        ("offline = true", "offline = 'yes'", r"policy.0.when.0.offline"),
        ("offline = true", "device = 'A100,,B200'", r"policy.0.when.0.device.*separated by commas"),
        ("offline = true", "device = 100", r"policy.0.when.0.device"),
        ('from = "2.1"', 'from = "0.0"', r"later version"),
        ('from = "0"\n', 'from = "0.5"\n', r"first policy needs"),
        ('from = "0"\n', 'from = "new"\n', r"needs a version"),
        ('name = "Mine"', "title = 1", r"unknown field"),
        ("max_seqs = 7", "max_seqs = 7\nwhy = {max_seqs = {evidence = 'seen'}}", r"evidence needs to be one of"),
        ("max_seqs = 7", "why = {max_seqs = {evidence = 'assumed'}}", r"does not set"),
    ],
)
def test_defects_of_a_file_are_named_by_line_and_field(tmp_path: Path, old: str, new: str, wanted: str) -> None:
    path = _write(tmp_path, _SMALL.replace(old, new))
    with pytest.raises(InputError, match=wanted):
        policy_of_file(path, memory_bytes=_H100)


@given(
    st.dictionaries(
        st.sampled_from((*ENGINES.keys, *ENGINES.conditions, "from", "why", "when", "source", "odd")),
        st.one_of(
            st.none(),
            st.booleans(),
            st.integers(),
            st.floats(),
            st.text(max_size=5),
            st.lists(st.integers(), max_size=3),
        ),
        max_size=6,
    )
)
def test_no_table_causes_a_traceback(table: dict[str, object]) -> None:
    raw = {"name": "x", "policy": [{"from": "0"}, {"from": "1", "when": [table]}]}
    try:
        engine = ENGINES.read(Toml(name="x.toml", tables=raw), shipped=False)
        _resolve(engine, "", EngineUse(memory_bytes=80e9))
    except RidgelineError:
        pass


def test_questions_outside_the_domain_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DomainError, match="memory_bytes"):
        policy_of("vllm", memory_bytes=0.0)
    with pytest.raises(DomainError, match="ranks"):
        policy_of("vllm", memory_bytes=_H100, ranks=0)
    with pytest.raises(DomainError, match=r"leaves 3\.91e\+09 byte free of 2e\+09"):
        policy_of("sglang", "0.5.3", memory_bytes=2e9)
    with pytest.raises(InputError, match="no such file"):
        policy_of_file(tmp_path / "none.toml", memory_bytes=_H100)


def test_small_engines_run_what_their_loops_run() -> None:
    assert policy_of("gpt-fast", memory_bytes=_H100).max_seqs == 1
    assert policy_of("DeepSpeed(Gaudi)", memory_bytes=96e9).name == "Optimum-Habana"
    assert policy_of("DeepSpeed(Gaudi)", memory_bytes=96e9).narrow_kv == "fp8"
    assert policy_of("neuronx-distributed-inference", memory_bytes=96e9).compiled_tokens == 4096
    assert policy_of("FasterTransformer", memory_bytes=80e9).scheduler == "static"
    mii = policy_of("MII", memory_bytes=80e9)
    assert (mii.token_budget, mii.max_seqs, mii.memory_fraction) == (768, 512, pytest.approx(1 - 1 / 80))
    llama = [policy_of("llama.cpp", version, memory_bytes=24e9) for version in ("b1000", "b3000", "b7000", "")]
    assert [policy.max_seqs for policy in llama] == [1, 1, 4, 4]
    assert [bool(policy.graph_sizes) for policy in llama] == [False, True, True, True]


def _fusions(version: str, name: str, *, experts: bool, hidden: int) -> tuple[bool, bool]:
    model = ModelTraits(name=name, experts=experts, hidden=hidden)
    policy = policy_of("TensorRT-LLM", version, memory_bytes=_H100, ranks=8, model=model)
    return policy.fused_all_reduce_norm, policy.static_scales


def test_tensorrt_llm_fuses_by_model() -> None:
    """Pull request 6205 brought Llama's fusions, above a hidden size of 4096; dense Qwen3 has plain norms."""
    assert _fusions("0.21", "llama-3.1-70b", experts=False, hidden=8192) == (False, True)
    assert _fusions("1.0", "llama-3.1-70b", experts=False, hidden=8192) == (True, True)
    assert _fusions("1.0", "llama-3.1-8b", experts=False, hidden=4096) == (False, True)
    assert _fusions("1.0", "qwen3-235b-a22b", experts=True, hidden=4096) == (True, True)
    assert _fusions("1.2.0rc6", "Qwen3-32B", experts=False, hidden=5120) == (False, False)
    assert _fusions("1.2.0rc6", "qwen3-30b-a3b", experts=True, hidden=2048) == (True, True)


def test_rules_about_models_need_a_model(tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text(
        "name = 'X'\n[[policy]]\nfrom = '0'\nmax_seqs = 7\n"
        "[[policy.when]]\nmodel = 'a'\nhidden_up_to = 64\nmax_seqs = 9\n"
    )
    small = ModelTraits(name="abc", experts=False, hidden=64)
    seqs = [
        policy_of_file(own, memory_bytes=_H100, model=model).max_seqs
        for model in (ModelTraits(), small, replace(small, hidden=65), replace(small, name="bac"))
    ]
    assert seqs == [7, 9, 7, 7]


def test_a_condition_names_one_device_or_any_of_some(tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text(
        "name = 'X'\n[[policy]]\nfrom = '0'\nmax_seqs = 7\n[[policy.when]]\ndevice = 'B200, A100'\nmax_seqs = 9\n"
    )
    seqs = [
        policy_of_file(own, memory_bytes=_H100, device=device).max_seqs
        for device in ("B200-SXM", "GB200", "A100-SXM-80GB", "H100-SXM", "")
    ]
    assert seqs == [9, 9, 9, 7, 7]


def test_a_complaint_about_a_reason_is_on_its_line(tmp_path: Path) -> None:
    text = (
        'name = "own"\n\n[[policy]]\nfrom = "0"\n\n[policy.why]\n\n[[policy]]\nfrom = "1"\nstep_host_s = 1e-3\n\n'
        '[[policy.when]]\noffline = true\nstep_host_s = 2e-3\n\n[policy.when.why]\nstep_host_s = "slow"\n'
    )
    file = tmp_path / "own.toml"
    file.write_text(text)
    with pytest.raises(InputError, match=r"own\.toml:17: "):
        policy_of_file(file, memory_bytes=1e10)
