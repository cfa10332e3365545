"""Rates under load against the public tables that they are taken from: the median of the longest products."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from statistics import median

import pytest

from ridgeline.facts.accelerators import accelerators
from ridgeline.facts.records import Fact

pytest.importorskip("aiconfigurator_core")
parquet = pytest.importorskip("pyarrow.parquet")

FORMS = {"bf16": "bfloat16", "fp8": "fp8", "fp4": "nvfp4"}
LEAST_FLOP, LEAST_SIDE = 1e13, 1024


def stated() -> list[tuple[str, str, Fact]]:
    parts = accelerators().items()
    return [
        (name, key.split(".")[1], fact)
        for name, part in parts
        for key, fact in part.sustained.items()
        if key.startswith("loaded.") and fact.source.startswith("aiconfigurator, ")
    ]


@pytest.mark.rival
@pytest.mark.parametrize(("name", "form", "fact"), stated(), ids=lambda value: value if isinstance(value, str) else "")
def test_a_rate_under_load_is_the_median_of_the_longest_products(name: str, form: str, fact: Fact) -> None:
    found = importlib.util.find_spec("aiconfigurator_core")
    assert found is not None
    assert found.origin is not None
    place = fact.source.removeprefix("aiconfigurator, ")
    (file,) = Path(found.origin).parent.rglob(place)
    table = parquet.read_table(file, columns=["gemm_dtype", "m", "n", "k", "latency"]).to_pylist()
    rates = [
        2.0 * row["m"] * row["n"] * row["k"] / (row["latency"] * 1e-3)
        for row in table
        if row["gemm_dtype"] == FORMS[form]
        and min(row["m"], row["n"], row["k"]) >= LEAST_SIDE
        and 2.0 * row["m"] * row["n"] * row["k"] >= LEAST_FLOP
    ]
    assert f"median of {len(rates)} shapes" in fact.conditions
    assert fact.value == pytest.approx(median(rates), rel=1e-3)
