"""Loads of experts from a file, for `simulate` and `plan --serve`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ridgeline.errors import InputError
from ridgeline.facts.expert_loads import read_loads, read_traffic
from ridgeline.scenario.serving import ServingScenario

if TYPE_CHECKING:
    from ridgeline.search.expert_service import Loads


def loads_from(asked: ServingScenario) -> Loads | None:
    """The loads and the placement that a person stated, even loads where replicas alone are; None without any.

    Raises InputError with file and line.
    """
    import numpy as np

    from ridgeline.search.expert_service import BALANCED, Loads, flow_of

    stated = asked.stated
    redundant = stated.get("expert_redundant", 0)
    held = max((block.experts for block in asked.model.graph.blocks.values()), default=0)
    if "expert_loads" not in stated:
        for name in ("expert_placement", "expert_traffic"):
            if name in stated:
                raise InputError("needs loads to place experts for; give expert_loads, a file", field=name)
        if redundant and (not held or stated.get("tokens_stay")):
            why = "needs loads where tokens stay; give expert_loads, a file" if held else "the model has no experts"
            raise InputError(why, field="expert_redundant")
        return Loads(loads=np.ones((1, held)), redundant=redundant) if redundant else None
    file = stated["expert_loads"]
    loads, flow = read_loads(file, field="expert_loads"), None
    if loads.shape[1] != held:
        has = f"{held} experts a layer" if held else "no experts"
        message = f"loads of experts 0 to {loads.shape[1] - 1} are given, {asked.model.name} has {has}"
        raise InputError(message, file=file, field="expert_loads")
    if "expert_traffic" in stated:
        flow = flow_of(read_traffic(stated["expert_traffic"], field="expert_traffic"), *loads.shape)
    return Loads(
        loads=loads, how=stated.get("expert_placement", BALANCED), redundant=redundant, flow=flow,
    )  # fmt: skip


def with_placement(asked: ServingScenario) -> ServingScenario:
    """The scenario with the imbalance of each deployment's placement, where loads are given."""
    loads = loads_from(asked)
    if loads is None:
        return asked
    from ridgeline.search.expert_service import placed, routes_of

    routes = routes_of(asked.model, asked.cluster)
    experts = max((block.experts for block in asked.model.graph.blocks.values()), default=0)
    return replace(asked, deployments=tuple(placed(one, loads, experts, routes=routes) for one in asked.deployments))
