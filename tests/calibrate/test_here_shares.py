"""What several ranks get of a processor, and how far it drifted, from rows made by hand."""

from __future__ import annotations

import pytest

from ridgeline.calibrate.here.assemble import rates_of
from ridgeline.calibrate.here.kernels import PRODUCT, TRIAD_BYTES, measured
from ridgeline.facts.records import Evidence

ROWS = [
    measured("reference", "fp32", PRODUCT, [1e-3] * 3, flop=2e8),
    measured("gemm", "fp32", PRODUCT, [1e-3] * 3, flop=2e8),
    measured("stream", "triad", {"array_bytes": TRIAD_BYTES}, [1e-2] * 3, moved=4e8),
    measured("together", "product", {"ranks": 2.0}, [1.6e-3] * 3, flop=2e8),
    measured("together", "triad", {"ranks": 2.0}, [1.25e-2] * 3, moved=4e8),
    measured("together", "product", {"ranks": 4.0}, [4e-3] * 3, flop=2e8),
    measured("reference", "fp32", PRODUCT, [1e-3] * 3, flop=2e8),
    measured("reference", "fp32", PRODUCT, [1.1e-3] * 3, flop=2e8),
    measured("launch", "eager", {"kernels": 200.0}, [3e-6] * 3),
    measured("launch", "divided", {"kernels": 1.0}, [4e-4] * 3),
    measured("launch", "divided backward", {"kernels": 1.0}, [9e-4] * 3),
]


def test_shares_of_ranks_are_rates_over_those_of_the_processor_alone() -> None:
    """1 ms alone and 1.6 ms while two compute: each gets 1 / 1.6 of the whole rate, more than its half."""
    _, found = rates_of(ROWS, 2.0**20, "here")
    assert found["share.product.2"].value == pytest.approx(0.625)
    assert found["share.triad.2"].value == pytest.approx(0.8)
    assert found["share.product.4"].value == pytest.approx(0.25)
    assert "share.triad.4" not in found
    assert found["share.product.2"].evidence is Evidence.HERE


def test_drift_is_the_longest_over_the_shortest_of_one_product_and_launches_are_told_by_kind() -> None:
    _, found = rates_of(ROWS, 2.0**20, "here")
    assert found["drift"].value == pytest.approx(1.1)
    assert found["dispatch"].value == pytest.approx(3e-6)
    assert found["dispatch.divided"].value == pytest.approx(4e-4)
    assert found["dispatch.divided.backward"].value == pytest.approx(9e-4)
