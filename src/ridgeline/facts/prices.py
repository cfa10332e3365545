"""What an hour costs, what a kilowatt-hour emits, and what a building adds: prices, grids, PUE."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

from ridgeline.errors import UnknownNameError
from ridgeline.facts import rows, store
from ridgeline.facts.accelerators import accelerator, price_keys
from ridgeline.facts.records import Evidence, Fact

KG_PER_J = 1e-3 / 3.6e6  # of one gram per kilowatt-hour
WORLD = "world"


@cache
def price(name: str, *, spot: bool = False) -> Fact | None:
    """Median price of one device for one hour [USD/h], None where no row of `data/prices.tsv` fits.

    On-demand rows of all clouds, or spot rows; the conditions name how many, the range, the
    clouds and the dates.
    """
    keys = price_keys(accelerator(name).name)
    kind = "spot" if spot else "on_demand"
    chosen = [row for row in store.read_tsv("prices.tsv") if row["on_demand_or_spot"] == kind and _fits(row, keys)]
    if not chosen:
        return None
    values = sorted(float(row["usd_per_gpu_hour"]) for row in chosen)
    spread = f"{values[0]:g} to {values[-1]:g}"
    clouds = ", ".join(sorted({row["cloud"] for row in chosen}))
    dates = ", ".join(sorted({row["date"] for row in chosen}))
    return Fact(
        value=(values[(len(values) - 1) // 2] + values[len(values) // 2]) / 2,
        unit="USD/h",
        source="; ".join(sorted({row["source"] for row in chosen})),
        conditions=f"median of {len(values)} {kind.replace('_', '-')} rows, {spread}, {clouds}; {dates}",
        evidence=Evidence.DERIVED if len(values) > 1 else Evidence.DATASHEET,
    )


def _fits(row: Mapping[str, str], keys: tuple[str, ...]) -> bool:
    return f"{row['accelerator']}/{row['mem_gb']}" in keys or f"{row['accelerator']}/" in keys


@cache
def grids() -> Mapping[str, Fact]:
    """Carbon intensity of electricity by region [kg/J], yearly averages."""
    return MappingProxyType({row["region"]: _grid(row) for row in store.read_tsv("grids.tsv")})


def carbon_intensity(region: str = WORLD) -> Fact:
    """Carbon intensity of electricity in a region, by name or code [kg/J].

    >>> round(carbon_intensity("FR").value * 3.6e9)  # g/kWh
    56
    """
    row = _regions().get(region.strip().casefold())
    if row is None:
        raise UnknownNameError("region", region, _regions())
    return grids()[row]


@cache
def _regions() -> Mapping[str, str]:
    table = {}
    for row in store.read_tsv("grids.tsv"):
        for name in (row["region"], *rows.names(row["aliases"])):
            table[name.casefold()] = row["region"]
    return table


def _grid(row: Mapping[str, str]) -> Fact:
    return rows.fact(
        float(row["g_per_kwh"]) * KG_PER_J,
        "kg/J",
        row["source"],
        f"{row['conditions']}, {row['year']}",
        row["evidence"],
        file="data/grids.tsv",
    )


def pue(building: str = "survey average") -> Fact:
    """Power usage effectiveness of a building: facility energy over device energy [1]."""
    table = {row["building"]: row for row in store.read_tsv("buildings.tsv")}
    row = table.get(building.strip().casefold())
    if row is None:
        raise UnknownNameError("building", building, table)
    return rows.fact(
        float(row["pue"]), "1", row["source"], row["conditions"], row["evidence"], file="data/buildings.tsv"
    )


def buildings() -> tuple[str, ...]:
    """Names of the kinds of building that have a PUE."""
    return tuple(row["building"] for row in store.read_tsv("buildings.tsv"))
