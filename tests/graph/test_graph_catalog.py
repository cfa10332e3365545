"""Names of the catalog, and how they are found."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from ridgeline.errors import UnknownNameError
from ridgeline.facts import store
from ridgeline.graph.build import EXPLICIT
from ridgeline.graph.load import catalog, catalog_config, find, load


def test_the_catalog_is_wide() -> None:
    assert len(catalog()) >= 170
    assert len({str(catalog_config(name)["model_type"]) for name in catalog()}) >= 30


@pytest.mark.parametrize("name", catalog())
def test_every_entry_builds_under_its_own_name_with_a_source(name: str) -> None:
    model = load(name)
    assert find(name) == name
    assert model.name == name
    assert len(model.source) > 10
    assert model.graph.params > 1e6
    assert model.dims["layers"] == len(model.graph.layers)


def test_aliases_lead_to_entries_and_shadow_none() -> None:
    aliases = store.read_json("models/_aliases.json")
    assert set(aliases.values()) <= set(catalog())
    assert not set(aliases) & set(catalog())
    assert {alias: find(alias) for alias in aliases} == aliases


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("meta-llama/Llama-3.1-70B", "llama-3.1-70b"),
        ("meta-llama/Llama-3.1-70B-Instruct", "llama-3.1-70b"),
        ("LLAMA3.1_405B", "llama-3.1-405b"),
        ("Llama 2 70b-chat-hf", "llama-2-70b"),
        ("opt-1.3b", "opt-1.3b"),
        ("OPT 13B", "opt-13b"),
        ("Qwen/Qwen2.5-7B-Instruct", "qwen2.5-7b"),
        ("google/gemma-3-27b-it", "gemma-3-27b"),
        ("MT-NLG", "mt-nlg-530b"),
        ("microsoft/phi-1_5", "phi-1.5"),
        ("Qwen/Qwen3.5-9B", "qwen3.5-9b"),
        ("mistralai/Mistral-Small-4-119B-2603", "mistral-small-4"),
        ("Qwen/Qwen2.5-7B-Instruct-1M", "qwen2.5-7b-1m"),
        ("internlm/internlm-chat-20b", "internlm-20b"),
    ],
)
def test_names_as_people_write_them(text: str, name: str) -> None:
    assert find(text) == name


def test_a_typo_names_neighbours() -> None:
    with pytest.raises(UnknownNameError, match=r"nearest: llama-3\.1-70b"):
        load("lama-3.1-70b")


@pytest.mark.parametrize("text", ["", "/", "~nobody-here/x", "\x00", "a" * 10_000, "..", "nothing like it at all"])
def test_strange_names_are_refused_with_our_own_errors(text: str) -> None:
    from ridgeline.errors import RidgelineError

    with pytest.raises(RidgelineError):
        load(text)


def test_building_is_quick() -> None:
    load("llama-3-8b")
    for name in ("llama-3.1-405b", "deepseek-v3", "qwen3-235b-a22b", "t5-11b"):
        begin = time.process_time()
        load(name)
        assert time.process_time() - begin < 0.1  # 20 ms wanted; of this process alone, whatever else is running


def test_no_heavy_imports() -> None:
    code = "import sys, ridgeline.graph.load; print([m for m in ('pydantic', 'torch', 'numba') if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_explicit_entries_say_where_their_numbers_are_printed() -> None:
    for name in catalog():
        config = catalog_config(name)
        if config["model_type"] == EXPLICIT:
            assert "arXiv" in str(config["source"]) or "/" in str(config["source"]), name


@pytest.mark.parametrize(
    ("name", "total", "active"),
    [  # parameters that model cards and reports state [1e9]
        ("ernie-4.5-300b-a47b", 300, 47),
        ("ernie-4.5-21b-a3b", 21.8, None),
        ("hunyuan-a13b", 80, 13),
        ("ling-1t", 1000, 50),
        ("ling-flash-2.0", 103, 6.1),
        ("ling-mini-2.0", 16.3, 1.4),
        ("deepseek-moe-16b", 16.4, 2.8),
        ("moonlight-16b-a3b", 16, 3),
        ("glm-4.7-flash", 30, None),
        ("mistral-large-3", 673, 39),
        ("grok-1", 314, 86),
        ("arctic", 480, 17),
        ("pangu-pro-moe", 72, 16.5),
        ("nemotron-nano-9b-v2", 8.9, None),
        ("nemotron-nano-12b-v2", 12.3, None),
        ("granite-4.0-h-small", 32, 9),
        ("granite-4.0-h-tiny", 7, None),
        ("granite-4.0-h-micro", 3.2, None),
        ("bamba-9b", 9.78, None),
        ("gemma-4-26b-a4b", 25.2, 3.8),
        ("gemma-4-31b", 30.7, None),
        ("gemma-4-e4b", 7.5, None),
        ("llama-3.3-nemotron-super-49b", 49.9, None),
        ("command-a", 111, None),
        ("apertus-70b", 70.6, None),
        ("exaone-4.0-1.2b", 1.28, None),
        ("mamba2-2.7b", 2.7, None),
        ("nemotron-3-super-120b-a12b", 120.6, 12.7),
        ("nemotron-3-ultra-550b-a55b", 550, 55),
        ("qwen3.5-9b", 8.95, None),
        ("gemma-4-12b", 11.9, None),
        ("mistral-small-4", 119, 6.5),
        ("internlm-7b", 7.32, None),
        ("internlm-20b", 20.1, None),
        ("telechat2-35b", 35.4, None),
        ("powerlm-3b", 3.5, None),
        ("granite-3.0-3b-a800m", 3.3, None),
        ("santacoder", 1.12, None),
        ("starcoderbase-3b", 3.04, None),
        ("olmo-2-1b", 1.48, None),
        ("deepseek-coder-1.3b", 1.35, None),
    ],
)
def test_published_sizes(name: str, total: float, active: float | None) -> None:
    graph = load(name).graph
    assert graph.params == pytest.approx(total * 1e9, rel=0.012)
    assert active is None or graph.active_params == pytest.approx(active * 1e9, rel=0.03)


def test_a_checkpoint_by_its_number_format_is_the_model() -> None:
    for ending in (
        "-FP8", "-Instruct-FP8", "-NVFP4", "-AWQ", "-Instruct-GPTQ-Int4", "-Instruct-quantized.w4a16", "-FP8-KV",
        "-Instruct-FP8-dynamic", "-bnb-4bit", "-Instruct-NVFP4-v2", "-it-qat-q4_0-gguf", "-Instruct-2507",
    ):  # fmt: skip
        assert find(f"org/Llama-3.1-70B{ending}") == "llama-3.1-70b", ending
    assert find("c4ai-command-r-08-2024") is None  # another model than command-r: it groups its heads


@pytest.mark.parametrize(
    ("text", "positions"),
    [
        ("moonshotai/Kimi-K2-Instruct", 131_072),
        ("moonshotai/Kimi-K2-Thinking", 262_144),
        ("moonshotai/Kimi-K2.5", 262_144),
        ("Qwen/Qwen3-30B-A3B", 40_960),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", 262_144),
        ("Qwen/Qwen3-4B-Thinking-2507", 262_144),
        ("zai-org/GLM-4.5", 131_072),
        ("zai-org/GLM-4.6", 202_752),
        ("microsoft/Phi-3.5-mini-instruct", 131_072),
        ("Qwen/Qwen3-VL-8B-Instruct", 262_144),
        ("Qwen/Qwen2.5-14B-Instruct-1M", 1_010_000),
        ("mistralai/Mistral-Small-3.2-24B-Instruct-2506", 131_072),
    ],
)
def test_later_releases_reach_as_far_as_their_cards_say(text: str, positions: int) -> None:
    assert load(text).max_positions == positions


def test_weights_of_a_checkpoint_of_four_bits_by_hand() -> None:
    """Kimi-K2-Thinking's files hold 594 GB, its routed experts in 4 bits: 384 x 60 x 3 x 7168 x 2048 = 1.01e12 of
    1.03e12 weights, each 0.56 bytes with its share of a scale."""
    model = load("kimi-k2-thinking")
    assert model.graph.params == load("kimi-k2").graph.params
    assert model.graph.params * (0.5 + 2 / 32) == pytest.approx(594e9, rel=0.06)
