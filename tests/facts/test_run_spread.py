"""What whole runs of other people add to an interval: by what an answer rests on, and where it is put."""

from __future__ import annotations

import math

import pytest

from ridgeline.facts.transfer import RUN_RUNGS, joined, run_spread


def test_a_spread_is_that_of_what_an_answer_rests_on() -> None:
    kinds = ("serving step", "training step")
    for kind in kinds:
        assert run_spread(kind, "fitted") == run_spread(kind, "measured elsewhere")
        assert run_spread(kind, "borrowed") == run_spread(kind, "derived")
        assert run_spread(kind, "common") == run_spread(kind, "assumed")
        low, high = run_spread(kind, "common")
        assert low <= 1.0 < high
        assert high > run_spread(kind, "fitted")[1]
    assert set(RUN_RUNGS.values()) == {"measured", "lent", "physics"}
    assert run_spread("prompt", "fitted") == run_spread("prompt")  # one for all


def test_of_what_was_measured_here_no_other_run_tells() -> None:
    assert run_spread("training step", "measured here") == (1.0, 1.0)


def test_causes_add_up_as_squares_of_logarithms() -> None:
    """Mechanisms x e^0.3 and runs x e^0.4 make e^0.5; downwards there is but one cause."""
    low, high = joined(2.0, [2.0 * math.exp(-0.2), 2.0 * math.exp(0.3), 2.0, 2.0 * math.exp(0.4)])
    assert (low, high) == pytest.approx((2.0 * math.exp(-0.2), 2.0 * math.exp(0.5)))
