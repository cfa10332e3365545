"""Products of served layers: what is cast before them, and what comes narrow already."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ridgeline.cost.engine_kernels import OwnKernels, tiled_rows
from ridgeline.cost.formats import Formats
from ridgeline.cost.machine import machine
from ridgeline.cost.served import ServedPrices
from ridgeline.facts.clusters import cluster
from ridgeline.facts.fits import fits
from ridgeline.facts.mechanisms import constant
from ridgeline.graph.load import load
from ridgeline.lower.inference import serve
from ridgeline.lower.pieces import Core, ElementwisePiece, Experts, Product, Recurrence, Reduce
from ridgeline.scenario.serving_words import deployed

H200 = machine(cluster("1xH200-SXM"))
ROWS = np.array([1.0, 64.0])
PIECE = Product(name="out", n=8192, k=1024, part="feed")


def seconds(feed: str, static: bool, engine: str = "TensorRT-LLM") -> np.ndarray:
    prices = ServedPrices(H200, Formats(feed=feed, static=static), engine=engine)
    return prices.product(PIECE, ROWS).mid


def test_known_scales_spare_the_cast_that_rows_of_its_own_told() -> None:
    (fit,) = (f for f in fits("gemm") if (f.device, f.engine, f.form) == ("H200-SXM", "trtllm", "fp8"))
    spared = seconds("fp8", False) - seconds("fp8", True)
    values = fit.values
    row = values["cast_row_s_"] + 1024 * values["cast_element_s_"]  # one block of an SM, far more than its bytes take
    assert spared == pytest.approx(values["cast_start_s_"] + row, rel=0.02)
    assert (seconds("fp8", True) > 0).all()


def test_numbers_of_32_bits_keep_vector_units_busy_or_the_memory_as_tf32() -> None:
    router, rows = Product(name="router", n=256, k=3072, part="wide"), np.array([66.0 * 128])  # 132 tiles, one an SM
    narrow, wide = (ServedPrices(H200, Formats(wide=name)).product(router, rows) for name in ("tf32", "fp32"))
    flop, device = 2 * 66 * 128 * 256 * 3072, H200.device
    assert wide.mid[0] == pytest.approx(flop / device.matrix_rate("fp32"), rel=0.05)
    moved = 4 * (66 * 128 * (3072 + 256) + 256 * 3072)
    assert narrow.mid[0] > narrow.memory[0] == pytest.approx(moved / device.memory_bytes_per_s)
    assert narrow.mid[0] < wide.mid[0] / 3
    assert wide.low[0] < wide.mid[0] < wide.high[0]


@pytest.mark.parametrize("feed", ["bf16", "fp8_block", "nvfp4"])
def test_other_formats_are_cast_as_they_were(feed: str) -> None:
    assert (seconds(feed, True) == seconds(feed, False)).all()


def test_a_gated_delta_rule_is_priced_by_its_own_kernels_of_one_gate_a_head() -> None:
    """64 states of 128 x 128 over 4,096 tokens: the chunked kernels' fit, far above the bytes that must move."""
    served = serve(load("qwen3.5-397b-a17b"), deployed(engine="SGLang", version="0.5.16"))
    piece = next(one for kind in served.kinds for one in kind.pieces if isinstance(one, Recurrence))
    assert (piece.delta, piece.heads, piece.key_heads, piece.key_dim, piece.value_dim) == (True, 64, 16, 128, 128)
    prices = ServedPrices(H200, Formats(), engine="SGLang", version="0.5.16")  # whose newest tables gate key channels
    found = prices.recurrence(piece, 1.0, np.array([4096.0]))
    (fit,) = (f for f in fits("delta_prefill") if (f.device, f.engine, f.version) == ("H200-SXM", "sglang", "0.5.14"))
    serial = fit.values["start_s_"] + 4096 / 64 * fit.values["chunk_s_"]
    least_s = 2.0 * piece.elements * 4096 / 4.8e12
    assert found.mid[0] > serial > 0
    assert found.mid[0] > 3 * least_s
    assert prices.recurrence(piece, np.full(1, 8.0), np.ones(1), decode=True).mid[0] < found.mid[0] / 5


