"""Strided types in one form: the same bytes whatever describes them; times of packing and sending by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.errors import InputError, PlanError
from ridgeline.facts.clusters import cluster
from ridgeline.lower.strided import StridedType
from ridgeline.predict.operator import operator_cost
from ridgeline.predict.operator_mechanisms import strided_type
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
