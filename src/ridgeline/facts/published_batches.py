"""Batches that a published table leaves out and a program's own scripts give, from `data/published_batches.tsv`."""

from __future__ import annotations

import re

from ridgeline.facts import store
from ridgeline.facts.readings import tell_recipe


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
