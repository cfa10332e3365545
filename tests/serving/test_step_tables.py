"""Tables of iterations: their grids, and what must hold of every time in them."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.cost.machine import machine
from ridgeline.cost.seconds import Seconds
from ridgeline.facts.clusters import cluster
from ridgeline.graph.load import load
from ridgeline.lower.pieces import Product
from ridgeline.plan.deployment import Role
from ridgeline.scenario.serving_words import deployed
from ridgeline.serving.engine import Engine, engine
from ridgeline.serving.step import StepTables, beside, spread_grid, token_grid

PARTS = ("lane", "group", "head", "decode", "first", "each")
CASES = [
    ("llama-3.1-8b", "8xH100-SXM", (("tp", 1),)),
    ("llama-3.1-8b", "8xH100-SXM", (("tp", 8),)),
    ("llama-3.1-70b", "8xA100-SXM-80GB", (("tp", 4), ("pp", 2))),
    ("mixtral-8x7b", "8xMI300X", (("tp", 8), ("ep", 8))),
    ("deepseek-v3", "8xH200-SXM", (("dp", 8), ("ep", 8))),
]


@cache
def made(model: str, on: str, words: tuple[tuple[str, int], ...] = ()) -> tuple[Engine, StepTables]:
    one = engine(load(model), machine(cluster(on)), deployed(**dict(words)))  # type: ignore[arg-type]
    return one, one.tables(longest_prompt=4096, longest=8192)


def ratio(one: Seconds, two: Seconds) -> np.ndarray:
    return np.asarray(two.mid / one.mid)


@given(most=st.integers(1, 100_000))
def test_the_grid_of_tokens_goes_beyond_what_is_asked(most: int) -> None:
    grid = token_grid(most)
    assert (np.diff(grid) > 0).all()
    assert (grid == np.round(grid)).all()
    assert grid[-1] >= most
    assert grid[-1] <= max(1.3 * most, most + 128)
    np.testing.assert_array_equal(grid[:32], np.arange(1, 33)[: len(grid)])  # every small batch has its own point


@given(first=st.sampled_from([1.0, 16.0, 64.0]), most=st.floats(1, 1e7), each=st.integers(1, 4))
def test_a_spread_grid_ends_beyond_what_is_asked(first: float, most: float, each: int) -> None:
    grid = spread_grid(first, max(most, first), each_octave=each)
    assert grid[0] == first
    assert grid[-1] >= np.floor(max(most, first))
    assert (np.diff(grid) >= 1).all()


@pytest.mark.parametrize(("model", "on", "words"), CASES)
def test_every_time_lies_in_its_interval(model: str, on: str, words: tuple[tuple[str, int], ...]) -> None:
    _, tables = made(model, on, words)
    for name in PARTS:
        part = getattr(tables, name)
        assert np.isfinite(part.high).all()
        assert (part.low >= 0.0).all()
        assert (part.low <= part.mid * (1 + 1e-12)).all(), name
        assert (part.mid <= part.high * (1 + 1e-12)).all(), name
    assert (tables.lane.mid > 0).all()
    assert (tables.decode.mid > 0).all()


@pytest.mark.parametrize(("model", "on", "words"), CASES)
def test_more_sequences_and_longer_contexts_take_no_less(
    model: str, on: str, words: tuple[tuple[str, int], ...]
) -> None:
    _, tables = made(model, on, words)
    for axis in (0, 1):
        assert (np.diff(tables.decode.mid, axis=axis) >= -1e-9 * tables.decode.mid.max()).all()
        assert (np.diff(tables.first.mid, axis=axis) >= -1e-9 * tables.first.mid.max()).all()
    assert (np.diff(tables.head.mid) >= -1e-9 * tables.head.mid.max()).all()


@pytest.mark.parametrize(("model", "tp"), [("llama-3.1-8b", 1), ("llama-3.1-70b", 4)])
def test_faster_memory_reads_a_long_cache_faster(model: str, tp: int) -> None:
    """An H200 has 4.8/3.35 of an H100's bandwidth: 4 GB of cache are read sooner, 64 GB by nearly so much."""
    one, slow = made(model, "8xH100-SXM", (("tp", tp),))
    _, fast = made(model, "8xH200-SXM", (("tp", tp),))
    cache_bytes = one.capacity.token_bytes * np.outer(slow.sequences, slow.contexts)
    found = ratio(slow.decode, fast.decode)
    assert (found[cache_bytes >= 4e9] < 1.0).all()
    assert np.median(found[cache_bytes >= 64e9]) == pytest.approx(3.35 / 4.8, rel=0.1)
    assert (found < 1.15).all()  # elsewhere each device has its own measured kernels, equal to within their errors


