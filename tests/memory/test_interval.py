"""The interval of a peak: states are exact, transient bytes are not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.facts.mechanisms import constants
from ridgeline.memory.stage import CATEGORIES, STATES, peak_interval

SIZES = st.fixed_dictionaries({name: st.floats(0, 1e12) for name in CATEGORIES})


@given(SIZES)
def test_the_interval_holds_the_peak_and_never_less_than_the_states(held: dict[str, float]) -> None:
    low, high = peak_interval(held)
    states, total = sum(held[name] for name in STATES), sum(held.values())
    assert states * (1 - 1e-12) <= low <= total * (1 + 1e-12)
    assert total * (1 - 1e-12) <= high


@given(SIZES, st.sampled_from(CATEGORIES), st.floats(1, 1e12))
def test_more_bytes_raise_both_ends_and_only_transient_ones_widen(
    held: dict[str, float], name: str, more: float
) -> None:
    low, high = peak_interval(held)
    lower, higher = peak_interval({**held, name: held[name] + more})
    slack = 1e-12 * (higher + 1)
    assert lower >= low
    assert higher >= high
    if name in STATES:
        assert higher - lower == pytest.approx(high - low, abs=slack)
    else:
        assert higher - lower >= high - low - slack


def test_states_alone_have_no_width() -> None:
    assert peak_interval({"weights": 3.0, "gradients": 2.0, "optimizer": 7.0}) == (12.0, 12.0)


def test_the_ends_are_facts_with_a_source() -> None:
    low, high = (constants()[f"memory.transient.{end}"] for end in ("low", "high"))
    assert 0 < low.value < 1 < high.value
    assert low.source == high.source
    assert "benchmarks/memory_interval.py" in low.source
    held = {"weights": 10.0, "activations": 4.0, "context": 1.0}
    assert peak_interval(held) == pytest.approx((10 + 5 * low.value, 10 + 5 * high.value))
