"""2:4 masks against every mask that there is, unbiased gradients against their mean, S-STE's projection by hand."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from ridgeline.errors import InputError
from ridgeline.numerics.algorithm import algorithm, drawn
from ridgeline.numerics.semi_structured import patterns, row_mask, transposable_mask, unbiased
from ridgeline.numerics.soft_threshold import fixed_scale, soft_threshold
from ridgeline.numerics.sparse_quantized import pair_mask, symmetric

WEIGHT = np.random.default_rng(0).standard_normal((16, 24))


def two_of_four(mask: np.ndarray) -> bool:
    return bool(np.all(mask.reshape(mask.shape[0], -1, 4).sum(axis=2) == 2))


def test_masks_keep_two_of_four_by_rows_and_both_ways() -> None:
    rows, both = row_mask(WEIGHT), transposable_mask(WEIGHT)
    assert two_of_four(rows)
    assert two_of_four(both)
    assert two_of_four(both.T)
    assert np.abs(WEIGHT)[both].sum() <= np.abs(WEIGHT)[rows].sum()


def test_ninety_patterns_and_the_mask_is_the_best_of_all_of_a_block() -> None:
    """Every choice of two columns for each of four rows, those with two in each column counted by hand: 90."""
    assert len(patterns()) == 90
    pairs = [[0.0] * 4 for _ in range(6)]
    for one, (a, b) in zip(pairs, [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)], strict=True):
        one[a] = one[b] = 1.0
    block = WEIGHT[:4, :4]
    masks = (np.array(four) for four in product(pairs, repeat=4))
    best = max(float((np.abs(block) * one).sum()) for one in masks if np.all(one.sum(axis=0) == 2))
    assert np.abs(block)[transposable_mask(block)].sum() == pytest.approx(best)


def test_unbiased_gradients_keep_two_and_average_to_the_gradient() -> None:
    values, draw = np.random.default_rng(1).standard_normal((8, 8)), np.random.default_rng(2)
    found = [unbiased(values, draw) for _ in range(20_000)]
    assert two_of_four(found[0] != 0)
    assert np.mean(found, axis=0) == pytest.approx(values, abs=0.06)


def test_soft_threshold_by_hand_and_continuous_where_two_are_equal() -> None:
    rows = np.array([[1.0, -5.0, 3.0, 2.0], [4.0, 4.0, 4.0, 1.0], [0.0] * 4, [-1.0, 2.0, -3.0, 4.0]])
    assert soft_threshold(rows).tolist() == [[0, -3, 1, 0], [0, 0, 0, 0], [0] * 4, [0, 0, -1, 2]]
    tied = np.tile([1.0, 1.0, 1.0, 0.5], (4, 1))
    moved = tied + np.array([1e-9, 0.0, -1e-9, 0.0])
    assert soft_threshold(moved) == pytest.approx(soft_threshold(tied), abs=1e-8)
    assert np.abs(np.where(row_mask(moved[:, [2, 0, 1, 3]]), 1.0, 0.0) - row_mask(tied)).max() == 1.0


def test_the_fixed_scale_is_the_nearest_of_a_search() -> None:
    found = soft_threshold(WEIGHT)
    searched = min(np.linspace(0.5, 3.0, 2501), key=lambda scale: float(np.linalg.norm(WEIGHT - scale * found)))
    assert fixed_scale(WEIGHT) == pytest.approx(searched, abs=1e-3)


def test_masked_decay_steadies_masks_and_training_learns() -> None:
    found = algorithm("transposable-mask(steps=60,draws=4)").run(drawn(64, 64, 512))
    assert found["flip_rate"] < 0.2 * found["flip_rate_without_decay"]
    assert found["dense_loss"] < found["loss"] < 0.5
    assert found["kept_share"] < found["by_rows_kept_share"] < 1.0


def test_a_continuous_projection_changes_no_more_than_its_scale_allows() -> None:
    found = algorithm("soft-threshold(steps=20)").run(drawn(64, 64, 512))
    assert found["jump"] <= 2.0 * found["scale"] * (1 + 1e-9)
    assert found["hard_jump"] > 10 * found["jump"]
    assert found["flip_rate"] < found["hard_flip_rate"]
    assert found["result_error"] < found["unscaled_result_error"]


@pytest.mark.parametrize(("bits", "each"), [(8, 4 + 1 + 32 / 128), (4, 2 + 0.5 + 32 / 128)])
def test_bits_of_sparse_integers_by_hand(bits: int, each: float) -> None:
    """Half of the bits, two bits a place of a kept number or pair of 4 bits, a scale of 32 bits a row."""
    found = algorithm(f"sparse-quantized(bits={bits})").run(drawn(32, 128, 256))
    assert found["weight_bits"] == pytest.approx(each)
    assert found["times_smaller"] == pytest.approx(32 / each)
    assert found["pruned_error"] <= found["result_error"] * 1.01 <= 1.05 * found["with_inputs_error"]


def test_pairs_are_kept_together_and_rounding_is_to_the_nearest() -> None:
    kept = pair_mask(WEIGHT)
    assert np.array_equal(kept[:, ::2], kept[:, 1::2])
    assert kept.mean() == 0.5
    steps = np.max(np.abs(WEIGHT), axis=1, keepdims=True) / 127
    assert np.max(np.abs(symmetric(WEIGHT, 8) - WEIGHT) / steps) <= 0.5 + 1e-9


def test_shapes_that_are_no_multiple_of_four_are_refused() -> None:
    with pytest.raises(InputError, match="multiples of 4"):
        row_mask(np.ones((3, 8)))