def test_scans_without_kernels_of_their_own_move_their_bytes() -> None:
    piece = Recurrence(flop_per_token=1e3, elements=1e4, state_bytes=1e6)
    prices = ServedPrices(H200, Formats())
    one, two = (float(prices.recurrence(piece, count, np.array([1e5])).mid[0]) for count in (1.0, 2.0))
    device = H200.device
    rate = device.memory_bytes_per_s * device.stream_share
    assert two - one == pytest.approx((2e4 * 1e5 + 1e6) / rate, rel=1e-6)
    chained = replace(piece, handed=5e4)
    more = float(prices.recurrence(chained, 1.0, np.array([1e5])).mid[0])
    assert more - one == pytest.approx(5e4 * 1e5 / rate, rel=1e-6)
    each, alike = (prices.recurrence(one, 8.0, np.ones(1), decode=True).mid[0] for one in (piece, chained))
    assert each == alike  # one kernel takes one token's step


@pytest.mark.parametrize(
    ("feed", "static", "cast"),
    [("bf16", False, False), ("fp8", False, True), ("fp8", True, False), ("nvfp4", True, True)],
)
def test_narrow_inputs_are_cast_by_kernels_unless_scales_are_known(feed: str, static: bool, cast: bool) -> None:
    assert ServedPrices(H200, Formats(feed=feed, static=static)).quantizes_activations(PIECE) is cast


def test_matrix_engines_apart_from_a_devices_cores_read_weights_at_its_memory_rate() -> None:
    """Gaudi2: 180 MB of weights for one token; its 24 vector cores, counted as multiprocessors, ask for 0.66 TB/s."""
    gaudi = machine(cluster("8xGaudi2"))
    piece = Product(name="up", n=22016, k=4096, part="feed")
    seconds_s = float(ServedPrices(gaudi, Formats()).product(piece, np.array([1.0])).mid[0])
    rate = 2.0 * piece.n * piece.k / seconds_s
    assert 0.6 * 2460e9 < rate < 2460e9


MI300X = machine(cluster("8xMI300X"))
CORE = next(
    piece for kind in serve(load("llama-3.1-8b"), deployed()).kinds for piece in kind.pieces if isinstance(piece, Core)
)


def test_keys_read_for_each_query_head_cost_what_as_many_heads_of_keys_do() -> None:
    """32 query heads over 8 of keys, none shared, take what 32 heads of keys take: more than 8 shared ones."""
    grouped, whole = (replace(CORE, heads=32.0, kv_heads=heads) for heads in (8.0, 32.0))
    sequences, context = np.array([64.0]), np.array([3072.0])
    shared = ServedPrices(MI300X, Formats())
    apart = ServedPrices(MI300X, Formats(), own=OwnKernels(per_query=True))
    assert apart.decode(grouped, sequences, context).mid == shared.decode(whole, sequences, context).mid
    assert apart.decode(grouped, sequences, context).mid > 2.0 * shared.decode(grouped, sequences, context).mid


