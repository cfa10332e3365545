"""What carries a token, and what is predicted, where a benchmark drops padding, from `data/padding.tsv`."""

from __future__ import annotations

import re

from ridgeline.facts import store
from ridgeline.facts.readings import tell_recipe


def kept_tokens(model: str, *, results: str, positions: int) -> int | None:
    """Positions of a sequence of `positions` that are computed on average [token]; None where padding is not dropped.

    `results` names where the results come from.
    """
    found = (int(row["tokens"]) for row in _rows(model, results) if int(row["positions"]) == positions)
    return next(found, None)


def predicted_share(model: str, *, results: str) -> float | None:
    """Share of the tokens whose logits the published code makes [1]; None where it makes those of all."""
    return next((float(row["predicted"]) for row in _rows(model, results)), None)


def _rows(model: str, results: str) -> list[dict[str, str]]:
    rows = store.read_tsv("padding.tsv")
    found = [row for row in rows if re.search(row["model"], model, re.IGNORECASE) and re.search(row["runs"], results)]
    for row in found:
        tell_recipe(row["runs"], results, f"padding is dropped ({row['source']})")
    return found
