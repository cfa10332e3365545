"""Contexts divided over tensor-parallel ranks: who holds what, what ranks send each other, and what a search tries."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.cost.formats import Formats
from ridgeline.cost.machine import machine
from ridgeline.cost.network import collective_seconds
from ridgeline.cost.served import ServedPrices
from ridgeline.errors import PlanError
from ridgeline.facts.clusters import cluster
from ridgeline.graph.load import load
from ridgeline.lower.inference import serve
from ridgeline.lower.pieces import Core
from ridgeline.lower.work import Collective, CollectiveKind, Phase
from ridgeline.scenario.serving_words import deployed
from ridgeline.search.serving_space import ServingSpace, deployments
from ridgeline.serving.engine import Engine, engine
from ridgeline.serving.replay import replay_tables
from ridgeline.serving.traffic.asked import closed_loop
from ridgeline.serving.traffic.lengths import Fixed

LLAMA, DEEPSEEK = load("llama-3.1-8b"), load("deepseek-v3")
NODE = machine(cluster("8xH200"))
TWO = machine(cluster("16xH200"))
LENGTHS = {"longest_prompt": 512, "longest": 65_536}


def made(model: Any = LLAMA, where: Any = TWO, **words: Any) -> Engine:
    return engine(model, where, deployed(**words))


def core_of(one: Engine) -> Core:
    return next(piece for kind in one.steps.served.kinds for piece in kind.pieces if isinstance(piece, Core))


# who holds what --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tp", "ranks", "heads", "kv_heads"),
    [
        (8, 1, 4, 1.0),
        (16, 2, 2, 1.0),  # two ranks held the same head: each holds it for half of the tokens
        (8, 2, 4, 2.0),  # two ranks hold two heads, each for half of the tokens
        (16, 16, 2, 8.0),
    ],
)
def test_ranks_hold_the_heads_of_their_group_for_their_part(tp: int, ranks: int, heads: int, kv_heads: float) -> None:
    (kind,) = serve(LLAMA, deployed(tp=tp, kv_ranks=ranks)).kinds
    (core,) = [piece for piece in kind.pieces if isinstance(piece, Core)]
    assert core == Core(heads=heads, kv_heads=kv_heads, qk_dim=128, v_dim=128, ranks=ranks)
    assert core.token_elements / core.ranks == kv_heads * 256 / ranks


@pytest.mark.parametrize(("ranks", "times"), [(1, 1), (2, 2), (4, 2), (16, 2)])
def test_a_cache_that_ranks_held_in_common_is_held_once(ranks: int, times: int) -> None:
    """8 heads on 16 ranks are held twice; more ranks than copies spare nothing further."""
    one, many = made(tp=16).capacity, made(tp=16, kv_ranks=ranks).capacity
    assert many.token_bytes * times == one.token_bytes
    assert many.cache_tokens == pytest.approx(times * one.cache_tokens, abs=times)
    assert many.weights_bytes == one.weights_bytes


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_latents_are_held_once_by_all_ranks(ranks: int) -> None:
    words: dict[str, Any] = {"tp": 8, "weights": "fp8_block"}
    one, many = (made(DEEPSEEK, NODE, **words, kv_ranks=count).capacity for count in (1, ranks))
    assert one.token_bytes == 61 * 576 * 2
    assert many.token_bytes * ranks == one.token_bytes


def test_a_block_lies_on_every_rank() -> None:
    """Sequences take blocks on all ranks at once; the rank's scheduler sees as many tokens, in larger blocks."""
    one, many = (made(tp=16, kv_ranks=ranks) for ranks in (1, 2))
    first, second = (each.rule(each.tables(**LENGTHS)) for each in (one, many))
    assert second["block_tokens"] == 2 * first["block_tokens"]
    assert second["capacity"] == pytest.approx(first["capacity"], abs=1)


# what they send --------------------------------------------------------------------------------------


def moved_s(kind: CollectiveKind, size: float, ranks: int) -> float:
    work = Collective(name="any", phase=Phase.FORWARD, kind=kind, bytes=np.array(size), ranks=ranks, stride=1)
    return float(collective_seconds(work, TWO))


def test_a_step_sends_queries_and_parts_of_results() -> None:
    """Two heads of 128 on each of two ranks, 64 sequences over 40,000 tokens: half the context for four heads.

    Queries: 64 x 4 x 128 numbers of 2 bytes. Parts: 64 x 4 x (128 x 2 + 4) bytes, which two heads' sums join.
    """
    prices = ServedPrices(TWO, Formats(), engine="vLLM")
    whole = Core(heads=4, kv_heads=1.0, qk_dim=128, v_dim=128)
    divided = Core(heads=2, kv_heads=1.0, qk_dim=128, v_dim=128, ranks=2)
    sequences = np.array([64.0])
    alone = prices.decode(whole, sequences, np.array([20_000.0]))
    found = prices.decode(divided, sequences, np.array([40_000.0]))
    parts = 64.0 * 4 * (128 * 2 + 4)
    links = moved_s(CollectiveKind.ALL_GATHER, 64.0 * 4 * 128 * 2, 2) + moved_s(CollectiveKind.ALL_TO_ALL, parts, 2)
    device = TWO.device
    added = (parts + 64.0 * 2 * 128 * 2) / (device.memory_bytes_per_s * device.stream_share)
    rest = float((found.mid - alone.mid)[0]) - links - added
    assert 0.0 < rest < 10e-6  # launching the sum
    np.testing.assert_allclose(found.compute, alone.compute)


