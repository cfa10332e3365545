"""What a person says of how a cluster is run: its price, the limit of its boards, and where it stands."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ridgeline.errors import RidgelineError, UnknownNameError
from ridgeline.scenario.fields import number, shown

if TYPE_CHECKING:
    from ridgeline.facts.records import Cluster, Fact
    from ridgeline.scenario.training import Place, Table

MOST_USD_PER_H = 100_000.0


def operated(built: Cluster, table: Table, place: Place) -> Cluster:
    """The cluster at a person's own price, where a kilowatt-hour emits what it does in a region."""
    if "price" in table:
        built = _priced(built, table["price"], place)
    if "power_cap" in table:
        built = _capped(built, table["power_cap"], place)
    return _in_region(built, table["region"], place) if "region" in table else built


def _priced(built: Cluster, price: object, place: Place) -> Cluster:
    """The cluster at a person's own price of a device [USD/h]."""
    from ridgeline.facts.records import Evidence, Fact

    if built.mixed is not None:
        groups = built.mixed.groups
        each = price if isinstance(price, list) else str(price).split(",")
        if len(each) != len(groups):
            names = ",".join(one.accelerator.name for one in groups)
            message = (
                f"{shown(price)} has {len(each)} prices for {len(groups)} types of devices; say one of {names} each"
            )
            raise place.fail("cluster", "price", message + ", as 2.5,1.1, or price each [[group]]")
        priced = tuple(_priced(one, each_price, place) for one, each_price in zip(groups, each, strict=True))
        return replace(built, mixed=replace(built.mixed, groups=priced))
    if isinstance(price, str) and price.strip().casefold() == "spot":
        return replace(built, price_usd_per_device_h=_spot(built, place))
    try:
        value = number("USD/h", 0.0, MOST_USD_PER_H)(price.lstrip("$ ") if isinstance(price, str) else price)
    except (ValueError, RidgelineError) as error:
        raise place.fail("cluster", "price", str(error)) from None
    own = Fact(value=value, unit="USD/h", source="own price", conditions="as said", evidence=Evidence.DATASHEET)
    return replace(built, price_usd_per_device_h=own)


def _spot(built: Cluster, place: Place) -> Fact:
    """The median spot price of a device [USD/h]."""
    from ridgeline.facts.clusters import price

    found = price(built.accelerator.name, spot=True)
    if found is None:
        raise place.fail(
            "cluster", "price", f"no spot price is known of {built.accelerator.name}; say your own, as 1.2"
        )
    return found


def _capped(built: Cluster, cap: object, place: Place) -> Cluster:
    """The cluster whose boards are limited; products then run at the clock that this leaves."""
    from ridgeline.seams.power_limit import power_limit

    if built.mixed is not None:
        raise place.fail("cluster", "power_cap", "is of devices of one type; leave it out, or name one group")
    try:
        return replace(built, accelerator=power_limit(cap).limited(built.accelerator))
    except (ValueError, RidgelineError) as error:
        raise place.fail("cluster", "power_cap", str(error)) from None


def _in_region(built: Cluster, region: object, place: Place) -> Cluster:
    """The cluster where a kilowatt-hour emits what it does in a region."""
    from ridgeline.facts.clusters import carbon_intensity
    from ridgeline.facts.footprints import grid_water

    if not isinstance(region, str):
        raise place.fail("cluster", "region", f"{shown(region)} is not the name or code of a region, e.g. 'FR'")
    try:
        return replace(built, carbon_kg_per_j=carbon_intensity(region), water_l_per_j=grid_water(region))
    except UnknownNameError as error:
        raise place.fail("cluster", "region", str(error)) from None
