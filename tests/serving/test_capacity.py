"""Memory of served models by hand, and engines that will not start."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.cost.machine import machine
from ridgeline.errors import NoPlanError, PlanError
from ridgeline.facts.clusters import cluster
from ridgeline.graph.load import load
from ridgeline.graph.model import Model
from ridgeline.lower.inference import serve
from ridgeline.plan.deployment import Deployment, EngineOptions
from ridgeline.scenario.serving_words import deployed
from ridgeline.seams.serving import all_devices
from ridgeline.serving.capacity import Capacity, token_bytes, weights_bytes, workspace_bytes
from ridgeline.serving.engine import Engine, engine, formats_of

LLAMA, LARGE, DEEPSEEK = load("llama-3.1-8b"), load("llama-3.1-70b"), load("deepseek-v3")
MIXTRAL = load("mixtral-8x7b")
ONE, EIGHT = machine(cluster("1xH100-SXM")), machine(cluster("8xH100-SXM"))


def weights(model: Model, deployment: Deployment) -> float:
    return weights_bytes(model, serve(model, deployment), deployment, formats_of(deployment))


def cache(model: Model, deployment: Deployment) -> tuple[float, float]:
    return token_bytes(serve(model, deployment).kinds, formats_of(deployment))


def on_eight(model: Model, **choices: object) -> Engine:
    return engine(model, EIGHT, deployed(**choices))  # type: ignore[arg-type]


def test_weights_of_llama_by_hand() -> None:
    """32 layers of q, k, v, out and three matrices of 14336, table and head of 128256; norms are not counted."""
    layer = 4096 * (4096 + 2 * 1024) + 4096 * 4096 + 3 * 4096 * 14336
    whole = 2 * (32 * layer + 2 * 128256 * 4096)
    assert weights(LLAMA, deployed()) == whole
    assert whole == pytest.approx(16.06e9, rel=1e-4)
    assert whole == pytest.approx(2 * LLAMA.graph.params, rel=1e-4)
    assert weights(LLAMA, deployed(tp=2)) == whole / 2
    assert weights(LLAMA, deployed(pp=2)) == 2 * (16 * layer + 128256 * 4096)  # half the layers and one of the ends


def test_weights_in_narrower_formats() -> None:
    """fp8 layers of one byte; table and head stay at two."""
    ends = 2 * 2 * 128256 * 4096
    whole = weights(LLAMA, deployed())
    assert weights(LLAMA, deployed(weights="fp8")) == pytest.approx(ends + (whole - ends) / 2, rel=1e-3)


@pytest.mark.parametrize(("tp", "expected"), [(1, 131072), (2, 65536), (8, 16384), (16, 16384)])
def test_cache_of_a_llama_token(tp: int, expected: int) -> None:
    """Keys and values of 8 heads of 128 in 32 layers, 2 bytes each; one head a device at least."""
    assert cache(LLAMA, deployed(tp=tp)) == (expected, 0.0)


def test_a_cache_of_eight_bits_is_half() -> None:
    assert cache(LLAMA, deployed(kv="fp8"))[0] == 65536


@pytest.mark.parametrize("tp", [1, 2, 8, 16])
def test_cache_of_a_deepseek_token_is_latent_on_every_rank(tp: int) -> None:
    assert cache(DEEPSEEK, deployed(tp=tp)) == (576 * 2 * 61, 0.0)


def test_windowed_layers_hold_their_window_once() -> None:
    """Gemma 3 27B: 10 layers see everything, 52 a window of 1024; 16 kv heads of 128."""
    layer = 2 * 16 * 128 * 2
    assert cache(load("gemma-3-27b"), deployed()) == (10 * layer, 52 * layer * 1024)


def test_chunked_layers_hold_whole_sequences() -> None:
    """Llama 4 Scout: queries of 36 of 48 layers see chunks of 8192; all are paged alike, 8 kv heads of 128."""
    assert cache(load("llama-4-scout"), deployed()) == (48 * 2 * 8 * 128 * 2, 0.0)


def test_a_large_model_does_not_start_on_one_device() -> None:
    with pytest.raises(NoPlanError) as caught:
        _ = engine(LARGE, ONE, deployed()).capacity
    words = str(caught.value)
    assert "llama-3.1-70b will not start on 1xH100-SXM" in words
    assert "131.4 GiB" in words  # 70.55e9 parameters of 2 bytes
    assert "of 79.18 GiB a device" in words
    assert "tp, pp" in words


def test_it_starts_on_four_or_in_four_bits() -> None:
    assert on_eight(LARGE, tp=4).capacity.cache_tokens > 0
    assert engine(LARGE, ONE, deployed(weights="int4_wo")).capacity.cache_tokens > 0


TABLES = on_eight(LLAMA).tables(longest_prompt=100, longest=200)


def parts(found: Capacity, fraction: float) -> float:
    """What the parts of a device's memory come to, as a share of what may be filled [1]."""
    used = found.weights_bytes + found.workspace_bytes + found.context_bytes + found.state_bytes + found.cache_bytes
    return used / (found.memory_bytes * fraction)


