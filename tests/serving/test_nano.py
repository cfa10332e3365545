"""Nano-batches by hand, within their bounds, and on a real model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.cost.machine import machine
from ridgeline.cost.seconds import Seconds
from ridgeline.errors import PlanError
from ridgeline.facts.clusters import cluster
from ridgeline.facts.mechanisms import constant
from ridgeline.graph.load import load
from ridgeline.scenario.serving_words import deployed
from ridgeline.serving.engine import Engine, engine
from ridgeline.serving.metrics import decode_band, decode_parts, prefill_parts
from ridgeline.serving.nano import Overlap, overlapped_s, shares, side_by_side, sorted_out
from ridgeline.serving.replay import Replay, replay_tables
from ridgeline.serving.step import StepTables
from ridgeline.serving.traffic.arrivals import burst
from ridgeline.serving.traffic.asked import synthetic
from ridgeline.serving.traffic.lengths import Fixed

Replays = Callable[..., Replay]
TIMES = st.floats(0.0, 10.0)
LLAMA, EIGHT = load("llama-2-70b"), machine(cluster("8xA100-SXM-80GB"))
DEEPSEEK, SIXTEEN = load("deepseek-v3"), machine(cluster("2x8xH200-SXM"))


def seconds(*values: float, compute: float = 0.0, memory: float = 0.0) -> Seconds:
    mid = np.array(values)
    return Seconds(mid=mid, low=0.5 * mid, high=2.0 * mid, compute=0 * mid + compute, memory=0 * mid + memory)


def tabled(**words: Any) -> tuple[Engine, StepTables]:
    one = engine(LLAMA, EIGHT, deployed(tp=8, token_budget=2048, max_seqs=2048, chunked=True, **words))
    return one, one.tables(longest_prompt=512, longest=1024)


def spread(**words: Any) -> tuple[Engine, StepTables]:
    """DeepSeek-V3 over 16 attention ranks and as many of experts, by DeepEP."""
    one = deployed(engine="SGLang", dp=16, ep=16, weights="fp8_block", max_seqs=256, token_budget=8192, **words)
    made = engine(DEEPSEEK, SIXTEEN, one)
    return made, made.tables(longest_prompt=4096, longest=8192)


# the bound -------------------------------------------------------------------------------------------


def test_each_resource_may_bind() -> None:
    """c = 10 binds with what others hold of the multiprocessors; then memory; then the link; then one half's chain."""
    memory, link = shares()
    assert (memory, link) == (constant("overlap.memory_sms"), pytest.approx(0.1256 / 1.1256))
    assert overlapped_s(10.0, 4.0, 2.0) == pytest.approx(10 + 4 * memory + 2 * link)
    assert overlapped_s(1.0, 9.0, 2.0) == 9.0
    assert overlapped_s(1.0, 2.0, 9.0) == 9.0
    assert overlapped_s(4.0, 0.0, 4.1) == pytest.approx(4.0 + 4.1 * link)
    assert overlapped_s(0.0, 4.0, 4.0) == pytest.approx(4.0)
    assert overlapped_s(3.0, 3.0, 3.0) == pytest.approx(3 + 3 * memory + 3 * link)
    assert overlapped_s(0.1, 4.0, 4.1) == pytest.approx(4.1)
    assert overlapped_s(2.0, 4.0, 4.1) == pytest.approx(0.5 * 10.1)


def test_kernels_of_one_stream_overlap_with_links_alone() -> None:
    """Compute and memory follow each other, 10 + 4, beside a link of 2 or of 20; NanoFlow's overlap too."""
    memory, link = shares(links_only=True)
    one = Overlap(memory_sms=memory, link_sms=link)
    assert overlapped_s(10.0, 4.0, 2.0, overlap=one) == pytest.approx(14 + 2 * link)
    assert overlapped_s(10.0, 4.0, 20.0, overlap=one) == 20.0
    parts = side_by_side(seconds(10.0), seconds(4.0), seconds(2.0), overlap=one)
    assert sum(part.mid[0] for part in parts) == pytest.approx(14 + 2 * link)


@given(compute=TIMES, memory=TIMES, network=TIMES, more=TIMES)
def test_never_less_than_a_resource_nor_more_than_the_sum(
    compute: float, memory: float, network: float, more: float
) -> None:
    found = float(overlapped_s(compute, memory, network))
    assert max(compute, memory, network) <= found <= compute + memory + network + 1e-12
    for grown in (
        (compute + more, memory, network),
        (compute, memory + more, network),
        (compute, memory, network + more),
    ):
        assert found <= float(overlapped_s(*grown))


def test_arrays_are_answered_as_arrays() -> None:
    grid = np.linspace(0, 5, 7)
    one_by_one = [float(overlapped_s(each, 2.0, 1.0)) for each in grid]
    assert overlapped_s(grid, 2.0, 1.0).tolist() == one_by_one


def test_kernels_are_sorted_by_what_they_wait_for() -> None:
    mixed = replace(seconds(1.0, 2.0), compute=np.array([0.9, 0.1]), memory=np.array([0.5, 0.5]))
    compute, memory = sorted_out(mixed)
    assert (compute.mid.tolist(), memory.mid.tolist()) == ([1.0, 0.0], [0.0, 2.0])
    assert (compute.high + memory.high).tolist() == mixed.high.tolist()


