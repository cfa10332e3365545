"""Widths of layers with compressed or block-chosen keys, from `data/compressed_widths.tsv`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from ridgeline.errors import UnknownNameError
from ridgeline.facts import store


@cache
def compressed_widths(model: str) -> Mapping[str, float]:
    """Widths of a model's layer by name [1]; the first pattern in the name decides.

    Raises `UnknownNameError` for a model without a row.
    """
    rows = store.read_tsv("compressed_widths.tsv")
    found = next((row for row in rows if row["pattern"].casefold() in model.casefold()), None)
    if found is None:
        raise UnknownNameError("model with compressed keys", model, [row["pattern"] for row in rows])
    return {name: float(cell) for name, cell in found.items() if name not in ("pattern", "source")}