@pytest.mark.parametrize("tp", [1, 2, 8])
def test_the_parts_of_memory_come_to_the_fraction(tp: int) -> None:
    found = on_eight(LLAMA, tp=tp, memory_fraction=0.8).capacity
    assert parts(found, 0.8) == pytest.approx(1.0)
    assert found.cache_tokens == int(found.cache_bytes / found.token_bytes)
    assert found.token_bytes == 131072 / tp


@given(low=st.floats(0.3, 0.9), more=st.floats(0.01, 0.1))
def test_a_larger_fraction_never_holds_less(low: float, more: float) -> None:
    small, large = (on_eight(LLAMA, memory_fraction=share).capacity.cache_tokens for share in (low, low + more))
    assert large > small


def test_a_stated_fraction_wins_over_what_an_engine_reserves() -> None:
    where, model = machine(cluster("1xH100-SXM")), load("llama-3.1-8b")
    half = EngineOptions(memory_fraction=0.5)
    held = engine(model, where, Deployment(engine="sglang", version="0.5.9", options=half), offline=True).capacity
    assert held.weights_bytes + held.cache_bytes == pytest.approx(0.5 * held.memory_bytes)
    usual = engine(model, where, Deployment(engine="sglang", version="0.5.9"), offline=True).capacity
    assert usual.cache_bytes > 1.5 * held.cache_bytes  # all but what it reserves


def test_a_longer_iteration_leaves_less_for_the_cache() -> None:
    tokens = [on_eight(LLAMA, token_budget=budget).capacity.cache_tokens for budget in (2048, 8192, 32768)]
    assert tokens == sorted(tokens, reverse=True)
    assert tokens[0] > tokens[-1]


def test_buffers_of_an_engine_that_says_what_it_holds_by_hand() -> None:
    """FasterTransformer: 5 widths of every token of all prompts and 12 that the devices divide, 2 bytes each.

    For each of 1024 sequences 40 bytes a word of the vocabulary; scores of prompts of 500 tokens, by 32 heads that the
    devices divide, 6 bytes each.
    """
    one = engine(LLAMA, ONE, deployed(engine="FasterTransformer"))
    two = engine(LLAMA, machine(cluster("2xH100-SXM")), deployed(engine="FasterTransformer", tp=2))
    sizes = [workspace_bytes(LLAMA, each.steps.served, each.deployment, each.policy, 10_000) for each in (one, two)]
    logits = 1024 * LLAMA.graph.vocab * 40.0
    assert sizes == [10_000 * 4096 * 2 * 17.0 + logits, 10_000 * 4096 * 2 * 11.0 + logits]
    scored = [
        workspace_bytes(LLAMA, each.steps.served, each.deployment, each.policy, 10_000, 500.0) for each in (one, two)
    ]
    assert [more - less for more, less in zip(scored, sizes, strict=True)] == [
        10_000 * 500 * heads * 6.0 for heads in (32, 16)
    ]


