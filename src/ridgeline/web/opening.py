"""A saved scenario as words of the page, where its tables say no more than the forms hold."""

from __future__ import annotations

import tomllib
from typing import Any

from ridgeline.errors import InputError
from ridgeline.scenario.fields import PLAN_FIELDS, WORKLOAD_FIELDS
from ridgeline.scenario.serving_fields import DEPLOYMENT_FIELDS, TRAFFIC_FIELDS

_SERVING = frozenset(field.name for field in TRAFFIC_FIELDS) - {field.name for field in WORKLOAD_FIELDS}
_WORDS = frozenset(
    field.name for table in (WORKLOAD_FIELDS, PLAN_FIELDS, TRAFFIC_FIELDS, DEPLOYMENT_FIELDS) for field in table
)


def opened(text: str) -> dict[str, Any]:
    """Words of a scenario's TOML, or `None` under 'words' where it has to be asked for as a file.

    `serve` says whether its workload is traffic. Raises `InputError` for what is not TOML.
    """
    try:
        tables = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"is not TOML: {error}", field="subject") from None
    workload = tables.get("workload")
    serve = isinstance(workload, dict) and bool(workload.keys() & _SERVING)
    return {"words": _words(tables), "serve": serve}


def _words(tables: dict[str, Any]) -> dict[str, str] | None:
    found: dict[str, str] = {}
    for section, value in tables.items():
        table = {"name": value} if isinstance(value, str) else value
        if not isinstance(table, dict) or section not in ("model", "cluster", "workload", "plan"):
            return None
        known = {"model": {"name": "subject"}, "cluster": {"name": "on", "region": "region"}}.get(section)
        for name, one in table.items():
            word = name if known is None and name in _WORDS else (known or {}).get(name)
            if word is None or not isinstance(one, str | int | float):
                return None
            found[word] = str(one).lower() if isinstance(one, bool) else str(one)
    return found if {"subject", "on"} <= found.keys() else None
