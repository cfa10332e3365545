"""Products by hand: waves of tiles, splits of k, traffic beyond L2, casts and the host's issue time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.cost import questions
from ridgeline.cost.families.gemm import CASTS, GEMM, issued, norm4

# four SMs of 1 TFLOP/s each, 1 TB/s, 1 MB of L2
DEVICE = np.array([4, 4e12, 1e12, 1e6, 1e9, 1e12, 4e12])
IDEAL = {
    "start_s_": 0.0,
    "matrix_share_": 1.0,
    "memory_share_": 1.0,
    "fill_s_": 0.0,
    "sm_bytes_per_s_": 1e15,
    "sm_l2_bytes_per_s_": 1e15,
    "split_s_": 1.0,  # nobody splits
    "edge_": 0.0,
    "most_parts_": 32.0,
    "step_s_": 0.0,
    "result_kept_": 0.0,
    "input_kept_": 0.0,
    "issue_s_": 1e-12,
    "cast_start_s_": 0.0,
    "cast_row_s_": 0.0,
    "cast_element_s_": 0.0,
}
COMPILED = settings(deadline=None)  # the first example compiles the formula
BF16 = {"input_bytes": 2.0, "weight_bytes": 2.0, "output_bytes": 2.0}


def us(m: float, n: float, k: float, values: dict[str, float] | None = None, **sizes: float) -> float:
    found = GEMM.seconds({"m": m, "n": n, "k": k, **BF16, **sizes}, DEVICE, GEMM.vector(IDEAL | (values or {})))
    return float(found) * 1e6


def test_one_wave_of_tiles_takes_its_flop_at_the_peak() -> None:
    assert us(256, 256, 1024) == pytest.approx(2 * 256 * 256 * 1024 / 4e12 * 1e6, rel=1e-4)


def test_a_row_more_pays_for_a_padded_tile() -> None:
    """257 rows are 17 tiles of 16: 68 tiles of 16 x 64 in 17 waves."""
    assert us(257, 256, 1024) == pytest.approx(17 * 2 * 16 * 64 * 1024 / 1e12 * 1e6, rel=1e-4)


def test_k_is_padded_to_64_and_a_wave_fills() -> None:
    """A 16 x 16 result is one tile of 64 x 16, in two steps of 64 for 65 of k."""
    step = 2 * 64 * 16 * 64 / 1e12 * 1e6
    assert us(16, 16, 65) == pytest.approx(2 * step, rel=1e-3)
    assert us(16, 16, 65, {"fill_s_": 1e-6}) == pytest.approx(2 * step + 1, rel=1e-3)


def test_k_is_split_when_that_keeps_idle_sms_busy() -> None:
    whole = 2 * 64 * 16 * 4096 / 1e12 * 1e6
    assert us(16, 16, 4096) == pytest.approx(whole, rel=1e-4)
    partial_sums = 16 * 16 * 4 * 4 / 1e12 * 1e6
    assert us(16, 16, 4096, {"split_s_": 1e-6}) == pytest.approx(whole / 4 + 1 + partial_sums, rel=1e-3)


def test_k_is_split_into_no_more_parts_than_the_library_does() -> None:
    """One tile on four SMs: in halves where two parts are the most, whole where one is."""
    whole = 2 * 64 * 16 * 4096 / 1e12 * 1e6
    halved = us(16, 16, 4096, {"split_s_": 1e-6, "most_parts_": 2.0})
    assert halved == pytest.approx(whole / 2 + 1 + 16 * 16 * 4 * 2 / 1e12 * 1e6, rel=1e-3)
    assert us(16, 16, 4096, {"split_s_": 1e-6, "most_parts_": 1.0}) == pytest.approx(whole, rel=1e-4)


def test_the_loop_over_k_turns_no_faster_than_its_step() -> None:
    """4096 turns of 5 ns for a tile of 16 x 16, which has 2 ns of FLOP; a larger tile's FLOP hides its step."""
    slow = {"step_s_": 5e-9}
    assert us(16, 16, 4096, slow) == pytest.approx(4096 * 5e-3, rel=1e-4)
    assert us(256, 256, 1024, slow) == pytest.approx(us(256, 256, 1024), rel=1e-9)


def test_small_tiles_pay_for_their_edges() -> None:
    """128 x 128 tiles with 4 rows of edge: 1 + 4 (1/128 + 1/128)."""
    assert us(256, 256, 1024, {"edge_": 4.0}) / us(256, 256, 1024) == pytest.approx(1 + 8 / 128, rel=1e-4)


