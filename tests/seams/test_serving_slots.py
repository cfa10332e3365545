"""Which techniques, degrees and options of serving go together: what their slots derive, against a list by hand."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest

from ridgeline.cost.machine import machine
from ridgeline.errors import PlanError
from ridgeline.facts.clusters import cluster
from ridgeline.graph.load import load
from ridgeline.plan.deployment import Role
from ridgeline.scenario.serving import serving_from_words
from ridgeline.scenario.serving_words import deployed, replaced, said
from ridgeline.seams.serving import Placement, all_devices, expert_devices, instance_devices, of
from ridgeline.serving.engine import engine

WORDS: dict[str, dict[str, Any]] = {
    "nano_tokens": {"nano_tokens": 512},
    "two_batch_overlap": {"two_batch_overlap": True},
    "draft_tokens": {"draft_tokens": 2, "acceptance": 0.5},
    "draft_tree": {"draft_tree": (2,), "acceptance": 0.5, "next_acceptance": (0.1,)},
    "adapters": {"adapters": 4},
    "kv_kept": {"kv_kept": 64},
    "kv_fetched": {"kv_fetched": 64},
    "split": {"split": True},
    "expert_devices": {"expert_devices": 2},
    "kv_ranks": {"kv_ranks": 2, "tp": 2},
    "tokens_stay": {"tokens_stay": True, "dp": 2, "ep": 2},
    "borrows": {"borrows": True},
    "elastic_tokens": {"elastic_tokens": 64},
    "beam_width": {"beam_width": 2},
    "priority_period": {"displaces": True, "priority_period": 8},
    "displaces": {"displaces": True},
    "receive_interval": {"receive_interval": 2},
    "prefix_cache": {"prefix_cache": True},
    "prefill pool": {"role": Role.PREFILL},
    "decode pool": {"role": Role.DECODE},
    "swap": {"preemption": "swap"},
    "pp": {"pp": 2},
    "dp": {"dp": 2},
    "ep": {"tp": 2, "ep": 2},
    "fresh_kernels": {"fresh_kernels": True},
    "fair": {"queue": "fair"},
    "shortest": {"queue": "shortest"},
    "expert_redundant": {"expert_redundant": 2},
}
REFUSED = {
    "nano_tokens": (
        "adapters beam_width borrows draft_tokens draft_tree elastic_tokens expert_devices kv_fetched kv_kept "
        "kv_ranks pp split tokens_stay "
    ),
    "two_batch_overlap": (
        "adapters beam_width borrows draft_tokens draft_tree elastic_tokens expert_devices kv_fetched kv_kept "
        "kv_ranks pp split tokens_stay "
    ),
    "draft_tokens": "draft_tree beam_width borrows elastic_tokens expert_devices kv_fetched split tokens_stay",
    "draft_tree": "beam_width borrows elastic_tokens expert_devices kv_fetched split tokens_stay",
    "adapters": "borrows expert_devices split tokens_stay",
    "kv_kept": (
        "beam_width borrows decode_pool elastic_tokens expert_devices kv_ranks prefill_pool prefix_cache "
        "split swap tokens_stay "
    ),
    "kv_fetched": (
        "beam_width borrows decode_pool elastic_tokens expert_devices kv_ranks pp prefill_pool prefix_cache "
        "split swap tokens_stay "
    ),
    "split": (
        "beam_width borrows decode_pool displaces dp elastic_tokens expert_devices fresh_kernels kv_ranks pp "
        "prefill_pool priority_period receive_interval swap tokens_stay "
    ),
    "expert_devices": "beam_width borrows elastic_tokens ep pp tokens_stay",
    "kv_ranks": "borrows elastic_tokens tokens_stay",
    "tokens_stay": "borrows decode_pool elastic_tokens ep expert_redundant pp prefill_pool swap",
    "borrows": (
        "beam_width decode_pool displaces dp elastic_tokens pp prefill_pool prefix_cache priority_period "
        "receive_interval swap "
    ),
    "elastic_tokens": "beam_width decode_pool dp pp prefill_pool prefix_cache receive_interval",
    "beam_width": "decode_pool prefill_pool",
    "priority_period": "fair shortest",
}
"""Those that each is not modelled with, of those after it in the list above."""


def combined(one: str, other: str) -> dict[str, Any] | None:
    """The words of both; None where they say different things of one."""
    first, second = WORDS[one], WORDS[other]
    alike = all(second.get(name, value) == value for name, value in first.items())
    return {**first, **second} if alike else None


@pytest.mark.parametrize(("one", "other"), [pair for pair in combinations(WORDS, 2) if combined(*pair) is not None])
def test_what_is_not_modelled_together_is_refused_and_all_else_is_not(one: str, other: str) -> None:
    words = combined(one, other)
    assert words is not None
    if other.replace(" ", "_") in REFUSED.get(one, "").split():
        with pytest.raises(PlanError, match="deployment: "):
            deployed(**words)
    else:
        deployed(**words)


MEANT = {
    "draft-chain(acceptance=0.5,tokens=2)": {"draft_tokens": 2, "acceptance": 0.5},
    "draft-tree(acceptance=0.5,widths=2/1,next_acceptance=0.1)": {
        "draft_tree": (2, 1),
        "acceptance": 0.5,
        "next_acceptance": (0.1,),
    },
    "draft-tree(widths=1,next_acceptance=)": {"draft_tree": (1,), "acceptance": 0.6, "next_acceptance": ()},
    "recompute": {"preemption": "recompute"},
    "swap(blocks=16)": {"preemption": "swap", "swap_blocks": 16},
    "lora-adapters(count=4,rank=8)": {"adapters": 4, "adapter_rank": 8},
    "divided-device(share=0.5)": {"split": True, "split_share": 0.5},
    "nano-batches(tokens=512)": {"nano_tokens": 512},
    "two-batch-overlap": {"two_batch_overlap": True},
    "two-batch-overlap(tokens=64)": {"two_batch_overlap": True, "nano_tokens": 64},
    "remote-kv(lend_share=0.25)": {"borrows": True, "lend_share": 0.25},
    "elastic-sequence-parallel(tokens=64)": {"elastic_tokens": 64},
    "beam-search(width=2)": {"beam_width": 2},
    "priority-preemption(period=8)": {"displaces": True, "priority_period": 8},
    "scheduler-polling(interval=3,hold=all)": {"receive_interval": 3, "hold": "all"},
    "lora-adapters": {"adapters": 8},
    "divided-device": {"split": True},
    "remote-kv": {"borrows": True},
    "beam-search": {"beam_width": 4},
    "priority-preemption": {"displaces": True},
    "scheduler-polling": {"receive_interval": 2},
    "elastic-sequence-parallel": {"elastic_tokens": 16_384},
    "nano-batches": {"nano_tokens": 2048},
    "attention-ffn-disaggregation(devices=2,micro_batches=4)": {"expert_devices": 2, "micro_batches": 4},
    "expert-placement(redundant=2)": {"expert_redundant": 2},
}


@pytest.mark.parametrize("text", MEANT)
def test_words_mean_techniques_and_are_told_back(text: str) -> None:
    one = deployed(**MEANT[text])
    assert one == deployed(technique=(text,))
    assert {name: said(one)[name] for name in MEANT[text]} == MEANT[text]


@pytest.mark.parametrize(
    "words",
    [
        {"beam_width": 1},
        {"adapters": 0},
        {"receive_interval": 1},
        {"split": False},
        {"draft_tokens": 0, "acceptance": 0.5},
        {"draft_tree": ()},
        {"expert_redundant": 0},
        {"tokens_stay": False},
    ],
)
def test_words_that_leave_a_technique_out_apply_none(words: dict[str, Any]) -> None:
    assert deployed(**words).technique == ()


@pytest.mark.parametrize("imbalance", [1.0, 1.2345678901234567, 1.9999999999999998])
def test_what_placing_experts_finds_is_kept_to_the_last_bit(imbalance: float) -> None:
    one = replaced(deployed(tp=2, ep=2, expert_redundant=2), expert_imbalance=imbalance)
    assert (of(one, Placement).imbalance, of(one, Placement).redundant) == (imbalance, 2)
    with pytest.raises(PlanError, match="of 2 ranks; needs 1 to the ranks"):
        replaced(one, expert_imbalance=2.5)


def test_what_is_said_of_experts_alone_leaves_the_other_pool_as_it_is() -> None:
    """Micro-batches go between attention's devices and the experts', which prompts' pool has not."""
    plan = {"prefill": "1xdp2,ep2", "decode": "1xdp2,experts2", "micro_batches": 2}
    words = {"model": {"name": "mixtral-8x7b"}, "cluster": {"name": "8xH100-SXM"}, "plan": plan}
    prompts, steps = serving_from_words(words).deployments
    assert (prompts.technique, expert_devices(prompts), instance_devices(prompts)) == ((), 0, 2)
    assert steps.technique == ("attention-ffn-disaggregation(devices=2,micro_batches=2)",)
    assert instance_devices(steps) == all_devices(steps) == 4


