"""Degrees that makers published with their code of a training benchmark, from `data/published_plans.tsv`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ridgeline.facts import store


@dataclass(frozen=True, kw_only=True)
class PublishedPlan:
    """Degrees of one configuration; sequences of a micro-batch, chunks of a stage and sharding where it says them [1].

    `zero_group` ranks share one copy of the states. `name` is its file in the published code.
    """

    tp: int
    pp: int
    cp: int
    micro_batch: int | None
    chunks: int | None
    zero: int | None
    zero_group: int | None
    name: str
    source: str


def published_plan(model: str, *, device: str, results: str, devices: int) -> PublishedPlan | None:
    """The first configuration published for a model on so many devices; None when none is known.

    `results` names the repository of the results, which holds the round. Source: MLPerf Training.
    """
    for row in store.read_tsv("published_plans.tsv"):
        fits = (
            re.search(row["model"], model, re.IGNORECASE)
            and re.search(row["device"], device)
            and re.search(row["rounds"], results)
        )
        if fits and int(row["devices_min"]) <= devices <= int(row["devices_max"]):
            tp, pp, cp = (int(row[name]) for name in ("tp", "pp", "cp"))
            named = ("micro_batch", "chunks", "zero", "zero_group")
            micro, chunks, zero, group = (int(row[name]) if row[name] else None for name in named)
            return PublishedPlan(
                tp=tp, pp=pp, cp=cp, micro_batch=micro, chunks=chunks, zero=zero, zero_group=group,
                name=row["name"], source=row["source"],
            )  # fmt: skip
    return None