def test_ranks_with_heads_of_their_own_send_new_keys_too() -> None:
    prices = ServedPrices(TWO, Formats(), engine="vLLM")
    sequences, context = np.array([1024.0]), np.array([4096.0])
    same = Core(heads=2, kv_heads=1.0, qk_dim=128, v_dim=128, ranks=2)
    moved = prices.context_parts(same, sequences)
    other = Core(heads=2, kv_heads=2.0, qk_dim=128, v_dim=128, ranks=2)
    more = prices.context_parts(other, sequences)
    sizes = [2.0 * 1024 * (4 * 128 + extra) for extra in (0, 2 * 256)]
    expected = moved_s(CollectiveKind.ALL_GATHER, sizes[1], 2) - moved_s(CollectiveKind.ALL_GATHER, sizes[0], 2)
    assert float((more.mid - moved.mid)[0]) == pytest.approx(expected, rel=1e-9)
    assert (prices.decode(other, sequences, context).mid > prices.decode(same, sequences, context).mid).all()


def test_a_prompt_gathers_what_was_cached_before_it_and_nothing_else() -> None:
    prices = ServedPrices(TWO, Formats(), engine="vLLM")
    tokens = np.array([512.0])
    whole = Core(heads=2, kv_heads=1.0, qk_dim=128, v_dim=128)
    divided = Core(heads=2, kv_heads=1.0, qk_dim=128, v_dim=128, ranks=2)
    for cached, size in ((0.0, 0.0), (8192.0, 8192.0 * 256 * 2)):
        one, many = (prices.prefill(core, 1.0, tokens, np.array([cached])) for core in (whole, divided))
        expected = moved_s(CollectiveKind.ALL_GATHER, size, 2) if size else 0.0
        assert float((many.mid - one.mid)[0]) == pytest.approx(expected, rel=1e-9)


@given(
    ranks=st.sampled_from([2, 4, 8]),
    sequences=st.floats(1.0, 256.0),
    context=st.floats(64.0, 1e6),
    more=st.floats(1.0, 4.0),
)
@settings(max_examples=60)
def test_longer_contexts_and_more_sequences_are_never_faster(
    ranks: int, sequences: float, context: float, more: float
) -> None:
    prices = ServedPrices(NODE, Formats(), engine="vLLM")
    core = Core(heads=16, kv_heads=1.0, qk_dim=192, v_dim=128, latent=True, ranks=ranks)
    base, longer, wider = (
        float(prices.decode(core, np.array([n]), np.array([c])).mid[0])
        for n, c in ((sequences, context), (sequences, context * more), (sequences * more, context))
    )
    assert longer >= base * (1 - 1e-9)
    assert wider >= base * (1 - 1e-9)


def test_long_contexts_are_faster_divided_and_short_ones_are_not() -> None:
    one, many = (made(tp=16, kv_ranks=ranks).tables(**LENGTHS) for ranks in (1, 2))
    row = int(np.searchsorted(one.sequences, 64))
    assert many.decode.mid[row, -1] < 0.6 * one.decode.mid[row, -1]
    assert many.decode.mid[0, 1] > one.decode.mid[0, 1]


# around it -------------------------------------------------------------------------------------------


def test_a_replay_with_divided_contexts_holds_twice_as_many() -> None:
    """64 users whose caches fill half of a rank's: undivided, 16 at a time; divided, 32."""
    asked = closed_loop(64, 64, Fixed(tokens=512), Fixed(tokens=64))
    peaks = []
    for ranks in (1, 2):
        one = made(tp=16, kv_ranks=ranks, cache_tokens=ranks * 16 * 576)
        table = one.tables(longest_prompt=512, longest=576)
        found = replay_tables([one], [table], asked, router="round-robin")
        assert found.done.all()
        peaks.append(found.mean_sequences)
    assert peaks[1] > 1.7 * peaks[0]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"tp": 8, "kv_ranks": 3}, "kv_ranks = 3 does not divide tp 8"),
        ({"tp": 8, "kv_ranks": 0}, "kv_ranks = 0, needs >= 1"),
        ({"tp": 8, "kv_ranks": 8, "nano_tokens": 512}, "nano_tokens"),
        ({"tp": 8, "kv_ranks": 8, "split": True}, "split"),
        ({"tp": 8, "kv_ranks": 8, "kv_kept": 64}, "kv_kept"),
    ],
)
def test_contexts_that_cannot_be_divided_are_refused(words: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        deployed(**words)


def test_a_search_divides_long_contexts_where_ranks_hold_copies() -> None:
    eight = cluster("8xH200")

    def tried(model: Any, longest: int, **stated: Any) -> set[tuple[int, int]]:
        return {
            (one.tp, one.kv_ranks) for one in deployments(model, eight, ServingSpace(fixed=stated), longest=longest)
        }

    assert {ranks for _, ranks in tried(DEEPSEEK, 8192)} == {1}
    assert tried(DEEPSEEK, 65_536) == {(tp, ranks) for tp in (1, 2, 4, 8) for ranks in {1, tp}}
    assert {ranks for _, ranks in tried(LLAMA, 65_536)} == {1}  # 8 heads on up to 8 ranks: no copies
    assert tried(LLAMA, 8192, kv_ranks=4) == {(4, 4), (8, 4)}
    assert {ranks for _, ranks in tried(DEEPSEEK, 65_536, kv_kept=64)} == {1}