def test_one_row_reads_its_weights_once() -> None:
    moved = (4096 + 4096 * 4096 + 4096) * 2
    fast = {"matrix_share_": 1e3}
    assert us(1, 4096, 4096, fast) == pytest.approx(moved / 1e12 * 1e6, rel=1e-3)
    narrow = (4096 * 2 + 4096 * 4096 * 0.5 + 4096 * 2) / 1e12 * 1e6
    assert us(1, 4096, 4096, fast, weight_bytes=0.5) == pytest.approx(narrow, rel=1e-3)


def test_few_busy_sms_cannot_ask_for_all_of_the_memory() -> None:
    """One tile on one SM that asks for 10 GB/s."""
    moved = (16 * 4096 + 4096 * 16 + 16 * 16) * 2
    slow = us(16, 16, 4096, {"sm_bytes_per_s_": 1e10, "matrix_share_": 1e3})
    assert slow == pytest.approx(moved / 1e10 * 1e6, rel=1e-3)


def test_l2_halves_the_traffic_of_a_set_as_large_as_it_keeps() -> None:
    k = 4096
    inputs = (64 * k + 64 * k) * 2
    kept = inputs / 1e6 * 1.0  # share of 1 MB
    cold = us(64, 64, k, {"matrix_share_": 1e6})
    warm = us(64, 64, k, {"matrix_share_": 1e6, "input_kept_": kept})
    result = 64 * 64 * 2 / 1e12 * 1e6
    assert warm - result == pytest.approx((cold - result) / 2, rel=1e-3)


def test_a_cast_reads_16_bits_and_writes_8() -> None:
    fp8 = {"input_bytes": 1.0, "weight_bytes": 1.0}
    more = us(4096, 64, 8192, cast=1.0, **fp8) - us(4096, 64, 8192, **fp8)
    assert more == pytest.approx(4096 * 8192 * 3 / 1e12 * 1e6, rel=1e-3)
    values = {"cast_start_s_": 2e-6, "cast_row_s_": 1e-6, "cast_element_s_": 1e-9}
    one_row = us(1, 64, 8192, values, cast=1.0, **fp8) - us(1, 64, 8192, values, **fp8)
    assert one_row == pytest.approx(2 + 1 + 8.192, rel=1e-3)  # one block of an SM


@pytest.mark.parametrize(("m", "k"), [(1, 1024), (300, 8192), (8192, 28672)])
def test_the_cast_alone_is_the_cast_before_a_product(m: float, k: float) -> None:
    values = {"cast_start_s_": 8e-6, "cast_row_s_": 2e-9, "cast_element_s_": 2e-10}
    fp8 = {"input_bytes": 1.0, "weight_bytes": 1.0}
    more = us(m, 64, k, values, cast=1.0, **fp8) - us(m, 64, k, values, **fp8)
    alone = CASTS.seconds({"m": m, "k": k, "input_bytes": 1.0}, DEVICE, CASTS.vector(values))
    assert float(alone) * 1e6 == pytest.approx(more, rel=1e-3)


def test_the_host_s_issue_time_is_a_floor_with_a_narrow_knee() -> None:
    assert us(256, 256, 1024, {"issue_s_": 1e-3}) == pytest.approx(1000, rel=1e-6)
    assert issued(1e-5, 1e-5) == pytest.approx(2 ** (1 / 8) * 1e-5)
    assert norm4(3.0, 3.0) == pytest.approx(3 * 2**0.25)


def test_a_product_counts_two_flop_for_each_multiplication() -> None:
    asked = questions.gemm(3, 5, 7, count=2, dtype="fp8")
    assert asked.flop == 2 * 3 * 5 * 7 * 2
    assert asked.bytes == (3 * 7 + 7 * 5 + 3 * 5 * 2) * 2


@COMPILED
@given(st.integers(1, 20000), st.integers(1, 20000), st.integers(1, 20000))
def test_no_product_beats_its_roofline(m: int, n: int, k: int) -> None:
    flop, moved = 2 * m * n * k / 4e12, (m * k + k * n + m * n) * 2 / 1e12
    assert us(m, n, k, {"split_s_": 1e-6}) * (1 + 1e-9) >= max(flop, moved) * 1e6
