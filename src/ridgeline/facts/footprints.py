"""Water of sites and of electricity, greenhouse gas of making devices, and grids by the hour of the day."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

from ridgeline.errors import InputError, UnknownNameError
from ridgeline.facts import store
from ridgeline.facts.clusters import KG_PER_J, region_row
from ridgeline.facts.records import Accelerator, Evidence, Fact
from ridgeline.facts.user_files import FileKind, read_user_file

_DAY = FileKind(what="the hours of a grid", most_bytes=2**20)
_L_PER_J = 1.0 / 3.6e6  # litres of a kilowatt-hour
_WATER = "ecologits, data/electricity_mixes.json 0.11.3"
_ENDS = ("H100-SXM", "H200-SXM")  # of one die, with unlike memory
HOURS = 24


def grid_water(region: str = "world") -> Fact:
    """Water that power plants consume for electricity of a region [litre/J]; the world's where it is not known.

    >>> round(grid_water("FR").value * 3.6e6, 2)
    3.67
    """
    row, world = region_row(region), region_row("world")
    told, where = row["water_l_per_kwh"] or world["water_l_per_kwh"], region if row["water_l_per_kwh"] else "the world"
    return Fact(
        value=float(told) * _L_PER_J, unit="l/J", source=_WATER, conditions=f"consumed, average of {where}",
        evidence=Evidence.DERIVED,
    )  # fmt: skip


@cache
def site_water(building: str = "survey average") -> Fact:
    """Water usage effectiveness of a building: what its cooling evaporates for energy of its computers [litre/J]."""
    row = next(row for row in store.read_tsv("buildings.tsv") if row["building"] == building)
    return store.fact(float(row["wue_l_per_kwh"]) * _L_PER_J, "l/J", row, source="wue_source")


@cache
def _made() -> Mapping[str, Fact]:
    rows = store.read_tsv("embodied.tsv")
    return MappingProxyType({row["name"]: store.fact(float(row["value"]), row["unit"], row) for row in rows})


def embodied_kg(part: Accelerator) -> Fact:
    """Greenhouse gas of making a device and its share of a host [kg].

    A device that no row names is taken to be like an H100 with its own memory, on the line through H100 and H200:
    assumed.
    """
    table, host = _made(), _made()["host share"].value
    known = table.get(part.name)
    if known is not None:
        return Fact(**{**vars(known), "value": known.value + host})
    first, last = (table[name].value for name in _ENDS)
    slope = (last - first) / (141e9 - 80e9)
    return Fact(
        value=max(first + slope * (part.memory_bytes - 80e9), 0.0) + host, unit="kg", source=table[_ENDS[0]].source,
        conditions="as an H100 with its memory", evidence=Evidence.ASSUMED,
    )  # fmt: skip


def lifespan_s() -> Fact:
    """Time in service over which a device's making is counted [s]."""
    found = _made()["lifespan"]
    return Fact(**{**vars(found), "value": found.value * 365.25 * 86400.0, "unit": "s"})


@cache
def _days() -> Mapping[str, tuple[float, ...]]:
    rows = store.read_tsv("grid_days.tsv")
    return MappingProxyType(
        {row["region"]: tuple(float(one) * KG_PER_J for one in store.listed(row["g_per_kwh"])) for row in rows}
    )


def grid_day(name: str) -> tuple[float, ...]:
    """Carbon intensity of electricity in each hour of a day [kg/J]: of a region of `grid_days.tsv`, or of a CSV file.

    The file has a column `g_per_kwh` of 24 rows or more, an hour each; with more it goes on from day to day.
    """
    if not name.endswith(".csv"):
        found = _days().get(name.strip().casefold())
        if found is None:
            raise UnknownNameError("grid day", name, _days(), hint=f"known: {', '.join(_days())}, or a CSV file")
        return found
    text = read_user_file(name, _DAY).text()
    try:
        told = [float(row["g_per_kwh"]) for row in csv.DictReader(text.splitlines())]
    except (KeyError, TypeError, ValueError):
        raise InputError("needs a column g_per_kwh of numbers, an hour a row", file=name) from None
    if len(told) < HOURS or not all(0.0 <= one < 1e5 for one in told):
        raise InputError(f"has {len(told)} hours; needs {HOURS} or more, of 0 to 100,000 g a kWh", file=name)
    return tuple(one * KG_PER_J for one in told)
