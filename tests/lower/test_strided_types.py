"""Strided types in one form: the same bytes whatever describes them; times of packing and sending by hand."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.cost.machine import machine
from ridgeline.errors import InputError, PlanError
from ridgeline.facts.clusters import cluster
from ridgeline.lower.strided import ROW_BYTES, Halo, StridedType
from ridgeline.predict.operator import operator_cost
from ridgeline.predict.operator_mechanisms import halo_seconds, rates_of, strided_type
from ridgeline.seams.registry import technique
from ridgeline.seams.strided import StridedRates
from ridgeline.techniques.strided_transfers.tempi import Tempi

RATES = StridedRates(
    issue_s=1e-5, kernel_s=1e-6, memory_bytes_per_s=1e12, link_bytes_per_s=1e10, message_s=lambda size: size / 1e10
)  # fmt: skip


def offsets(one: StridedType) -> np.ndarray:
    """Where each byte lies [byte], sorted: what two types that mean the same have in common."""
    found = np.arange(one.block) + one.start
    for count, stride in one.dims:
        found = (found[None, :] + stride * np.arange(count)[:, None]).ravel()
    return np.sort(found)


def subarray(sizes: tuple[int, ...], part: tuple[int, ...], begin: tuple[int, ...], element: int) -> StridedType:
    """A box of an array in C order: MPI's subarray of elements of so many bytes."""
    found = StridedType(block=element)
    start, stride = 0, element
    for size, many, first in zip(reversed(sizes), reversed(part), reversed(begin), strict=True):
        found, start, stride = found.repeated(many, stride), start + first * stride, stride * size
    return StridedType(block=found.block, dims=found.dims, start=start)


@st.composite
def nested(draw: st.DrawFn) -> StridedType:
    """Blocks repeated up to three times without overlap."""
    found, extent = StridedType(block=draw(st.integers(1, 6))), 0
    extent = found.block
    for _ in range(draw(st.integers(0, 3))):
        count, stride = draw(st.integers(1, 4)), extent + draw(st.sampled_from([0, 0, 1, 5]))
        found, extent = found.repeated(count, stride), (count - 1) * stride + extent
    return found


@given(nested())
def test_the_form_has_the_same_bytes_and_is_its_own(one):
    form = one.canonical()
    assert np.array_equal(offsets(form), offsets(one))
    assert form.canonical() == form
    assert form.blocks <= one.blocks


def test_equivalent_types_have_one_form():
    box = subarray((4, 8), (3, 2), (1, 5), 4)
    vector = StridedType(block=8, dims=((3, 32),), start=52)
    by_elements = StridedType(block=4, dims=((3, 32), (2, 4)), start=52)
    assert box.canonical() == vector.canonical() == by_elements.canonical() == vector
    whole = subarray((4, 8), (4, 8), (0, 0), 4).canonical()
    assert (whole.block, whole.dims) == (128, ())


def test_times_by_hand():
    copies, tempi = technique("strided_transfers", "block-copies"), Tempi()
    assert copies.pack_s(1, 1000, RATES) == pytest.approx(1000 * 1e-5 + 1e-6)
    assert tempi.pack_s(1, 1000, RATES) == pytest.approx(1.1e-5 + (32_000 + 1000) / 1e12)
    ways = tempi.ways(1, 1000, RATES)
    assert tempi.send_s(1, 1000, RATES) == min(ways.values())
    assert ways["one-shot"] == min(ways.values())  # small: a message from the device takes longer to start
    large = tempi.ways(4096, 100_000, RATES)
    assert large["device"] == min(large.values())  # large: the host link is the slowest


def test_the_operator():
    where = cluster("2xsummit")
    slow = operator_cost("strided_send", "24x256x2096", "bf16", where, technique="block-copies").seconds
    assert operator_cost("strided_send", "24x256x2096", "bf16", where, technique="tempi").seconds < slow / 10
    assert operator_cost("strided_pack", "4x256x4", "bf16", where) == operator_cost(
        "strided_pack", "1024x1x1024", "bf16", where
    )
    with pytest.raises(InputError, match="extends over"):
        strided_type((24, 256, 8))
    with pytest.raises(PlanError, match="says nothing of strided_pack"):
        operator_cost("strided_pack", "24x256x2096", "bf16", where, technique="spraying")


def test_a_grid_is_cut_as_the_benchmark_cuts_it():
    halo = Halo.of((6144, 4096, 2048), 3072, radius=3, element=8)
    assert (halo.local, halo.places) == ((256, 256, 256), (24, 16, 8))
    assert Halo.of((8, 8, 8), 6, radius=1, element=1).places == (1, 2, 3)  # by 3 along z, then by 2 along y


