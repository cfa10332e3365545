"""Quantiles of measured / predicted transient memory: where the memory.transient rows of the mechanism table come from.

python benchmarks/memory_interval.py CHECKED.json

Reads what `ridgeline check TABLE --json` printed. A row's transient bytes follow from its interval, the states from
what is left; the measured transient bytes are those beyond the states. Sources with at least ten rows count alike.
Prints the 10 % and 90 % quantiles, and how many rows of a source lie between those of the other sources.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.facts.mechanisms import constant

FEWEST_ROWS = 10
Array = NDArray[np.float64]


def ratio_and_share(row: Mapping[str, Any]) -> tuple[float, float]:
    """Measured / predicted transient bytes of a checked row [1], and the transient share of its peak [1]."""
    span = constant("memory.transient.high") - constant("memory.transient.low")
    transient = (row["high"] - row["low"]) / span
    return 1.0 + (row["measured"] - row["predicted"]) / transient, transient / row["predicted"]


def ends(sources: Iterable[Array]) -> Array:
    """The 10 % and 90 % quantiles of ratios by source, each source as heavy as another [1]."""
    parts = list(sources)
    ratios = np.concatenate(parts)
    weights = np.concatenate([np.full(len(part), 1.0 / len(part)) for part in parts])
    order = np.argsort(ratios, kind="stable")
    middles = np.cumsum(weights[order]) - weights[order] / 2.0
    return np.maximum(np.interp([0.1, 0.9], middles / weights.sum(), ratios[order]), 0.0)


def main(path: str) -> None:
    """Prints a line for each source and one for all."""
    rows = json.loads(Path(path).read_text(encoding="utf-8"))["rows"]
    found = defaultdict(list)
    for row in rows:
        if row["status"] == "scored" and row.get("low") is not None:
            found[row["source"]].append(ratio_and_share(row))
    table = {name: np.array(pairs).T for name, pairs in found.items()}
    judged = {name: pairs[0] for name, pairs in table.items() if len(pairs[0]) >= FEWEST_ROWS}
    inside, total = 0.0, 0
    print("source rows median low high of_others covered median_width")
    for name in sorted(table):
        ratios, shares = table[name]
        low, high = ends(part for other, part in judged.items() if other != name)
        covered = float(np.mean((low <= ratios) & (ratios <= high)))
        width = float(np.median((high - low) * shares))
        print(f"{name} {len(ratios)} {np.median(ratios):.2f} {low:.2f} {high:.2f} {covered:.0%} {width:.0%}")
        if name in judged:
            inside, total = inside + covered * len(ratios), total + len(ratios)
    low, high = ends(judged.values())
    print(
        f"{total} rows of {len(judged)} sources: {low:.2f} to {high:.2f}; inside those of others {inside / total:.0%}"
    )


if __name__ == "__main__":
    main(sys.argv[1])
