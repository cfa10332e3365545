"""Attention by hand: keys that a query sees, tiles of a causal mask, traffic of a decode, keys split over idle SMs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.cost import questions
from ridgeline.cost.families.attention import DECODE, PREFILL
from ridgeline.errors import DomainError

# four SMs of 1 TFLOP/s each, 1 TB/s, hardly any L2
DEVICE = np.array([4, 4e12, 1e12, 1e3, 1e9, 1e12, 4e12])
PREFILL_IDEAL = {
    "start_s_": 0.0, "matrix_share_": 1.0, "memory_share_": 1.0, "fill_s_": 0.0, "exponents_per_clock_": 1e9,
    "softmax_overlap_": 4.0, "tail_": 0.0, "l2_kept_": 1e-3, "rotary_share_": 1.0, "wide_": 0.0, "masked_keys_": 0.0,
    "memory_overlap_": 8.0,
}  # fmt: skip
DECODE_IDEAL = {
    "start_s_": 0.0, "matrix_share_": 1e6, "memory_share_": 1.0, "fill_s_": 0.0, "sm_bytes_per_s_": 1e15,
    "tile_s_": 0.0, "tail_": 0.0, "split_s_": 0.0, "l2_kept_": 1e-3, "fill_per_width_s_": 0.0, "split_each_s_": 0.0,
    "window_fill_s_": 0.0, "wide_": 0.0, "memory_overlap_": 8.0,
}  # fmt: skip


def prefill_s(values: dict[str, float] | None = None, **sizes: float) -> float:
    base = {"batch": 1.0, "kv_heads": 4.0, "head_dim": 128.0, "kv_bytes": 2.0}
    return float(PREFILL.seconds(base | sizes, DEVICE, PREFILL.vector(PREFILL_IDEAL | (values or {}))))


def decode_s(values: dict[str, float] | None = None, **sizes: float) -> float:
    base = {"batch": 1.0, "kv_heads": 4.0, "head_dim": 128.0, "kv_bytes": 2.0}
    return float(DECODE.seconds(base | sizes, DEVICE, DECODE.vector(DECODE_IDEAL | (values or {}))))


@given(st.integers(1, 60), st.integers(0, 40), st.integers(0, 70))
def test_flop_count_every_key_that_a_query_sees(tokens: int, cached: int, window: int) -> None:
    seen = sum(min(cached + i, window or 10**9) for i in range(1, tokens + 1))
    asked = questions.prefill(2, tokens, 8, 2, 64, cached=cached, window=window)
    assert float(np.asarray(asked.flop)) == 4 * 2 * 8 * 64 * seen
    assert asked.question.sizes["group"] == 4


@given(st.integers(1, 60), st.integers(1, 100), st.integers(0, 70))
def test_a_decode_reads_each_key_once(batch: int, context: int, window: int) -> None:
    seen = min(context, window or context)
    asked = questions.decode(batch, context, 8, 2, 64, window=window, cache_dtype="fp8")
    assert float(np.asarray(asked.flop)) == 4 * batch * 8 * 64 * seen
    assert float(np.asarray(asked.bytes)) == batch * 64 * (2 * 2 * seen * 1 + 4 * 8)


@pytest.mark.parametrize(
    ("dtype", "cache", "found"),
    [
        ("bf16", "", "bf16"),
        ("fp16", "", "bf16"),
        ("bf16", "fp8", "bf16_kv8"),
        ("fp8", "fp8", "fp8"),
        ("fp8_block", "", "fp8"),
    ],
)
def test_the_format_is_the_products_or_the_narrower_cache_s(dtype: str, cache: str, found: str) -> None:
    assert questions.attention_form(dtype, cache) == found


def test_an_unknown_format_of_the_cache_is_refused() -> None:
    with pytest.raises(DomainError, match="'fp7' is no number format"):
        questions.decode(1, 8, 8, 8, 64, cache_dtype="fp7")


def test_latent_attention_shares_one_latent_of_576() -> None:
    asked = questions.mla_decode(2, 100, 16)
    assert float(np.asarray(asked.flop)) == 2 * 2 * 16 * 100 * (576 + 512)
    assert float(np.asarray(asked.bytes)) == 2 * (100 * 576 * 2 + 2 * 16 * (576 + 512))
    assert asked.question.sizes["kv_heads"] == 1
    expanded = questions.mla_prefill(1, 10, 16, cached=5)
    assert float(np.asarray(expanded.flop)) == 2 * 16 * (192 + 128) * sum(5 + i for i in range(1, 11))


def test_a_causal_mask_takes_the_tiles_below_its_diagonal() -> None:
    """1024 tokens are 8 tiles of 128 rows over 128, 256 ... 1024 keys: 4608 keys for each of 4 heads on 4 SMs."""
    step = 4 * 128 * 128 / 1e12  # two products of a key with 128 rows of width 128
    assert prefill_s(tokens=1024.0) == pytest.approx(4608 * step, rel=1e-3)
    assert prefill_s(tokens=1024.0, cached=512.0) == pytest.approx((4608 + 8 * 512) * step, rel=1e-3)
    assert prefill_s(tokens=1024.0, batch=3.0) == pytest.approx(3 * 4608 * step, rel=1e-3)


def test_a_window_leaves_a_band_of_tiles() -> None:
    """A window of 256 leaves tiles of at most 256 + 128 keys: 128, 256 and six times 384."""
    step = 4 * 128 * 128 / 1e12
    assert prefill_s(tokens=1024.0, window=256.0) == pytest.approx((128 + 256 + 6 * 384) * step, rel=1e-3)


def test_a_short_prompt_of_grouped_heads_shares_a_tile() -> None:
    """Two tokens of 64 heads fill two tiles of 64 rows, on an SM each, where heads may share; else 64 on four."""
    sizes: dict[str, Any] = {"tokens": 2.0, "cached": 1022.0, "kv_heads": 1.0, "group": 64.0}
    alone = prefill_s(packed=0.0, **sizes)
    assert alone == pytest.approx(64 * 1024 * 4 * 64 * 128 * 1.3 / 4e12, rel=1e-3)
    assert prefill_s(packed=1.0, **sizes) == pytest.approx(1024 * 4 * 64 * 128 * 1.3 / 1e12, rel=1e-3)


def test_exponentials_bound_narrow_heads() -> None:
    """Eight exponentials a clock: 64 rows of a key take 8 ns; sixteen such tiles see 64, 128 ... 1024 keys."""
    slow = prefill_s({"exponents_per_clock_": 8.0, "softmax_overlap_": 12.0}, tokens=1024.0, head_dim=16.0)
    assert slow == pytest.approx(64 * 16 * 17 / 2 * 64 / 8e9, rel=0.02)


def test_a_decode_moves_the_cache_at_the_memory_s_rate() -> None:
    moved = 2 * 64 * 4 * 4096 * 128 * 2 + 64 * 4 * 128 * 4
    assert decode_s(batch=64.0, context=4096.0) == pytest.approx(moved / 1e12, rel=1e-3)
    narrow = 2 * 64 * 4 * 4096 * 128 * 1 + 64 * 4 * 128 * 4
    assert decode_s(batch=64.0, context=4096.0, kv_bytes=1.0) == pytest.approx(narrow / 1e12, rel=1e-3)
    assert decode_s(batch=64.0, context=4096.0, window=1024.0) == pytest.approx(
        decode_s(batch=64.0, context=1024.0), rel=1e-6
    )


def test_a_kernel_that_always_splits_adds_its_parts_up_however_short_the_keys() -> None:
    """1,000 sequences of one key: eight parts of 4 heads, each written and read in fp32, at 1 TB/s."""
    sizes: dict[str, Any] = {"batch": 1000.0, "context": 1.0, "kv_heads": 1.0, "group": 4.0, "most_splits": 8.0}
    parts = 1000 * 4 * 128 * 8 * 8 / 1e12
    assert decode_s(always_splits=1.0, **sizes) - decode_s(**sizes) == pytest.approx(parts, rel=0.1)


def test_blocks_of_a_few_heads_read_the_keys_for_themselves() -> None:
    """32 query heads of one key head in blocks of 16: twice the blocks, on SMs that all had one before."""
    sizes: dict[str, Any] = {"batch": 400.0, "context": 4096.0, "kv_heads": 1.0, "group": 32.0, "most_splits": 1.0}
    values = {"sm_bytes_per_s_": 1e9}
    whole, halves = (decode_s(values, block_heads=heads, **sizes) for heads in (0.0, 16.0))
    assert halves / whole == pytest.approx(2.0, rel=0.05)


def test_long_keys_of_one_sequence_are_split_over_idle_sms() -> None:
    """One head on one of four SMs reads 10 GB/s; four parts read 40, and are combined in 1 us."""
    sizes: dict[str, Any] = {"context": 4096.0, "kv_heads": 1.0}
    values = {"sm_bytes_per_s_": 1e10, "split_s_": 1e-6}
    whole = 2 * 4096 * 128 * 2 / 1e10
    assert decode_s(values, most_splits=1.0, **sizes) == pytest.approx(whole, rel=1e-3)
    split = decode_s(values, most_splits=4.0, **sizes)
    assert split == pytest.approx(whole / 4 + 1e-6, rel=1e-2)
    assert decode_s(values, **sizes) <= split