def test_beyond_so_many_heads_each_is_a_block_and_few_run_at_once() -> None:
    """Room for 8,192 scores is 32 KiB, so two blocks a compute unit of 64 KiB, for 4,096 twice as many.

    64 sequences of 32 heads and 3,072 tokens: 3,072 x 256 elements at 0.5 a cycle of 2.1 GHz, 2,048 / 608 times over.
    """
    long, short = (
        ServedPrices(MI300X, Formats(), own=OwnKernels(per_query=True, block_heads=512, room=room))
        for room in (8192.0, 4096.0)
    )
    split = ServedPrices(MI300X, Formats(), own=OwnKernels(per_query=True))
    sequences, context = np.array([16.0, 64.0]), np.array([3072.0])
    by_room = [one.decode(CORE, sequences, context) for one in (long, short, split)]
    assert by_room[0].mid[1] == pytest.approx(3072 * 256 / (0.5 * 2.1e9) * 2048 / (304 * 2), rel=0.01)
    assert by_room[0].mid[1] == pytest.approx(2.0 * by_room[1].mid[1], rel=0.01)
    assert by_room[1].mid[1] > by_room[2].mid[1]
    joined = by_room[0].mid[0] - by_room[2].mid[0]  # 512 heads are not beyond 512: parts, added up by one kernel more
    assert joined == pytest.approx(7.9e-6, rel=0.01)
    assert by_room[0].high[1] / by_room[0].low[1] == pytest.approx(1.5 / 0.65)


def test_products_that_were_not_tuned_are_slower_where_compute_binds_only() -> None:
    """A fifth of the rate: 8,192 tokens take five times as long, one token what its weights' bytes take."""
    tuned = ServedPrices(MI300X, Formats())
    plain = ServedPrices(MI300X, Formats(), own=OwnKernels(tuned_share=0.2, tuned_range=(0.1, 0.4)))
    piece, rows = Product(name="up", n=57344, k=8192, part="feed"), np.array([1.0, 8192.0])
    alone, prompt = plain.product(piece, rows).mid / tuned.product(piece, rows).mid
    assert 1.0 <= alone < 1.05
    assert prompt == pytest.approx(5.0, rel=0.05)
    wide, narrow = (one.product(piece, rows) for one in (plain, tuned))
    up, down = (
        (np.log(one.high / one.mid) for one in (wide, narrow)),
        (np.log(one.mid / one.low) for one in (wide, narrow)),
    )
    for far, near in (
        up,
        down,
    ):  # half and twice the share, less what memory and fills take, beside the mechanism's own
        assert far[1] == pytest.approx(np.hypot(near[1], np.log(2.0)), rel=0.05)
        assert far[0] < np.hypot(near[0], 0.2)


def test_products_that_were_not_chosen_for_few_rows_stream_slower_where_memory_binds_only() -> None:
    """Half the memory rate: 0.94 GB of weights for one token take twice as long, 8,192 tokens as long as before."""
    tuned = ServedPrices(MI300X, Formats())
    plain = ServedPrices(MI300X, Formats(), own=OwnKernels(skinny_share=0.5, skinny_range=(0.4, 0.8)))
    piece, rows = Product(name="up", n=57344, k=8192, part="feed"), np.array([1.0, 8192.0])
    alone, prompt = plain.product(piece, rows).mid / tuned.product(piece, rows).mid
    assert alone == pytest.approx(2.0, rel=0.06)
    assert 1.0 <= prompt < 1.01
    band = plain.product(piece, rows)
    assert band.high[0] / band.mid[0] > 1.2  # 0.5 / 0.4 at least


def test_activations_in_fp32_move_twice_the_bytes_and_are_cast_around_products() -> None:
    """GB10: rows of 4,096 read in 4 bytes and written in 9/8, 1,024 results in 4; a vector's products do neither."""
    spark = machine(cluster("1xGB10"))
    own = OwnKernels(vector_rows=8, wide="int8")
    narrow, wide = (
        ServedPrices(spark, Formats(feed="q8_0", plain="q8_0"), own=replace(own, pass_bytes=width))
        for width in (2.0, 4.0)
    )
    rate = spark.device.memory_bytes_per_s * spark.device.stream_share
    piece, rows = Product(name="mlp_down", n=1024, k=4096, part="feed"), np.array([8.0, 512.0])
    longer = wide.product(piece, rows).mid - narrow.product(piece, rows).mid
    assert longer == pytest.approx([0.0, 512 * (4096 * (4 + 9 / 8) + 1024 * 4) / rate])
    norm = ElementwisePiece(name="norm", elements=8192.0, kernels=0.0, rows="tokens")
    assert wide.stream(norm, rows).mid == pytest.approx(2.0 * narrow.stream(norm, rows).mid)
    experts = Experts(hidden=2048, inner=768, top_k=8, count=128, ranks=1, gated=True)
    around = wide.experts(experts, rows).mid - narrow.experts(experts, rows).mid
    moved = 2 * (2048 * 5.125 + 768 * 4) + 768 * 5.125 + 2048 * 4 + 3 * 768 * 4
    assert around == pytest.approx([0.0, 512 * 8 * moved / rate])


