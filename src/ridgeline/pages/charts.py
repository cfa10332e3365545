"""Which charts an answer has: by the type of its typed result, each drawn when it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any

from ridgeline.errors import InputError, UnknownNameError
from ridgeline.pages.drawing import Figure

Charts = Mapping[str, Callable[[], Figure | None]]
_DRAWN = {
    "Report": "training.charts",
    "SearchReport": "fronts.of_plans",
    "ServingReport": "serving.charts",
    "ServingSearch": "fronts.of_deployments",
    "Advice": "advised.charts",
    "list of OperatorCost": "parts.of_operators",
    "SamplingCost": "parts.of_pictures",
    "OffloadReport": "parts.of_offload",
    "PolicyReport": "parts.of_policy",
    "RentedFleet": "parts.of_rent",
    "SweptRows": "swept.charts",
    "list of MixedReport": "parts.of_mixed",
    "list of LengthsReport": "parts.of_lengths",
    "list of PoolOutcome": "parts.of_jobs",
    "list with verdict": "checked.of_claims",
    "list with measured": "checked.of_rows",
}
"""By class of the typed result or of a list's first row, or by a key of that row: what names its charts."""


def charts_of(value: Any) -> Charts:
    """The charts of a typed result by name, the most telling first; empty where none is drawn of its type."""
    told = next((_DRAWN[name] for name in _names(value) if name in _DRAWN), None)
    if told is None:
        return {}
    module, _, function = told.partition(".")
    found: Charts = getattr(import_module(f"ridgeline.pages.{module}"), function)(value)
    return found


def _names(value: Any) -> Iterator[str]:
    yield type(value).__name__
    if isinstance(value, list | tuple) and value:
        yield f"list of {type(value[0]).__name__}"
        yield from (f"list with {key}" for key in value[0]) if isinstance(value[0], Mapping) else ()


def figures(value: Any) -> Iterator[Figure]:
    """Every chart of a typed result that has something to show."""
    for draw in charts_of(value).values():
        if (one := draw()) is not None:
            yield one


def figure(value: Any, name: str = "") -> Figure:
    """One chart by name, or the first; raises `UnknownNameError` for one that is not there, `InputError` for none."""
    if not name:
        found = next(figures(value), None)
        if found is None:
            raise InputError("this answer has no chart; --html shows its tables")
        return found
    charts = charts_of(value)
    if name not in charts:
        raise UnknownNameError("chart", name, charts, hint=f"one of: {', '.join(charts)}" if charts else "it has none")
    one = charts[name]()
    if one is None:
        raise InputError(f"there is nothing to draw as '{name}' in this answer", value=name)
    return one
