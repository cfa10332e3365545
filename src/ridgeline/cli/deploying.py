"""The command `plan --serve`: the best deployment for traffic under an objective."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ridgeline.cli.offloading import plan_offloaded, refuse_offload
from ridgeline.cli.placing import loads_from
from ridgeline.cli.progress import progress_bar
from ridgeline.cli.refusals import print_refusal, refusal
from ridgeline.cli.simulating import (
    about,
    blamed_on_word,
    measured_only,
    policies_of,
    resolved,
    serving_scenario_of,
)
from ridgeline.errors import InputError, NoPlanError
from ridgeline.plan.deployment import Router
from ridgeline.scenario.serving import ServingScenario

if TYPE_CHECKING:
    from ridgeline.plan.deployment import Deployment
    from ridgeline.serving.traffic.traffic import Traffic

_DRAFTS = "drafts in its share of a step at the batch with which all devices would keep pace with the traffic"


def plan_serving(
    subject: str,
    on: str | None,
    words: Mapping[str, Any],
    *,
    quantize: bool,
    pools: bool,
    min_devices: bool,
    evidence: str,
    top: int,
    as_json: bool,
) -> None:
    """Prints the best deployments; raises NoPlanError when none starts, or none keeps to the objective."""
    asked = serving_scenario_of(subject, on, words)
    if "offload" in asked.stated:
        measured_only(evidence, "--offload")
        plan_offloaded(asked, as_json=as_json)
        return
    _refuse_what_is_searched(asked, min_devices)
    with blamed_on_word(asked):
        _search(
            asked, quantize=quantize, pools=pools, min_devices=min_devices, evidence=evidence, top=top, as_json=as_json
        )


def _search(
    asked: ServingScenario,
    *,
    quantize: bool,
    pools: bool,
    min_devices: bool,
    evidence: str,
    top: int,
    as_json: bool,
) -> None:
    from ridgeline.report.blocks import show
    from ridgeline.report.serving_json import search_as_dict
    from ridgeline.search.serving import search_serving
    from ridgeline.search.serving_space import Space
    from ridgeline.serving.metrics import Objective
    from ridgeline.serving.traffic.asked import asked_traffic

    traffic, about_traffic = asked_traffic(asked.traffic)
    about_draft = () if asked.draft is None else (f"{asked.draft.name} {_DRAFTS}",)
    assumed = (*asked.assumed, *about(asked, traffic), *about_traffic, *about_draft)
    objective = Objective(**asked.traffic.get("slo", {}))
    try:
        with progress_bar("replaying deployments") as progress:
            found = search_serving(
                asked.model, asked.cluster, traffic, objective, stated=asked.stated,
                space=Space(quantize=quantize, pools=pools, loads=loads_from(asked)),
                router=asked.router if "router" in asked.stated else Router.LEAST_LOADED,
                top=top, policies=policies_of(asked), progress=progress,
                drafted=None if asked.draft is None else drafts_of(asked, traffic),
                resolved=resolved(asked.cluster, evidence),
            )  # fmt: skip
    except NoPlanError as error:
        if as_json:
            print_refusal({"best": [], "fewest": None, **refusal(error), "assumed": list(assumed)})
        raise
    if as_json:
        print(json.dumps(search_as_dict(found, assumed), indent=1, allow_nan=False))
    else:
        show(found.blocks(assumed, fewest_alone=min_devices), sys.stdout)
    if found.missed:
        raise NoPlanError(found.missed)


def drafts_of(asked: ServingScenario, traffic: Traffic) -> Callable[[Deployment], Deployment]:
    """What gives the deployments of a search the model that drafts."""
    from ridgeline.predict.drafts import drafted_for

    assert asked.draft is not None
    return drafted_for(asked.model, asked.draft, asked.cluster, traffic, policies=policies_of(asked))


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


def rent_serving(subject: str, words: Mapping[str, Any], offers: str, *, as_json: bool) -> None:
    """Prints the cheapest mix of accelerators for traffic; raises NoPlanError when no mix serves it."""
    import numpy as np

    first = offers.split(",")[0].partition("=")[0].strip()
    asked = serving_scenario_of(subject, f"8x{first}", words)
    _refuse_what_is_searched(asked, False)
    if asked.draft is not None:
        said = "a draft's share of a step differs from device to device; say draft_share, or plan --serve on each"
        raise InputError(said, field="--draft-model")

    from ridgeline.facts.clusters import price
    from ridgeline.report.blocks import show
    from ridgeline.search.renting import offers_of, rent_fleet
    from ridgeline.serving.metrics import Objective
    from ridgeline.serving.traffic.asked import asked_traffic

    def usd_per_h(name: str) -> float | None:
        fact = price(name)
        return None if fact is None else fact.value

    traffic, about_traffic = asked_traffic(asked.traffic)
    assumed = (*asked.assumed, *about(asked, traffic), *about_traffic)
    objective = Objective(**asked.traffic.get("slo", {}))
    with progress_bar("replaying offers") as progress:
        found = rent_fleet(
            asked.model, offers_of(offers, usd_per_h), traffic, objective, stated=asked.stated,
            policies=policies_of(asked), progress=progress,
        )  # fmt: skip
    chosen = found.rent
    if as_json:
        answer = {
            "rented": [vars(one) for one in chosen.rented if one.rented],
            "usd_per_h": chosen.cost_usd_per_hour,
            "bound_usd_per_h": chosen.bound_usd_per_hour,
            "headroom": chosen.headroom,
            "replayed": [vars(one) for one in found.tried],
            "buckets": {
                name: [float(cell) for cell in values] for name, values in vars(found.buckets).items() if name != "rows"
            },
            "options": {name: np.asarray(option.most_per_s).tolist() for name, _, option in found.options},
            "refused": dict(found.refused),
            "assumed": list(assumed),
        }
        print(json.dumps(answer, indent=1, allow_nan=False))
        return
    show(found.blocks(assumed), sys.stdout)