def test_sums_of_16_bits_double_the_rate_of_cards_for_games_alone() -> None:
    piece, rows = Product(name="up", n=16384, k=16384, part="feed"), np.array([1.0, 8192.0])
    for device, gain in (("RTX-4090", 2.0), ("RTX-A6000", 1.0)):
        one = machine(cluster(f"1x{device}"))
        plain, half = (ServedPrices(one, Formats(), own=OwnKernels(half_sums=said)) for said in (False, True))
        alone, many = plain.product(piece, rows).mid / half.product(piece, rows).mid
        assert many == pytest.approx(gain, rel=0.05)
        assert alone == pytest.approx(1.0, rel=0.02)


def test_the_librarys_reductions_wait_inside_captured_graphs() -> None:
    """33 us more for each of up to 256 rows, none beyond and none for the gathering of logits outside the graph."""
    plain = ServedPrices(MI300X, Formats())
    waits = ServedPrices(MI300X, Formats(), own=OwnKernels(graph_rows=256.0, graph_wait_s=3.3e-5))
    rows, sums = np.array([1.0, 256.0, 257.0]), Reduce(width=8192)
    longer = waits.reduce(sums, rows, 8).mid - plain.reduce(sums, rows, 8).mid
    assert longer == pytest.approx([3.3e-5, 3.3e-5, 0.0])
    apart = ServedPrices(MI300X, Formats(), own=OwnKernels(apart_wait_s=2e-5))  # no graphs: every reduction
    assert apart.reduce(sums, rows, 8).mid - plain.reduce(sums, rows, 8).mid == pytest.approx([2e-5] * 3)
    gathers = Reduce(width=32000, rows="sequences", gather=True)
    assert waits.reduce(gathers, rows, 8).mid == pytest.approx(plain.reduce(gathers, rows, 8).mid)


def test_no_kernel_is_shorter_than_the_shortest_that_was_measured_on_a_device() -> None:
    """MI300X: 7.9 us from one kernel's end to the next one's, for a pass as for a product lent by other devices."""
    prices, one = ServedPrices(MI300X, Formats()), np.array([1.0])
    norm = ElementwisePiece(name="norm", elements=8192.0, kernels=1.0, rows="tokens")
    assert prices.stream(norm, one).mid[0] == pytest.approx(7.9e-6, rel=0.01)
    assert ServedPrices(H200, Formats()).stream(norm, one).mid[0] < 3e-6
    tiny = Product(name="gate", n=8, k=64, part="feed")
    assert 7.9e-6 < prices.product(tiny, one).mid[0] < 13e-6


def vector_seconds(device: str, feed: str = "bf16") -> tuple[float, float]:
    """A product of one row by an engine's own kernel, and one of 64 by the tables' [s]."""
    prices = ServedPrices(machine(cluster(device)), Formats(feed=feed, plain=feed), own=OwnKernels(vector_rows=8))
    one, many = prices.product(PIECE, ROWS).mid
    return float(one), float(many)


