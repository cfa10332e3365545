"""Water, and greenhouse gas of making the devices, that some use of a cluster answers for."""

from __future__ import annotations

from dataclasses import dataclass

from ridgeline.facts.footprints import embodied_kg, grid_water, lifespan_s, site_water
from ridgeline.facts.records import Cluster, Fact


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """Water of electricity and of cooling [litre], emissions of making devices and hosts [kg], devices worn out [1]."""

    water_l: float
    embodied_kg: float
    devices_worn: float


def footprint(cluster: Cluster, energy_j: float, seconds: float, *, devices: float | None = None) -> Footprint:
    """What a use of `devices` (None: all) for some seconds, with so much energy at the wall, answers for.

        water = E (w + e / PUE),  embodied = n t / L (device + its share of a host),  worn = n t / L

    with w the litres that plants consume for a joule at the wall, e those that the site evaporates for one of its
    computers, L the lifespan, all of which is taken to be used. Evidence: derived rows; lifespan and use assumed.
    """
    overhead = cluster.pue.value if cluster.pue is not None else 1.0
    water: Fact = cluster.water_l_per_j or grid_water()
    worn = (cluster.count if devices is None else devices) * seconds / lifespan_s().value
    return Footprint(
        water_l=energy_j * (water.value + site_water().value / overhead),
        embodied_kg=worn * embodied_kg(cluster.accelerator).value,
        devices_worn=worn,
    )
