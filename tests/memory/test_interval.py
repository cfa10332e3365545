"""The interval of a peak: states are exact, transient bytes are not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.facts.frameworks import framework_policy
from ridgeline.facts.mechanisms import constants
from ridgeline.memory.stage import CATEGORIES, STATES, peak_interval, peak_range

SIZES = st.fixed_dictionaries({name: st.floats(0, 1e12) for name in CATEGORIES})


@given(SIZES)
def test_the_interval_holds_the_peak_and_never_less_than_the_states(held: dict[str, float]) -> None:
    low, high = peak_interval(held)
    states, total = sum(held[name] for name in STATES), sum(held.values())
    assert states * (1 - 1e-12) <= low <= total * (1 + 1e-12)
    assert total * (1 - 1e-12) <= high


@given(SIZES, st.sampled_from(CATEGORIES), st.floats(1, 1e12))
def test_more_bytes_raise_both_ends_and_transient_ones_widen_most(
    held: dict[str, float], name: str, more: float
) -> None:
    held = {**held, "activations": held["activations"] + 1.0}
    low, high = peak_interval(held)
    lower, higher = peak_interval({**held, name: held[name] + more})
    slack = 1e-12 * (higher + 1)
    assert lower >= low
    assert higher >= high
    wider, ends = (higher - lower) - (high - low), peak_range(measured=False)
    share = ends.states_high - 1.0 if name in STATES else ends.high - ends.low
    assert wider == pytest.approx(share * more, abs=1e-3 + slack)


def test_states_alone_have_no_width() -> None:
    assert peak_interval({"weights": 3.0, "gradients": 2.0, "optimizer": 7.0}) == (12.0, 12.0)


@pytest.mark.parametrize(("rung", "measured"), [("measured", True), ("other", False)])
def test_the_ends_are_facts_with_a_source(rung: str, measured: bool) -> None:
    low, high, states = (constants()[f"memory.{rung}.{end}"] for end in ("low", "high", "states_high"))
    assert 0 < low.value < 1 < states.value < high.value
    assert low.source == high.source == states.source
    assert "benchmarks/intervals.py" in low.source
    held = {"weights": 10.0, "activations": 4.0, "context": 1.0}
    ends = (10 + 5 * low.value, 10 * states.value + 5 * high.value)
    assert peak_interval(held, measured=measured) == pytest.approx(ends)


def test_frameworks_with_measured_peaks_have_the_narrower_interval() -> None:
    assert framework_policy("torchtitan").peaks_measured  # like FSDP2
    assert not framework_policy("deepspeed").peaks_measured
    known, other = peak_range(measured=True), peak_range(measured=False)
    assert other.low < known.low
    assert known.high < other.high
