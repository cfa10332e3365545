"""Ends of the interval of peaks: where the memory.measured and memory.other rows of the mechanism table come from.

python benchmarks/memory_interval.py CHECKED.json [...]

Reads what `ridgeline check TABLE --blind --json` printed. A row's transient bytes follow from the low end of its
interval, the states from what is left. Of each rung, frameworks whose peaks are measured and other programs, sources
with at least eight rows count alike: low is the 10 % quantile of measured transient bytes over predicted ones, high
the 90 % quantile once the states are raised by a share, the one of `SHARES` that leaves the interval narrowest while
it raises states by no more than 15 %. Prints what the others' ends make of each source left out.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ridgeline.facts.frameworks import framework_policy
from ridgeline.facts.programs import training_programs
from ridgeline.memory.stage import peak_range

FEWEST_ROWS = 8
SHARES = (0.0, 0.05, 0.1, 0.15)
MEASURED = {each.name: framework_policy(each.framework).peaks_measured for each in training_programs()}
Ends = tuple[float, float, float]  # low, high and high of states [1]
Row = tuple[str, float, float, float]  # source, states, transient and measured bytes, in the row's unit


def row_of(answer: Mapping[str, Any]) -> Row:
    """Source, predicted states and transient bytes, and what was measured."""
    low = peak_range(measured=MEASURED[answer["engine"]]).low
    transient = (answer["predicted"] - answer["low"]) / (1.0 - low)
    return answer["source"], answer["predicted"] - transient, transient, answer["measured"]


def quantile(values: Sequence[float], weights: Sequence[float], place: float) -> float:
    """A quantile of weighted values."""
    order = np.argsort(values, kind="stable")
    heavy = np.asarray(weights)[order]
    middles = np.cumsum(heavy) - heavy / 2.0
    return float(np.interp(place, middles / heavy.sum(), np.asarray(values)[order]))


def bounds(row: Row, ends: Ends) -> tuple[float, float]:
    """Low and high end of a row."""
    _, states, transient, _ = row
    return states + ends[0] * transient, ends[2] * states + ends[1] * transient


def fitted(rows: Sequence[Row]) -> Ends:
    """Ends that hold 80 % of rows, each source as heavy as another."""
    counts = Counter(row[0] for row in rows)
    kept = [row for row in rows if counts[row[0]] >= FEWEST_ROWS]
    weights = [1.0 / counts[row[0]] for row in kept]
    low = max(0.0, quantile([(row[3] - row[1]) / row[2] for row in kept], weights, 0.1))
    tried = []
    for share in SHARES:
        high = max(1.0, quantile([(row[3] - (1.0 + share) * row[1]) / row[2] for row in kept], weights, 0.9))
        ends = (low, high, 1.0 + share)
        widths = [np.log(np.divide(*reversed(bounds(row, ends)))) for row in kept]
        tried.append((float(np.average(widths, weights=weights)), ends))
    return min(tried)[1]


def judged(rows: Sequence[Row]) -> None:
    """Prints a line for each source that is left out, and one for all."""
    inside, every, widths = [], [], []
    for name in sorted({row[0] for row in rows}):
        ends, mine = fitted([row for row in rows if row[0] != name]), [row for row in rows if row[0] == name]
        spans = [bounds(row, ends) for row in mine]
        held = [low <= row[3] <= high for row, (low, high) in zip(mine, spans, strict=True)]
        width = float(np.median([high / low for low, high in spans]))
        print(f"  {name} {len(mine)} {ends[0]:.2f} {ends[1]:.2f} {ends[2]:.2f} {np.mean(held):.0%} {width:.2f}")
        if len(mine) >= FEWEST_ROWS:
            inside += held
            every.append(float(np.mean(held)))
            widths.append(width)
    low, high, states = fitted(rows)
    print(f"  all: low {low:.2f}, high {high:.2f}, states_high {states:.2f}")
    print(f"  inside {np.mean(inside):.0%} of rows, {np.mean(every):.0%} over sources; width {np.median(widths):.2f}")


def main(paths: Sequence[str]) -> None:
    """Prints both rungs."""
    answers = [row for path in paths for row in json.loads(Path(path).read_text(encoding="utf-8"))["rows"]]
    answers = [row for row in answers if row["status"] == "scored" and row.get("low") not in (None, row["predicted"])]
    print("source rows low high states_high inside width")
    for rung in (True, False):
        print("frameworks whose peaks are measured" if rung else "other programs")
        judged([row_of(row) for row in answers if MEASURED[row["engine"]] is rung])


if __name__ == "__main__":
    main(sys.argv[1:])
