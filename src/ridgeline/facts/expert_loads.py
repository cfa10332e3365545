"""Tables of experts' loads, and of what passes from expert to expert, as people give them."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ridgeline.errors import InputError, PlanError
from ridgeline.facts.user_files import LOADS, read_user_file

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_LOADS = ("layer", "expert", "load")
_TRAFFIC = ("layer", "expert", "next", "tokens")


def read_loads(path: str, *, field: str) -> NDArray[np.float64]:
    """Loads (L, E) of a CSV file of layer, expert, load, in its unit; raises `InputError` with file and line.

    `field` is the word that gave the path.
    """
    rows = _read(path, _LOADS, field)
    try:
        return loads_of({(layer, expert): load for (layer, expert), load in rows.items()})
    except PlanError as error:
        raise InputError(str(error), file=path, field=field) from None


def read_traffic(path: str, *, field: str) -> dict[tuple[int, int, int], float]:
    """Tokens [1] by (layer, expert, expert of the next layer) of a CSV file; raises as `read_loads` does."""
    return {(one, two, three): amount for (one, two, three), amount in _read(path, _TRAFFIC, field).items()}


def loads_of(rows: Mapping[tuple[int, int], float]) -> NDArray[np.float64]:
    """Loads (L, E) of (layer, expert), in their unit; raises `PlanError` where one is missing."""
    import numpy as np

    layers = sorted({layer for layer, _ in rows})
    experts = 1 + max(expert for _, expert in rows)
    missing = len(layers) * experts - len(rows)
    if missing:
        pairs = ((layer, expert) for layer in layers for expert in range(experts))
        layer, expert = next(pair for pair in pairs if pair not in rows)
        raise PlanError(f"{missing} loads are missing, the first of layer {layer}, expert {expert}")
    return np.array([[rows[layer, expert] for expert in range(experts)] for layer in layers])


def _read(path: str, columns: tuple[str, ...], field: str) -> dict[tuple[int, ...], float]:
    """The amounts in a file by all columns but the last."""
    reader = csv.DictReader(read_user_file(path, LOADS, field=field).lines())
    if not set(columns) <= set(reader.fieldnames or ()):
        raise InputError(f"needs the columns {', '.join(columns)}", file=path, line=1)
    rows = dict(_row(row, columns, path, reader.line_num) for row in reader)
    if not rows:
        raise InputError("holds no rows below its header", file=path)
    return rows


def _row(row: dict[str, str], columns: tuple[str, ...], path: str, line: int) -> tuple[tuple[int, ...], float]:
    found = []
    for name in columns:
        text = row.get(name) or ""
        try:
            value = float(text)
        except ValueError:
            raise InputError(f"'{text[:40]}' is not a number", file=path, line=line, field=name) from None
        amount = name == columns[-1]
        if not math.isfinite(value) or value < 0 or (not amount and value != int(value)):
            what = "a load" if name == "load" else "a number"
            needs = f"{what} of 0 or more" if amount else "a whole number from 0 on"
            raise InputError(f"'{text[:40]}' is not {needs}", file=path, line=line, field=name)
        found.append(value)
    return tuple(int(value) for value in found[:-1]), found[-1]
