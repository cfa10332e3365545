"""`plan --power-cap 700W,500W,350W`: the best plan at each limit of the boards, and the best of those."""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import copy
from types import SimpleNamespace
from typing import Any

from ridgeline.api.answer import Answer
from ridgeline.errors import InputError, NoPlanError
from ridgeline.report.blocks import Block, Line, Table, blank

_MOST = 16


def caps_of(given: SimpleNamespace) -> list[str]:
    """The limits that a person wants compared; one where there is nothing to compare."""
    said = getattr(given, "power_cap", None)
    caps = [] if not isinstance(said, str) else [part.strip() for part in said.split(",")]
    if len(caps) > _MOST:
        raise InputError(f"{len(caps)} limits, at most {_MOST} are compared", field="--power-cap", value=said)
    return caps


def best_cap(given: SimpleNamespace, caps: list[str], ask: Callable[[SimpleNamespace], Answer]) -> Answer:
    """The answer at the limit whose best plan has least of the aim; raises `NoPlanError` where none has one."""
    found: list[tuple[str, Answer]] = []
    refused: list[NoPlanError] = []
    for cap in caps:
        one = copy(given)
        one.power_cap = cap
        one.words = dict(given.words)
        try:
            found.append((cap, ask(one)))
        except NoPlanError as error:
            refused.append(error)
    if not found:
        raise refused[0]
    rows = [_Row(cap, answer.value, given.aim or "", answer.impossible) for cap, answer in found]
    place = min(range(len(rows)), key=lambda index: rows[index].order)
    cap, best = found[place]

    def blocks() -> list[Block]:
        columns = ("cap", "best plan", *rows[0].cells)
        cells = tuple((row.cap, row.plan, *row.cells.values()) for row in rows)
        table = Table(columns=columns, rows=cells, right=frozenset(columns[2:]))
        told = "memory and links are taken to keep their rates under a cap, so times of low ones are lower bounds"
        return [Line(text=f"Power cap: {cap} a board", strong=True), table, Line(text=told), blank(), *best.blocks()]

    return Answer(
        lambda: {**best.as_dict(), "power_cap": cap, "power_caps": [row.as_dict() for row in rows]},
        blocks, value=best.value, impossible=best.impossible, aside=best.aside,
    )  # fmt: skip


class _Row:
    """One limit's best plan: what it takes and spends."""

    def __init__(self, cap: str, value: Any, aim: str, impossible: str | None) -> None:
        self.cap = cap
        served = hasattr(value, "ranked")
        if not served and not hasattr(value, "best"):
            raise InputError("several limits are compared for plans of equal sequences; say one", field="--power-cap")
        self._titles = _TITLES[served]
        self.keys = _served(value.ranked[0]) if served else _trained(value.best[0])
        self.plan = _plan_text(value)
        aimed = self.keys[_AIMS[served].get(aim, "time_s")]
        self.order = (impossible is not None, math.inf if aimed is None else aimed)

    @property
    def cells(self) -> dict[str, str]:
        """The columns of the table."""
        return {self._titles[name]: "-" if value is None else f"{value:.4g}" for name, value in self.keys.items()}

    def as_dict(self) -> dict[str, Any]:
        """Under stable keys, SI numbers."""
        return {"power_cap": self.cap, "plan": self.plan, **self.keys}


_AIMS = {
    False: {"dollars": "usd_per_step", "joules": "energy_j", "carbon": "carbon_kg"},
    True: {"dollars": "usd_per_request", "joules": "energy_j", "carbon": "carbon_kg"},
}
_TITLES = {
    False: {"time_s": "s a step", "energy_j": "J", "carbon_kg": "kg CO2e", "usd_per_step": "$"},
    True: {
        "time_s": "s a request",
        "energy_j": "J/token",
        "carbon_kg": "kg CO2e/token",
        "usd_per_request": "$/request",
    },
}


def _trained(one: Any) -> dict[str, float | None]:
    return {
        "time_s": one.step_time.value, "energy_j": one.energy_j_per_step, "carbon_kg": one.carbon_kg_per_step,
        "usd_per_step": one.usd_per_step,
    }  # fmt: skip


def _served(one: Any) -> dict[str, float | None]:
    return {
        "time_s": float(one.metrics.latency.mean), "energy_j": one.energy_j_per_token,
        "carbon_kg": one.carbon_kg_per_token, "usd_per_request": 1.0 / one.good_per_usd if one.good_per_usd else None,
    }  # fmt: skip


def _plan_text(value: Any) -> str:
    from ridgeline.report.serving_search import fleet_text
    from ridgeline.report.text import plan_text

    return fleet_text(value.ranked[0]) if hasattr(value, "ranked") else plan_text(value.best[0].plan)
