"""What a measured kernel does that its shapes do not tell, from `data/kernel_traits.tsv`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

from ridgeline.facts import store


@cache
def kernel_traits(family: str, device: str, engine: str, kernel: str, form: str) -> Mapping[str, float]:
    """Traits of a kernel by name, most of them sizes of its family's mechanism [1]; the first row that fits decides."""
    text = f"{device} {engine} {kernel} {form}"
    found: dict[str, float] = {}
    for row in store.read_tsv("kernel_traits.tsv"):
        if row["family"] == family and row["trait"] not in found and re.search(row["pattern"], text):
            found[row["trait"]] = float(row["value"])
    return found
