"""Constants of mechanisms live in the table, with source and evidence, and code reads them there."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from ridgeline.cost.engine_kernels import integer_seconds
from ridgeline.cost.machine import device
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


@pytest.mark.parametrize("key", [key for key in constants() if key.startswith(("launch.start.", "int8."))])
def test_kernels_are_timed_alone_or_counted_and_never_taken_from_a_throughput(key: str) -> None:
    fact = constants()[key]
    assert not re.search(r"tok(en)?s?/s|passes of|a layer on", fact.conditions)


def test_products_by_8_bit_inputs_reach_the_share_that_an_audit_of_their_machine_code_finds() -> None:
    """unslothai/llama.cpp, pull request #198: about 31 % of the int8 peak on a GB10, 65 to 71 % by CUTLASS."""
    machine, flop = device(accelerator("GB10"), datasheet_only=True), np.array(1e14)
    alone = flop / machine.matrix_rate("int8")
    assert alone / integer_seconds(flop, np.zeros(1), 0.0, machine)[1] == pytest.approx(0.31, abs=0.02)


def test_a_faster_matrix_unit_leaves_the_time_of_scales_as_it_is() -> None:
    """No device, however fast its products, multiplies blocks faster than it scales them."""
    machine, flop = device(accelerator("RTX-4090"), datasheet_only=True), np.array(1e14)
    endless = replace(machine, matrix={**machine.matrix, "int8": 1e30})
    scaled = flop * constant("int8.sm_cycles") / (machine.sm_count * machine.clock_hz)
    assert integer_seconds(flop, np.zeros(1), 0.0, endless)[1] == pytest.approx(scaled)


@pytest.mark.parametrize("band", ["host", "host.launch"])
def test_a_band_lies_about_its_value(band: str) -> None:
    assert constant(f"{band}.low") < 1 < constant(f"{band}.high")
