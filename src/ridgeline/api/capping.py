"""`plan --power-cap 700W,500W,350W`: the best plan at each limit of the boards, and the best of those."""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ridgeline.api.answer import Answer
from ridgeline.errors import InputError, NoPlanError
from ridgeline.report.blocks import Block, Line, Table, blank

_MOST = 16
_AUTO = "auto"  # the caps that are worth comparing on the cluster's devices


def caps_of(given: SimpleNamespace) -> list[str]:
    """The limits that a person wants compared; one where there is nothing to compare."""
    said = getattr(given, "power_cap", None)
    if said == _AUTO:
        return _worth_trying(given)
    caps = [] if not isinstance(said, str) else [part.strip() for part in said.split(",")]
    if len(caps) > _MOST:
        raise InputError(f"{len(caps)} limits, at most {_MOST} are compared", field="--power-cap", value=said)
    return caps


def _worth_trying(given: SimpleNamespace) -> list[str]:
    """Caps of the cluster's devices that are worth comparing."""
    from ridgeline.api.asking import cluster_words
    from ridgeline.scenario.training import Place, cluster_in, tables_of
    from ridgeline.seams.power_limit import power_limit

    words = {"cluster": table} if (table := cluster_words(given.on, {})) else {}
    in_file = str(given.subject).endswith(".toml")
    tables, place = tables_of(given.subject, words) if in_file else (words, Place(file=None, folder=Path(), lines={}))
    caps = power_limit("power-cap").tried(cluster_in(tables, place).accelerator)
    if not caps:
        raise InputError("no rated power is known of these devices; name limits, as 500W,300W", field="--power-cap")
    return list(caps)


def best_cap(given: SimpleNamespace, caps: list[str], ask: Callable[[SimpleNamespace], Answer]) -> Answer:
    """The answer at the limit whose best plan has least of the aim; raises `NoPlanError` where none has one."""
    found: list[tuple[str, Answer]] = []
    refused: list[NoPlanError] = []
    for cap in caps:
        one = copy(given)
        one.power_cap, one.words = cap, dict(given.words)
        try:
            found.append((cap, ask(one)))
        except NoPlanError as error:
            refused.append(error)
    if not found:
        raise refused[0]
    rows = [_row(cap, answer, given.aim or "time") for cap, answer in found]
    place = min(range(len(rows)), key=lambda index: rows[index]["order"])
    cap, best = found[place]
    columns = ("cap", "best plan", *rows[0]["spent"])
    cells = tuple((row["cap"], row["plan"], *("-" if one is None else f"{one:.4g}" for one in row["spent"].values()))
                  for row in rows)  # fmt: skip

    def blocks() -> list[Block]:
        table = Table(columns=columns, rows=cells, right=frozenset(columns[2:]))
        told = "memory and links are taken to keep their rates under a cap, so times of low ones are lower bounds"
        return [Line(text=f"Power cap: {cap} a board", strong=True), table, Line(text=told), blank(), *best.blocks()]

    each = [{"power_cap": row["cap"], "plan": row["plan"], **row["keys"]} for row in rows]
    return Answer(
        lambda: {**best.as_dict(), "power_cap": cap, "power_caps": each},
        blocks, value=best.value, impossible=best.impossible, aside=best.aside,
    )  # fmt: skip


def _row(cap: str, answer: Answer, aim: str) -> dict[str, Any]:
    """One limit's best plan: what it takes and spends, under titles and under keys, and its place in order."""
    from ridgeline.report.aims import AIMS
    from ridgeline.report.post_training import PostTrainingReport, divided
    from ridgeline.report.serving_search import fleet_text
    from ridgeline.report.text import plan_text

    value = answer.value
    served = hasattr(value, "ranked")
    if not served and not hasattr(value, "best"):
        raise InputError("several limits are compared for plans of equal sequences; say one", field="--power-cap")
    one = value.ranked[0] if served else value.best[0]
    spent = {name: each.of(one) for name, each in AIMS.items()}
    least = spent.get(aim, spent["time"])
    text = divided if isinstance(one, PostTrainingReport) else fleet_text if served else lambda it: plan_text(it.plan)
    return {
        "cap": cap, "plan": text(one),
        "spent": {AIMS[name].titles[served]: amount for name, amount in spent.items()},
        "keys": {AIMS[name].keys[served]: amount for name, amount in spent.items()},
        "order": (answer.impossible is not None, math.inf if least is None else least),
    }  # fmt: skip
