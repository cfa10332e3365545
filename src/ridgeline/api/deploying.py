"""The command `plan --serve`: the best deployment for traffic under an objective, or the cheapest machines to rent."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING

from ridgeline.api.answer import Answer
from ridgeline.api.asking import blamed_on_word, serving_scenario_of
from ridgeline.api.offloading import plan_offloaded, refuse_offload
from ridgeline.api.placing import loads_from
from ridgeline.api.progress import progress_bar
from ridgeline.api.simulating import about, measured_only, operation_of, policies_of, resolved
from ridgeline.errors import InputError, NoPlanError
from ridgeline.scenario.serving import ServingScenario

if TYPE_CHECKING:
    from ridgeline.plan.deployment import Deployment
    from ridgeline.serving.objective import Objective
    from ridgeline.serving.traffic.traffic import Traffic

_DRAFTS = "drafts in its share of a step at the batch with which all devices would keep pace with the traffic"


def plan_serving(given: SimpleNamespace) -> Answer:
    """Prints the best deployments; raises NoPlanError when none starts, or none keeps to the objective."""
    asked = serving_scenario_of(given.subject, given.on, given.words)
    if "offload" in asked.stated:
        measured_only(given.evidence, "--offload")
        return plan_offloaded(asked)
    _refuse_what_is_searched(asked, given.min_devices)
    with blamed_on_word(asked):
        return _search(asked, given)


def _asked_of(asked: ServingScenario) -> tuple[Traffic, Objective, tuple[str, ...]]:
    """Traffic, objective and what is assumed of both."""
    from ridgeline.serving.objective import Objective
    from ridgeline.serving.traffic.asked import asked_traffic

    traffic, about_traffic = asked_traffic(asked.traffic, asked.deployments)
    assumed = (*asked.assumed, *about(asked, traffic), *about_traffic)
    return traffic, Objective.of(asked.traffic.get("slo", {})), assumed


def _search(asked: ServingScenario, given: SimpleNamespace) -> Answer:
    from ridgeline.report.serving_json import search_as_dict
    from ridgeline.search.serving import search_serving
    from ridgeline.search.serving_space import ServingSpace

    traffic, objective, assumed = _asked_of(asked)
    operation = operation_of(
        asked, router=asked.router or "least-loaded", resolved=resolved(asked.cluster, given.evidence)
    )
    drafted = None
    if asked.draft is not None:
        from ridgeline.predict.drafts import drafted_for

        assumed = (*assumed, f"{asked.draft.name} {_DRAFTS}")
        drafted = drafted_for(asked.model, asked.draft, asked.cluster, traffic, operation=operation_of(asked))
    space = ServingSpace(
        quantize=given.quantize,
        pools=given.pools,
        loads=loads_from(asked),
        fixed=asked.stated,
        drafted=drafted,
        aim=given.aim or "goodput",
        recipe=_recipe(asked),
    )
    try:
        with progress_bar("replaying deployments") as progress:
            found = search_serving(
                asked.model, asked.cluster, traffic, objective, space=space, top=given.top, operation=operation,
                progress=progress,
            )  # fmt: skip
    except NoPlanError as error:
        error.beside = {"best": [], "fewest": None, "assumed": list(assumed)}
        raise
    return Answer(
        lambda: search_as_dict(found, assumed),
        lambda: found.blocks(assumed, fewest_alone=given.min_devices),
        value=found,
        impossible=found.missed or None,
    )


def _recipe(asked: ServingScenario) -> Callable[[tuple[Deployment, ...]], tuple[Deployment, ...]] | None:
    """What sets a fleet as the recipe that is named; None where none is."""
    if "recipe" not in asked.stated:
        return None
    from ridgeline.predict.recipes import settled

    return lambda fleet: settled(asked, fleet)[0]


def _refuse_what_is_searched(asked: ServingScenario, min_devices: bool) -> None:
    """Raises for words that a search cannot hold to, or needs and has not."""
    refuse_offload(asked)
    for name in ("prefill", "decode"):
        if name in asked.stated:
            raise InputError("the search chooses pools itself; leave it out, or simulate these", field=f"--{name}")
    for name in ("autoscale", "failures", "fronts"):
        if name in asked.stated:
            raise InputError("a search leaves the fleet as it is; leave it out, or simulate it", field=f"--{name}")
    if min_devices and not asked.traffic.get("slo"):
        raise InputError("--min-devices needs an objective, e.g. --slo ttft=1s,tpot=50ms", field="--slo")


def rent_serving(given: SimpleNamespace) -> Answer:
    """Prints the cheapest mix of accelerators for traffic; raises NoPlanError when no mix serves it."""
    import numpy as np

    measured_only(given.evidence, "--rent")
    first = given.rent.split(",")[0].partition("=")[0].strip()
    asked = serving_scenario_of(given.subject, f"8x{first}", given.words)
    _refuse_what_is_searched(asked, False)
    if asked.draft is not None:
        said = "a draft's share of a step differs from device to device; say draft_share, or plan --serve on each"
        raise InputError(said, field="--draft-model")

    from ridgeline.facts.clusters import price
    from ridgeline.search.renting import offers_of, rent_fleet
    from ridgeline.serving.objective import Objective

    def usd_per_h(name: str) -> float | None:
        fact = price(name)
        return None if fact is None else fact.value

    traffic, objective, assumed = _asked_of(asked)
    if objective != Objective.of(objective.bounds):
        said = "--rent takes bounds that 99 % of requests keep to, such as ttft=1s,tpot=50ms; leave out the others"
        raise InputError(said, field="--slo")
    with progress_bar("replaying offers") as progress:
        found = rent_fleet(
            asked.model, offers_of(given.rent, usd_per_h), traffic, objective, stated=asked.stated,
            policies=policies_of(asked), progress=progress,
        )  # fmt: skip
    chosen, buckets = found.rent, {name: cells for name, cells in vars(found.buckets).items() if name != "rows"}
    return Answer(
        lambda: {
            "rented": [vars(one) for one in chosen.rented if one.rented],
            "usd_per_h": chosen.cost_usd_per_hour,
            "bound_usd_per_h": chosen.bound_usd_per_hour,
            "headroom": chosen.headroom,
            "replayed": [vars(one) for one in found.tried],
            "buckets": {name: [float(cell) for cell in cells] for name, cells in buckets.items()},
            "options": {name: np.asarray(option.most_per_s).tolist() for name, _, option in found.options},
            "refused": dict(found.refused),
            "assumed": list(assumed),
        },
        lambda: found.blocks(assumed),
        value=found,
    )
