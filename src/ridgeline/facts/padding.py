"""What carries a token, and what is predicted, where a benchmark drops padding, from `data/padding.tsv`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ridgeline.facts import store


@dataclass(frozen=True, kw_only=True)
class Padding:
    """Of `positions` of a sequence `tokens` carry one on average [token]; a share `predicted` [1] is given logits."""

    positions: int
    tokens: int
    predicted: float


def padding(model: str, *, results: str) -> Padding | None:
    """The padding that the published code of a benchmark drops; None where none is known to be dropped.

    `results` names where the results come from.
    """
    for row in store.read_tsv("padding.tsv"):
        if re.search(row["model"], model, re.IGNORECASE) and re.search(row["runs"], results):
            return Padding(
                positions=int(row["positions"]), tokens=int(row["tokens"]), predicted=float(row["predicted"])
            )
    return None
