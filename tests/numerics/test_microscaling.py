"""Narrow formats against all of their numbers, blocks by hand, products of MXFP8 and NVFP4 against exact ones."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.numerics.algorithm import algorithm, drawn
from ridgeline.numerics.microscaling import ELEMENTS, Element, hadamard, power_scaled, product_error, twice_scaled
from ridgeline.numerics.weight_sampling import BF16, FP6, SampledWeights, lost_share

FORMATS = {**ELEMENTS, "e3m2": FP6}


def numbers(element: Element) -> np.ndarray:
    """All finite numbers of a format, from its definition: least ones are whole multiples of the least step."""
    steps = 2**element.mantissa
    low = [code * 2.0 ** (element.least - element.mantissa) for code in range(steps)]
    high = [
        (1 + code / steps) * 2.0**power
        for power in range(element.least, 40)
        for code in range(steps)
        if (1 + code / steps) * 2.0**power <= element.largest
    ]
    return np.array(sorted({-each for each in low + high} | set(low + high)))


@pytest.mark.parametrize("name", FORMATS)
def test_casts_are_the_nearest_of_all_numbers_with_ties_to_even(name: str) -> None:
    element = FORMATS[name]
    known = numbers(element)
    np.testing.assert_array_equal(element.cast(known), known)
    some = np.random.default_rng(1).standard_normal(500) * np.exp(np.random.default_rng(2).uniform(-12, 8, 500))
    nearest = known[np.abs(some[:, None] - known).argmin(axis=1)]
    np.testing.assert_array_equal(element.cast(some), nearest)
    up = known[known >= 0.0]
    even = np.where(np.arange(len(up) - 1) % 2, up[1:], up[:-1])
    np.testing.assert_array_equal(element.cast((up[:-1] + up[1:]) / 2), even)
    assert element.cast(np.array([1e9, -1e9])).tolist() == [element.largest, -element.largest]


def test_counts_of_numbers_are_those_of_the_formats() -> None:
    """E4M3 has 2 x 127 codes but for NaN, with two zeros; E5M2 2 x 124; E2M1 16; E3M2 64."""
    assert [len(numbers(each)) for each in FORMATS.values()] == [253, 247, 15, 63]
    assert BF16.cast(np.array([1 + 2.0**-8, 1 + 3 * 2.0**-8])).tolist() == [1.0, 1 + 2.0**-6]


def test_random_rounding_keeps_the_mean_and_takes_neighbours() -> None:
    draw, four = np.random.default_rng(0), ELEMENTS["e2m1"]
    found = four.cast(np.full(200_000, 2.3), draw)
    assert set(found) == {2.0, 3.0}
    assert found.mean() == pytest.approx(2.3, abs=4 * 0.46 / np.sqrt(200_000))


def test_scales_of_powers_by_hand() -> None:
    """amax 480: up the scale is 2 (480 / 448 > 1) and 480 is 240 x 2; down it is 1 and 480 is cut off at 448."""
    row = np.array([[480.0, 1.0]])
    up, beyond = power_scaled(row, ELEMENTS["e4m3"], 2, up=True)
    assert (up.tolist(), beyond) == ([[480.0, 1.0]], 0.0)
    down, beyond = power_scaled(row, ELEMENTS["e4m3"], 2, up=False)
    assert (down.tolist(), beyond) == ([[448.0, 1.0]], 0.5)
    exact, _ = power_scaled(np.array([[448.0, 3.0]]), ELEMENTS["e4m3"], 2, up=True)
    assert exact.tolist() == [[448.0, 3.0]]  # no larger a scale than is needed
    zeros, _ = power_scaled(np.zeros((2, 5)), ELEMENTS["e4m3"], 2, up=True)
    assert not zeros.any()


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.floats(-30, 30))
def test_rounding_scales_up_never_cuts_off_nor_leaves_more(seed: int, power: float) -> None:
    row = np.random.default_rng(seed).standard_normal((4, 64)) * 2.0**power
    (up, beyond), (down, _) = (power_scaled(row, ELEMENTS["e4m3"], 32, up=each) for each in (True, False))
    assert beyond == 0.0
    most = np.abs(row).reshape(4, 2, 32).max(axis=2).repeat(32, axis=1)
    assert (np.abs(up - row) <= np.maximum(np.abs(row) / 16, most * 2.0**-16)).all()
    assert np.linalg.norm(up - row) <= np.linalg.norm(down - row) * 1.05


def test_blocks_of_nvfp4_by_hand() -> None:
    """One block of amax 6: g = 448, its scale E4M3(448) / 448 = 1, so values are E2M1's own."""
    row = np.array([[6.0, 2.4, 0.2, -1.2]])
    assert twice_scaled(row, 4).tolist() == [[6.0, 2.0, 0.0, -1.0]]
    two = np.array([[6.0, 0.0], [0.0, 0.06]])  # a block of its own has its own scale, 0.01 to within E4M3
    assert twice_scaled(two, 2)[1, 1] == pytest.approx(0.06, rel=0.06)
    assert twice_scaled(two, 2, square=True)[1, 1] == 0.0  # in a square with 6 it is below half the least step
    np.testing.assert_array_equal(twice_scaled(np.zeros((3, 3)), 16), np.zeros((3, 3)))


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([16, 33, 48]))
def test_squares_are_the_same_along_rows_and_columns(seed: int, side: int) -> None:
    weight = np.random.default_rng(seed).standard_normal((side, 40))
    np.testing.assert_allclose(
        twice_scaled(weight, 16, square=True), twice_scaled(weight.T, 16, square=True).T, rtol=1e-12
    )


