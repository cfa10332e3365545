"""Rates of devices and links: held to the datasheet, capped by power, with the evidence behind each."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ridgeline.cost.all_reduce import all_reduce_seconds
from ridgeline.cost.answer import interval
from ridgeline.cost.machine import (
    Machine,
    assumed_facts,
    device,
    link_efficiency,
    link_evidence,
    machine,
    stream_share,
)
from ridgeline.errors import DomainError
from ridgeline.facts.clusters import cluster
from ridgeline.facts.mechanisms import constant
from ridgeline.facts.records import Accelerator, Evidence, Fact, Tier
from ridgeline.seams.power_limit import power_share


def rated(accelerator: Accelerator, cap_w: float) -> Accelerator:
    fact = Fact(value=400.0, unit="W", source="made by hand", conditions="", evidence=Evidence.DATASHEET)
    return replace(accelerator, tdp_w=cap_w, facts={"tdp_w": fact})


def test_no_cap_leaves_the_whole_rate(accelerator: Accelerator) -> None:
    assert power_share(rated(accelerator, 400.0)) == power_share(accelerator) == 1.0


def test_a_cap_halfway_above_idle_leaves_the_cube_root_of_a_half(accelerator: Accelerator) -> None:
    idle = constant("power.idle") * 400
    assert power_share(rated(accelerator, (400 + idle) / 2)) == pytest.approx(0.5 ** (1 / 3))


def test_a_cap_below_idle_is_refused_with_both_numbers(accelerator: Accelerator) -> None:
    with pytest.raises(DomainError, match=r"Toy: power cap 40 W is not above idle power \d+ W"):
        power_share(rated(accelerator, 40.0))


def test_a_cap_slows_the_units_but_not_the_memory(accelerator: Accelerator) -> None:
    whole, capped = (
        device(rated(accelerator, 400.0), datasheet_only=True),
        device(rated(accelerator, 240.0), datasheet_only=True),
    )
    share = power_share(rated(accelerator, 240.0))
    assert capped.matrix["bf16"] == pytest.approx(share * whole.matrix["bf16"])
    assert capped.vector_flop_per_s == pytest.approx(share * whole.vector_flop_per_s)
    assert capped.clock_hz == pytest.approx(share * whole.clock_hz)
    assert capped.memory_bytes_per_s == whole.memory_bytes_per_s


def test_datasheet_rates_are_the_peaks_and_say_so() -> None:
    found = device(cluster("8xH100-SXM").accelerator, datasheet_only=True)
    assert found.matrix["bf16"] == found.accelerator.peak_flop_per_s["bf16"]
    assert found.memory_bytes_per_s == found.accelerator.memory_bytes_per_s
    assert found.stream_share == 1.0
    assert set(found.evidence.values()) == {Evidence.DATASHEET}


@pytest.mark.parametrize("name", ["8xH100-SXM", "8xA100-SXM-80GB", "8xV100-SXM2-32GB", "4xRTX-4090", "8xMI300X"])
def test_sustained_rates_never_exceed_the_peaks(name: str) -> None:
    found = device(cluster(name).accelerator)
    for dtype, peak in found.accelerator.peak_flop_per_s.items():
        assert 0 < found.matrix[dtype] <= peak
    assert 0 < found.memory_bytes_per_s <= found.accelerator.memory_bytes_per_s
    assert 0 < found.stream_share <= 1


def test_a_device_without_fp32_matrices_uses_its_vector_units(accelerator: Accelerator) -> None:
    found = device(accelerator, datasheet_only=True)
    assert found.matrix["fp32"] == found.vector_flop_per_s
    assert "tf32" not in found.matrix  # refused, not run in another format


def test_devices_of_one_large_array_have_no_waves() -> None:
    assert device(cluster("8xTPU-v4").accelerator).sm_count == 1


def test_latency_and_exponentials_follow_the_clock(accelerator: Accelerator) -> None:
    found = device(accelerator, datasheet_only=True)
    assert found.memory_latency_s == pytest.approx(constant("memory.latency") / 1e9)
    assert found.exp_per_s == pytest.approx(4 * constant("sm.exp_per_cycle") * 1e9)


def test_graphics_memory_is_recognized_by_its_bandwidth(accelerator: Accelerator) -> None:
    graphics = replace(accelerator, memory_bytes_per_s=1e12)
    stacked = replace(accelerator, memory_bytes_per_s=2e12)
    assert stream_share(graphics) == constant("stream.share.gddr")
    assert stream_share(stacked) == constant("stream.share.ampere")
    assert stream_share(replace(stacked, architecture="none")) == constant("stream.share.other")


@pytest.mark.parametrize(
    ("link", "row"),
    [
        ("nvlink4", "nvlink4"),
        ("NVLink3", "nvlink3"),
        ("nvlink2", "nvlink"),
        ("nvlink5-rack", "nvlink5"),
        ("ib-ndr leaf", "ib"),
        ("xgmi-mi300x", "xgmi"),
        ("carrier pigeon", "other"),
    ],
)
def test_a_link_takes_the_longest_row_that_begins_its_name(link: str, row: str) -> None:
    tier = Tier(name=link, size=8, bytes_per_s=1e9, latency_s=0.0, topology="switch")
    assert link_efficiency(tier).value == constant(f"efficiency.{row}.ring")


def test_reduction_in_the_switch_has_its_own_efficiency() -> None:
    tier = Tier(name="nvlink4", size=8, bytes_per_s=1e9, latency_s=0.0, topology="switch")
    assert link_efficiency(tier, in_network=True).value == constant("efficiency.nvlink.in_network")


def resolved(name: str, *, datasheet_only: bool = False) -> Machine:
    return machine(cluster(name), datasheet_only=datasheet_only)


def test_a_machine_knows_its_lowest_link_evidence() -> None:
    """Of the links' own facts: that a switch was measured elsewhere makes no box of cards on assumed slots known."""
    assert resolved("8xH100-SXM").link_evidence is Evidence.DATASHEET
    assert resolved("8xRTX-4090").link_evidence is Evidence.ASSUMED
    assert resolved("8xRTX-4090", datasheet_only=True).link_evidence is Evidence.ASSUMED
    bare = replace(cluster("8xH100-SXM").tiers[0], fact=None)
    assert link_evidence([bare], []) is Evidence.ASSUMED