def test_products_with_a_vector_stream_their_weights() -> None:
    """8192 x 1024 weights: 16.8 MB over the memory of an RTX 4090, over the loads of an A100's 108 SMs."""
    card = machine(cluster("1xRTX-4090")).device
    idle = 1.5e-6 + 2 * card.memory_latency_s
    assert vector_seconds("1xRTX-4090")[0] == pytest.approx(idle + 16777216 / card.memory_bytes_per_s, rel=1e-9)
    a100 = machine(cluster("1xA100-SXM-80GB")).device
    asked = 108 * a100.clock_hz * 7.5
    assert asked < 0.8 * a100.memory_bytes_per_s
    assert vector_seconds("1xA100-SXM-80GB")[0] == pytest.approx(
        1.5e-6 + 2 * a100.memory_latency_s + 16777216 / asked, rel=1e-9
    )


def test_more_rows_than_a_vector_kernel_takes_are_as_before() -> None:
    known = ServedPrices(machine(cluster("1xA100-SXM-80GB")), Formats()).product(PIECE, ROWS).mid
    assert vector_seconds("1xA100-SXM-80GB")[1] == known[1]
    assert vector_seconds("1xA100-SXM-80GB")[0] != known[0]


def test_files_of_llama_cpp_move_their_own_bits() -> None:
    card = machine(cluster("1xRTX-4090")).device
    saved = vector_seconds("1xRTX-4090", "q8_0")[0] - vector_seconds("1xRTX-4090", "q4_k")[0]
    assert saved == pytest.approx(8192 * 1024 * (8.5 - 4.89) / 8 / card.memory_bytes_per_s, rel=1e-6)


def test_wavefronts_wider_than_the_kernels_leave_lanes_idle() -> None:
    """An MI210: 104 units, half the lanes of each; 3.75 bytes a cycle are less than its memory brings."""
    device = machine(cluster("1xMI210")).device
    asked = 104 * device.clock_hz * 3.75
    assert asked < device.memory_bytes_per_s
    assert vector_seconds("1xMI210")[0] == pytest.approx(constant("launch.start.cdna2") + 16777216 / asked, rel=1e-9)


def test_products_with_a_vector_take_at_least_the_shortest_kernel_measured_there() -> None:
    """An M2 Ultra: 3.7 us from kernel to kernel, where launch and two latencies would be 2.3 us."""
    device = machine(cluster("1xApple-M2-Ultra-76-core")).device
    assert 1.5e-6 + 2 * device.memory_latency_s < 2.5e-6
    assert vector_seconds("1xApple-M2-Ultra-76-core")[0] == pytest.approx(
        3.7e-6 + 16777216 / device.memory_bytes_per_s, rel=1e-9
    )


def decode_seconds(group: int, sequences: float, own: OwnKernels) -> float:
    """Decode of `sequences` over 3,072 keys of 8 key heads on one H100 [s]."""
    prices = ServedPrices(machine(cluster("1xH100-SXM")), Formats(), engine="TensorRT-LLM", version="0.11", own=own)
    core = Core(heads=8.0 * group, kv_heads=8.0, qk_dim=128, v_dim=128)
    return float(prices.decode(core, np.array([sequences]), np.array([3072.0])).mid[0])


OLD = OwnKernels(groups=(1, 8), splits=False)


def test_groups_that_no_kernel_takes_read_keys_for_each_head() -> None:
    """A group of 4: 32 reads of 8 key heads' 3.2 GB through L2, and never less than the kernel that reads them once."""
    assert decode_seconds(4, 64.0, OLD) > 1.3 * decode_seconds(4, 64.0, OwnKernels())
    moved = 64 * 8 * 3072 * 2 * 128 * 2
    assert decode_seconds(4, 64.0, OLD) > moved / 3.35e12
    assert decode_seconds(8, 64.0, OLD) == decode_seconds(8, 64.0, OwnKernels(splits=False))


def test_few_blocks_are_left_to_kernels_of_each_head() -> None:
    """4 sequences of 8 key heads are 32 blocks, less than a quarter of 132 multiprocessors; 5 are not."""
    grouped = OwnKernels(splits=False)
    assert decode_seconds(8, 4.0, OLD) != decode_seconds(8, 4.0, grouped)
    assert decode_seconds(8, 5.0, OLD) == decode_seconds(8, 5.0, grouped)


