"""Sustained rates: measured where measured, derived where not, never above the datasheet."""

from __future__ import annotations

from dataclasses import replace
from statistics import median

import pytest

from ridgeline.errors import UnknownNameError
from ridgeline.facts import rates
from ridgeline.facts.accelerators import accelerator, accelerator_names, accelerators
from ridgeline.facts.rates import OF_MODELS, OF_STENCIL, own_share, power_clock, similar_share, sustained_rate
from ridgeline.facts.records import Evidence


@pytest.mark.parametrize("name", accelerator_names())
def test_never_above_the_datasheet(name: str) -> None:
    device = accelerators()[name]
    for fmt, peak in device.peak_flop_per_s.items():
        rate = sustained_rate(device, f"matrix.{fmt}")
        assert 0.4 * peak < rate.value <= peak * (1 + 1e-12)
        assert rate.unit == "FLOP/s"
    hbm = sustained_rate(device, "hbm")
    assert 0.4 * device.memory_bytes_per_s < hbm.value <= device.memory_bytes_per_s


@pytest.mark.parametrize("name", accelerator_names())
def test_sustained_facts_are_measured_and_conditioned(name: str) -> None:
    for key, fact in accelerators()[name].sustained.items():
        assert key in ("hbm", OF_MODELS, OF_STENCIL) or key.rsplit(".", 1)[-1] in accelerators()[name].peak_flop_per_s
        assert fact.source
        assert fact.conditions
        assert fact.evidence in (Evidence.MEASURED, Evidence.DERIVED)


def test_the_more_careful_method_wins() -> None:
    a100 = accelerator("A100-SXM-80GB").sustained
    assert a100["matrix.bf16"].value == pytest.approx(271.2e12)  # not 267.9, 264.5 or 259.2 of other sources
    assert a100["matrix.fp16"].value == pytest.approx(256.5e12)
    assert a100["hbm"].value == pytest.approx(1.70e12)
    assert "mean of 100 iterations" in a100["matrix.bf16"].conditions
    assert a100["matrix.bf16"].source.startswith("ml-engineering, ")


def test_a_rate_above_the_datasheet_is_held_to_it_and_says_so() -> None:
    fact = accelerator("RTX-4090").sustained["matrix.bf16"]
    assert fact.value == pytest.approx(165.2e12)
    assert "measured 178.8e12, held to the datasheet's 165.2e12" in fact.conditions


def test_alike_format_of_the_same_device_comes_first() -> None:
    rate = sustained_rate(accelerator("H100-SXM"), "matrix.fp16")
    assert rate.value == pytest.approx(794.5e12)  # fp16 peak equals bf16 peak
    assert rate.evidence is Evidence.DERIVED
    assert "matrix.bf16" in rate.conditions


def test_a_device_measured_in_16_bits_speaks_for_its_8_bits() -> None:
    rate = sustained_rate(accelerator("MI300X"), "matrix.fp8")
    assert rate.value == pytest.approx(2 * 668.4e12, rel=2e-3)  # peaks are two to one, but for their last digits
    assert rate.conditions.endswith("the share measured on it in matrix.bf16")


def test_shares_in_16_bits_and_8_agree_where_both_were_measured() -> None:
    """Each device's fp8 from its bf16, as if nobody had measured it: median under 5 %, none beyond 15 %."""
    errors = []
    for device in accelerators().values():
        both = [device.sustained.get(f"matrix.{name}") for name in ("bf16", "fp8")]
        if None not in both:
            without = {key: fact for key, fact in device.sustained.items() if key != "matrix.fp8"}
            found = sustained_rate(replace(device, sustained=without), "matrix.fp8")
            errors.append(abs(found.value / device.sustained["matrix.fp8"].value - 1.0))
    assert len(errors) >= 8
    assert median(errors) < 0.05
    assert max(errors) < 0.15


def test_derived_names_the_devices_it_came_from() -> None:
    rate = sustained_rate(accelerator("MI250X"), "matrix.bf16")
    lender, device = accelerator("MI210"), accelerator("MI250X")
    watts = [part.facts["tdp_w"].value / part.peak_flop_per_s["bf16"] for part in (device, lender)]
    assert rate.value == pytest.approx(383e12 * 142.8 / 181 * (watts[0] / watts[1]) ** (1 / 3))
    assert rate.conditions.endswith("architecture cdna2: MI210")
    assert rate.evidence is Evidence.DERIVED


def test_unknown_key_says_what_is_known() -> None:
    with pytest.raises(
        UnknownNameError, match=r"rate of V100-SXM2-16GB 'matrix.bf16'; nearest: .*known: hbm, matrix.fp64"
    ):
        sustained_rate(accelerator("V100"), "matrix.bf16")


def test_power_goes_with_the_cube_of_the_clock() -> None:
    assert power_clock(8.0, 1.0) == pytest.approx(2.0)
    assert power_clock(1.0, 27.0) == pytest.approx(1 / 3)
    assert power_clock(0.0, 1.0) == power_clock(1.0, 0.0) == 1.0  # a power that nobody states moves nothing


@pytest.mark.parametrize("key", ["matrix.bf16", "matrix.fp16", "matrix.fp32"])
def test_power_brings_each_device_nearer_to_what_the_rest_say(key: str) -> None:
    """Each measured device left out in turn: the median error of the rest's shares falls by a fifth at least."""
    measured = rates._shares(key)
    watts = {name: rates._watts_a_flop(accelerator(name), key) for name in measured}
    errors: dict[bool, list[float]] = {True: [], False: []}
    for name, share in measured.items():
        kin = [a for a in measured if a != name and accelerator(a).architecture == accelerator(name).architecture]
        lenders = kin or [a for a in measured if a != name]
        for powered, found in errors.items():
            moved = [measured[a] * (power_clock(watts[name], watts[a]) if powered else 1.0) for a in lenders]
            found.append(abs(min(1.0, median(moved)) / share - 1))
    assert median(errors[True]) < 0.8 * median(errors[False])


def test_kin_lend_what_was_measured_on_them_and_nobody_lends_to_oneself() -> None:
    """MI355X: 1565 of 2500 TFLOP/s; an MI350X has 2300 and the cube root of its watts a FLOP/s less."""
    older, newer = accelerator("MI350X"), accelerator("MI355X")
    share = similar_share(older, "matrix.bf16")
    assert share is not None
    assert share.evidence is Evidence.DERIVED
    assert share.value == pytest.approx(1565 / 2500 * (1000 / 2300 / (1400 / 2500)) ** (1 / 3))
    assert similar_share(newer, "matrix.bf16").value == pytest.approx(1565 / 2500)  # type: ignore[union-attr]
    assert similar_share(replace(newer, sustained={}), "matrix.bf16") is None
    assert (
        similar_share(accelerator("Arc-B580"), "matrix.fp16") is None
    )  # of Max-1550's architecture, with other memory


def test_what_whole_models_reach_of_memory_is_lent_to_no_other_device() -> None:
    assert own_share(accelerator("SN40L"), OF_MODELS).value == pytest.approx(0.75)  # type: ignore[union-attr]
    assert own_share(accelerator("SN40L"), "hbm") is None
    assert sustained_rate(accelerator("SN40L"), "hbm").evidence is Evidence.ASSUMED  # of other vendors' streams
