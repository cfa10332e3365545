"""How far other people's measurements of operators lie from the tables that answer, beyond the stated intervals.

    ridgeline check KERNELS.tsv --json > kernels.json; ridgeline check COLLECTIVES.tsv --json > groups.json
    PYTHONPATH=src python benchmarks/operator_sources.py kernels.json groups.json > src/ridgeline/data/source_spread.tsv

Measured / predicted of rows that the table or fitted rung answered and that are not the tables' own, where the interval
stated for them spans less than a factor of two: wider ones already hold a host, a network or sizes that are unknown.
Every source has the same weight. A family of fewer than three sources takes the row `other`, of all families and
sources. Each source is also judged by the others: `covered` is the share of its rows inside the 10 % and 90 % quantiles
of theirs.
"""

from __future__ import annotations

import json
import re
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from ridgeline.validate.operators import OWN_SPAN

WIDEST, FEWEST_SOURCES, FEWEST_ROWS = 2.0, 3, 3
OTHER = "other"
TIMES = ("s", "ms", "us")
Groups = dict[str, list[float]]


def ratios(paths: list[str]) -> dict[str, Groups]:
    """Measured / predicted seconds by family and source."""
    found: dict[str, Groups] = defaultdict(lambda: defaultdict(list))
    for path in paths:
        for row in json.loads(Path(path).read_text(encoding="utf-8"))["rows"]:
            if row["status"] != "scored" or row["rung"] not in ("table", "fitted") or "own" in row["scenario"]:
                continue
            if row["source"] == "aic" or not row["low"] or width(row) > WIDEST:
                continue
            ratio = row["measured"] / row["predicted"]
            found[row["scenario"]][row["source"]].append(ratio if row["unit"] in TIMES else 1 / ratio)
    return found


def width(row: dict[str, Any]) -> float:
    """How wide the interval is without other sources [1]."""
    told = next((words for words in row["assumptions"] if words.startswith(OWN_SPAN)), "")
    own = re.match(r"\s*(\S+) to (\S+)", told.removeprefix(OWN_SPAN))
    return float(own[2]) / float(own[1]) if own else float(row["high"] / row["low"])


def spread(groups: Groups) -> tuple[float, float]:
    """10 % and 90 % quantile with the same weight for every source."""
    values = np.concatenate([np.asarray(rows) for rows in groups.values()])
    weights = np.concatenate([np.full(len(rows), 1 / len(rows)) for rows in groups.values()])
    order = np.argsort(values)
    share = np.cumsum(weights[order]) / weights.sum()
    low, high = (values[order][np.searchsorted(share, level)] for level in (0.1, 0.9))
    return float(low), float(high)


def covered(groups: Groups) -> float:
    """Mean share of a source's rows inside what the other sources span [1]."""
    shares = []
    for source, rows in groups.items():
        low, high = spread({name: others for name, others in groups.items() if name != source})
        shares.append(np.mean([low <= value <= high for value in rows]))
    return float(np.mean(shares))


def main() -> None:
    """Print the table."""
    found = {
        family: {source: rows for source, rows in groups.items() if len(rows) >= FEWEST_ROWS}
        for family, groups in ratios(sys.argv[1:]).items()
    }
    pooled = {f"{family} {source}": rows for family, groups in found.items() for source, rows in groups.items()}
    print("# Measured / predicted of other sources than the tables'. Written by benchmarks/operator_sources.py.")
    print("\t".join(("family", "low", "high", "rows", "sources", "covered")))
    for family, groups in [*sorted(found.items()), (OTHER, pooled)]:
        if family != OTHER and len(groups) < FEWEST_SOURCES:
            continue
        low, high = spread(groups)
        rows = sum(map(len, groups.values()))
        print(f"{family}\t{min(low, 1):.3f}\t{max(high, 1):.3f}\t{rows}\t{len(groups)}\t{covered(groups):.2f}")


if __name__ == "__main__":
    main()
