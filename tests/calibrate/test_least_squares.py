"""Least squares find the values that synthetic times were made with, inside their bounds and every time alike."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.calibrate.least_squares import fit_values, to_points, to_values
from ridgeline.cost.families.collective import COLLECTIVE
from ridgeline.cost.families.gemm import GEMM
from ridgeline.cost.mechanism import Array, Mechanism, device_vector
from ridgeline.errors import DomainError
from ridgeline.facts.accelerators import accelerator

H100 = device_vector(accelerator("H100-SXM"), "bf16")
CHANCE = np.random.default_rng(7)
SIZES = {name: np.round(2.0 ** CHANCE.uniform(low, 14, 600)) for name, low in {"m": 0, "n": 7, "k": 7}.items()}
TABLE, _ = GEMM.columns({**SIZES, "input_bytes": 2.0, "weight_bytes": 2.0, "output_bytes": 2.0})
TRUE = {"start_s_": 4e-6, "matrix_share_": 0.65, "memory_share_": 0.8, "fill_s_": 1.5e-6}


def known(model: Mechanism, values: dict[str, float]) -> Array:
    return np.array([values.get(parameter.name, parameter.start) for parameter in model.parameters])


def fitted(seconds: Array) -> dict[str, float]:
    free = [not parameter.name.startswith("cast_") for parameter in GEMM.parameters]
    found = fit_values(GEMM, TABLE, H100, seconds, starts=[GEMM.start], free=free)
    return dict(zip((parameter.name for parameter in GEMM.parameters), found, strict=True))


def test_known_values_are_found_again() -> None:
    pytest.importorskip("scipy", reason="fitting needs SciPy")
    seconds = GEMM.price(TABLE, H100, known(GEMM, TRUE))[:, 0]
    found = fitted(seconds)
    for name in ("start_s_", "matrix_share_", "memory_share_"):
        assert found[name] == pytest.approx(TRUE[name], rel=0.05)
    again = GEMM.price(TABLE, H100, np.array(list(found.values())))[:, 0]
    assert np.median(np.abs(again / seconds - 1)) < 0.01


def test_noise_and_outliers_move_them_little_and_the_answer_is_deterministic() -> None:
    pytest.importorskip("scipy", reason="fitting needs SciPy")
    chance = np.random.default_rng(1)
    noise = np.exp(chance.normal(0, 0.05, len(TABLE))) * np.where(chance.random(len(TABLE)) < 0.03, 5.0, 1.0)
    seconds = GEMM.price(TABLE, H100, known(GEMM, TRUE))[:, 0] * noise
    found = fitted(seconds)
    for name in ("start_s_", "matrix_share_", "memory_share_"):
        assert found[name] == pytest.approx(TRUE[name], rel=0.15)
    assert found == fitted(seconds)
    for parameter in GEMM.parameters:
        assert parameter.low <= found[parameter.name] <= parameter.high
        if parameter.name.startswith("cast_"):
            assert found[parameter.name] == pytest.approx(parameter.start)


def test_without_scipy_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    with pytest.raises(DomainError, match=r"fitting needs SciPy: pip install 'ridgeline\[fit\]'"):
        fit_values(GEMM, TABLE, H100, np.ones(len(TABLE)), starts=[GEMM.start], free=[True] * len(GEMM.parameters))


@given(st.lists(st.floats(-6, 6), min_size=len(COLLECTIVE.parameters), max_size=len(COLLECTIVE.parameters)))
def test_points_of_the_line_are_values_within_their_bounds_and_back(points: list[float]) -> None:
    values = to_values(np.array(points), COLLECTIVE.parameters)
    for value, parameter in zip(values, COLLECTIVE.parameters, strict=True):
        assert parameter.low <= value <= parameter.high
    assert to_points(values, COLLECTIVE.parameters) == pytest.approx(points, abs=1e-6)


@given(st.floats(-1e3, 1e3))
def test_far_points_stay_at_the_bounds(point: float) -> None:
    values = to_values(np.full(len(GEMM.parameters), point), GEMM.parameters)
    assert all(p.low * 0.999 <= v <= p.high * 1.001 for v, p in zip(values, GEMM.parameters, strict=True))
