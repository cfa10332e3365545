"""Processors: rates are cores times clock times operations, and names are found as people write them."""

from __future__ import annotations

import pytest

from ridgeline.errors import UnknownNameError
from ridgeline.facts import store
from ridgeline.facts.cpus import cpu, cpus
from ridgeline.facts.records import Evidence
from ridgeline.facts.store import source

OPERATIONS = {  # of one cycle and core: fp32, bf16, int8; a fused multiply-add is two
    "amx": (64, 1024, 2048),
    "avx512-2": (64, None, 128),
    "avx512-2-vnni": (64, None, 256),
    "zen5": (64, 128, 256),
    "zen4": (32, 64, 128),
    "avx2": (32, None, 64),
    "neon-4": (32, 64, 128),
    "neon-2": (16, None, 64),
    "neon-1": (8, None, 16),  # one vector a cycle, no dot products
    "avx2-half": (16, None, 32),  # vectors of 256 bits in two halves
    "hybrid": (32, None, 128),
}


def test_rows_and_sums_are_pinned() -> None:
    table = store.read_tsv("cpus.tsv")
    assert len(table) == 85
    assert sum(int(row["cores"]) for row in table) == 3438
    assert sum(float(row["mem_gbs"]) for row in table) == pytest.approx(19503.09)


@pytest.mark.parametrize("row", store.read_tsv("cpus.tsv"), ids=lambda row: str(row["name"]))
def test_rates_are_cores_times_clock_times_operations(row: dict[str, str]) -> None:
    rate = int(row["cores"]) * float(row["clock_ghz"]) / 1e3
    for column, operations in zip(("fp32_tflops", "bf16_tflops", "int8_tops"), OPERATIONS[row["units"]], strict=True):
        if operations is None:
            assert row[column] == ""
        else:
            assert float(row[column]) == pytest.approx(operations * rate, rel=1e-3)


@pytest.mark.parametrize("row", store.read_tsv("cpus.tsv"), ids=lambda row: str(row["name"]))
def test_memory_is_channels_times_speed(row: dict[str, str]) -> None:
    speed = float(row["mem_type"].rsplit("-", 1)[1]) * 1e6
    width = 2 if row["mem_type"].startswith("LP") else 8  # bytes of one channel: 16 or 64 bits
    assert float(row["mem_gbs"]) * 1e9 == pytest.approx(int(row["channels"]) * speed * width, rel=0.01)


def test_every_processor_has_a_known_source() -> None:
    for found in cpus().values():
        assert source(found.memory.source).title
        assert all(fact.evidence <= Evidence.DERIVED for fact in found.peak.values())


def test_names_and_aliases() -> None:
    assert cpu("xeon gold 6454s").name == "Xeon-Gold-6454S"
    assert cpu("EPYC-9654").memory.value == 460.8e9
    with pytest.raises(UnknownNameError, match="EPYC-9654"):
        cpu("EPYC-9655")


def test_a_format_without_an_instruction_runs_at_the_rate_of_fp32() -> None:
    assert cpu("EPYC 7C13").peak_flop_per_s("bf16") == cpu("EPYC 7C13").peak["fp32"].value
