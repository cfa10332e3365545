"""The rate under load: measured where measured, scaled by power and cores elsewhere."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ridgeline.facts.accelerators import accelerator, accelerators
from ridgeline.facts.rates import loaded_rate
from ridgeline.facts.records import Evidence


def rate(name: str, form: str = "bf16") -> float:
    found = loaded_rate(accelerator(name), form)
    assert found is not None
    return found.value


def test_a_measured_device_answers_with_its_own() -> None:
    found = loaded_rate(accelerator("H100-SXM"), "bf16")
    assert found is not None
    assert (found.value, found.evidence) == (722.9e12, Evidence.MEASURED)
    assert rate("H100-SXM", "fp16") == 722.9e12  # the same units


def test_fewer_cores_and_less_power_leave_the_cube_root() -> None:
    # 114 of 132 SMs; 280 W of 560 W above idle
    assert rate("H100-PCIe") == pytest.approx(722.9e12 * (0.5 * (114 / 132) ** 2) ** (1 / 3))
    # a product of 10000 warm-ups reached 499.5e12 there: an independent source within 5 %
    assert rate("H100-PCIe") == pytest.approx(499.5e12, rel=0.05)


def test_a_power_cap_lowers_a_measured_device_too() -> None:
    capped = replace(accelerator("H100-SXM"), tdp_w=500.0)
    found = loaded_rate(capped, "bf16")
    assert found is not None
    assert found.value == pytest.approx(722.9e12 * (360 / 560) ** (1 / 3))
    assert found.evidence is Evidence.DERIVED


@pytest.mark.parametrize("name", ["RTX-3090", "V100-SXM2-32GB", "MI300X", "TPU-v5p"])
def test_nothing_is_said_of_cores_nobody_measured(name: str) -> None:
    assert loaded_rate(accelerator(name), "bf16") is None


@pytest.mark.parametrize("name", sorted(accelerators()))
def test_more_power_is_never_slower(name: str) -> None:
    part = accelerator(name)
    for form in part.peak_flop_per_s:
        low = loaded_rate(replace(part, tdp_w=part.tdp_w and 0.8 * part.tdp_w), form)
        high = loaded_rate(replace(part, tdp_w=part.tdp_w and 0.9 * part.tdp_w), form)
        if low is not None and high is not None:
            assert 0 < low.value < high.value
