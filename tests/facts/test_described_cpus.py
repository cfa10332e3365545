"""Processors of no table: what words tell comes first, then the family of a name, then what is usual."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.errors import InputError, RidgelineError, UnknownNameError
from ridgeline.facts import store
from ridgeline.facts.clusters import cluster
from ridgeline.facts.cpus import cpus
from ridgeline.facts.described_cpus import cpu_of, described_cpu, families, family_of, told_of
from ridgeline.facts.records import Evidence


def test_all_is_said() -> None:
    one = described_cpu("32 cores, 3.1 GHz, 8 channels DDR5-4800, avx512")
    assert one is not None
    assert (one.cores, one.clock_hz, one.channels, one.memory_type) == (32, 3.1e9, 8, "DDR5-4800")
    assert one.memory.value == 8 * 4800e6 * 8
    assert one.peak["fp32"].value == pytest.approx(32 * 3.1e9 * 64)
    assert "bf16" not in one.peak
    assert one.memory.evidence is Evidence.ASSUMED
    assert " as " not in one.assumed  # nothing had to be put for what nobody said


@pytest.mark.parametrize(
    ("text", "cores", "clock_ghz", "rate_gbs", "fp32_a_cycle"),
    [
        ("EPYC 9474F", 48, 2.75, 12 * 4.8 * 8, 32),  # a usual 9004
        ("AMD EPYC 9474F 48-Core, 3.6 GHz", 48, 3.6, 12 * 4.8 * 8, 32),
        ("Xeon Silver 4410Y, 12 cores", 12, 2.1, 8 * 4.8 * 8, 64),
        ("Ryzen 5 5600, DDR4-3600", 8, 3.7, 2 * 3.6 * 8, 32),
        ("Ryzen 7 5700X, DDR4", 8, 3.7, 2 * 3.2 * 8, 32),
        ("16 cores, quad-channel DDR4-2133", 16, 2.5, 4 * 2.133 * 8, 32),
        ("64 cores, 400 GB/s, neon", 64, 2.5, 400, 16),
        ("12 cores LPDDR5-6400, 8 channels", 12, 2.5, 8 * 6.4 * 2, 32),
    ],
)
def test_what_is_told_stands_before_the_family(
    text: str, cores: int, clock_ghz: float, rate_gbs: float, fp32_a_cycle: int
) -> None:
    one = described_cpu(text)
    assert one is not None
    assert (one.cores, one.clock_hz) == (cores, clock_ghz * 1e9)
    assert one.memory.value == pytest.approx(rate_gbs * 1e9)
    assert one.peak["fp32"].value == pytest.approx(cores * clock_ghz * 1e9 * fp32_a_cycle)


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("Intel(R) Xeon(R) CPU E5-2680 v4 @ 2.40GHz", "Xeon E5 v4"),  # four channels, not the eight of any Xeon
        ("Intel® Xeon® Processor E5-2699A v4", "Xeon E5 v4"),
        ("Intel(R) Xeon(R) Gold 6148 CPU @ 2.40GHz", "Xeon Skylake-SP"),
        ("Intel(R) Xeon(R) W-2145 CPU @ 3.70GHz", "Xeon W-2200"),
        ("Intel(R) Xeon(R) CPU Max 9480", "Xeon Max"),
        ("Intel(R) Core(TM) Ultra 7 155H", "Core Ultra 100"),
        ("12th Gen Intel(R) Core(TM) i7-12700K", "Core of the 12th generation"),
        ("Intel(R) Processor N100", "Intel N-series"),
        ("AMD Ryzen™ 7 1700", "Ryzen 1000 and 2000"),
    ],
)
def test_names_are_read_as_makers_and_operating_systems_write_them(name: str, family: str) -> None:
    row = family_of(name)
    assert row is not None
    assert row["name"] == family


def test_nothing_told_is_no_processor() -> None:
    assert described_cpu("quux") is None
    with pytest.raises(UnknownNameError, match="or say what it is"):
        cpu_of("quux")
    assert cpu_of("EPYC 9654").assumed == ""  # rows of the table stay as they are


@pytest.mark.parametrize("text", ["2000 cores", "8 cores, 99 GHz", "8 cores, 100 channels", "8 cores DDR5-99999"])
def test_numbers_beyond_a_socket_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="needs"):
        told_of(text)


def test_families_are_near_the_processors_of_the_table() -> None:
    """Leave-one-out: a family's memory rate is within 40 % of each member of cpus.tsv that its words match."""
    found = [(one, row) for one in cpus().values() for row in [family_of(one.aliases[0])] if row is not None]
    far = []
    for one, _ in found:
        told = described_cpu(one.aliases[0])
        assert told is not None
        if not 0.71 <= told.memory.value / one.memory.value <= 1.4:
            far.append(one.name)
    assert len(found) > 60
    assert set(far) <= {"Ryzen-AI-Max-395", "Snapdragon-8-Gen-3"}


@pytest.mark.parametrize("row", families(), ids=lambda row: str(row["name"]))
def test_rows_are_whole(row: store.TableRow) -> None:
    re.compile(row["words"])
    assert store.source(row["source"]).title
    assert row["evidence"] in {"datasheet", "assumed"}  # of memory and instructions; cores and clock are chosen
    assert row["conditions"]
    assert int(row["cores"]) > 0
    assert float(row["clock_ghz"]) > 0
    assert row["units"] in {unit["name"] for unit in store.read_tsv("cpu_units.tsv")}


def test_a_described_socket_is_a_device() -> None:
    found = cluster("2x 16 cores, 2 channels DDR5-4800, avx2")
    assert found.count == 2
    assert found.accelerator.memory_bytes_per_s == pytest.approx(2 * 4.8e9 * 8)
    assert cluster("EPYC 9474F-768gb").accelerator.memory_bytes == pytest.approx(768e9 * 0.97)
    assert cluster("EPYC 9474F").accelerator.sustained["hbm"].evidence is Evidence.ASSUMED


@given(st.text(alphabet="0123456789 xcoresGHzDR-.,/Bavchnl", max_size=40))
def test_any_text_is_answered_or_refused(text: str) -> None:
    try:
        one = described_cpu(text)
    except RidgelineError:
        return
    assert one is None or (one.cores >= 1 and one.memory.value > 0)