def test_shares_of_the_time_add_up_to_it() -> None:
    parts = side_by_side(seconds(10.0), seconds(4.0), seconds(2.0))
    assert sum(part.mid[0] for part in parts) == pytest.approx(float(overlapped_s(10.0, 4.0, 2.0)))
    assert sum(part.high[0] for part in parts) == pytest.approx(float(overlapped_s(20.0, 8.0, 4.0)))
    assert parts[0].mid[0] / parts[1].mid[0] == pytest.approx(2.5)


# a real model ----------------------------------------------------------------------------------------


def test_halves_are_two_iterations_of_half_the_tokens() -> None:
    """Serially, both halves of 512 tokens take twice what 256 tokens take; so do both halves of 64 sequences."""
    _, plain = tabled()
    _, cut = tabled(nano_tokens=2)
    assert cut.nano is not None
    nano = cut.nano
    at, half = (list(plain.tokens).index(size) for size in (512.0, 256.0))
    rank, steps, prompts = nano.compute.mid[:, at] + nano.memory.mid[:, at] + nano.network.mid[:, at]
    assert rank + steps == pytest.approx(2.0 * (plain.lane.mid[half] + plain.group.mid[half]))
    assert steps == prompts
    at, half = (list(plain.sequences).index(size) for size in (64.0, 32.0))
    sampling = nano.head_compute.mid[at] + nano.head_memory.mid[at] + nano.head_network.mid[at]
    assert sampling == pytest.approx(2.0 * plain.head.mid[half])
    assert nano.decode.mid[at] == pytest.approx(2.0 * np.broadcast_to(plain.decode.mid, nano.decode.mid.shape)[half])
    assert np.array_equal(plain.lane.mid, cut.lane.mid)
    assert plain.nano is None


def test_halves_of_many_ranks_bring_half_the_tokens_to_the_experts() -> None:
    """Of 2,048 tokens a rank twice 1,024, with the experts of steps or of prompts."""
    _, plain = spread()
    _, cut = spread(two_batch_overlap=True)
    assert cut.nano is not None
    nano = cut.nano
    at, half = (list(plain.tokens).index(size) for size in (2048.0, 1024.0))
    rank, steps, prompts = nano.compute.mid[:, at] + nano.memory.mid[:, at] + nano.network.mid[:, at]
    for experts, group in ((steps, plain.experts(prompts=False)), (prompts, plain.experts(prompts=True))):
        assert rank + experts == pytest.approx(2.0 * (plain.lane.mid[half] + group.mid[half]), rel=1e-3)
    assert nano.network.mid[0, at] == 0.0  # attention of whole ranks uses no link
    assert nano.network.mid[1, at] != nano.network.mid[2, at] > 0.0


def test_two_batch_overlap_hides_the_exchange_of_long_prompts_and_costs_few_sequences() -> None:
    """4,096 tokens a rank: between the exchange alone and a serial iteration; of 4 sequences weights are read twice."""
    (one, plain), (two, cut) = spread(), spread(two_batch_overlap=True)
    assert cut.nano is not None
    serial, overlapped = sum(prefill_parts(one, plain, 4096.0).values()), prefill_parts(two, cut, 4096.0)
    at = list(cut.tokens).index(4096.0)
    assert cut.nano.network.mid[2, at] < sum(overlapped.values()) < 0.8 * serial
    assert set(overlapped) >= {"compute, overlapped", "links, overlapped"}
    assert sum(decode_parts(two, cut, 4.0, 800.0).values()) > sum(decode_parts(one, plain, 4.0, 800.0).values())


def test_large_iterations_gain_and_weights_read_twice_cost() -> None:
    """2,000 sequences over 8 devices: links hide behind products. Of 16, products wait for weights, read twice."""
    (one, plain), (two, cut) = tabled(), tabled(nano_tokens=2)
    for sequences, gains in ((2000.0, True), (16.0, False)):
        serial = sum(decode_parts(one, plain, sequences, 800.0).values())
        assert (sum(decode_parts(two, cut, sequences, 800.0).values()) < serial) is gains
    assert set(decode_parts(two, cut, 64.0, 800.0)) >= {"compute, overlapped", "links, overlapped"}
    assert "attention" in decode_parts(*tabled(nano_tokens=128), 64.0, 800.0)  # too few tokens to cut
    assert "memory, overlapped" in prefill_parts(two, cut, 512.0)
    band = decode_band(two, cut, 64.0, 800.0)
    assert 0.0 < band.low < 1.0 < band.high


@pytest.mark.parametrize("ranks", [1, 16])
def test_a_replay_takes_what_its_parts_say(ranks: int) -> None:
    """A static batch of equal lengths that decodes: mean gap between the steps at the first and the last context."""
    two, cut = tabled(nano_tokens=2, memory_fraction=0.95) if ranks == 1 else spread(two_batch_overlap=True)
    asked = synthetic(burst(256), Fixed(tokens=4), Fixed(tokens=400))
    found = replay_tables([two], [cut], asked)
    gap = float(np.median((found.end_s - found.first_s) / 399))
    low, high = (sum(decode_parts(two, cut, 256.0 / ranks, context).values()) for context in (5.0, 404.0))
    assert low <= gap <= high


@pytest.mark.parametrize("words", [{"pp": 2}, {"draft_tokens": 1}])
def test_what_is_not_modelled_is_refused(words: dict[str, int]) -> None:
    with pytest.raises(PlanError, match="nano-batches"):
        deployed(nano_tokens=256, **words)  # type: ignore[arg-type]
