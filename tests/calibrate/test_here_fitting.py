"""Fits of a machine's own rows find the values that times were made with; the next shape is the least certain."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ridgeline.calibrate.here import fitting
from ridgeline.calibrate.here.assemble import fits_of
from ridgeline.calibrate.here.fitting import fit_rows, least_certain, rows_of, wide_mechanism
from ridgeline.calibrate.here.kernels import Sizes, measured, messages, more_attention, more_products, products, streams
from ridgeline.cost.families.registry import mechanism
from ridgeline.cost.ladder import price
from ridgeline.cost.mechanism import device_vector
from ridgeline.cost.questions import gemm
from ridgeline.facts.fits import register_own
from ridgeline.facts.profiles import BenchmarkRow
from ridgeline.facts.records import Accelerator, Evidence, Host

PART = Accelerator(
    name="Four cores", vendor="AMD", architecture="cpu", year=None, peak_flop_per_s={"fp32": 4e11},
    vector_flop_per_s=4e11, memory_bytes=16e9, memory_bytes_per_s=3e10, l2_bytes=3.2e7, sm_count=4, boost_hz=3e9,
    link_name=None, link_bytes_per_s=None, host_bytes_per_s=None, tdp_w=None,
)  # fmt: skip
TRUE = {"start_s_": 2e-5, "matrix_share_": 0.6, "memory_share_": 0.7}


def rows(shapes: list[Sizes], noise: float = 0.0) -> list[BenchmarkRow]:
    """Times of the formula with known values, each off by `noise` at random."""
    model = mechanism("gemm")
    values = np.array([TRUE.get(p.name, p.low if p.name == "issue_s_" else p.start) for p in model.parameters])
    chance = np.random.default_rng(3)
    found = []
    for sizes in shapes:
        table, _ = model.columns({**sizes, "input_bytes": 4.0, "weight_bytes": 4.0, "output_bytes": 4.0})
        seconds = float(model.price(table, device_vector(PART, "fp32"), values)[0, 0])
        seconds *= float(np.exp(chance.normal(0, noise)))
        found.append(
            BenchmarkRow(kind="gemm", form="fp32", sizes=sizes, seconds=seconds, best_s=seconds, spread=0.0, repeats=5)
        )
    return found


def test_known_values_are_found_again() -> None:
    pytest.importorskip("scipy", reason="fitting needs SciPy")
    some = rows_of("gemm", "fp32", rows(products()), PART)
    fit, why_not = fit_rows(some, version="2.9", source="test", date="2025-01-01")
    assert why_not == ""
    assert fit is not None
    for name, value in TRUE.items():
        assert fit.values[name] == pytest.approx(value, rel=0.15)
    assert fit.held_median < 0.03
    assert (fit.rows, fit.span["m"], fit.engine) == (len(products()), (1.0, 2048.0), "torch")
    for low, high in zip(fit.low, fit.high, strict=True):
        assert 0.8 < low <= 1 <= high < 1.25


def test_noise_of_rows_is_in_the_interval() -> None:
    """Times off by 20 % at random: an 80 % interval of about +-1.28 standard deviations, 0.77 to 1.29."""
    pytest.importorskip("scipy", reason="fitting needs SciPy")
    some = rows_of("gemm", "fp32", rows([*products(), *more_products(1)], noise=0.2), PART)
    fit, _ = fit_rows(some, version="", source="test", date="2025-01-01")
    assert fit is not None
    assert fit.low[2] == pytest.approx(0.77, abs=0.1)
    assert fit.high[2] == pytest.approx(1.29, abs=0.15)


def test_few_rows_and_times_that_follow_no_formula_give_no_fit() -> None:
    pytest.importorskip("scipy", reason="fitting needs SciPy")
    few = rows_of("gemm", "fp32", rows(products()[:9]), PART)
    assert fit_rows(few, version="", source="", date="") == (
        None,
        "fit of gemm fp32: 9 rows, needs 10; give a longer --budget",
    )
    wild = rows_of("gemm", "fp32", rows(products(), noise=3.0), PART)
    fit, why_not = fit_rows(wild, version="", source="", date="")
    assert fit is None
    assert "on rows left out, limit 50%" in why_not


def test_the_next_shape_is_where_fits_differ_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """All rows are large products; a candidate of one row lies outside, where no fit could learn."""
    pytest.importorskip("scipy", reason="fitting needs SciPy")
    known = [{"m": size, "n": size, "k": size} for size in np.linspace(512.0, 2048.0, 12).round()]
    like_known, unlike = {"m": 1024.0, "n": 1024.0, "k": 1024.0}, {"m": 1.0, "n": 4096.0, "k": 8192.0}
    some = rows(known, noise=0.1)
    assert least_certain("gemm", "fp32", some, PART, [like_known, unlike, like_known]) == unlike
    assert least_certain("gemm", "fp32", some[:5], PART, [unlike]) is None
    assert least_certain("gemm", "fp32", some, PART, []) is None
    monkeypatch.setattr(fitting, "has_scipy", lambda: False)
    assert least_certain("gemm", "fp32", some, PART, [unlike]) is None


def test_some_rows_share_a_fit_with_many_where_too_few_are_left() -> None:
    pytest.importorskip("scipy", reason="fitting needs SciPy")
    some = [one for one in products() if 15 < one["m"] < 128]
    many = [one for one in products() if one["m"] >= 128][:9]
    host = Host(devices=1, dram_bytes=16e9, dram_bytes_per_s=3e10, device_bytes_per_s=1e10, nvme_bytes=1e11,
                nvme_bytes_per_s=1e9, idle_w=0.0)  # fmt: skip
    found, left_out = fits_of(PART, host, (), rows([*some, *many]), {"torch": "2.9"}, "2025-01-01", kernel="cpu")
    assert [(one.kernel, one.rows) for one in found] == [("cpu", len(some) + 9)], left_out


def test_few_rows_of_a_processor_have_fits_of_their_own() -> None:
    """Times with one row are those of reading the weight at 20 GB/s: the tile of 16 rows would take twice that."""
    pytest.importorskip("scipy", reason="fitting needs SciPy")
    many = rows([one for one in products() if one["m"] > 15])
    few = [one for one in products() if one["m"] == 1]
    read = [4 * one["n"] * one["k"] / 2e10 for one in few]
    vectors = [measured("gemm", "fp32", sizes, [seconds] * 3) for sizes, seconds in zip(few, read, strict=True)]
    host = Host(devices=1, dram_bytes=16e9, dram_bytes_per_s=3e10, device_bytes_per_s=1e10, nvme_bytes=1e11,
                nvme_bytes_per_s=1e9, idle_w=0.0)  # fmt: skip
    found, left_out = fits_of(PART, host, (), [*many, *vectors], {"torch": "2.9"}, "2025-01-01", kernel="cpu")
    assert left_out == ()
    assert [(one.kernel, one.domain["m"][:2]) for one in found] == [
        ("cpu gemv", (1.0, 1.0)), ("cpu some", (16.0, 127.0)), ("cpu", (1.0, 2.0**40)),
    ]  # fmt: skip
    assert found[0].held_median < 0.15
    device = "Four cores with fits"
    register_own(device, tuple(replace(one, device=device) for one in found), {"gemm": Evidence.HERE})
    answer = price(gemm(1, 4096, 4096, dtype="fp32").question, replace(PART, name=device))
    assert float(np.asarray(answer.seconds)) == pytest.approx(4 * 4096**2 / 2e10, rel=0.1)
    assert (answer.rung.value, answer.library) == ("fitted", "torch 2.9")


def test_wider_bounds_keep_formula_and_usual_values() -> None:
    for family in ("gemm", "prefill", "decode", "collective"):
        model, wide = mechanism(family), wide_mechanism(family)
        assert wide.kernel is model.kernel
        assert wide.start == pytest.approx(model.start)
        for narrow, other in zip(model.parameters, wide.parameters, strict=True):
            assert other.low <= narrow.low < narrow.high <= other.high


def test_plans_spread_from_the_start_and_stay_bounded() -> None:
    first = products()[:4]
    assert {min(one["m"], 64.0) for one in first} >= {1.0, 64.0}
    assert all(one["n"] * one["k"] * 4 < 2**30 for one in [*products(4), *more_products(0, scale=4)])
    assert more_products(1) == more_products(1) != more_products(2)
    for kind, length in (("prefill", "tokens"), ("decode", "context")):
        assert all(32 <= one[length] <= 8192 and one["batch"] >= 1 for one in more_attention(kind, 1))
    assert messages(2.0**24)[:2] == [2.0**24, 4096.0]
    assert max(streams(32e6, 1e9)) <= 1e9 / 16
    assert streams(32e6, 1e11)[0] == 128e6
