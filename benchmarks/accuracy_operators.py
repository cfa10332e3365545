"""Errors of `ridgeline check` on kernels and collectives, by operator, rung and size, as tables.

`covered` is the share inside the intervals as stated, `left out` inside those that know nothing of the row's source:
what other sources span (`data/source_spread.tsv`) is found again without it (`operator_sources.judged_ends`).

    for rung in measured fitted borrowed datasheet:
        ridgeline check KERNELS.tsv --evidence $rung --json > kernels_$rung.json
    python benchmarks/accuracy_operators.py measured=kernels_measured.json,collectives_measured.json fitted=... \\
        > benchmarks/operator_accuracy.md
"""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from operator_sources import judged_ends, ratio

SHORT_S = 1e-4
CALIBRATES = ("measured", "borrowed")  # the answers that `data/source_spread.tsv` is found from
SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
TITLE = (
    "# Operators against public tables",
    "",
    "Written by `benchmarks/accuracy_operators.py`; rows that Ridgeline's own numbers come from are not in it.",
    "`covered` is the share inside the 80 % intervals as stated; `left out` the share inside intervals whose part of",
    "other sources was found without the row's own source (of mechanisms: without its device), the choice of its",
    "quantile included.",
    "",
)
HEAD = (
    "| operator | asked | rung | rows | median | p90 | median signed | covered | left out |",
    "|---|---|---|---|---|---|---|---|---|",
)


def asked(row: dict[str, Any]) -> str:
    """What a row asks, times apart by length."""
    factor = SECONDS.get(row["unit"])
    if factor is None:
        return "rate"
    return "time below 100 us" if row["measured"] * factor < SHORT_S else "time from 100 us"


def held(row: dict[str, Any], ends: tuple[float, float] | None) -> bool:
    """Whether a row lies in its interval, or in `ends` about its predicted time."""
    if ends is None:
        return bool(row["low"] <= row["measured"] <= row["high"])
    return ends[0] <= ratio(row) <= ends[1]


def table(rows: list[dict[str, Any]], ends: Callable[[dict[str, Any]], tuple[float, float] | None]) -> list[str]:
    """One line for each operator, question and rung; own sources are left out."""
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        if row["status"] == "scored" and row["ape"] is not None and not row["scenario"].endswith("own source"):
            groups[row["scenario"], asked(row), row["rung"]].append(row)
    lines = list(HEAD)
    for (scenario, question, rung), found in sorted(groups.items()):
        error = np.array([row["ape"] for row in found])
        signed = np.median([row["predicted"] / row["measured"] - 1 for row in found])
        told = [row for row in found if row["low"] is not None]
        covered = f"{np.mean([held(row, None) for row in told]):.0%}" if told else ""
        apart = f"{np.mean([held(row, ends(row)) for row in told]):.0%}" if told else ""
        lines.append(
            f"| `{scenario}` | {question} | {rung} | {len(found)} | {np.median(error):.0%} |"
            f" {np.quantile(error, 0.9):.0%} | {signed:+.0%} | {covered} | {apart} |"
        )
    return lines


def section(name: str, paths: list[str], ends: Callable[[dict[str, Any]], tuple[float, float] | None]) -> list[str]:
    """The rows of one best rung, counted and tabled."""
    rows = [row for path in paths for row in json.loads(Path(path).read_text(encoding="utf-8"))["rows"]]
    counts = Counter(row["status"] for row in rows)
    own = sum(row["status"] == "scored" and row["scenario"].endswith("own source") for row in rows)
    told = ", ".join(f"{count:,} {status}" for status, count in sorted(counts.items()))
    return [f"## `--evidence {name}`: {told}; {own:,} of the scored are own sources", "", *table(rows, ends), ""]


def main() -> None:
    """Prints the page."""
    print("\n".join(TITLE))
    named = {name: paths.split(",") for name, _, paths in (word.partition("=") for word in sys.argv[1:])}
    ends = judged_ends([path for name in CALIBRATES if name in named for path in named[name]])
    for name, paths in named.items():
        print("\n".join(section(name, paths, ends)))


if __name__ == "__main__":
    main()
