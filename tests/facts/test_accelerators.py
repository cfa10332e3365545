"""Accelerators: names, units, evidence, hand-worked numbers."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.errors import UnknownNameError
from ridgeline.facts.accelerators import GIB, accelerator, accelerator_names, accelerators, canonical
from ridgeline.facts.records import Evidence

UNITS = {
    "vector_flop_per_s": "FLOP/s",
    "memory_bytes": "byte",
    "memory_nominal_bytes": "byte",
    "memory_bytes_per_s": "byte/s",
    "l2_bytes": "byte",
    "sm_count": "1",
    "boost_hz": "Hz",
    "link_bytes_per_s": "byte/s",
    "host_bytes_per_s": "byte/s",
    "tdp_w": "W",
    "year": "1",
}


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("H100", "H100-SXM"),
        ("h100-sxm", "H100-SXM"),
        ("H100 SXM5 80GB", "H100-SXM"),
        ("NVIDIA H100 80GB HBM3", "H100-SXM"),
        ("H100 80GB PCIe", "H100-PCIe"),
        ("H100-SXM5-96GB", "H100-SXM-96GB"),
        ("A100", "A100-SXM-80GB"),
        ("NVIDIA A100-SXM4-80GB", "A100-SXM-80GB"),
        ("A100 40GB", "A100-SXM-40GB"),
        ("A100-PCIe-80GB", "A100-PCIe-80GB"),
        ("A100 PCIe", "A100-PCIe-80GB"),
        ("V100", "V100-SXM2-16GB"),
        ("V100 32GB", "V100-SXM2-32GB"),
        ("Tesla V100-SXM2-32GB", "V100-SXM2-32GB"),
        ("rtx4090", "RTX-4090"),
        ("GeForce RTX 4090 24GB", "RTX-4090"),
        ("3080Ti", "RTX-3080-Ti"),
        ("RX-7900XTX", "RX-7900-XTX"),
        ("TitanRTX", "TITAN-RTX"),
        ("AMD Instinct MI300X 192GB HBM3", "MI300X"),
        ("B200 192GB", "B200-SXM"),
        ("NVIDIA B300 SXM6 AC", "B300-SXM"),
        ("Intel Gaudi 2 AI Accelerator", "Gaudi2"),
        ("TPU v5p", "TPU-v5p"),
        ("tpuv6e", "TPU-v6e"),
        ("Trainium2", "Trainium2"),
        ("DGX-Spark-GB10", "GB10"),
    ],
)
def test_names_as_people_type_them(typed: str, name: str) -> None:
    assert accelerator(typed).name == name


@pytest.mark.parametrize("typed", ["RTX 3090 12GB", "RTX 4090 48GB", "A100 4GB", "L4 80GB"])
def test_a_wrong_memory_size_is_another_machine(typed: str) -> None:
    assert canonical(typed) is None


def test_unknown_name_says_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown accelerator 'H100-SXN'; nearest: H100-SXM"):
        accelerator("H100-SXN")


@given(st.text(max_size=60))
def test_any_text_is_found_or_refused(text: str) -> None:
    found = canonical(text)
    assert found is None or found in accelerator_names()


def test_every_name_and_every_alias_leads_home() -> None:
    from ridgeline.facts import store

    for row in store.read_tsv("accelerators.tsv"):
        for name in (row["name"], *filter(None, row["aliases"].split(";"))):
            assert canonical(name) == row["name"], name
            assert canonical(name.lower()) == row["name"], name


def test_hand_worked_numbers() -> None:
    h100 = accelerator("H100-SXM")
    assert h100.peak_flop_per_s["bf16"] == pytest.approx(989.4e12)
    assert h100.memory_bytes_per_s == pytest.approx(3.35e12)
    assert h100.memory_bytes == pytest.approx(79.18 * 2**30)
    assert h100.facts["memory_nominal_bytes"].value == pytest.approx(80e9)
    assert h100.l2_bytes == 50 * 2**20
    assert h100.link_bytes_per_s == pytest.approx(450e9)
    assert h100.boost_hz == pytest.approx(1.98e9)
    assert (h100.sm_count, h100.tdp_w, h100.year) == (132, 700, 2022)
    assert accelerator("MI300X").sm_count == 304
    assert accelerator("RTX-2080-Ti").peak_flop_per_s["fp16"] == pytest.approx(53.8e12)
    assert "bf16" not in accelerator("V100").peak_flop_per_s


def test_no_matrix_rate_of_a_narrower_format_is_lower_and_boards_of_one_die_keep_their_order() -> None:
    for name, device in accelerators().items():
        rates = device.peak_flop_per_s
        for wide, narrow in (("tf32", "bf16"), ("bf16", "fp8"), ("fp8", "fp4")):
            if wide in rates and narrow in rates:
                assert rates[narrow] >= rates[wide], (name, wide, narrow)
    for less, more in (
        ("MI350X", "MI355X"), ("B100-SXM", "B200-SXM"), ("RTX-5060", "RTX-5060-Ti"), ("RTX-4090-Laptop", "RTX-4090"),
        ("RTX-2060", "RTX-2070"), ("Arc-B570", "Arc-B580"), ("Ascend-910B", "Ascend-910C"), ("A2", "A10"),
        ("L2", "L20"),
    ):  # fmt: skip
        one, other = accelerators()[less], accelerators()[more]
        assert one.peak_flop_per_s["fp16"] < other.peak_flop_per_s["fp16"]
        assert one.memory_bytes_per_s <= other.memory_bytes_per_s
    # Blackwell brief: 28 PFLOP/s of sparse fp16 in eight GPUs; CloudMatrix384: 376 TFLOP/s a die
    assert accelerators()["B100-SXM"].peak_flop_per_s["fp16"] == pytest.approx(28e15 / 8 / 2)
    assert accelerators()["Ascend-910C"].peak_flop_per_s["bf16"] == pytest.approx(2 * 376e12)


@pytest.mark.parametrize("name", accelerator_names())
def test_every_number_has_a_fact_of_the_right_unit(name: str) -> None:
    device = accelerators()[name]
    for field, unit in UNITS.items():
        value = getattr(device, field, None)
        if field in device.facts:
            fact = device.facts[field]
            assert fact.unit == unit
            assert math.isfinite(fact.value)
            assert fact.value > 0
            assert value is None or fact.value == value
        else:
            assert value is None, field
    for fmt, rate in device.peak_flop_per_s.items():
        assert device.facts[f"peak_flop_per_s.{fmt}"].value == rate
        assert device.facts[f"peak_flop_per_s.{fmt}"].unit == "FLOP/s"
    assert all(fact.source and fact.conditions for fact in device.facts.values())


@pytest.mark.parametrize("name", accelerator_names())
def test_physical_sense(name: str) -> None:
    device = accelerators()[name]
    nominal = device.facts["memory_nominal_bytes"].value
    assert 0.9 <= device.memory_bytes / nominal <= 1.09  # sold in GB, built in GiB, some kept by the driver
    assert device.architecture == device.architecture.lower()
    if "fp8" in device.peak_flop_per_s and "bf16" in device.peak_flop_per_s:
        assert device.peak_flop_per_s["fp8"] >= device.peak_flop_per_s["bf16"]


def test_usable_memory_without_a_measurement_follows_the_vendor() -> None:
    fact = accelerator("RTX-4070").facts["memory_bytes"]
    assert fact.evidence is Evidence.DERIVED
    assert fact.value < 12 * GIB
    assert "median of" in fact.conditions


def test_evidence_of_exceptions() -> None:
    wse = accelerator("WSE-2").facts
    assert wse["vector_flop_per_s"].evidence is Evidence.ASSUMED
    assert wse["memory_bytes_per_s"].evidence is Evidence.DATASHEET
    assert accelerator("GB200").facts["sm_count"].evidence is Evidence.MEASURED
