"""What a step of a plan takes of an aim other than time, and the least that one of so many seconds takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ridgeline.cost.phases import PARTS
from ridgeline.energy.power import above_idle_w, least_energy_j
from ridgeline.errors import NoPlanError
from ridgeline.facts.records import Cluster
from ridgeline.plan.plan import Plan
from ridgeline.predict import Predictor
from ridgeline.predict.explain import explain
from ridgeline.report.aims import AIMS, unknown
from ridgeline.seams.registry import STRATEGIES, of_family
from ridgeline.search.grid import PricedGrid
from ridgeline.training.pipeline import pipeline_schedule


@dataclass(frozen=True, kw_only=True)
class Spending:
    """By what plans are ranked: `of` a plan whose step takes so long, never less than the `floor` of those seconds.

    The floor grows with the seconds.
    """

    of: Callable[[Plan, float], float]
    floor: Callable[[float], float]


TIME = Spending(of=lambda _, step_s: step_s, floor=lambda bound_s: bound_s)


def spending(aim: str, predictor: Predictor, grid: PricedGrid) -> Spending:
    """What a step takes of dollars [USD], joules [J] or carbon [kg], and its lower bound.

    Raises `NoPlanError` where nothing is known of it.
    """
    cluster, least = predictor.cluster, _floor(aim, predictor, grid)
    if least is None:
        raise NoPlanError(unknown(aim, cluster.name))

    def of(plan: Plan, step_s: float) -> float:
        found = AIMS[aim].step(explain(predictor, predictor.evaluate(plan)))
        assert found is not None  # as the floor is not
        return found

    return Spending(of=of, floor=least)


def _floor(aim: str, predictor: Predictor, grid: PricedGrid) -> Callable[[float], float] | None:
    """The least that a step of so many seconds takes of an aim; None where nothing is known of it."""
    cluster = predictor.cluster
    price, carbon = cluster.price_usd_per_device_h, cluster.carbon_kg_per_j
    if aim == "dollars":
        return None if price is None else lambda seconds: price.value * cluster.count * seconds / 3600.0
    if not cluster.accelerator.tdp_w or (aim == "carbon" and carbon is None):
        return None
    above_j, scale = _above_idle_j(cluster, grid), carbon.value if aim == "carbon" and carbon is not None else 1.0
    return lambda seconds: scale * least_energy_j(seconds, above_j, cluster)


def _above_idle_j(cluster: Cluster, grid: PricedGrid) -> float:
    """What the devices of a step draw beyond idle at least, whatever plan of the grid runs it [J].

    0 where layers are run in ways of their own, or some are skipped.
    """
    space = grid.space
    skipped = any(pipeline_schedule(one).visited(2) < 2 for one in space.schedules)
    if skipped or of_family(STRATEGIES, space.techniques) is not None:
        return 0.0
    return grid.least_spent({name: above_idle_w(name, cluster) for name in PARTS})
