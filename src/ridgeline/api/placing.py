"""Loads of experts from a file, for `simulate` and `plan --serve`."""

from __future__ import annotations

import csv
import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ridgeline.errors import InputError, PlanError
from ridgeline.facts.user_files import LOADS, read_user_file
from ridgeline.scenario.serving import ServingScenario

if TYPE_CHECKING:
    from ridgeline.search.expert_service import Loads

_LOADS = ("layer", "expert", "load")
_TRAFFIC = ("layer", "expert", "next", "tokens")


def _row(row: dict[str, str], columns: tuple[str, ...], path: Path, line: int) -> tuple[tuple[int, ...], float]:
    found = []
    for name in columns:
        text = row.get(name) or ""
        try:
            value = float(text)
        except ValueError:
            raise InputError(f"'{text[:40]}' is not a number", file=str(path), line=line, field=name) from None
        amount = name == columns[-1]
        if not math.isfinite(value) or value < 0 or (not amount and value != int(value)):
            needs = (
                f"{'a load' if name == 'load' else 'a number'} of 0 or more" if amount else "a whole number from 0 on"
            )
            raise InputError(f"'{text[:40]}' is not {needs}", file=str(path), line=line, field=name)
        found.append(value)
    return tuple(int(value) for value in found[:-1]), found[-1]


def _read(name: str, text: str, columns: tuple[str, ...]) -> dict[tuple[int, ...], float]:
    """The amounts in a file by all columns but the last; raises InputError with file and line."""
    path = Path(text)
    reader = csv.DictReader(read_user_file(path, LOADS, field=name).lines())
    if not set(columns) <= set(reader.fieldnames or ()):
        raise InputError(f"needs the columns {', '.join(columns)}", file=str(path), line=1)
    rows = dict(_row(row, columns, path, reader.line_num) for row in reader)
    if not rows:
        raise InputError("holds no rows below its header", file=str(path))
    return rows


def loads_from(asked: ServingScenario) -> Loads | None:
    """The loads and the placement that a person stated, even loads where replicas alone are; None without any.

    Raises InputError with file and line.
    """
    import numpy as np

    from ridgeline.search.expert_service import BALANCED, Loads, flow_of, loads_of

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
    rows = _read("expert_loads", stated["expert_loads"], _LOADS)
    file = stated["expert_loads"]
    try:
        loads, flow = loads_of({(layer, expert): load for (layer, expert), load in rows.items()}), None
    except PlanError as error:
        raise InputError(str(error), file=file, field="expert_loads") from None
    if loads.shape[1] != held:
        has = f"{held} experts a layer" if held else "no experts"
        message = f"loads of experts 0 to {loads.shape[1] - 1} are given, {asked.model.name} has {has}"
        raise InputError(message, file=file, field="expert_loads")
    if "expert_traffic" in stated:
        passed = _read("expert_traffic", stated["expert_traffic"], _TRAFFIC)
        flow = flow_of({(one, two, three): amount for (one, two, three), amount in passed.items()}, *loads.shape)
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