def test_a_newer_device_is_faster_everywhere() -> None:
    _, slow = made("llama-3.1-8b", "8xH200-SXM")
    _, fast = made("llama-3.1-8b", "8xB200-SXM")
    assert (ratio(slow.decode, fast.decode) < 0.9).all()
    assert (ratio(slow.head, fast.head) < 0.9).all()
    shared = min(len(slow.tokens), len(fast.tokens))
    assert (fast.lane.mid[:shared] < slow.lane.mid[:shared]).all()


def test_shapes_that_never_change_read_the_whole_cache_from_the_first_token_on() -> None:
    gaudi = engine(load("llama-2-7b"), machine(cluster("8xGaudi2")), deployed(engine="Optimum-Habana"))
    assert gaudi.policy.whole_cache
    whole = gaudi.tables(longest_prompt=512, longest=1024)
    growing = gaudi.steps.tables(most_tokens=512, most_sequences=64, most_context=1024)
    assert (whole.decode.mid == whole.decode.mid[:, :1]).all()
    last = int(np.searchsorted(growing.contexts, 1024))
    assert growing.contexts[last] == 1024
    few = len(growing.sequences)
    assert whole.decode.mid[:few, 0] == pytest.approx(growing.decode.mid[:, last], rel=1e-9)
    assert (growing.decode.mid[:, 0] < whole.decode.mid[:few, 0]).all()


def test_compiled_graphs_run_their_whole_batch_and_context_whatever_comes() -> None:
    neuron = engine(load("llama-3.1-8b"), machine(cluster("1xTrainium2")), deployed(engine="Optimum-Neuron"))
    assert neuron.graphs == (32,)
    fixed = neuron.tables(longest_prompt=512, longest=1024)
    free = neuron.steps.tables(most_tokens=4096, most_sequences=32, most_context=4096)
    whole = (int(np.searchsorted(free.sequences, 32)), int(np.searchsorted(free.contexts, 4096)))
    assert (free.sequences[whole[0]], free.contexts[whole[1]]) == (32, 4096)
    assert (fixed.decode.mid == fixed.decode.mid[0, 0]).all()
    assert fixed.decode.mid[0, 0] == pytest.approx(free.decode.mid[whole], rel=1e-9)
    assert free.decode.mid[0, 0] < 0.5 * fixed.decode.mid[0, 0]


def test_two_devices_halve_the_cache_and_what_reads_it() -> None:
    one, whole = made("llama-3.1-8b", "8xH100-SXM", (("tp", 1),))
    two, half = made("llama-3.1-8b", "8xH100-SXM", (("tp", 2),))
    assert two.capacity.token_bytes == one.capacity.token_bytes / 2
    long = (whole.sequences >= 64)[:, None] & (whole.contexts >= 4096)[None, :]
    assert np.median(ratio(whole.decode, half.decode)[long]) == pytest.approx(0.5, rel=0.05)
    assert half.lane.mid[0] > whole.lane.mid[0] / 2  # half of the weights, and the links between them
    assert half.lane.mid[-1] < whole.lane.mid[-1]


def test_decode_reads_all_weights_once() -> None:
    """One token: weights over bandwidth is the least; the kernels reach more than half of it."""
    one, tables = made("llama-3.1-8b", "8xH100-SXM", (("tp", 1),))
    part = one.machine.cluster.accelerator
    read_s = (one.capacity.weights_bytes - 2 * 4096 * 128256) / part.memory_bytes_per_s  # but for the embedding's table
    found_s = tables.lane.mid[0] + tables.head.mid[0]
    assert read_s < found_s < 2 * read_s


def test_a_long_prompt_nears_the_matrix_rate() -> None:
    one, tables = made("llama-3.1-8b", "8xH100-SXM", (("tp", 1),))
    layers = 7.0e9 - 0.02e9  # parameters of the layers: 32 * 218.1 M
    least_s = 2.0 * layers * tables.tokens[-1] / one.machine.cluster.accelerator.peak_flop_per_s["bf16"]
    assert least_s < tables.lane.mid[-1] < 2 * least_s


def test_prompts_side_by_side_fill_the_device() -> None:
    """One of many prompts adds no more than it takes alone."""
    _, tables = made("llama-3.1-8b", "8xH100-SXM", (("tp", 1),))
    assert (tables.each.mid <= tables.first.mid * (1 + 1e-9)).all()


