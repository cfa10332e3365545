"""How far other people's measurements of operators lie from the tables that answer, and all from the mechanisms.

    ridgeline check KERNELS.tsv --json > kernels.json; ridgeline check COLLECTIVES.tsv --json > groups.json
    PYTHONPATH=src python benchmarks/operator_sources.py kernels.json groups.json > src/ridgeline/data/source_spread.tsv

Measured / predicted of rows that the table or fitted rung answered and that are not the tables' own, where the interval
stated for them spans less than a factor of two: wider ones already hold a host, a network or sizes that are unknown.
Every source has the same weight. A family of fewer than three sources takes the row `other`, of all families and
sources. Each source is also judged by the others: `covered` is the share of its rows inside the 10 % and 90 % quantiles
of theirs.

Of the mechanism, all rows whose interval is no kernel's or network's own; devices take the place of sources, since a
formula's error is a device's. Families of fewer than four devices keep the intervals of the evidence behind a rate.
"""

from __future__ import annotations

import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ridgeline.validate.operators import EVIDENCE_SPAN, OWN_SPAN

WIDEST, FEWEST_ROWS = 2.0, 3
FEWEST = {"tables": 3, "mechanism": 4}  # sources or devices: those of three devices tell no spread
MECHANISM = "mechanism"
OTHER = "other"
TIMES = ("s", "ms", "us")
Groups = dict[str, list[float]]


def ratios(paths: list[str]) -> tuple[dict[str, Groups], dict[str, Groups]]:
    """Measured / predicted seconds by family and source; of the mechanism by family and device."""
    tables: dict[str, Groups] = defaultdict(lambda: defaultdict(list))
    formulas: dict[str, Groups] = defaultdict(lambda: defaultdict(list))
    for path in paths:
        for row in json.loads(Path(path).read_text(encoding="utf-8"))["rows"]:
            if row["status"] != "scored" or not row["low"] or "own" in row["scenario"]:
                continue
            ratio = row["measured"] / row["predicted"]
            ratio = ratio if row["unit"] in TIMES else 1 / ratio
            if row["rung"] == MECHANISM and EVIDENCE_SPAN in row["assumptions"]:
                formulas[row["scenario"]][row["device"]].append(ratio)
            elif row["rung"] in ("table", "fitted") and row["source"] != "aic" and width(row) <= WIDEST:
                tables[row["scenario"]][row["source"]].append(ratio)
    return tables, formulas


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


def lines(rung: str, found: dict[str, Groups], *, other: bool) -> Iterator[str]:
    """The rows of the table for one kind of rung."""
    known = {
        family: {name: rows for name, rows in groups.items() if len(rows) >= FEWEST_ROWS}
        for family, groups in sorted(found.items())
    }
    chosen = {family: groups for family, groups in known.items() if len(groups) >= FEWEST[rung]}
    if other:
        chosen[OTHER] = {f"{family} {name}": rows for family, groups in known.items() for name, rows in groups.items()}
    for family, groups in chosen.items():
        low, high = spread(groups)
        rows = sum(map(len, groups.values()))
        cells = (rung, family, f"{min(low, 1):.3f}", f"{max(high, 1):.3f}", rows, len(groups), f"{covered(groups):.2f}")
        yield "\t".join(map(str, cells))


def main() -> None:
    """Print the table."""
    tables, formulas = ratios(sys.argv[1:])
    print(
        "# Measured / predicted of sources, or devices, that no answer comes from. By benchmarks/operator_sources.py."
    )
    print("\t".join(("rung", "family", "low", "high", "rows", "groups", "covered")))
    for line in (*lines("tables", tables, other=True), *lines(MECHANISM, formulas, other=False)):
        print(line)


if __name__ == "__main__":
    main()
