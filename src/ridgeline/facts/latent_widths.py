"""Widths of layers with latent attention, which operator tables leave out, from `data/latent_widths.tsv`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from ridgeline.errors import UnknownNameError
from ridgeline.facts import store

_NAMES = ("hidden", "rank", "nope", "value", "index_heads", "top")


@cache
def latent_widths(model: str, *, sparse: bool) -> Mapping[str, float]:
    """Widths of a model's layer by size [1]; the first pattern in the name decides. No indexer unless `sparse`.

    Raises `UnknownNameError` for a model without a row.
    """
    rows = store.read_tsv("latent_widths.tsv")
    found = next((row for row in rows if row["pattern"].casefold() in model.casefold()), None)
    if found is None:
        raise UnknownNameError("model with latent attention", model, [row["pattern"] for row in rows])
    widths = {name: float(found[name]) for name in _NAMES}
    return widths if sparse else {**widths, "index_heads": 0.0, "top": 0.0}
