"""Operands that a step reads once are not found in the cache; the link is that of what it is measured by."""

from __future__ import annotations

import math

import pytest

from ridgeline.calibrate.here.assemble import tiers_of
from ridgeline.calibrate.here.devices import Found
from ridgeline.calibrate.here.kernels import Kernels, measured
from ridgeline.cost.machine import machine
from ridgeline.cost.network import send_seconds
from ridgeline.facts.profiles import BenchmarkRow
from ridgeline.facts.records import Accelerator, Cluster, Evidence, Fact, Host

torch = pytest.importorskip("torch", reason="measuring needs PyTorch: pip install 'ridgeline[measure]'")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
def test_an_operand_comes_again_only_after_more_than_the_cache_holds(dtype: object) -> None:
    cache_bytes = 2.0**16
    turns = Kernels(torch=torch, device="cpu", cache_bytes=cache_bytes).in_turn(64, 32, dtype=dtype)
    seen = [next(turns) for _ in range(200)]
    places = [one.data_ptr() for one in seen]
    between = places.index(places[0], 1) * seen[0].nbytes
    assert between > 1.9 * cache_bytes
    assert all(one.shape == (64, 32) and bool((one != 0).all()) for one in seen)


def test_an_operand_larger_than_the_cache_is_one() -> None:
    turns = Kernels(torch=torch, device="cpu", cache_bytes=1024.0).in_turn(64, 32, dtype=torch.float32)
    assert next(turns).data_ptr() == next(turns).data_ptr()


def test_products_of_every_copy_are_those_of_their_weight() -> None:
    call = Kernels(torch=torch, device="cpu", cache_bytes=2.0**14).product("fp32", {"m": 2.0, "n": 16.0, "k": 32.0})
    first, second = call(), call()
    assert first.shape == second.shape == (2, 16)
    assert not torch.equal(first, second)  # another weight


FOUND = Found(
    kind="cpu", name="Four cores", count=1, vendor="AMD", architecture="cpu", units=4, sockets=1, memory_bytes=16e9,
    cache_bytes=3.2e7, clock_hz=3e9, machine={}, versions={},
)  # fmt: skip
PART = Accelerator(
    name="Four cores", vendor="AMD", architecture="cpu", year=None, peak_flop_per_s={"fp32": 4e11},
    vector_flop_per_s=4e11, memory_bytes=16e9, memory_bytes_per_s=3e10, l2_bytes=3.2e7, sm_count=4, boost_hz=3e9,
    link_name=None, link_bytes_per_s=None, host_bytes_per_s=None, tdp_w=None,
    sustained={
        name: Fact(value=value, unit=unit, source="test", conditions="", evidence=Evidence.HERE)
        for name, value, unit in (("matrix.fp32", 3e11, "FLOP/s"), ("hbm", 2e10, "byte/s"))
    },
)  # fmt: skip
HOST = Host(
    devices=1, dram_bytes=16e9, dram_bytes_per_s=3e10, device_bytes_per_s=1e10, nvme_bytes=1e12, nvme_bytes_per_s=1e9,
    idle_w=0.0,
)  # fmt: skip


def row(kind: str, size: float, seconds: float) -> BenchmarkRow:
    return measured("collective", "any", {"bytes": size, "ranks": 2.0}, [seconds], moved=size, note=kind)


def test_a_send_takes_what_sends_took_and_no_addition_of_an_all_reduce() -> None:
    rows = [row("send", 4096, 1e-4), row("send", 2.0**24, 4.1e-3)]
    rows += [row("all_reduce", 4096, 5e-4), row("all_reduce", 2.0**24, 2e-2)]
    tiers = tiers_of(FOUND, PART, rows)
    here = machine(Cluster(name="here", accelerator=PART, count=2, tiers=tiers, host=HOST))
    for size in (4096.0, 2.0**20, 2.0**24):
        expected = 1e-4 + size * (4.1e-3 - 1e-4) / 2.0**24
        assert float(send_seconds(size, 1, here)) == pytest.approx(expected, rel=0.01)
    (slower,) = tiers_of(FOUND, PART, rows, by="all_reduce")
    assert slower.bytes_per_s < tiers[0].bytes_per_s
    assert math.isclose(slower.latency_s, (5e-4 - 5.4e-6) / 2)
