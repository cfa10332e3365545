"""Loads of experts from a file, for `simulate` and `plan --serve`."""

from __future__ import annotations

import csv
import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ridgeline.errors import InputError
from ridgeline.plan.serving_scenario import ServingScenario

if TYPE_CHECKING:
    from ridgeline.search.expert_service import Loads

_COLUMNS = ("layer", "expert", "load")


def _row(row: dict[str, str], path: Path, line: int) -> tuple[tuple[int, int], float]:
    found = []
    for name in _COLUMNS:
        text = row.get(name) or ""
        try:
            value = float(text)
        except ValueError:
            raise InputError(f"'{text[:40]}' is not a number", file=str(path), line=line, field=name) from None
        if not math.isfinite(value) or value < 0 or (name != "load" and value != int(value)):
            needs = "a load of 0 or more" if name == "load" else "a whole number from 0 on"
            raise InputError(f"'{text[:40]}' is not {needs}", file=str(path), line=line, field=name)
        found.append(value)
    return (int(found[0]), int(found[1])), found[2]


def loads_from(asked: ServingScenario) -> Loads | None:
    """The loads and the placement that a person stated; None without any. Raises InputError with file and line."""
    from ridgeline.search.expert_service import BALANCED, Loads, loads_of

    stated = asked.stated
    if "expert_loads" not in stated:
        for name in ("expert_placement", "expert_redundant"):
            if name in stated:
                raise InputError("needs loads to place experts for; give expert_loads, a file", field=name)
        return None
    path = Path(stated["expert_loads"])
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read: {error}", file=str(path), field="expert_loads") from None
    reader = csv.DictReader(lines)
    if not set(_COLUMNS) <= set(reader.fieldnames or ()):
        raise InputError(f"needs the columns {', '.join(_COLUMNS)}", file=str(path), line=1)
    rows = dict(_row(row, path, reader.line_num) for row in reader)
    if not rows:
        raise InputError("holds no loads", file=str(path))
    return Loads(
        loads=loads_of(rows), how=stated.get("expert_placement", BALANCED), redundant=stated.get("expert_redundant", 0)
    )


def with_placement(asked: ServingScenario) -> ServingScenario:
    """The scenario with the imbalance of each deployment's placement, where loads are given."""
    loads = loads_from(asked)
    if loads is None:
        return asked
    from ridgeline.search.expert_service import placed

    experts = max((block.experts for block in asked.model.graph.blocks.values()), default=0)
    return replace(asked, deployments=tuple(placed(one, loads, experts) for one in asked.deployments))
