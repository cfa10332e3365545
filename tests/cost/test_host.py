"""Processors: bytes over memory, FLOP over product rates, sockets, experts that a batch touches, faults of a file."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.cost.host import (
    Disk,
    Kernel,
    Processors,
    copy_s,
    disk,
    experts_touched,
    pageable_bytes_per_s,
    products_s,
)
from ridgeline.facts.cpus import cpu, cpu_constant, cpu_constants
from ridgeline.facts.mechanisms import constant
from ridgeline.facts.records import Evidence

XEON = cpu("Xeon Gold 6454S")
ONE = Processors(cpu=XEON, sockets=1, cores=32, memory_bytes_per_s=307.2e9)
TWO = Processors(cpu=XEON, sockets=2, cores=64, memory_bytes_per_s=614.4e9)


def test_every_constant_has_source_evidence_and_unit() -> None:
    table = cpu_constants()
    assert len(table) == 42
    assert {fact.unit for fact in table.values()} == {"1", "s", "byte", "byte/s"}
    assert all(fact.source and fact.conditions for fact in table.values())
    assert table["stream.ddr"].evidence is Evidence.MEASURED


def test_memory_of_one_socket() -> None:
    assert ONE.stream_bytes_per_s == pytest.approx(0.78 * 307.2e9)
    assert ONE.read_bytes_per_s == pytest.approx(0.78 * 0.85 * 307.2e9)


def test_sockets_with_weights_of_their_own_double_the_rate_and_others_halve_that_of_one() -> None:
    assert TWO.read_bytes_per_s == pytest.approx(2 * ONE.read_bytes_per_s)
    fallen = replace(TWO, numa_aware=False)
    assert fallen.read_bytes_per_s == pytest.approx(0.5 * ONE.read_bytes_per_s)
    assert replace(fallen, spread=True).read_bytes_per_s == pytest.approx(ONE.read_bytes_per_s)


def test_few_cores_cannot_ask_for_all_of_the_memory() -> None:
    few = Processors(cpu=cpu("EPYC 9654"), sockets=1, cores=12, memory_bytes_per_s=460.8e9)
    assert few.read_bytes_per_s == pytest.approx(12 * 16 * 64 / 79e-9, rel=0.01)  # 16 lines of 64 bytes in 79 ns


def test_a_phone_reads_at_the_share_of_its_memory() -> None:
    phone = cpu("Snapdragon 8 Elite")
    host = Processors(cpu=phone, sockets=1, cores=8, memory_bytes_per_s=phone.memory.value)
    assert host.stream_bytes_per_s == pytest.approx(0.68 * 85.3e9)


def test_one_core_stages_copies_from_memory_that_is_not_pinned() -> None:
    assert pageable_bytes_per_s(13e9) == pytest.approx(6.5e9)
    assert pageable_bytes_per_s(1e6) == pytest.approx(1e6, rel=1e-3)
    assert pageable_bytes_per_s(13e9, new_pages=True) == pytest.approx(1 / (2 / 13e9 + 1 / 8.3e9))


def test_product_rates_by_kernel() -> None:
    clock_cores = 32 * 2.2e9
    assert ONE.flop_per_s(Kernel.AMX_BF16) == pytest.approx(0.145 * 72.09e12)  # half of 21 TFLOP/s
    assert ONE.flop_per_s(Kernel.AMX_INT8) == pytest.approx(0.12 * 144.2e12)  # half of 35 TOP/s
    assert ONE.flop_per_s(Kernel.LLAMAFILE) == pytest.approx(0.86 * 32 * clock_cores)
    assert ONE.flop_per_s(Kernel.LLAMA_CPP) == pytest.approx(0.47 * 32 * clock_cores)
    assert ONE.flop_per_s(Kernel.CODEBOOK) == pytest.approx(0.195 * 32 * clock_cores)
    assert ONE.flop_per_s(Kernel.REPACKED) == pytest.approx(0.44 * 4 * 64 * clock_cores, rel=1e-3)
    assert ONE.flop_per_s(Kernel.VECTOR) == pytest.approx(0.31 * 32 * clock_cores)
    old = Processors(cpu=cpu("EPYC 7763"), sockets=1, cores=64, memory_bytes_per_s=204.8e9)  # no products of 8 bits
    assert old.flop_per_s(Kernel.REPACKED) == pytest.approx(0.54 * 64 * 64 * old.cpu.clock_hz, rel=1e-3)
    plain = Processors(cpu=cpu("Skylake"), sockets=1, cores=24, memory_bytes_per_s=128e9)
    assert plain.flop_per_s(Kernel.AMX_INT8) == plain.flop_per_s(Kernel.VECTOR) == pytest.approx(0.71 * 3.226e12)


def test_products_are_bound_by_memory_then_by_rate() -> None:
    size = 1e9
    few, many = (float(products_s(ONE, size, 2 * size * rows, Kernel.LLAMAFILE)) for rows in (1.0, 512.0))
    assert few == pytest.approx(size / ONE.read_bytes_per_s)
    assert many == pytest.approx(1024 * size / ONE.flop_per_s(Kernel.LLAMAFILE))


def test_a_copy_reads_fetches_and_writes() -> None:
    assert float(copy_s(ONE, 1e9)) == pytest.approx(3e9 / (0.78 * 307.2e9))
    assert float(copy_s(TWO, 1e9)) == pytest.approx(2.5e9 / (0.78 * 307.2e9))


def test_experts_touched_by_one_and_by_many_tokens() -> None:
    assert float(experts_touched(8, 2, 1.0)) == pytest.approx(2.0)
    assert float(experts_touched(8, 2, 2.0)) == pytest.approx(3.5)  # 8 (1 - (3/4)^2)
    assert float(experts_touched(8, 2, 1e4)) == pytest.approx(8.0)


@given(st.integers(1, 512), st.integers(1, 16), st.floats(1, 1e5))
def test_experts_touched_are_at_most_all_and_at_most_the_uses(experts: int, top_k: int, tokens: float) -> None:
    found = float(experts_touched(experts, min(top_k, experts), tokens))
    assert found <= experts * (1 + 1e-9)
    assert found <= min(top_k, experts) * tokens * (1 + 1e-9)
    more = float(experts_touched(experts, min(top_k, experts), tokens + 1))
    assert more >= found * (1 - 1e-12)


@given(st.floats(1e3, 1e12), st.floats(1e3, 1e15))
def test_products_broadcast(size: float, flop: float) -> None:
    each = [float(products_s(TWO, size, value, Kernel.VECTOR)) for value in (flop, 2 * flop)]
    assert np.allclose(products_s(TWO, size, np.array([flop, 2 * flop]), Kernel.VECTOR), each, rtol=1e-12)


def test_a_fault_waits_for_the_first_byte() -> None:
    assert Disk(latency_s=1e-4, bytes_per_s=1e9).fault_bytes_per_s == pytest.approx(131072 / 2.31072e-4)
    assert disk("nvme").fault_bytes_per_s < disk("nvme").bytes_per_s == cpu_constant("disk.nvme.rate")


def test_an_expert_of_four_bits_is_laid_out_anew_by_operators_that_python_issues() -> None:
    """Four copies, eight of transposes, two repacks and their copies, two permutations of scales of three each."""
    assert cpu_constant("repack.expert") == pytest.approx((4 + 8 + 4 + 6) * constant("launch.host.eager"), rel=0.02)