def test_what_is_assumed_of_links_and_rates_is_told() -> None:
    told = assumed_facts(resolved("4xRTX-4090"), "bf16")
    assert told[0].startswith("pcie4, ")
    assert "bus: boards on PCIe slots" in told[0]
    assert any("memory rate of TPU-v6e" in line for line in assumed_facts(resolved("1xTPU-v6e"), "bf16"))
    assert assumed_facts(resolved("8xH100-SXM"), "bf16") == ()


def test_what_is_assumed_has_a_wider_interval_than_what_is_derived() -> None:
    derived, assumed = interval(1.0, Evidence.DERIVED), interval(1.0, Evidence.ASSUMED)
    assert assumed[0] < 0.7 * derived[0]
    assert assumed[1] > 1.5 * derived[1]


def test_a_datasheet_s_links_are_whole() -> None:
    bare = resolved("64xH100-SXM", datasheet_only=True)
    assert bare.link_evidence is Evidence.DATASHEET
    assert bare.efficiency == bare.in_network_efficiency == (1.0, 1.0)


@pytest.mark.parametrize("rung", list(Evidence))
def test_intervals_enclose_something_and_widen_down_the_ladder(rung: Evidence) -> None:
    low, high = interval(2.0, rung)
    assert 0 < low < high
    assert interval(4.0, rung) == pytest.approx((2 * low, 2 * high))
    measured_low, measured_high = interval(2.0, Evidence.MEASURED)
    assert high - low >= (measured_high - measured_low) * (1 - 1e-12) or rung is Evidence.HERE


def test_a_device_that_nobody_measured_is_priced_by_others() -> None:
    """Where the datasheet's rates are asked for its own fits do not answer, nor its sustained rates."""
    usual, bare = (machine(cluster("8xH100-SXM"), datasheet_only=one) for one in (False, True))
    assert usual.part == usual.cluster.accelerator
    assert usual.part.sustained
    assert not bare.part.sustained
    assert [rung.value for rung in usual.rungs] == ["fitted", "borrowed", "common"]
    assert [rung.value for rung in bare.rungs] == ["borrowed", "common"]
    sizes = np.array([2.0**14, 2.0**20])
    own, lent = (all_reduce_seconds(sizes, 8, one, engine="vllm") for one in (usual, bare))
    assert np.all(own != lent)
