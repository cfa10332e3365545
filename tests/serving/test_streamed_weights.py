"""Weights that stream from host memory by hand: what each side does, what fits, and the bound of a full cache."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from ridgeline.cost.machine import machine
from ridgeline.cost.seconds import Seconds, nothing
from ridgeline.errors import NoPlanError, PlanError
from ridgeline.facts.clusters import cluster
from ridgeline.graph.load import load
from ridgeline.lower.pieces import Experts
from ridgeline.scenario.serving_words import deployed
from ridgeline.seams.host_experts import HostedCache
from ridgeline.seams.registry import technique
from ridgeline.serving.engine import Engine, engine
from ridgeline.serving.host_experts import hosted_cache
from ridgeline.serving.metrics import decode_parts
from ridgeline.serving.replay import Replay, replay_tables
from ridgeline.serving.step import StepTables
from ridgeline.serving.traffic.arrivals import burst
from ridgeline.serving.traffic.asked import synthetic
from ridgeline.serving.traffic.lengths import Fixed
from ridgeline.techniques.host_experts.moe_gen import best_share

LINK = 2.0 * 16e9  # no more than PCIe 4.0 x16 has
HOST = "dram_gb=512,cores=28,memory_gbs=204.8"
TOKEN_BYTES = 32 * 8 * 2 * 128 * 2.0  # of Mixtral-8x7B's cache: layers, heads, keys and values, width, 16 bits


@cache
def served(text: str, **words: Any) -> tuple[Engine, StepTables]:
    one = engine(
        load("mixtral-8x7b"), machine(cluster("1xRTX-A5000")),
        deployed(technique=(text,), **{"max_seqs": 512, "token_budget": 4096, **words}),
    )  # fmt: skip
    return one, one.tables(longest_prompt=512, longest=1024)


def test_the_best_share_lies_where_two_sides_meet() -> None:
    """At 0.8 of 6 s the processors take 4.8 s, as the link does for 4 s of weights and 0.2 of 4 s of cache."""
    assert best_share(HostedCache(weights_s=4.0, link_s=4.0, host_s=6.0, device_s=1.0)) == pytest.approx(0.8)
    assert best_share(HostedCache(weights_s=9.0, link_s=4.0, host_s=6.0, device_s=1.0)) == 1.0  # all, in less than 9 s
    assert best_share(HostedCache(weights_s=0.0, link_s=1.0, host_s=3.0, device_s=9.0)) == pytest.approx(0.75)
    assert best_share(HostedCache(weights_s=0.0, link_s=1.0, host_s=30.0, device_s=0.0)) == pytest.approx(1.0 / 31.0)


@pytest.mark.parametrize("seed", range(20))
def test_no_share_is_better_than_the_best(seed: int) -> None:
    draw = np.random.default_rng(seed)
    full = HostedCache(
        **dict(zip(("weights_s", "link_s", "host_s", "device_s"), draw.exponential(1.0, 4), strict=True))
    )

    def longest(share: Any) -> Any:
        left = 1.0 - share
        sides = (share * full.host_s, full.weights_s + left * full.link_s, left * full.device_s)
        return np.max(np.broadcast_arrays(*sides), axis=0)

    every = longest(np.linspace(0.0, 1.0, 10_001))
    assert every.min() - 1e-3 <= longest(best_share(full)) <= every.min() + 1e-12


class Priced:
    """Products of 1 s a call and 1e-3 s a row, passes of nothing."""

    skew = 0.0

    def product(self, piece: Any, rows: Any) -> Seconds:
        each = piece.count * (1.0 + 1e-3 * rows)
        return Seconds(mid=each, low=each, high=each, compute=each, memory=0.0 * each)

    def stream(self, piece: Any, rows: Any) -> Seconds:
        return nothing(np.shape(rows))


def test_experts_are_products_of_their_own_in_batches_of_rows() -> None:
    """8 experts, 2 of each token, 16,384 tokens: 4,096 rows each, in two batches of 2,048: 3 x 3.048 s, 16 times."""
    piece = Experts(hidden=64, inner=128.0, top_k=2, count=8, ranks=1, gated=True)
    made = technique("host_experts", "moe-gen")
    found = made.computed(piece, Priced(), np.array([1.0, 16_384.0])).mid
    assert found[1] == pytest.approx(16.0 * 3.0 * 3.048)
    assert found[0] == pytest.approx(2.0 * 3.0 * 1.001)  # one token: two experts of one row


def test_weights_cross_once_and_caches_lie_in_host_memory() -> None:
    """Of Mixtral's 46.7e9 numbers all but 2 x 131e6 of embedding and head cross; 512 GB hold caches beside them."""
    one, _ = served(f"moe-gen({HOST})")
    layers = 2.0 * (46.7e9 - 2 * 32_000 * 4096)
    full = hosted_cache(one)
    assert one.capacity.weights_bytes == pytest.approx(4.0 * 32_000 * 4096, rel=0.01)
    assert layers / LINK < full.weights_s < 1.3 * layers / LINK
    assert one.capacity.cache_tokens == pytest.approx((512e9 - layers) / TOKEN_BYTES, rel=0.001)
    assert full.link_s / full.weights_s == pytest.approx((512e9 - layers) / layers, rel=0.001)
    assert full.host_s == pytest.approx((512e9 - layers) / (204.8e9 * 0.78 * 0.85), rel=0.001)


