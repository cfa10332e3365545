"""Experts by hand: rows that reach each expert of a rank, balanced or skewed, and what the feed-forward pays for."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ridgeline.cost import questions
from ridgeline.cost.answer import Rung
from ridgeline.cost.families.experts import EXPERTS, derive
from ridgeline.cost.families.routing import TILE_ROWS, experts_reached
from ridgeline.cost.fitted import model_of
from ridgeline.cost.readers import READERS
from ridgeline.facts.accelerators import accelerator
from ridgeline.facts.fits import fits
from ridgeline.facts.opdata import OpTable

DEVICE = np.array([4, 4e12, 1e12, 1e3, 1e9, 1e12, 4e12])  # four SMs of 1 TFLOP/s each, 1 TB/s, hardly any L2
COMPILED = settings(deadline=None)  # the first example compiles the formula
IDEAL = {
    "start_s_": 0.0, "matrix_share_": 1.0, "memory_share_": 1.0, "fill_s_": 0.0, "sm_bytes_per_s_": 1e15,
    "sm_l2_bytes_per_s_": 1e15, "l2_kept_": 1e-3, "edge_": 0.0, "sort_s_per_row_": 0.0, "expert_s_": 0.0,
    "ranks_start_s_": 0.0, "elementwise_share_": 1e6, "issue_s_": 1e-12,
}  # fmt: skip


def routed(tokens: int, top_k: int, experts: int, ranks: int = 1, skew: float = 0.0) -> np.ndarray:
    """Rows of the rank, experts reached, rows of the fullest, then row tiles of each height."""
    row = dict(zip(EXPERTS.sizes, [0.0] * len(EXPERTS.sizes), strict=True))
    row |= {"tokens": tokens, "top_k": top_k, "experts": experts, "ranks": ranks, "skew": skew}
    return derive(np.array([list(row.values())], dtype=float))[0, len(EXPERTS.sizes) :]


def seconds(values: dict[str, float] | None = None, **sizes: float) -> float:
    base = {"hidden": 256.0, "inner": 512.0, "input_bytes": 2.0, "weight_bytes": 2.0}
    return float(EXPERTS.seconds(base | sizes, DEVICE, EXPERTS.vector(IDEAL | (values or {}))))


@pytest.mark.parametrize(
    ("tokens", "top_k", "experts", "ranks", "rows", "reached", "fullest"),
    [
        (4, 2, 4, 1, 8, 4, 2),  # token i takes i and i + 2: each expert twice
        (1, 2, 4, 1, 2, 2, 1),  # experts 0 and 2
        (1, 2, 4, 2, 1, 1, 1),  # of which the first rank has 0
        (3, 2, 4, 1, 6, 4, 2),  # (0, 2), (1, 3), (2, 0)
        (8, 1, 4, 2, 4, 2, 2),
        (3, 5, 8, 1, 15, 8, 3),
        (64, 8, 64, 4, 128, 16, 8),
    ],
)
def test_balanced_rows_by_hand(
    tokens: int, top_k: int, experts: int, ranks: int, rows: int, reached: int, fullest: int
) -> None:
    assert routed(tokens, top_k, experts, ranks)[:3].tolist() == [rows, reached, fullest]


def test_rows_are_padded_to_tiles_expert_by_expert() -> None:
    """Twelve rows at each of four experts: two tiles of 8 rows each, one of 16 and of any larger height."""
    assert dict(zip(TILE_ROWS.tolist(), routed(24, 2, 4)[3:].tolist(), strict=True)) == {
        8: 8, 16: 4, 32: 4, 64: 4, 128: 4, 256: 4,
    }  # fmt: skip


SIZES = {"tokens": st.integers(1, 5000), "top_k": st.integers(1, 16), "experts": st.integers(1, 256)}
SKEW = st.sampled_from((0.0, 0.6, 1.01, 1.2, 1.9))


@COMPILED
@given(**SIZES, skew=SKEW)
def test_rows_at_one_rank_are_all_rows(tokens: int, top_k: int, experts: int, skew: float) -> None:
    assume((top_k - 1) * math.ceil(experts / top_k) < experts)  # a token takes different experts
    rows, reached, fullest, *tiles = routed(tokens, top_k, experts, skew=skew)
    assert rows == tokens * top_k
    assert fullest <= tokens
    assert 0 < reached <= min(experts, rows)
    assert reached * fullest >= rows
    assert tiles == sorted(tiles, reverse=True)
    assert all(tile * height >= rows and tile >= reached for tile, height in zip(tiles, TILE_ROWS, strict=True))


@COMPILED
@given(tokens=SIZES["tokens"], top_k=SIZES["top_k"], each=st.integers(1, 64), ranks=st.sampled_from((2, 4, 8)))
def test_the_most_loaded_rank_holds_the_mean_at_least(tokens: int, top_k: int, each: int, ranks: int) -> None:
    experts = each * ranks
    assume(top_k <= experts)
    rows, reached, *_ = routed(tokens, top_k, experts, ranks, skew=1.2)
    assert tokens * top_k / ranks <= rows * (1 + 1e-9)
    assert rows <= tokens * top_k + ranks
    assert 0 < reached <= experts // ranks * (1 + 1e-9)


@COMPILED
@given(**SIZES)
def test_skew_fills_the_fullest_expert(tokens: int, top_k: int, experts: int) -> None:
    assume((top_k - 1) * math.ceil(experts / top_k) < experts)
    even, skewed = routed(tokens, top_k, experts), routed(tokens, top_k, experts, skew=1.2)
    assert skewed[2] >= even[2]
    assert skewed[1] <= even[1]


def test_two_products_take_their_flop_when_tiles_are_full() -> None:
    """128 rows at each of four experts: one tile of 128 rows x 256 columns wide for each SM, four and one times."""
    flop = 2 * 4 * 128 * 256 * 512 * 3
    assert seconds(tokens=256.0, top_k=2.0, experts=4.0) == pytest.approx(flop / 4e12, rel=1e-3)
    assert seconds(tokens=256.0, top_k=2.0, experts=4.0, gated=0.0) == pytest.approx(flop / 4e12 * 2 / 3, rel=1e-3)


def test_few_tokens_read_the_weights_of_the_experts_that_they_reach() -> None:
    fast = {"matrix_share_": 1e6}
    each = 3 * 256 * 512 * 2 / 1e12
    assert seconds(fast, tokens=1.0, top_k=2.0, experts=64.0) == pytest.approx(2 * each, rel=0.02)
    assert seconds(fast, tokens=32.0, top_k=2.0, experts=64.0) == pytest.approx(64 * each, rel=0.05)


def test_l2_halves_the_traffic_of_a_set_as_large_as_it_keeps() -> None:
    """Weights of two experts, and two rows in and out of both products."""
    fast, sizes = {"matrix_share_": 1e6}, {"tokens": 1.0, "top_k": 2.0, "experts": 64.0}
    touched = 2 * 3 * 256 * 512 * 2 + 2 * (256 * (2 + 2) + 512 * (2 * 2 + 2))
    warm = seconds(fast | {"l2_kept_": touched / 1e3}, **sizes)
    assert warm == pytest.approx(seconds(fast, **sizes) / 2, rel=0.01)


def test_small_kernels_around_the_products_add_up() -> None:
    sizes = {"tokens": 100.0, "top_k": 2.0, "experts": 64.0}
    for values, more in (
        ({"start_s_": 1e-3}, 1e-3),
        ({"sort_s_per_row_": 1e-6}, 200e-6),
        ({"expert_s_": 1e-6}, 64e-6),
        ({"ranks_start_s_": 1e-3}, 0.0),
    ):
        assert seconds(values, **sizes) - seconds(**sizes) == pytest.approx(more)
    shared = seconds({"ranks_start_s_": 1e-3}, ranks=4.0, **sizes) - seconds(ranks=4.0, **sizes)
    assert shared == pytest.approx(1e-3)


def test_experts_count_the_flop_of_their_own_rows() -> None:
    asked = questions.experts(64, 4096, 1536, 8, 128, ranks=4, dtype="bf16")
    assert asked.flop == 2 * (64 * 8 / 4) * 4096 * 1536 * 3
    assert asked.bytes == 32 * 3 * 4096 * 1536 * 2 + 128 * 4096 * 4
    assert questions.experts(64, 4096, 1536, 8, 128, gated=False).flop == 2 * 64 * 8 * 4096 * 1536 * 2


def columns(
    ranks: int, *, hidden: int = 7168, kernel: str = "moe", dtype: str = "fp8_block", cut: int = 1
) -> dict[str, Any]:
    return {
        "hidden_size": np.array([hidden]), "num_experts": np.array([256]), "topk": np.array([8]),
        "moe_ep_size": np.array([ranks]), "inter_size": np.array([2688]), "moe_tp_size": np.array([cut]),
        "kernel_source": np.array([kernel], dtype=object), "moe_dtype": np.array([dtype], dtype=object),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("engine", "version", "ranks", "hidden", "told"),
    [
        ("vllm", "0.22.0", 8, 7168, True),
        ("vllm", "0.24.0", 8, 7168, False),  # DeepSeek-V3's router keeps four of eight groups
        ("vllm", "0.24.0", 1, 7168, True),
        ("vllm", "0.24.0", 8, 4096, True),  # no groups
        ("sglang", "0.5.10", 8, 4096, False),  # all experts of a token on the first rank
        ("sglang", "0.5.14", 8, 4096, True),
        ("sglang", "0.5.16", 8, 7168, False),
        ("trtllm", "1.3.0rc20", 8, 7168, True),
    ],
)
def test_rows_whose_tokens_went_elsewhere_are_left_out(
    engine: str, version: str, ranks: int, hidden: int, told: bool
) -> None:
    table = OpTable(
        accelerator="H100-SXM", family="moe", engine=engine, version=version, name="moe_perf", path=Path("moe_perf")
    )
    reader = READERS["experts"]
    assert reader.told is not None
    assert reader.told(columns(ranks, hidden=hidden), table).tolist() == [told]


@pytest.mark.parametrize(
    ("kernel", "dtype", "cut", "told"),
    [
        ("sglang_fused_moe_triton", "fp8_block", 8, True),  # 336 = 21 x 16
        ("sglang_fused_moe_triton", "fp8_block", 16, False),  # 168 = 21 x 8: read one by one
        ("sglang_fused_moe_triton", "fp8_block", 32, False),
        ("sglang_fused_moe_triton", "bfloat16", 16, True),
        ("sglang_flashinfer_trtllm_moe", "fp8_block", 16, True),  # others pad
    ],
)
def test_widths_that_a_kernel_reads_one_by_one_are_left_out(kernel: str, dtype: str, cut: int, told: bool) -> None:
    table = OpTable(
        accelerator="H100-SXM", family="moe", engine="sglang", version="0.5.10", name="moe_perf", path=Path("moe_perf")
    )
    reader = READERS["experts"]
    assert reader.told is not None
    assert reader.told(columns(1, kernel=kernel, dtype=dtype, cut=cut), table).tolist() == [told]


def test_no_kernel_of_a_release_in_use_may_take_ten_times_as_long() -> None:
    """Intervals of the experts' kernels that SGLang runs on Hopper hold no rows of another kind."""
    mixed = [f for f in fits("experts") if f.kernel == "sglang_fused_moe_triton" and f.form == "fp8_block"]
    assert mixed
    assert max(max(fit.high) for fit in mixed) < 2.0


