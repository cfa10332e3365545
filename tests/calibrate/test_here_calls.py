"""Calls of a training step: the sizes that are timed, and fits that find what made the times."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.calibrate.here.calls import FORMS, Calls, plan
from ridgeline.calibrate.here.fitting import call_fits
from ridgeline.calibrate.here.kernels import measured
from ridgeline.cost.own_host import POINTWISE, call_seconds
from ridgeline.facts.fits import CallFit
from ridgeline.facts.profiles import BenchmarkRow

SCIPY = pytest.importorskip("scipy", reason="fits need SciPy")
PACES = st.floats(1e-12, 1e-10)


def made(values: dict[str, float], noise: float = 0.0) -> list[BenchmarkRow]:
    """Rows of the plan's forward products whose times are a sum of known paces."""
    truth = CallFit(
        call="gemm.forward", form="fp32", ranks=1, values=values, rows=0, held_median=0.0, held_p90=0.0, held_bias=0.0,
        low=1.0, high=1.0,
    )  # fmt: skip
    chance = np.random.default_rng(3)
    rows = []
    for call, sizes in plan("fp32"):
        if call == truth.call:
            seconds = float(np.asarray(call_seconds(truth, sizes))) * float(np.exp(noise * chance.standard_normal()))
            rows.append(measured("call", "fp32", {**sizes, "ranks": 1.0}, [seconds] * 3, note=call))
    return rows


@settings(max_examples=25, deadline=None)
@given(multiply=PACES, weight=st.floats(1e-10, 1e-9), start=st.floats(1e-6, 2e-5))
def test_a_fit_finds_what_made_the_times(multiply: float, weight: float, start: float) -> None:
    (found,), left_out = call_fits(made({"start_s_": start, "multiply_s_": multiply, "weight_s_": weight}))
    assert not left_out
    assert found.held_median < 1e-3
    assert found.values["weight_s_"] == pytest.approx(weight, rel=0.02)
    assert found.values["multiply_s_"] == pytest.approx(multiply, rel=0.02)


def test_noise_is_in_the_interval_and_no_time_is_below_zero() -> None:
    (found,), _ = call_fits(made({"start_s_": 5e-6, "multiply_s_": 1e-11, "weight_s_": 3e-10}, noise=0.2))
    assert found.low < 0.9 < 1.1 < found.high
    assert all(value > 0 for value in found.values.values())


@pytest.mark.parametrize("times", [20.0, 1e-3])
def test_one_disturbed_row_moves_a_fit_little(times: float) -> None:
    """One that was timed too short would, by errors relative to what was measured, pull all to 0."""
    rows = made({"start_s_": 5e-6, "multiply_s_": 1e-11, "weight_s_": 3e-10})
    worse = measured("call", "fp32", rows[0].sizes, [times * rows[0].seconds] * 3, note=rows[0].note)
    (found,), _ = call_fits([worse, *rows[1:]])
    assert found.values["multiply_s_"] == pytest.approx(1e-11, rel=0.1)


def test_ranks_at_once_have_fits_of_their_own() -> None:
    alone = made({"multiply_s_": 1e-11, "weight_s_": 3e-10})
    both = [
        measured("call", "fp32", {**row.sizes, "ranks": 2.0}, [3 * row.seconds] * 3, note=row.note) for row in alone
    ]
    fits = {fit.ranks: fit for fit in call_fits([*alone, *both])[0]}
    assert fits[2].values["multiply_s_"] == pytest.approx(3 * fits[1].values["multiply_s_"], rel=0.02)


def test_too_few_rows_for_the_features_make_no_fit() -> None:
    fits, left_out = call_fits(made({"multiply_s_": 1e-11, "weight_s_": 3e-10})[:4])
    assert not fits
    assert "4 rows" in left_out[0]


def test_the_plan_has_few_rows_and_many_and_every_call_both_ways() -> None:
    for form in FORMS:
        calls = plan(form)
        rows = [sizes["m"] for call, sizes in calls if call == "gemm.forward"]
        assert min(rows) < 32
        assert max(rows) > 512
        names = {call for call, _ in calls}
        assert {f"{one}.backward" for one in (*POINTWISE, "attention", "linear")} <= names
        assert {"gemm.forward", "gemm.input", "gemm.weight", "optimizer.adamw"} <= names


def test_every_call_of_the_plan_runs_and_takes_time() -> None:
    torch = pytest.importorskip("torch", reason="measuring needs PyTorch: pip install 'ridgeline[measure]'")
    timer = Calls(torch=torch, threads=1, cache_bytes=2.0**16)
    seen = {}
    for form in FORMS:
        for call, sizes in plan(form):
            small = {name: min(size, 64.0) for name, size in sizes.items()}
            if (call, form) not in seen:
                seen[call, form] = timer.row(call, form, small, 1e-3)
    assert all(row.seconds > 0 and row.note == call for (call, _), row in seen.items())


def test_a_gradient_is_timed_without_what_the_first_one_of_a_process_takes() -> None:
    """In a new process: what the engine takes to start is taken away, and must not be its first start."""
    pytest.importorskip("torch", reason="measuring needs PyTorch: pip install 'ridgeline[measure]'")
    code = (
        "import torch; from ridgeline.calibrate.here.calls import Calls;"
        "one = Calls(torch=torch, threads=1, cache_bytes=65536.0);"
        "row = one.row('gated.backward', 'fp32', {'rows': 512.0, 'width': 512.0}, 0.01);"
        "print(row.best_s > 1e-5, one.engine_s < 2e-3)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["True", "True"]