def test_a_head_of_its_own_is_held_beside_a_tied_embedding() -> None:
    tied = load("gpt2")
    deployment = deployed(engine="FasterTransformer")
    formats = formats_of(deployment)
    served = serve(tied, deployment)
    shared, own = (weights_bytes(tied, served, deployment, formats, own_head=said) for said in (False, True))
    assert own - shared == 50257 * 768 * 2


def test_a_cache_known_from_a_run_is_taken_as_it_is() -> None:
    assert on_eight(LLAMA, tp=2, cache_tokens=123_456).capacity.cache_tokens == 123_456
    assert on_eight(LLAMA, pp=2, cache_tokens=123_456).capacity.cache_tokens == 123_456


def test_the_rule_counts_blocks_of_one_attention_rank() -> None:
    found = on_eight(LLAMA, tp=2, cache_tokens=1000)
    rule = found.rule(found.tables(longest_prompt=100, longest=200))
    assert int(rule["capacity"]) == 1000 // found.policy.block_tokens
    ranks = on_eight(MIXTRAL, tp=2, dp=4, ep=8)
    assert int(ranks.rule(ranks.tables(longest_prompt=100, longest=200))["ranks"]) == 4


@pytest.mark.parametrize("name", ["SGLang", "vLLM"])
@given(drafts=st.integers(0, 8), acceptance=st.floats(0, 1))
@settings(max_examples=30, deadline=None)
def test_drafted_tokens_have_blocks(name: str, drafts: int, acceptance: float) -> None:
    """Blocks taken every period hold at least what is gained in it."""
    found = on_eight(LLAMA, engine=name, draft_tokens=drafts, acceptance=acceptance)
    rule = found.rule(TABLES)
    assert rule["growth_blocks"] * rule["block_tokens"] >= rule["gained"] * rule["period"]
    if drafts == 0:
        assert (rule["period"], rule["growth_blocks"]) == (rule["block_tokens"], 1)


@pytest.mark.parametrize(
    "deployment", [deployed(tp=8), deployed(tp=8, ep=8), deployed(dp=8, ep=8), deployed(tp=2, dp=4, ep=8)]
)
def test_devices_together_hold_every_expert_once(deployment: Deployment) -> None:
    """Mixtral: 45.1e9 of its 46.7e9 parameters are experts; with dp the rest is repeated."""
    whole = 2.0 * MIXTRAL.graph.params
    held = all_devices(deployment) * weights(MIXTRAL, deployment)
    rest = whole - 2.0 * 32 * 8 * 3 * 4096 * 14336
    assert held == pytest.approx(whole + (deployment.dp - 1) * rest, rel=2e-3)


def test_an_instance_larger_than_the_cluster_is_refused() -> None:
    with pytest.raises(PlanError, match="= 16 devices, the cluster has 8"):
        engine(LLAMA, EIGHT, deployed(tp=8, pp=2))


def test_memory_of_static_and_free_engines() -> None:
    """SGLang's fraction holds weights and cache; TensorRT-LLM's is of what weights and workspace leave."""
    found = on_eight(LLAMA)
    static = replace(found, policy=replace(found.policy, memory_of="static", memory_fraction=0.5))
    part = static.capacity
    assert part.cache_bytes == part.memory_bytes * 0.5 - part.weights_bytes
    free = replace(found, policy=replace(found.policy, memory_of="free", memory_fraction=0.5)).capacity
    rest = free.memory_bytes - free.weights_bytes - free.workspace_bytes - free.context_bytes
    assert free.cache_bytes == rest / 2


def test_a_head_is_held_as_the_whole_file_that_part_of_a_checkpoint_is() -> None:
    """llama.cpp's gpt-oss: experts in mxfp4, the rest, head included, in q8_0."""
    assert formats_of(deployed(weights="w4a16_mxfp4", other_weights="q8_0")).plain == "q8_0"
    assert formats_of(deployed(weights="w4a16_mxfp4")).plain == "bf16"
    assert formats_of(deployed(weights="q4_k")).plain == "q4_k"
