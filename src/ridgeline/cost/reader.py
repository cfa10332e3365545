"""What it takes to read a family from operator tables: columns to sizes, shape blocks, and what is interpolated."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.cost.mechanism import Array
from ridgeline.facts.opdata import OpTable
from ridgeline.lower.work import Number

Columns = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, kw_only=True)
class Reader:
    """How a family is read from tables: `sizes(columns, form)` are the mechanism's, `blocks` name the shape blocks.

    `smooth` sizes span the grid, `exact` ones must be met as they are.
    """

    tables: tuple[str, ...]
    columns: tuple[str, ...]
    sizes: Callable[[Columns, OpTable], Mapping[str, Number]]
    blocks: tuple[str, ...]
    smooth: tuple[str, ...]
    exact: tuple[str, ...] = ()
    form_column: str = ""  # none: any format
    forms: Callable[[Columns], NDArray[Any]] | None = None  # where several columns decide the format
    kernels: Callable[[Columns, OpTable], NDArray[Any]] | None = (
        None  # where sizes decide which kernel of a source runs
    )
    engines: tuple[str, ...] = ()  # none: any
    told: Callable[[Columns, OpTable], NDArray[np.bool_]] | None = None  # rows that are what their columns say
    models: tuple[str, ...] = ()  # sizes that tell models apart, where engines choose kernels by the model
    fewest: int = 60  # rows of a fit; fewer say little about ten parameters
    dense: bool = False  # a grid so dense that times themselves are interpolated, not their ratio to the mechanism
    parts: Callable[[OpTable], Iterator[tuple[str, Mapping[str, Number], Array]]] | None = None
    """Kernel, sizes and seconds of a table that holds several kernels in a row."""
    part_form: str = "any"  # format of what `parts` yields