def test_an_option_is_found_again_by_its_word_and_wins_over_the_policy() -> None:
    one = replaced(deployed(engine="vllm", version="0.3", token_budget=4096, chunked=True), max_seqs=7)
    assert (one.options.token_budget, one.options.max_seqs, one.said["chunked"]) == (4096, 7, True)
    model, where = load("llama-3.1-8b"), machine(cluster("1xH100-SXM"))
    ways = [{}, {"mixed": False}, {"chunked": False}]
    policies = [engine(model, where, replaced(one, **words)).policy for words in ways]
    assert [policy.scheduler for policy in policies] == ["mixed", "prefill-first", "prefill-first"]
    assert {(policy.token_budget, policy.max_seqs) for policy in policies} == {(4096, 7)}


def test_tokens_that_stay_are_expert_affinity_whatever_its_placement() -> None:
    words: dict[str, Any] = {"dp": 2, "ep": 2, "tokens_stay": True}
    assert deployed(**words).technique == ("expert-affinity",)
    one = replaced(deployed(**words), expert_imbalance=1.5, expert_inside=0.25, expert_between=None)
    assert one.technique == ("expert-affinity(imbalance=1.5,rows_inside=0.25)",)
    assert of(one, Placement).rows == (0.25, None)
    assert replaced(one, tokens_stay=False).technique == ()