def test_unsplit_keys_take_longer_where_multiprocessors_idle() -> None:
    assert decode_seconds(8, 1.0, OwnKernels(splits=False)) > 1.5 * decode_seconds(8, 1.0, OwnKernels())
    assert decode_seconds(8, 256.0, OwnKernels(splits=False)) == decode_seconds(8, 256.0, OwnKernels())


def test_engines_without_measured_kernels_of_each_head_read_keys_anew() -> None:
    """DeepSpeed-MII on an A100: four heads of a group ask memory four times for the same keys."""
    core = Core(heads=32.0, kv_heads=8.0, qk_dim=128, v_dim=128)
    once, anew = (
        ServedPrices(machine(cluster("1xA100-SXM-80GB")), Formats(), engine="DeepSpeed-MII", own=own)
        .decode(core, np.array([64.0]), np.array([3072.0]))
        .mid[0]
        for own in (OwnKernels(), OwnKernels(groups=(1,), splits=False))
    )
    assert 1.3 * once < anew < 4.5 * once


def test_weights_of_few_bits_are_widened_before_products_of_many_rows() -> None:
    """An A100: a pass over 8192 x 1024 weights of 4.89 bits that writes 16 of each, then the product in 16 bits."""
    where = machine(cluster("1xA100-SXM-80GB"))
    own = OwnKernels(vector_rows=8, wide="widened")
    narrow, wide = (
        ServedPrices(where, Formats(feed=feed, plain=feed), own=own).product(PIECE, ROWS).mid[1]
        for feed in ("q4_k", "bf16")
    )
    rate = where.device.memory_bytes_per_s * where.device.stream_share
    started = 1.5e-6 + 2 * where.device.memory_latency_s
    assert narrow - wide == pytest.approx(8192 * 1024 * (4.89 / 8 + 2) / rate + started, rel=1e-6)


def test_weights_of_few_bits_that_are_widened_in_registers_are_read_as_they_are() -> None:
    """Marlin on an A100: a product of one row reads a quarter of the bytes; of many it takes as long as in 16 bits."""
    where, own, few = machine(cluster("1xA100-SXM-80GB")), OwnKernels(wide="read"), np.array([1.0, 4096.0])
    narrow, wide = (
        ServedPrices(where, Formats(feed=feed, plain=feed), engine="vllm", own=own).product(PIECE, few)
        for feed in ("int4_wo", "bf16")
    )
    assert narrow.memory[0] == pytest.approx(wide.memory[0] * (0.5 + 1 / 32) / 2, rel=0.01)
    assert narrow.mid[0] < 0.8 * wide.mid[0]  # most of either is the start of a kernel
    assert narrow.mid[1] == pytest.approx(wide.mid[1], rel=0.02)


def test_integers_are_multiplied_and_their_sums_scaled() -> None:
    """An RTX 3090 over 16384 rows: 2 x 16384 x 8192 x 1024 operations at 284 T, then scaled by 82 multiprocessors."""
    where = machine(cluster("1xRTX-3090"))
    prices = ServedPrices(where, Formats(feed="q4_k", plain="q4_k"), own=OwnKernels(wide="int8"))
    found = prices.product(PIECE, np.array([16384.0]))
    scaled = 1.05e-3 / (82 * where.device.clock_hz)
    compute = 2 * 16384 * 8192 * 1024 * (1 / where.device.matrix_rate("int8") + scaled)
    assert found.mid[0] == pytest.approx(1.5e-6 + 2 * where.device.memory_latency_s + compute, rel=1e-9)
    assert prices.product(PIECE, np.array([1.0])).memory[0] == pytest.approx(
        8192 * 1024 * 4.89 / 8 / where.device.memory_bytes_per_s, rel=1e-9
    )