def test_messages_of_a_halo_are_its_shell():
    halo = Halo(local=(4, 5, 6), places=(3, 4, 5), radius=2, element=8)
    messages = list(halo.messages())
    sent = sum(form.bytes for form, _ in messages)
    # What 26 neighbours send fills the ghost points around the box: (4 + 4)(5 + 4)(6 + 4) - 4 x 5 x 6 points.
    assert sent == 8 * (8 * 9 * 10 - 4 * 5 * 6)
    corner, to = messages[-1]
    array = np.arange((6 + 4) * (5 + 4) * ROW_BYTES).reshape(6 + 4, 5 + 4, ROW_BYTES)
    assert np.array_equal(offsets(corner), np.sort(array[:2, :2, :16].ravel()))
    # From place (2, 3, 4), the last, one step along each side wraps to (0, 0, 0).
    assert to[59] == 0
    assert to[0] == (1 * 4 + 1) * 3 + 1
    assert all(sorted(one) == list(range(60)) for _, one in messages)


def test_a_halo_by_hand():
    """Twelve devices of two nodes: what crosses between nodes, what stays, and all that the slowest host issues."""
    where = machine(cluster("2xsummit"))
    copies = technique("strided_transfers", "block-copies")
    halo = Halo.of((64, 64, 64), where.cluster.count, radius=1, element=8)
    near, far = rates_of(where, near=True), rates_of(where)
    assert near.near
    assert not far.near
    node = where.cluster.node_devices
    handled = np.zeros(where.cluster.count)
    sent = np.zeros((2, where.cluster.count))
    for form, to in halo.messages():
        for rank, other in enumerate(to):
            same = rank // node == other // node
            handled[rank] += 2 * copies.pack_s(form.block, form.blocks, near if same else far)
            sent[int(same), rank] += form.bytes
    waits = [max(far.message_s(3 * a) if a else 0.0, near.message_s(3 * b) if b else 0.0) for a, b in sent.T]
    seconds, size = halo_seconds(copies, halo, 3, where)
    assert seconds == pytest.approx(np.max(3 * handled + waits))
    assert size == 3 * sent[:, 0].sum()


def measured(path: Path) -> str:
    """A system whose times are known: lines of 1 us and 10 GB/s, grids that fall with the block's length."""
    line = {name: [{"time": 1e-6 + 2**i / 1e10, "iid": True} for i in range(24)] for name in (
        "d2h", "h2d", "intraNodeCpuCpuPingpong", "interNodeCpuCpuPingpong", "interNodeGpuGpuPingpong"
    )}  # fmt: skip
    line["intraNodeGpuGpuPingpong"] = [{"time": 2e-6 + 2**i / 1e11, "iid": True} for i in range(24)]
    grid = [[{"time": 1e-5 + 64 * 4**i / 2**j / 1e9, "iid": True} for j in range(9)] for i in range(9)]
    host = [[{"time": 5e-6 + 64 * 4**i / 2**j / 1e8, "iid": True} for j in range(9)] for i in range(9)]
    told = {**line, "packDevice": grid, "unpackDevice": grid, "packHost": host, "unpackHost": host}
    path.write_text(json.dumps(told | {"cudaKernelLaunch": 1e-6}))
    return str(path)


def test_a_measured_system_is_interpolated(tmp_path: Path):
    one = Tempi(measured=measured(tmp_path / "perf.json"))
    assert one.pack_s(16, 64, RATES) == pytest.approx(1e-5 + 1024 / 16 / 1e9)  # as measured
    assert one.pack_s(24, 64, RATES) == pytest.approx(  # 1,536 bytes, a sixth of the way from 1,024 to 4,096
        1e-5 + (5 / 6 * 1024 + 1 / 6 * 4096) * 0.5 * (1 / 16 + 1 / 32) / 1e9
    )
    assert one.pack_s(4096, 4096, RATES) == pytest.approx(4 * (1e-5 + 2**22 / 256 / 1e9))  # beyond both ends
    assert one.message_s(3 * 2**23, RATES) == pytest.approx(3 * (1e-6 + 2**23 / 1e10))
    ways = one.ways(256, 4, RATES)
    assert ways["one-shot"] == min(ways.values()) == one.send_s(256, 4, RATES)
    large = one.ways(16, 2**16, RATES)
    assert large["device"] == min(large.values())
    assert large["device"] == pytest.approx(2 * (1e-5 + 2**20 / 16 / 1e9) + 1e-6 + 2**20 / 1e10)


def test_what_is_no_measured_system_is_refused(tmp_path: Path):
    path = tmp_path / "perf.json"
    for text in ("{}", "[", '{"d2h": [{"time": 0}]}'):
        path.write_text(text)
        with pytest.raises(InputError, match="measure-system"):
            Tempi(measured=str(path)).pack_s(1, 1, RATES)
        path = path.with_name(path.name + "1")
    with pytest.raises(InputError, match="fewer than its radius of 3"):
        operator_cost("halo_exchange", "8x8x8x3x8x8", "bf16", cluster("2xsummit"))
