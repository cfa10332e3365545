"""Constants of mechanisms live in the table, with source and evidence, and code reads them there."""

from __future__ import annotations

import pytest

from ridgeline.facts.accelerators import accelerator
from ridgeline.facts.mechanisms import constant, constants
from ridgeline.facts.records import Evidence

MOVED = (
    "host.low", "host.high", "host.launch.low", "host.launch.high", "fit.reach", "sm.memory_bytes_per_s",
    "device.clock", "device.l2_bytes", "stream.slow_stacked",
)  # fmt: skip


@pytest.mark.parametrize("key", MOVED)
def test_a_number_without_a_measurement_says_so(key: str) -> None:
    fact = constants()[key]
    assert fact.evidence in (Evidence.ASSUMED, Evidence.DERIVED)
    assert fact.source
    assert fact.conditions


def test_the_shortest_kernel_of_cdna_2_is_no_number_of_a_throughput() -> None:
    fact = constants()["launch.start.cdna2"]
    cycles = constant("launch.start.cdna3") * (accelerator("MI300X").boost_hz or 0.0)
    assert fact.value == pytest.approx(cycles / (accelerator("MI250X").boost_hz or 0.0), rel=0.01)
    assert fact.evidence is Evidence.ASSUMED
    assert "tokens/s" not in fact.conditions


@pytest.mark.parametrize("band", ["host", "host.launch"])
def test_a_band_lies_about_its_value(band: str) -> None:
    assert constant(f"{band}.low") < 1 < constant(f"{band}.high")
