"""Watts of an operator: by hand from the shares of a device, between running and rated, and how well they hold."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.energy.power import Activity, board_w, kernel_power_w
from ridgeline.facts.accelerators import accelerator
from ridgeline.facts.mechanisms import POWER_SHARES, power_fits, power_of

SHARES = dict(zip(POWER_SHARES, (0.4, 0.1, 0.2, 2.0, 3.0, 0.3), strict=True))
IDLE = Activity(compute_busy=0.0, memory_busy=0.0, wide_share=0.0, narrow_share=0.0, byte_share=0.0)
share = st.floats(0, 2)


def test_watts_are_the_sum_of_what_runs_by_hand() -> None:
    activity = Activity(compute_busy=0.5, memory_busy=1.0, wide_share=0.02, narrow_share=0.01, byte_share=0.5)
    by_hand = 1000 * (0.4 + 0.5 * 0.1 + 1.0 * 0.2 + 0.02 * 2.0 + 0.01 * 3.0 + 0.5 * 0.3)
    assert float(board_w(1000.0, activity, SHARES)) == pytest.approx(by_hand) == pytest.approx(870)
    assert float(board_w(700.0, IDLE, SHARES)) == pytest.approx(280)


@given(st.lists(share, min_size=5, max_size=5))
def test_a_board_draws_at_least_what_running_takes_and_at_most_its_rated_power(parts: list[float]) -> None:
    activity = Activity(**dict(zip(vars(IDLE), parts, strict=True)))
    found = kernel_power_w("B200-SXM", 1000.0, activity)
    assert power_of("B200-SXM").shares["running_"] * 1000 <= found.mid_w * (1 + 1e-12)
    assert found.low_w <= found.mid_w <= found.high_w <= 1000.0


def test_more_work_in_the_same_time_never_draws_less() -> None:
    levels = np.linspace(0, 1, 6)
    for name in vars(IDLE):
        watts = board_w(1000.0, Activity(**{**vars(IDLE), name: levels}), power_of("B200-SXM").shares)
        assert (np.diff(watts) >= 0).all()
        assert watts[-1] > watts[0]


def test_joules_of_a_flop_and_a_byte_are_those_of_silicon() -> None:
    part, shares = accelerator("B200-SXM"), power_of("B200-SXM").shares
    rated = part.tdp_w or 0.0
    assert 0.3e-12 < shares["wide_flop_"] * rated / part.peak_flop_per_s["bf16"] < 5e-12
    assert 5e-12 < shares["byte_"] * rated / part.memory_bytes_per_s < 100e-12


def test_fits_hold_on_shapes_that_they_have_not_seen() -> None:
    for fit in power_fits().values():
        assert fit.rows > 50_000
        assert fit.held_median < 0.25
        assert abs(fit.held_bias) < 0.05
        assert 0.75 <= fit.held_covered <= 0.85
        assert fit.low < 1 < fit.high
    assert power_of("H100-SXM") is next(iter(power_fits().values()))  # nobody metered it: borrowed