def test_stages_send_what_lies_between_them() -> None:
    one, tables = made("llama-3.1-70b", "8xA100-SXM-80GB", (("tp", 4), ("pp", 2)))
    assert tables.stage_share == 0.5
    assert tables.send_s > 2 * 8192 / 600e9  # hidden activations of 2 bytes over a link that is no faster than NVLink
    assert tables.send_start_s > 0
    alone = made("llama-3.1-8b", "8xH100-SXM", (("tp", 8),))[1]
    assert (alone.send_s, alone.send_start_s, alone.stage_share) == (0.0, 0.0, 1.0)
    assert one.steps.kernels == tables.kernels > 80 * 5


def test_experts_are_of_all_ranks_together() -> None:
    dense, sparse = made("llama-3.1-8b", "8xH100-SXM", (("tp", 1),))[1], made(*CASES[-1])[1]
    assert (dense.group.mid == 0).all()
    assert (sparse.group.mid > 0).all()


def test_chains_side_by_side_take_the_longer_or_what_one_resource_must_do_for_both() -> None:
    def chain(mid: float, compute: float, memory: float) -> Seconds:
        parts = {"mid": mid, "low": 0.9 * mid, "high": 1.2 * mid, "compute": compute, "memory": memory}
        return Seconds(**{name: np.array([value, value]) for name, value in parts.items()})

    both = np.array([True, False])
    # 40 us of which memory is busy for 25, beside 20 us of which it is busy for 10: the longer holds, 35 < 40
    found = beside(chain(40e-6, 5e-6, 25e-6), chain(20e-6, 2e-6, 10e-6), both)
    assert found.mid == pytest.approx([40e-6, 60e-6])
    assert found.memory == pytest.approx([35e-6, 35e-6])
    # memory busy for 30 and 15: together 45
    found = beside(chain(40e-6, 5e-6, 30e-6), chain(20e-6, 2e-6, 15e-6), both)
    assert found.mid == pytest.approx([45e-6, 60e-6])
    assert np.all((found.low <= found.mid) & (found.mid <= found.high))


def test_prompts_in_whole_instances_take_the_kernels_of_prompts_where_the_backend_has_both() -> None:
    """DeepEP in SGLang is normal for iterations with prompts and of low latency for steps; vLLM has one for both."""
    model, where = load("deepseek-v3"), machine(cluster("2x8xH200-SXM"))
    words = {"dp": 16, "ep": 16, "weights": "fp8_block", "token_budget": 2048}

    def tables(name: str, role: Role) -> StepTables:
        return engine(model, where, deployed(engine=name, role=role, **words)).tables(longest_prompt=1024, longest=2048)

    whole, prompts, steps = (tables("SGLang", role) for role in (Role.WHOLE, Role.PREFILL, Role.DECODE))
    assert whole.prompt_group is not None
    many = whole.tokens == 1024.0
    assert (whole.prompt_group.mid[many] < 0.9 * whole.group.mid[many]).all()
    assert whole.prompt_group.mid[0] > whole.group.mid[0]
    np.testing.assert_array_equal(whole.prompt_group.mid, prompts.group.mid)
    np.testing.assert_array_equal(whole.group.mid, steps.group.mid)
    one = tables("vLLM", Role.WHOLE)
    np.testing.assert_array_equal(one.experts(prompts=True).mid, one.group.mid)


def test_shared_experts_run_beside_the_routed_ones_up_to_the_engines_limit() -> None:
    one = made("deepseek-v3", "8xH200-SXM", (("tp", 8),))[0]
    apart = one.steps.tables(most_tokens=4096, most_sequences=256, most_context=8192)
    near = one.steps.tables(most_tokens=4096, most_sequences=256, most_context=8192, beside_tokens=256)
    few, many = near.tokens <= 256, near.tokens > 256
    assert np.all(near.group.mid[few] < apart.group.mid[few])
    np.testing.assert_array_equal(near.group.mid[many], apart.group.mid[many])
    np.testing.assert_array_equal(near.lane.mid, apart.lane.mid)


def test_launches_are_those_of_products_their_casts_and_what_lies_between() -> None:
    """Llama-8B: 32 layers of norms, 4 products, rotary, attention, cache, activation; fp8 adds a cast a product."""
    plain, narrow = (
        engine(load("llama-3.1-8b"), machine(cluster("8xH100-SXM")), deployed(weights=quant)).steps.kernels
        for quant in ("bf16", "fp8")
    )
    assert narrow - plain == 32 * 4
    latent = made("deepseek-v3", "8xH200-SXM", (("dp", 8), ("ep", 8)))[1].kernels
    assert 61 * 25 < latent < 61 * 45


