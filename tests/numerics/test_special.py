"""Samplers, counter-based random numbers and logarithms of Bessel functions against closed forms and known answers."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from ridgeline.numerics.algorithm import algorithm, drawn
from ridgeline.numerics.bessel import concentration, half_order, log_bessel
from ridgeline.numerics.counters import philox
from ridgeline.numerics.deis import coefficients, euler, exponential, log_alpha, mixture_noise, schedule


def alpha(time: float) -> float:
    return float(np.exp(log_alpha(time)))


def test_order_zero_is_ddim_in_closed_form() -> None:
    times = schedule(10, 1e-3)
    assert (times[0], times[-1]) == (1.0, pytest.approx(1e-3))
    for step, (now, then) in enumerate(itertools.pairwise(times)):
        exact = np.sqrt(1 - alpha(then)) - np.sqrt(alpha(then) / alpha(now) * (1 - alpha(now)))
        assert coefficients(times, step, 0)[0] == pytest.approx(exact, rel=1e-9)
    for order in (1, 3):  # weights of a constant noise are DDIM's whatever the order
        assert coefficients(times, 5, order).sum() == pytest.approx(coefficients(times, 5, 0)[0], rel=1e-9)


def test_one_normal_distribution_is_sampled_as_it_is_known_to_be() -> None:
    """About 0 with deviation s, x goes in proportion to sqrt(alpha s^2 + 1 - alpha)."""
    spread, noise = 0.3, mixture_noise(np.zeros((1, 4)), 0.3)
    start = np.random.default_rng(0).standard_normal((50, 4))
    widths = [np.sqrt(alpha(each) * spread**2 + 1 - alpha(each)) for each in (1.0, 1e-3)]
    exact = start * widths[1] / widths[0]

    def error(steps: int, order: int) -> float:
        found = exponential(start, noise, schedule(steps, 1e-3), order)
        return float(np.linalg.norm(found - exact) / np.linalg.norm(exact))

    assert error(20, 3) < error(20, 1) < error(20, 0)
    assert error(80, 3) < 1e-3
    assert error(160, 0) == pytest.approx(error(80, 0) / 2, rel=0.15)  # of order 1
    assert error(160, 1) < error(80, 1) / 3  # of order 2
    rough = euler(start, noise, schedule(400, 1e-3))
    assert np.linalg.norm(rough - exact) < 0.05 * np.linalg.norm(exact)


def test_higher_orders_need_fewer_evaluations() -> None:
    values = algorithm("deis(steps=20)").run(drawn(16, 16, 32))
    assert values["of_ddim"] < 0.6
    assert values["of_euler"] < 1.0
    assert values["times_fewer"] > 1.5


def test_philox_gives_its_published_answers() -> None:
    """Random123's known answers of philox4x32-10: zeros, ones and digits of pi."""
    ones, pi = np.full(4, 2**32 - 1), np.array([0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344])
    for counter, key, answer in (
        (np.zeros(4), np.zeros(2), "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        (ones, ones[:2], "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (pi, np.array([0xA4093822, 0x299F31D0]), "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ):
        found = philox(counter.astype(np.uint64), key.astype(np.uint64))
        assert " ".join(f"{int(each):08x}" for each in found) == answer


def test_good_streams_pass_and_two_rounds_fail() -> None:
    good = algorithm("counter-random(count=64)").run(drawn(2, 2, 2))
    chances = [value for name, value in good.items() if name.endswith("chance")]
    assert min(chances) > 1e-3
    assert good["changed_bits_share"] == pytest.approx(0.5, abs=0.005)
    assert good["traffic_ratio"] == 3.0  # 32 bytes and a state of 64, both ways, over 32 both ways
    bad = algorithm("counter-random(count=64,rounds=2)").run(drawn(2, 2, 2))
    assert min(value for name, value in bad.items() if name.endswith("chance")) < 1e-12


@pytest.mark.parametrize("kind", ["i", "k"])
def test_logarithms_are_scipys_where_it_has_an_answer(kind: str) -> None:
    special = pytest.importorskip("scipy.special")
    order, at = np.meshgrid([0.0, 0.3, 1.0, 4.5, 12.9, 13.0, 40.0, 90.0], [0.01, 0.7, 3.0, 30.0, 120.0, 600.0])
    scaled = special.ive(order, at) if kind == "i" else special.kve(order, at)
    known = np.isfinite(scaled) & (scaled > 1e-290)
    exact = np.log(scaled[known]) + (at if kind == "i" else -at)[known]
    assert known.mean() > 0.8
    np.testing.assert_allclose(log_bessel(kind, order, at)[known], exact, rtol=1e-12, atol=1e-12)


def test_half_orders_by_hand_and_the_wronskian() -> None:
    """K of order 1/2 is sqrt(pi / 2x) e^-x; I_v K_(v+1) + I_(v+1) K_v = 1 / x."""
    assert half_order("k", 0, 2.0) == pytest.approx(0.5 * np.log(np.pi / 4) - 2)
    assert half_order("i", 0, 2.0) == pytest.approx(np.log(np.sqrt(1 / np.pi) * np.sinh(2.0)))
    for order, at in ((0.2, 0.5), (7.7, 20.0), (300.0, 5.0), (20_000.0, 30_000.0)):
        first = log_bessel("i", order, at) + log_bessel("k", order + 1, at)
        other = log_bessel("i", order + 1, at) + log_bessel("k", order, at)
        assert np.exp(first) + np.exp(other) == pytest.approx(1 / at, rel=1e-9)


def test_concentrations_of_a_sphere_are_its_closed_form() -> None:
    """In three dimensions the mean's length is coth(kappa) - 1 / kappa."""
    kappa = concentration(0.5, 3)
    assert 1 / np.tanh(kappa) - 1 / kappa == pytest.approx(0.5, rel=1e-12)
    values = algorithm("log-bessel(dimensions=32768,highest=20)").run(drawn(2, 2, 2))
    assert values["fit_error"] < 1e-10
    assert max(values["log_i_error"], values["log_k_error"]) < 1e-13