def test_turning_both_sides_leaves_the_product() -> None:
    draw = np.random.default_rng(0)
    left, right = draw.standard_normal((5, 50)), draw.standard_normal((7, 50))
    turned = [hadamard(each, 16, np.random.default_rng(3)) for each in (left, right)]
    np.testing.assert_allclose(turned[0] @ turned[1].T, left @ right.T, atol=1e-12)
    spike = np.zeros((1, 16))
    spike[0, 5] = 4.0
    np.testing.assert_allclose(np.abs(hadamard(spike, 16, draw)), 1.0)  # an outlier is spread evenly


def test_exact_products_have_no_error_and_narrower_formats_more() -> None:
    arrays = drawn(32, 64, 128)
    assert product_error(arrays.inputs, arrays.weight, lambda each: each, lambda each: each) == 0.0
    eight = algorithm("mxfp8").run(arrays)
    wide = algorithm("mxfp8(element=e5m2)").run(arrays)
    four = algorithm("nvfp4").run(arrays)
    assert eight["result_error"] < wide["result_error"] < four["forward_error"]
    assert eight["of_other_rounding"] < 1.0
    assert eight["weight_bits"] == 8.25
    assert four["weight_bits"] == 4.5
    assert four["weights_unlike"] < 1e-12 < four["weights_unlike_by_rows"]
    assert four["forward_error"] < four["mxfp4_forward_error"]
    assert four["of_nearest_bias"] < 0.5


def test_sampled_noise_is_the_rounded_normal_distribution() -> None:
    """P(R = 0) = P(|x| < 1) = 0.6827 of a normal x."""
    values = SampledWeights().run(drawn(256, 256, 8))
    assert values["untouched_share"] == pytest.approx(0.6827, abs=4 * 0.4655 / 256)
    assert 0.5 < values["of_rounded"] < 4.0


def test_steps_and_lost_noise_by_hand() -> None:
    """The step of b bits at max|W| = 1.5 is 1.5 x 2^(1 - b); bf16's step there is 2^-7."""
    weight = np.array([[1.5, 0.25]])
    one = SampledWeights(bits=9)
    np.testing.assert_array_equal(one.steps(weight), np.full((1, 2), 1.5 * 2.0**-8))
    assert lost_share(weight, np.full((1, 2), 1.5 * 2.0**-8)) == 0.0  # above half of 2^-7
    assert lost_share(weight, np.full((1, 2), 1.5 * 2.0**-9)) == 0.5  # below it at 1.5, above at 0.25
    assert one.kept_bits(weight, np.ones((1, 2))) == 9


def test_noise_of_nine_bits_is_kept_and_even_noise_is_not() -> None:
    arrays = drawn(128, 128, 16)
    values = algorithm("weight-sampling(bits=9)").run(arrays)
    assert values["kept_bits"] == 9
    assert values["lost_share"] == 0.0 < values["even_noise_lost_share"]
    assert algorithm("weight-sampling(bits=12)").run(arrays)["lost_share"] > 0.1