@pytest.mark.parametrize(("share", "bound"), [(0.0, "link"), (1.0, "weights")])
def test_an_iteration_is_as_long_as_its_busiest_side(share: float, bound: str) -> None:
    """400 sequences of 800 tokens: 42 GB that cross beside 93 GB, or that the processors read meanwhile."""
    one, tables = served(f"moe-gen({HOST},processors_attend={share})")
    full, found = hosted_cache(one), sum(decode_parts(one, tables, 400.0, 800.0).values())
    part = 400.0 * 800.0 / one.capacity.cache_tokens
    asked = full.weights_s + (part * full.link_s if bound == "link" else 0.0)
    assert found == pytest.approx(asked, rel=0.01)
    told = one.rule(tables)
    assert float(told["attention_link"]) * full.host_s == pytest.approx((1.0 - share) * full.link_s)
    assert float(told["memory_sms"]) * full.host_s == pytest.approx((1.0 - share) * full.device_s)


def pipelined_s(device: float, processors: float, link: float, layers: int, rounds: int) -> float:
    """An iteration by events: two halves go from device to processors layer by layer, weights into one of two buffers.

    The weights of a layer begin to cross when those before have and both halves have left the layer two before.
    """
    free = {"device": 0.0, "processors": 0.0, "link": 0.0}
    ready = [0.0, 0.0]  # each half
    left = [0.0] * (layers * rounds + 2)  # when both halves have left the layer two before
    for layer in range(layers * rounds):
        arrived = max(free["link"], left[layer]) + link / layers
        free["link"] = arrived
        for half in range(2):
            computed = max(ready[half], free["device"], arrived) + device / layers / 2.0
            ready[half] = max(computed, free["processors"]) + processors / layers / 2.0
            free["device"], free["processors"] = computed, ready[half]
        left[layer + 2] = free["device"]
    return max(ready) / rounds


@pytest.mark.parametrize(
    "sides", [(1.0, 3.0, 4.0), (4.0, 3.0, 1.0), (1.0, 4.0, 2.0), (3.0, 3.0, 3.0), (2.0, 0.0, 2.0), (0.1, 1.0, 5.0)]
)
def test_a_pipeline_of_layers_is_as_long_as_its_busiest_side(sides: tuple[float, float, float]) -> None:
    """Never less; three sides that are alike lose a twentieth in 56 layers."""
    found = pipelined_s(*sides, layers=56, rounds=4)
    assert max(sides) <= found <= 1.05 * max(sides)


def replayed(text: str, count: int, prompt: int, output: int, **words: Any) -> tuple[Engine, Replay]:
    one, tables = served(text, **words)
    return one, replay_tables([one], [tables], synthetic(burst(count), Fixed(tokens=prompt), Fixed(tokens=output)))


