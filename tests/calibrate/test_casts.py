"""The cast inside measured products is told by rows of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from ridgeline.calibrate import refit as public
from ridgeline.cost.families.gemm import CASTS, GEMM
from ridgeline.cost.mechanism import device_vector
from ridgeline.cost.samples import Sample, folds
from ridgeline.facts import opdata
from ridgeline.facts.accelerators import accelerator
from ridgeline.facts.opdata import OpTable

pytest.importorskip("scipy")
PART = "H200-SXM"
CAST = {"cast_start_s_": 8e-6, "cast_row_s_": 3e-9, "cast_element_s_": 2.2e-10}
PRODUCT = {"start_s_": 3e-6}
TOKENS = (1.0, 16.0, 64.0, 256.0, 1024.0, 8192.0)
WIDTHS = (1024.0, 4096.0, 8192.0)
OUTPUTS = (512.0, 1024.0, 2048.0, 4096.0, 6144.0, 8192.0, 12288.0, 28672.0)


def rows(found: OpTable, columns: Sequence[str], where: object = None) -> Mapping[str, NDArray[np.float64]]:
    """Three quarters of the cast in the first step, a quarter in the second."""
    m, k = (each.ravel() for each in np.meshgrid(TOKENS, WIDTHS))
    sizes = np.column_stack([m, k, np.ones(len(m))])
    whole = CASTS.price(sizes, device_vector(accelerator(PART), "fp8"), CASTS.vector(CAST))[:, 0]
    share = 0.75 if found.name == "computescale_perf" else 0.25
    return {"m": m, "k": k, "latency": share * whole * 1e3}


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> None:
    def named(name: str) -> tuple[OpTable, ...]:
        one = OpTable(accelerator=PART, family="quantize", engine="trtllm", version="1", name=name, path=Path(name))
        return (one,)

    public._fitted.cache_clear()
    monkeypatch.setattr(opdata, "tables", named)
    monkeypatch.setattr(public, "read", rows)


def sample() -> Sample:
    """Products whose times hold the cast."""
    m, n, k = (each.ravel() for each in np.meshgrid(TOKENS, OUTPUTS, WIDTHS))
    sizes = {"m": m, "n": n, "k": k}
    table, _ = GEMM.columns({**sizes, "input_bytes": 1.0, "weight_bytes": 1.0, "output_bytes": 2.0, "cast": 1.0})
    values = GEMM.vector({p.name: p.start for p in GEMM.parameters} | PRODUCT | CAST)
    seconds = GEMM.price(table, device_vector(accelerator(PART), "fp8"), values)[:, 0]
    return Sample(
        family="gemm", accelerator=PART, engine="trtllm", version="1", form="fp8", kernel="torch_flow", sizes=sizes,
        seconds=seconds, folds=folds("gemm", sizes), source="made",
    )  # fmt: skip


@pytest.mark.usefixtures("tables")
def test_rows_of_the_cast_tell_its_values() -> None:
    found = public.cast_values(sample())
    assert found["cast_start_s_"] == pytest.approx(CAST["cast_start_s_"], rel=0.02)
    assert found["cast_element_s_"] == pytest.approx(CAST["cast_element_s_"], rel=0.05)


@pytest.mark.usefixtures("tables")
def test_a_product_s_start_is_told_apart_from_the_cast_s() -> None:
    fit = public.fit_sample(sample())
    assert fit is not None
    assert fit.values["cast_start_s_"] == pytest.approx(CAST["cast_start_s_"], rel=0.02)
    assert fit.values["start_s_"] == pytest.approx(PRODUCT["start_s_"], rel=0.1)


@pytest.mark.usefixtures("tables")
@pytest.mark.parametrize("other", [{"form": "bf16"}, {"kernel": "deepgemm"}, {"version": "2"}, {"family": "experts"}])
def test_other_products_are_fitted_as_they_were(other: dict[str, str]) -> None:
    assert public.cast_values(replace(sample(), **other)) == {}  # type: ignore[arg-type]
