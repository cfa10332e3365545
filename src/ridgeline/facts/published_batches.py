"""Batches that a published table leaves out beside its micro-batches, from `data/published_batches.tsv`."""

from __future__ import annotations

import re

from ridgeline.facts import store


def published_batch(model: str, *, results: str, devices: int) -> int | None:
    """Sequences of a training step on so many devices [1]; None where no program's own is known.

    `results` names where the results come from.
    """
    for row in store.read_tsv("published_batches.tsv"):
        named = re.search(row["model"], model, re.IGNORECASE) and re.search(row["runs"], results)
        if named and int(row["devices_min"]) <= devices <= int(row["devices_max"]):
            return int(row["batch"])
    return None
