"""Prices, grids and buildings."""

from __future__ import annotations

import pytest

from ridgeline.errors import UnknownNameError
from ridgeline.facts import store
from ridgeline.facts.clusters import carbon_intensity, grids, price, pue
from ridgeline.facts.records import Evidence


def test_price_is_the_median_of_its_rows() -> None:
    rows = [r for r in store.read_tsv("prices.tsv") if (r["accelerator"], r["mem_gb"]) == ("V100", "32")]
    values = sorted(float(r["usd_per_gpu_hour"]) for r in rows if r["on_demand_or_spot"] == "on_demand")
    fact = price("V100-SXM2-32GB")
    assert fact is not None
    assert values[0] <= fact.value <= values[-1]
    assert sum(v < fact.value for v in values) <= len(values) / 2 >= sum(v > fact.value for v in values)
    assert fact.unit == "USD/h"
    assert f"median of {len(values)} on-demand rows" in fact.conditions
    assert "2025-03-07" in fact.conditions


def test_spot_is_apart_and_cheaper() -> None:
    spot, full = price("A100-SXM-80GB", spot=True), price("A100")
    assert spot is not None
    assert full is not None
    assert spot.value < full.value
    assert "spot rows" in spot.conditions


def test_no_offer_is_none() -> None:
    assert price("MI250X") is None
    assert price("GB200", spot=True) is None


def test_a_price_of_an_unknown_device_names_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="nearest"):
        price("H1OO")


def test_grid_units_by_hand() -> None:
    france = carbon_intensity("France")
    assert france.value == pytest.approx(0.056039 / 3.6e6)
    assert france.unit == "kg/J"
    assert "2023" in france.conditions
    assert carbon_intensity("fr") == carbon_intensity("FRA") == france


def test_grids_are_many_and_plausible() -> None:
    assert len(grids()) == 45
    assert all(20 < fact.value * 3.6e9 < 900 for fact in grids().values())
    assert carbon_intensity().value * 3.6e9 == pytest.approx(480)
    assert carbon_intensity("sweden").value < carbon_intensity("germany").value < carbon_intensity("poland").value


def test_unknown_region() -> None:
    with pytest.raises(UnknownNameError, match=r"nearest: .*germany"):
        carbon_intensity("germny")


def test_pue() -> None:
    assert pue().value == 1.56
    assert pue().evidence is Evidence.MEASURED
    assert all(1 <= pue(name).value < 2 for name in (row["building"] for row in store.read_tsv("buildings.tsv")))
    with pytest.raises(UnknownNameError, match="nearest: google"):
        pue("gogle")
