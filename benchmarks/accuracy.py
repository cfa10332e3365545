"""Errors of `ridgeline check`, by source and metric, as a table.

ridgeline check TRAINING.tsv --json > training.json
python benchmarks/accuracy.py training.json [memory.json ...] > benchmarks/accuracy.md
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np


def table(path: Path) -> str:
    """The report of one check as a markdown table, all rows counted."""
    answer = json.loads(path.read_text(encoding="utf-8"))
    groups: dict[tuple[str, str], list[dict[str, object]]] = defaultdict(list)
    status: dict[str, int] = defaultdict(int)
    for row in answer["rows"]:
        status[row["status"]] += 1
        if row["status"] == "scored" and row["ape"] is not None:
            groups[row["metric"], row["source"]].append(row)
    counts = ", ".join(f"{count} {name}" for name, count in sorted(status.items()))
    lines = [
        f"## {Path(answer['path']).name}: {counts}",
        "",
        "| metric | source | rows | median | p90 | bias | covered |",
    ]
    lines.append("|---|---|---|---|---|---|---|")
    for (metric, source), rows in sorted(groups.items()):
        lines.append("| " + " | ".join((metric, source, *statistics(rows))) + " |")
    by_metric: dict[str, list[dict[str, object]]] = defaultdict(list)
    for (metric, _), rows in groups.items():
        by_metric[metric] += rows
    lines += [
        f"| {metric} | **all** | " + " | ".join(statistics(rows)) + " |" for metric, rows in sorted(by_metric.items())
    ]
    return "\n".join(lines)


def statistics(rows: list[dict[str, object]]) -> tuple[str, ...]:
    """Count, median and 90 % quantile of the absolute error, median signed error, interval coverage."""
    errors = np.array([float(str(row["ape"])) for row in rows])
    signed = np.array([float(str(row["predicted"])) / float(str(row["measured"])) - 1 for row in rows])
    held = [
        float(str(r["low"])) <= float(str(r["measured"])) <= float(str(r["high"])) for r in rows if r["low"] is not None
    ]
    covered = f"{np.mean(held):.0%}" if held else ""
    median, tail, bias = np.median(errors), np.quantile(errors, 0.9), np.median(signed)
    return str(len(rows)), f"{median:.1%}", f"{tail:.0%}", f"{bias:+.1%}", covered


TITLE = """# Accuracy

`ridgeline check` on public measurements, all rows counted. Errors are absolute percentage errors, never pooled over
metrics; bias is the median signed error; covered is the share of rows inside the 80 % interval.
"""


def main() -> None:
    """Print one table per file."""
    print(TITLE)
    print("\n\n".join(table(Path(name)) for name in sys.argv[1:]))


if __name__ == "__main__":
    main()