def test_the_kernel_timed_in_a_model_is_taken_before_a_narrower_one() -> None:
    fit = next(fit for fit in fits("experts") if (fit.device, fit.form) == ("H100-SXM", "bf16"))
    box = dict.fromkeys(("tokens", "hidden", "inner", "top_k", "experts", "ranks"), (1.0, 1000000.0, 1.0))
    names = ("hidden", "experts", "top_k")
    wide = replace(fit, kernel="wide", domain=box, timed_by=names, timed=((7168.0, 256.0, 8.0),))
    slow = {**fit.values, "start_s_": fit.values["start_s_"] * 10}
    narrow = replace(wide, kernel="narrow", domain={**box, "tokens": (1.0, 1e5, 1.0)}, values=slow, timed=())
    part = accelerator("H100-SXM")
    both = model_of("experts", "bf16", part, (wide, narrow), Rung.FITTED)
    alone = {f.kernel: model_of("experts", "bf16", part, (f,), Rung.FITTED) for f in (wide, narrow)}
    of = {"tokens": 64.0, "inner": 2048.0, "ranks": 1.0, "skew": 0.0, "gated": 1.0}
    for hidden, kernel in ((7168.0, "wide"), (4096.0, "narrow")):
        sizes = {**of, "hidden": hidden, "experts": 256.0, "top_k": 8.0}
        assert both.seconds(sizes) == alone[kernel].seconds(sizes)


def test_experts_of_own_kernels_are_those_that_the_law_reaches() -> None:
    """As many as the rows of the tables' law count, and never more than there are experts or rows."""
    tokens = np.array([1.0, 2.0, 8.0, 32.0, 512.0])
    even, skewed = (experts_reached(tokens, 4.0, 32.0, skew) for skew in (0.0, 1.01))
    assert even.tolist() == [4.0, 8.0, 32.0, 32.0, 32.0]
    assert np.all(skewed <= even)
    assert np.all(np.diff(skewed) >= 0)
    assert skewed[2] < 20
