"""Operators around products and attention: formulas by hand, what questions state, and what tables are read as."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ridgeline.cost import layer_questions
from ridgeline.cost.families.registry import mechanism
from ridgeline.cost.ladder import price
from ridgeline.cost.layer_tables import elasticity
from ridgeline.cost.readers import READERS
from ridgeline.cost.streams import STREAMS, stream_work
from ridgeline.errors import UnknownNameError
from ridgeline.facts.accelerators import accelerator
from ridgeline.facts.mechanisms import latent_widths
from ridgeline.facts.opdata import OpTable

DEVICE = np.array([100.0, 1e15, 1e12, 1e8, 1e9, 1e13, 1e15])  # SMs, rate, memory, L2, clock, vector, 16-bit rate
H100 = accelerator("H100-SXM")


def seconds(family: str, sizes: dict[str, float], **values: float) -> float:
    model = mechanism(family)
    usual = {parameter.name: parameter.start for parameter in model.parameters}
    return float(np.asarray(model.seconds(sizes, DEVICE, model.vector({**usual, **values}))))


def norm4(a: float, b: float) -> float:
    return float((a**4 + b**4) ** 0.25)


def test_a_cast_by_hand() -> None:
    values = {
        "start_s_": 2e-6, "memory_share_": 0.5, "row_s_": 1e-7, "element_s_": 1e-11, "l2_kept_": 0.02, "l2_rate_": 4.0,
    }  # fmt: skip
    sizes = {"rows": 20_000.0, "width": 5_000.0, "dynamic": 0.0, "input_bytes": 1.0}
    busy = 200 * (1e-7 + 5_000 * 1e-11)  # 20,000 rows over 100 SMs
    x = (3e8 / 2e6) ** 5
    memory = 3e8 * (x / (1 + x) + 1 / (1 + x) / 4) / 5e11
    assert seconds("quantize", sizes, **values) == pytest.approx(2e-6 + norm4(busy, memory))
    twice = seconds("quantize", {**sizes, "dynamic": 1.0}, **values)
    assert twice == pytest.approx(2e-6 + norm4(busy, 5 / 3 * memory), rel=1e-6)


def test_an_encoder_s_scores_are_the_square_of_its_tokens() -> None:
    sizes = {"batch": 64.0, "tokens": 4096.0, "heads": 16.0, "head_dim": 64.0}
    one, two = (seconds("encoder", {**sizes, "tokens": size}, fill_s_=1e-8) for size in (65536.0, 131072.0))
    assert two / one == pytest.approx(4.0, rel=0.01)
    widths = (64.0, 72.0, 80.0, 128.0)
    by_width = {width: seconds("encoder", {**sizes, "head_dim": width}, exponents_per_clock_=64.0) for width in widths}
    assert by_width[72.0] == pytest.approx(by_width[80.0], rel=0.01)
    assert by_width[72.0] > 1.1 * by_width[64.0]
    padded = seconds("encoder", {**sizes, "head_dim": 72.0, "padded": 1.0}, exponents_per_clock_=64.0)
    assert padded == pytest.approx(by_width[128.0], rel=0.05)  # less moved


def test_a_latent_layer_by_hand_where_products_are_all() -> None:
    sizes = {"batch": 1.0, "tokens": 8192.0, "cached": 0.0, "heads": 1.0, "weight_bytes": 2.0}
    elements = 7168 * (1536 + 576) + 1536 * 192 + 512 * 256 + 128 * 7168
    free = {"start_s_": 3e-6, "score_share_": 1.5, "key_s_": 1e-11, "row_s_": 1e-12, "elementwise_share_": 4.0}
    found = seconds("mla_layer_prefill", sizes, matrix_share_=0.1, **free)
    scores = 8192 * 8193 / 2 * 2 * (192 + 128) / 1.5e15
    around = 8192 * 2 * (6 * 7168 + 4 * (192 + 128)) / 4e12
    assert found == pytest.approx(3e-6 + 2 * 8192 * elements / 1e14 + scores + around, rel=1e-3)


def test_sparse_layers_stop_growing_with_their_scores_but_not_with_their_indexer() -> None:
    base = {"batch": 8.0, "tokens": 1.0, "heads": 16.0, "absorbed": 1.0, "weight_bytes": 1.0, "top": 2048.0}
    dense, sparse = ({**base, "index_heads": heads} for heads in (0.0, 64.0))
    short, long = (seconds("dsa_layer_decode", {**dense, "cached": cached}) for cached in (4095.0, 65535.0))
    assert short == long  # 2,048 keys both times, and no indexer
    extra = [
        seconds("dsa_layer_decode", {**sparse, "cached": cached}, pick_s_=1e-13) - short for cached in (4095.0, 65535.0)
    ]
    launches = 1e-5 + (norm4(1, 1) - norm4(1, 1))
    assert extra[1] - launches > 4 * (extra[0] - launches)


def test_absorbed_scores_fill_tiles_of_heads_that_the_device_does_not_hold() -> None:
    base = {"batch": 4.0, "tokens": 8192.0, "absorbed": 1.0, "weight_bytes": 1.0, "top": 2048.0}
    free = {"head_tile_": 64.0, "gather_share_": 20.0, "matrix_share_": 1.0, "elementwise_share_": 4.0}
    few, tile, more = (seconds("dsa_layer_prefill", {**base, "heads": h}, **free) for h in (8.0, 64.0, 128.0))
    pairs = 4 * (2048 * 2049 / 2 + (8192 - 2048) * 2048)
    assert few > pairs * 2 * 64 * 1088 / 0.4e15  # as for 64 heads
    assert more - tile > 3 * (tile - few)


def test_a_host_that_issues_slowly_hides_the_layer_instead_of_adding_to_it() -> None:
    sizes = {"batch": 1.0, "tokens": 512.0, "heads": 16.0, "weight_bytes": 2.0}
    device = seconds("mla_layer_prefill", sizes, issue_s_=1e-6)
    assert seconds("mla_layer_prefill", sizes, issue_s_=4 * device) == pytest.approx(4 * device, rel=1e-4)


def test_an_indexer_scores_nothing_while_all_keys_may_be_chosen() -> None:
    base = {"batch": 1.0, "tokens": 1024.0, "heads": 64.0, "absorbed": 1.0, "weight_bytes": 1.0, "top": 2048.0}
    at = {
        (cached, index): seconds("dsa_layer_prefill", {**base, "cached": cached, "index_heads": index}, pick_s_=1e-9)
        for cached in (1024.0, 1025.0)
        for index in (0.0, 64.0)
    }
    projections = 1536 * 64 * 128 + 7168 * (128 + 64)
    free = 1e-5 + 2 * 1024 * projections / 0.5e15  # launches, and products whose own time hides in the others'
    none, some = (at[cached, 64.0] - at[cached, 0.0] for cached in (1024.0, 1025.0))
    assert none <= free * 1.01
    assert some - none > 10 * 2049e-9  # 1,024 rows over 100 SMs look at 2,049 scores each


def test_keys_seen_under_a_limit_are_counted_one_by_one() -> None:
    from ridgeline.cost.families.layers import keys_seen

    for tokens, cached, most in ((5, 0, 3), (5, 2, 100), (4, 9, 3), (1, 7, 8)):
        by_hand = sum(min(cached + 1 + query, most) for query in range(tokens))
        assert keys_seen(float(tokens), float(cached), float(most)) == by_hand


def test_a_state_is_handed_over_chunk_by_chunk() -> None:
    sizes = {"batch": 1.0, "tokens": 64.0, "heads": 8.0, "key_heads": 4.0, "key_dim": 128.0, "value_dim": 128.0}
    fast = {"matrix_share_": 1.0, "memory_share_": 1.0, "spill_": 0.1, "chunk_s_": 1e-5, "wave_s_": 1e-8}
    one, hundred = (seconds("delta_prefill", {**sizes, "tokens": 64.0 * n}, **fast) for n in (1, 100))
    rows = 99 * 64 * (4 * 4 * 128 + 4 * 8 * 128) * 1.1 / 1e12
    assert hundred - one == pytest.approx(99 * 1e-5 + rows, rel=1e-3)
    thin = {**sizes, "tokens": 1.0, "key_dim": 1.0, "value_dim": 1.0}
    waves, fewer = (seconds("delta_prefill", {**thin, "batch": n}, **fast) for n in (100.0, 12.0))
    assert waves - fewer == pytest.approx(7 * 1e-5, rel=0.01)  # 800 states over 100 SMs, and 96


def test_a_token_of_a_recurrence_reads_and_writes_its_states() -> None:
    sizes = {"batch": 1000.0, "heads": 32.0, "key_heads": 16.0, "key_dim": 128.0, "value_dim": 128.0}
    states = 1000 * 32 * 128 * 128 * 4
    found = seconds("delta_decode", sizes, start_s_=1e-6, memory_share_=1.0, head_s_=1e-9, l2_kept_=0.001)
    assert found == pytest.approx(2 * states / 1e12, rel=0.02)


def test_a_convolution_has_a_block_for_each_channel_of_a_sequence() -> None:
    sizes = {"batch": 10.0, "tokens": 512.0, "channels": 1000.0}
    values = {"start_s_": 1e-6, "block_s_": 1e-6, "memory_share_": 1.0}
    short, longer, two = (seconds("convolution", {**sizes, "tokens": t}, **values) for t in (1.0, 1024.0, 1025.0))
    assert short == pytest.approx(longer, rel=0.02) == pytest.approx(1e-6 + 100 * 1e-6, rel=0.02)
    assert two == pytest.approx(1e-6 + 200 * 1e-6, rel=0.02)


def test_a_convolution_walks_its_first_tokens_in_turn() -> None:
    """Three more tokens of eight, and none beyond them; their bytes and blocks are next to nothing."""
    values = {"start_s_": 1e-6, "block_s_": 1e-11, "memory_share_": 1.0, "token_s_": 2e-7}
    one, four, eight, more = (
        seconds("convolution", {"batch": 1.0, "tokens": t, "channels": 8.0}, **values) for t in (1.0, 4.0, 8.0, 64.0)
    )
    assert four - one == pytest.approx(3 * 2e-7, rel=1e-3)
    assert eight - one == pytest.approx(7 * 2e-7, rel=1e-3) == pytest.approx(more - one, rel=1e-2)


def test_times_that_do_not_grow_with_the_width_tell_no_width() -> None:
    work, width = np.repeat(np.arange(4.0), 2), np.tile([1000.0, 2000.0], 4)
    start = np.full(8, 1e-6)  # as short as the shortest: not asked
    times = 1e-5 * (1 + work)
    all_of = [np.concatenate(pair) for pair in ((work, work + 9), (width, width))]
    assert elasticity(*all_of, np.concatenate([times, start])) == pytest.approx(0.0, abs=1e-9)
    assert elasticity(*all_of, np.concatenate([times * width / 1000, start])) == pytest.approx(1.0)
    assert np.isnan(elasticity(work, np.full(8, 1000.0), times))


def test_questions_state_the_work_of_a_layer() -> None:
    decode = layer_questions.latent_layer(1, 1, 128, cached=4095, decode=True)
    assert decode.question.family == "mla_layer_decode"
    elements = 7168 * (1536 + 576) + 128 * (1536 * 192 + 512 * 256 + 128 * 7168)
    assert float(np.asarray(decode.flop)) == 2 * elements + 4096 * 2 * 128 * (576 + 512)
    sparse = layer_questions.latent_layer(1, 1, 128, cached=65535, decode=True, sparse=True)
    more = 1536 * 64 * 128 + 7168 * (128 + 64)
    scores = 2048 * 2 * 128 * (576 + 512) + 2 * 65536 * 64 * 128
    assert float(np.asarray(sparse.flop)) == 2 * (elements + more) + scores
    delta = layer_questions.delta_rule(2, 100, 32, 16, 128, 64)
    assert float(np.asarray(delta.flop)) == 6 * 200 * 32 * 128 * 64
    assert float(np.asarray(layer_questions.quantize(10, 100, dynamic=True).bytes)) == 10 * 100 * 5


def test_better_formats_read_narrower_weights() -> None:
    times = [
        float(np.asarray(price(layer_questions.latent_layer(16, 1, 128, cached=100, decode=True, dtype=name)
                               .by("vllm").question, accelerator("B200-SXM")).seconds))
        for name in ("bf16", "fp8_block", "nvfp4")
    ]  # fmt: skip
    assert times[0] > times[2]


def test_widths_of_a_model_without_a_row_are_refused() -> None:
    assert latent_widths("zai-org/GLM-5.2-FP8", sparse=True)["hidden"] == 6144
    assert latent_widths("deepseek-ai/DeepSeek-V3.2", sparse=False)["index_heads"] == 0
    with pytest.raises(UnknownNameError, match="unknown model with latent attention 'Llama-3'"):
        latent_widths("Llama-3", sparse=True)


def columns(count: int, **given: Any) -> dict[str, Any]:
    return {name: np.array([value] * count if not isinstance(value, list) else value) for name, value in given.items()}


def test_sparse_rows_say_by_their_source_whether_the_indexer_runs() -> None:
    table = OpTable(
        accelerator="H200-SXM", family="sparse_attention", engine="sglang", version="0.5.14",
        name="dsa_context_module_perf", path=Path("x"),
    )  # fmt: skip
    sources = ["sglang_dsa_indexer_x", "sglang_dsa_skip_indexer_x", "sglang_dsa_dense_mha_x"]
    found = READERS["dsa_layer_prefill"].sizes(
        columns(
            3, kernel_source=sources, model="deepseek-ai/DeepSeek-V3.2", batch_size=2, isl=64, step=10, num_heads=16,
            kv_cache_dtype=["fp8", "bfloat16", "fp8"],
        ),
        table,
    )  # fmt: skip
    assert np.asarray(found["index_heads"]).tolist() == [64, 0, 0]
    assert np.asarray(found["top"]).tolist() == [2048, 2048, 0]
    assert np.asarray(found["absorbed"]).tolist() == [1, 1, 0]
    assert np.asarray(found["cache_bytes"]).tolist() == [1, 2, 1]


def test_products_whose_weights_were_widened_count_as_16_bit() -> None:
    reader = READERS["mla_bmm"]
    assert reader.forms is not None
    words = columns(2, kernel_source=["trtllm_bmm_out_dequant_bf16", "sgl_bmm_fp8"], bmm_dtype=["fp8", "fp8"])
    assert reader.forms(words).tolist() == ["bf16", "fp8"]


@pytest.mark.parametrize(
    ("kind", "moved"),
    [
        ("copy", 4 * 1000),
        ("norm", 6 * 1000),
        ("softmax", 4 * 1000),
        ("reduce", 2 * 1000 + 4),
        ("dequantize", 4 * 1000),
        ("sort", 2 * 1000 * 6),  # in one block: read and written once, with places of four bytes
        ("sort_keys", 2 * 1000 * 2),
        ("sort_long", 2 * 1000 * 10),
        ("adam", 1000 * (2 + 24 + 2)),
    ],
)
def test_streams_move_what_their_row_says(kind: str, moved: float) -> None:
    work = stream_work(kind, 3, 1000, 2.0)
    assert float(np.asarray(work.bytes)) == 3 * moved
    assert work.kernels == 1


@pytest.mark.parametrize(("kind", "each"), [("sort", 6), ("sort_keys", 2), ("sort_long", 10)])
def test_more_keys_than_a_block_holds_are_passed_over_for_each_digit(kind: str, each: int) -> None:
    """Two digits of 16 bits, each a kernel, beside the count and its sum; places of four or eight bytes go along."""
    work = stream_work(kind, 3, 5000, 2.0)
    assert float(np.asarray(work.bytes)) == 3 * 5000 * (2 + 2 * 2 * each)
    assert work.kernels == 4


def test_long_rows_of_a_softmax_are_read_twice() -> None:
    short, long = (float(np.asarray(stream_work("softmax", 1, size, 2.0).bytes)) / size for size in (24_000, 25_000))
    assert (short, long) == (4.0, 6.0)
    assert all(math.isfinite(float(np.asarray(stream_work(kind, 7, 77, 2.0).bytes))) for kind in STREAMS)