def test_copies_of_one_request_read_the_experts_of_one() -> None:
    """Mixtral on 4 H100: 16 tokens choose nearly all of 8 experts, copies of one 2: a quarter of the weights."""
    words = (("tp", 4),)
    various, alike = (made("mixtral-8x7b", "4xH100-SXM", (*words, *more))[1] for more in ((), (("alike", True),)))
    at = int(np.searchsorted(various.tokens, 16.0))
    assert alike.group.mid[at] < 0.45 * various.group.mid[at]
    assert alike.group.mid[at] < 1.25 * alike.group.mid[0]
    assert (alike.lane.mid == various.lane.mid).all()


def test_kernels_that_no_graph_holds_follow_each_other_more_slowly() -> None:
    """The engine of a version without graphs: 0.4 us for each kernel of an iteration, whatever its tokens."""
    one = engine(load("llama-3.1-8b"), machine(cluster("1xH100-SXM")), deployed(engine="TensorRT-LLM", version="0.11"))
    assert one.graphs == ()
    grid = {"most_tokens": 256, "most_sequences": 16, "most_context": 512}
    apart, held = (one.steps.tables(**grid, captured=captured) for captured in (False, True))
    assert apart.lane.mid - held.lane.mid == pytest.approx(np.full(apart.tokens.shape, 4e-7 * apart.kernels), rel=1e-9)
    assert one.tables(longest_prompt=256, longest=512).lane.mid[0] == pytest.approx(apart.lane.mid[0], rel=1e-12)


def test_each_beam_walks_the_whole_context_and_at_the_low_end_one_does() -> None:
    """Attention of 8 requests of 4 beams takes what that of 32 requests does, at best what that of 8 does."""
    case = ("llama-3.1-8b", "8xH100-SXM")
    _, plain = made(*case)
    _, beams = made(*case, (("beam_width", 4),))
    eight, many = (int(np.flatnonzero(plain.sequences == count)[0]) for count in (8, 32))
    np.testing.assert_array_equal(beams.sequences, plain.sequences)
    np.testing.assert_allclose(beams.decode.mid[eight], plain.decode.mid[many])
    np.testing.assert_allclose(beams.decode.high[eight], plain.decode.high[many])
    np.testing.assert_allclose(beams.decode.low[eight], np.minimum(plain.decode.low[eight], plain.decode.low[many]))
    np.testing.assert_allclose(beams.lane.mid[0], plain.lane.mid[0])  # products are asked by tokens


def test_long_passes_of_products_run_at_the_clock_that_the_power_limit_leaves() -> None:
    """Of Llama-8B in bf16 on an H100 products are five sixths of a pass of 8,192 tokens, and the largest are hot."""
    one = engine(load("llama-3.1-8b"), machine(cluster("1xH100-SXM")), deployed())
    pieces = one.steps._pieces
    tokens = np.array([1.0, 64.0, 512.0, 8192.0, 16384.0])
    short, long = pieces.sum(tokens, "tokens"), pieces.under_load(tokens)
    slower = long.mid / short.mid
    np.testing.assert_array_equal(slower[:2], 1.0)  # weights and launches take the time
    assert slower[2] < 1.005
    assert (slower[3:] > 1.01).all()
    held = short.mid.copy()
    for piece, count in pieces._by_rows["tokens"]:
        if isinstance(piece, Product):
            times = one.steps.prices.product(piece, tokens).mid
            heat = one.steps.prices.heat(piece, tokens, times)
            assert heat == pytest.approx(2 * tokens * piece.n * piece.k / 722.9e12 / times)  # data/sustained.tsv
            held += count * times * np.maximum(0.0, heat - 1.0)
    assert (long.mid <= held * (1 + 1e-9)).all()  # each by itself would take longer
    np.testing.assert_array_equal(long.low, short.low)
    assert (long.high - short.high >= long.mid - short.mid).all()  # other work may draw more
    assert (np.diff(long.mid) > 0).all()


def test_devices_without_a_loaded_rate_keep_their_clock() -> None:
    one = engine(load("llama-3.1-70b"), machine(cluster("8xMI300X")), deployed(tp=8))
    tokens = np.array([8192.0])
    assert one.steps._pieces.under_load(tokens).mid == one.steps._pieces.sum(tokens, "tokens").mid


def test_tables_of_drafting_are_made_once_and_hold_a_prompt_and_what_all_sequences_verify() -> None:
    """Prompts of 1,000 tokens beside 8 sequences that verify 31 tokens each besides their own: 8,000 and 248."""
    words = {"max_seqs": 8, "token_budget": 8192, "technique": ("masked-diffusion(block=32)",)}
    one = engine(load("llama-3.1-8b"), machine(cluster("1xH100-SXM")), deployed(**words))
    tables = one.tables(longest_prompt=1000, longest=1100)
    assert 8248 <= tables.tokens[-1] <= 8704
    assert one.tables(longest_prompt=1000, longest=1100) is tables
