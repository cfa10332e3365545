"""Errors of `ridgeline check` on kernels and collectives, by operator, rung and size, as tables.

    for rung in measured fitted borrowed: ridgeline check KERNELS.tsv --evidence $rung --json > kernels_$rung.json
    python benchmarks/accuracy_operators.py measured=kernels_measured.json,collectives_measured.json fitted=... \\
        > benchmarks/operator_accuracy.md
"""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np

SHORT_S = 1e-4
SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
HEAD = (
    "| operator | asked | rung | rows | median | p90 | median signed | covered |",
    "|---|---|---|---|---|---|---|---|",
)


def asked(row: dict[str, Any]) -> str:
    """What a row asks, times apart by length."""
    factor = SECONDS.get(row["unit"])
    if factor is None:
        return "rate"
    return "time below 100 us" if row["measured"] * factor < SHORT_S else "time from 100 us"


def table(rows: list[dict[str, Any]]) -> list[str]:
    """One line for each operator, question and rung; own sources are left out."""
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        if row["status"] == "scored" and row["ape"] is not None and not row["scenario"].endswith("own source"):
            groups[row["scenario"], asked(row), row["rung"]].append(row)
    lines = list(HEAD)
    for (scenario, question, rung), found in sorted(groups.items()):
        error = np.array([row["ape"] for row in found])
        signed = np.median([row["predicted"] / row["measured"] - 1 for row in found])
        held = [row["low"] <= row["measured"] <= row["high"] for row in found if row["low"] is not None]
        covered = f"{np.mean(held):.0%}" if held else ""
        lines.append(
            f"| `{scenario}` | {question} | {rung} | {len(found)} | {np.median(error):.0%} |"
            f" {np.quantile(error, 0.9):.0%} | {signed:+.0%} | {covered} |"
        )
    return lines


def section(name: str, paths: list[str]) -> list[str]:
    """The rows of one best rung, counted and tabled."""
    rows = [row for path in paths for row in json.loads(Path(path).read_text(encoding="utf-8"))["rows"]]
    counts = Counter(row["status"] for row in rows)
    own = sum(row["status"] == "scored" and row["scenario"].endswith("own source") for row in rows)
    told = ", ".join(f"{count:,} {status}" for status, count in sorted(counts.items()))
    return [f"## `--evidence {name}`: {told}; {own:,} of the scored are own sources", "", *table(rows), ""]


def main() -> None:
    """Prints the page."""
    print("# Operators against public tables\n")
    print("Written by `benchmarks/accuracy_operators.py`; own sources are left out.\n")
    for word in sys.argv[1:]:
        name, _, paths = word.partition("=")
        print("\n".join(section(name, paths.split(","))))


if __name__ == "__main__":
    main()
