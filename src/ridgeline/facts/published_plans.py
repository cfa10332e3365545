"""How makers ran the training code that they published, and batches of its scripts that a table leaves out."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ridgeline.facts import store
from ridgeline.facts.readings import tell_recipe


@dataclass(frozen=True, kw_only=True)
class PublishedPlan:
    """One configuration: degrees, sequences of a micro-batch, chunks of a stage and sharding [1]; None where unsaid.

    `zero_group` ranks share one copy of the states. `recompute` ('none', 'full') is of `recompute_layers` layers of a
    stage; `context_style`, `overlap_tensor` and `execution` are those of plans and workloads. `mlp_input_bytes` [byte]
    is what activation functions keep of each number they read, `weight_bytes` what a device holds of each weight; None
    for those of the number format. `name` is its file.
    """

    tp: int | None
    pp: int | None
    cp: int | None
    micro_batch: int | None
    chunks: int | None
    zero: int | None
    zero_group: int | None
    recompute: str | None
    recompute_layers: int | None
    context_style: str | None
    execution: str | None
    overlap_tensor: bool | None
    mlp_input_bytes: float | None
    weight_bytes: float | None
    name: str
    source: str


def published_plan(
    model: str,
    *,
    device: str,
    results: str,
    devices: int,
    submitter: str = "",
    stated: Mapping[str, int | None] = MappingProxyType({}),
) -> PublishedPlan | None:
    """The first configuration published for a model on so many devices; None when none is known.

    `results` names the repository of the results, which holds a round of MLPerf, `submitter` whose result it is.
    Configurations of other degrees than a result has `stated` (tp, pp, cp) are of other runs.
    """
    for row in store.read_tsv("published_plans.tsv"):
        fits = (
            re.search(row["model"], model, re.IGNORECASE)
            and re.search(row["device"], device)
            and re.search(row["results"], results)
            and row["submitter"] in ("", submitter)
            and all(value is None or row[name] in ("", str(value)) for name, value in stated.items())
        )
        if fits and int(row["devices_min"]) <= devices <= int(row["devices_max"]):
            tell_recipe(row["results"], results, f"configuration {row['name']} ({row['source']})")
            return store.records(PublishedPlan, (row,))[0]
    return None


def published_batch(model: str, *, results: str, devices: int, device: str = "", precision: str = "") -> int | None:
    """Sequences or images of one device in a training step [1]; None if unknown.

    `results` names where the results come from, `device` and `precision` are the words of a result's cells.
    """
    for row in store.read_tsv("published_batches.tsv"):
        cells = ((row["model"], model), (row["device"], device), (row["precision"], precision))
        named = all(re.search(pattern, cell, re.IGNORECASE) for pattern, cell in cells)
        if not named or not re.search(row["runs"], results):
            continue
        if int(row["devices_min"]) <= devices <= int(row["devices_max"]):
            tell_recipe(row["runs"], results, f"micro_batch = {row['batch']} ({row['source']})")
            return int(row["batch"])
    return None