def test_experts_compute_whole_tiles() -> None:
    """128 tokens to one of 64 experts fill 64 tiles of 128; 256 rows each are two tiles and a half; 9 tokens, of 16."""
    experts = np.array([64.0])
    assert tiled_rows(np.array([128.0]), 1.0, experts)[0] == 64 * 128
    assert tiled_rows(np.array([64 * 64.0]), 4.0, experts)[0] == 64 * 320
    assert tiled_rows(np.array([9.0]), 4.0, experts)[0] == 64 * 16


def test_scores_that_pass_through_memory_grow_with_the_square_of_a_prompt() -> None:
    core = Core(heads=32.0, kv_heads=8.0, qk_dim=128, v_dim=128)
    where = machine(cluster("1xA100-SXM-80GB"))
    short, long = (
        ServedPrices(where, Formats(), own=OwnKernels(score_bytes=20.0)).prefill(core, 1.0, length, np.zeros(1))
        for length in (np.array([4096.0]), np.array([8192.0]))
    )
    rate = where.device.memory_bytes_per_s * where.device.stream_share
    assert short.memory[0] == pytest.approx(32 * 4096**2 * 20 / rate, rel=1e-9)
    assert long.memory[0] == pytest.approx(4 * short.memory[0], rel=1e-9)
    assert long.mid[0] > long.memory[0] + 2 * 2 * 32 * 8192**2 * 128 / where.device.matrix_rate("bf16")
    fused = ServedPrices(where, Formats()).prefill(core, 1.0, np.array([8192.0]), np.zeros(1))
    assert long.mid[0] > 2 * fused.mid[0]


def test_experts_start_as_often_as_they_have_kernels() -> None:
    """Mixtral on MI300X, one token: 63 us of starts of eight kernels and 705 MB of two experts' weights."""
    served = serve(load("mixtral-8x7b"), deployed())
    piece = next(one for kind in served.kinds for one in kind.pieces if isinstance(one, Experts))
    seconds_s = ServedPrices(MI300X, Formats()).experts(piece, np.array([1.0])).mid[0]
    read_s = 2 * 3 * 4096 * 14336 * 2.0 / 5300e9
    assert 8 * 7.9e-6 + read_s < seconds_s < 8 * 7.9e-6 + 2.5 * read_s


def test_weights_of_a_model_are_never_warm() -> None:
    """235 MB would fit into the L2 of a Max 1550, where they stay while a benchmark repeats one product."""
    part = machine(cluster("1xMax-1550"))
    piece = Product(name="up", n=28672, k=4096, part="feed")
    found = ServedPrices(part, Formats(), engine="vLLM").product(piece, np.array([1.0]))
    assert piece.n * piece.k * 2.0 < part.device.accelerator.l2_bytes  # type: ignore[operator]
    assert found.memory[0] >= piece.n * piece.k * 2.0 / part.device.accelerator.memory_bytes_per_s


def test_a_cache_is_read_from_memory_however_small() -> None:
    """17 MB of keys and values, a third of an H100's L2; twice as many sequences move twice the bytes."""
    one = machine(cluster("1xH100-SXM"))
    part = one.device.accelerator
    prices = ServedPrices(one, Formats(), engine="vLLM", version="0.24.0")
    some = prices.decode(CORE, np.array([4.0, 8.0]), np.array([1024.0])).memory
    assert some[1] / some[0] == pytest.approx(2.0, rel=0.01)
    assert some[0] >= 4 * 1024 * CORE.token_bytes(2.0) / part.memory_bytes_per_s


def test_the_host_waits_for_the_choice_of_experts_before_each_of_their_products() -> None:
    piece = Experts(hidden=4096, inner=14336, count=8, top_k=2, ranks=1, gated=True)
    rows = np.array([1.0, 64.0])
    plain, waits = (
        ServedPrices(H200, Formats(), own=OwnKernels(vector_rows=8, choice_wait_s=wait)).experts(piece, rows).mid
        for wait in (0.0, 1e-4)
    )
    np.testing.assert_allclose(waits - plain, 3e-4, rtol=1e-9)