def test_a_replay_keeps_to_the_bound_of_its_cache() -> None:
    """1 GB holds 7,629 tokens: 271 tokens an iteration of requests of 100 and 32, by the first stage of the model."""
    one, found = replayed(f"moe-lens({HOST},cache_gb=1)", 1000, 100, 32)
    assert one.capacity.cache_tokens == int(1e9 / TOKEN_BYTES)
    weights_s = hosted_cache(one).weights_s
    held = 32.0 * 100.0 + 32.0**2 / 2.0  # tokens of cache of a request, added up over its iterations
    bound = one.capacity.cache_tokens * (100.0 + 32.0) / held / weights_s
    assert bound * weights_s == pytest.approx(271.3, abs=0.1)
    reached = float((found.prompt.sum() + found.output.sum()) / found.span_s)
    assert 0.75 * bound < reached <= bound


def test_more_cache_is_more_throughput_until_the_device_is_full() -> None:
    rates = []
    for size in (1, 2, 4):
        _, found = replayed(f"moe-lens({HOST},cache_gb={size})", 600, 100, 32)
        rates.append(float(found.output.sum() / found.span_s))
    assert rates[0] * 1.5 < rates[1] < rates[2] * 0.9


def test_modules_in_batches_hold_less_on_the_device() -> None:
    """Rows of 4,096 tokens at the widest product, or of 1,024."""
    wide, _ = served(f"moe-gen({HOST})")
    narrow, _ = served(f"moe-gen({HOST},module_tokens=1024)")
    assert narrow.capacity.workspace_bytes < 0.5 * wide.capacity.workspace_bytes


def test_iterations_of_many_batches_take_as_many_times_one() -> None:
    _, tables = served(f"moe-gen({HOST},module_tokens=1024)")
    assert tables.nano is not None
    device = tables.nano.compute.mid[0] + tables.nano.compute.mid[2]
    assert np.interp(4096.0, tables.tokens, device) == pytest.approx(4.0 * np.interp(1024.0, tables.tokens, device))


def test_padded_batches_hold_less_and_run_one_after_the_other() -> None:
    """4 GB hold 30,517 tokens, padded threefold 10,172: 70 requests of 9 blocks, so 599 of them are 9 batches."""
    whole, found = replayed(f"moe-lightning({HOST},cache_gb=4)", 600, 100, 32, token_budget=16_384)
    padded, more = replayed(f"moe-lightning({HOST},cache_gb=4,padding=3)", 600, 100, 32, token_budget=16_384)
    assert padded.capacity.cache_tokens == int(4e9 / 3 / TOKEN_BYTES) == whole.capacity.cache_tokens // 3
    batches = np.unique(np.round(more.end_s, 6)).size
    fits = padded.capacity.cache_tokens // 16 // -(-132 // 16)  # blocks of 16 tokens
    assert batches == 1 + -(-599 // fits)  # the first to come is alone
    assert more.preemptions == 0
    assert found.span_s < more.span_s
    assert more.output.sum() == 600 * 32
    mixed = replayed(f"moe-lens({HOST},cache_gb=4)", 600, 100, 32)[1]
    assert mixed.span_s < more.span_s


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(NoPlanError, match="of weights do not fit in"):
        served("moe-gen(dram_gb=64)")
    with pytest.raises(NoPlanError, match="layers that are streamed arrive in"):
        _ = served(f"moe-lens({HOST},share=0.22)")[0].capacity
    with pytest.raises(PlanError, match="tp 2"):
        deployed(tp=2, technique=("moe-lens",))


def test_iterations_take_prompts_until_the_device_is_as_busy_as_the_link() -> None:
    one, tables = served(f"moe-lens({HOST})", token_budget=16_384)
    budget = float(one.rule(tables)["token_budget"])
    device = np.interp(budget, tables.tokens, tables.lane.mid + tables.experts(prompts=True).mid)
    assert 4096 < budget < 16_384
    assert device == pytest.approx(hosted_cache(one).weights_s, rel=0.05)
