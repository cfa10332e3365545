"""How far other people's measurements of operators lie from the answers they get, and all from the mechanisms.

    for rung in measured borrowed: ridgeline check KERNELS.tsv --evidence $rung --json > kernels_$rung.json, and GROUPS
    PYTHONPATH=src python benchmarks/operator_sources.py *.json > src/ridgeline/data/source_spread.tsv

Measured / predicted of rows that are not the tables' own, where the interval stated for them spans less than a factor
of two (four where values are borrowed): wider ones already hold a host, a network or sizes that are unknown. Every
source has the same weight. A family of fewer than three sources takes the row `other`, of all families and sources.

Of the mechanism, all rows whose interval is no kernel's or network's own; devices take the place of sources, since a
formula's error is a device's. The kernels of a layer that stream, measured on three devices, share what they span.

The ends are the quantiles q and 1 - q that hold four fifths of a source's rows (or a device's) when it is left out of
them; where not even the widest do, ends stretched about their middle. `covered` is that share. Kernels shorter than
100 microseconds stand apart where enough devices have both.
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

from ridgeline.facts.source_spread import ANY, LONG, SHORT, SHORT_S
from ridgeline.validate.operators import EVIDENCE_SPAN, OWN_SPAN, RUNGS, WIDEST

FEWEST_ROWS = 3
FEWEST = {"tables": 3, "borrowed": 3, "mechanism": 4}  # sources or devices: fewer tell no spread
MECHANISM = "mechanism"
OTHER = "other"
SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
KINDS = dict.fromkeys(("norm", "rope", "activation", "residual", "embedding"), "streams of a layer")
HELD = 0.8  # of the rows of what is left out
LEVELS = (*np.arange(0.30, -0.001, -0.0025), *(-np.arange(0.05, 2.01, 0.05)))  # below 0: stretched by 1 - level
Groups = dict[str, list[float]]
Found = dict[tuple[str, str], Groups]  # of a family and band


def ratios(paths: list[str]) -> dict[str, Found]:
    """Measured / predicted seconds by rung, family, band and source; of the mechanism by device."""
    found: dict[str, Found] = {name: defaultdict(lambda: defaultdict(list)) for name in (*RUNGS, MECHANISM)}
    seen: set[tuple[str, str]] = set()
    first: dict[str, str] = {}  # the rung that answered a row first, of all that may answer
    for path in paths:
        for row in json.loads(Path(path).read_text(encoding="utf-8"))["rows"]:
            if row["status"] != "scored" or not row["low"]:
                continue
            fresh = first.setdefault(row["id"], row["rung"]) == row["rung"]
            if "own" in row["scenario"] or (row["id"], row["rung"]) in seen:
                continue
            seen.add((row["id"], row["rung"]))
            ratio = row["measured"] / row["predicted"]
            factor = SECONDS.get(row["unit"])
            ratio = 1 / ratio if factor is None else ratio
            short = factor is not None and row["predicted"] * factor < SHORT_S
            if row["rung"] == MECHANISM and EVIDENCE_SPAN in row["assumptions"] and fresh:
                for band in (ANY, SHORT if short else LONG):
                    found[MECHANISM][row["scenario"], band][row["device"]].append(ratio)
            rung = next((name for name, rungs in RUNGS.items() if row["rung"] in rungs), "")
            if rung and row["source"] != "aic" and width(row) <= WIDEST[rung]:
                found[rung][row["scenario"], ANY][row["source"]].append(ratio)
    return found


def width(row: dict[str, Any]) -> float:
    """How wide the interval is without other sources [1]."""
    told = next((words for words in row["assumptions"] if words.startswith(OWN_SPAN)), "")
    own = re.match(r"\s*(\S+) to (\S+)", told.removeprefix(OWN_SPAN))
    return float(own[2]) / float(own[1]) if own else float(row["high"] / row["low"])


def spread(groups: Groups, level: float) -> tuple[float, float]:
    """Quantiles `level` and 1 - `level`, every source of the same weight; below 0, stretched about their middle."""
    values = np.concatenate([np.asarray(rows) for rows in groups.values()])
    weights = np.concatenate([np.full(len(rows), 1 / len(rows)) for rows in groups.values()])
    order = np.argsort(values)
    share = (np.cumsum(weights[order]) - weights[order] / 2) / weights.sum()
    low, high = np.interp((max(level, 0.0), 1 - max(level, 0.0)), share, np.log(values[order]))
    stretched = (high - low) / 2 * max(-level, 0.0)
    return float(np.exp(low - stretched)), float(np.exp(high + stretched))


def covered(groups: Groups, level: float) -> float:
    """Mean share of a source's rows inside what the other sources span [1]."""
    shares = []
    for source, rows in groups.items():
        low, high = spread({name: others for name, others in groups.items() if name != source}, level)
        shares.append(np.mean([low <= value <= high for value in rows]))
    return float(np.mean(shares))


def line(rung: str, family: str, band: str, groups: Groups) -> Iterator[str]:
    """A row of the table: the narrowest ends that hold what is left out of them; none of a band too thin to tell."""
    level = next((level for level in LEVELS if covered(groups, level) >= HELD), LEVELS[-1])
    if band != ANY and level <= 0:
        return
    low, high = spread(groups, level)
    rows = sum(map(len, groups.values()))
    cells = (rung, family, band, f"{min(low, 1):.3f}", f"{max(high, 1):.3f}", rows, len(groups))
    yield "\t".join(map(str, (*cells, f"{covered(groups, level):.2f}")))


def joined(found: Found, families: set[str], band: str) -> Groups:
    """The groups of several families, each with its own weight."""
    return {
        f"{family} {name}": rows
        for (family, at), groups in found.items()
        if family in families and at == band
        for name, rows in groups.items()
        if len(rows) >= FEWEST_ROWS
    }


def known(groups: Groups, fewest: int) -> Groups:
    """Groups of a few rows each, or all where those are too few."""
    told = {name: rows for name, rows in groups.items() if len(rows) >= FEWEST_ROWS}
    return told if len(told) >= fewest else groups


def lines(rung: str, found: Found) -> Iterator[str]:
    """The rows of the table for one kind of rung; a band where as many groups tell as do of all lengths."""
    for (family, band), groups in sorted(found.items()):
        fewest, told = FEWEST[rung], known(groups, FEWEST[rung])
        if rung == MECHANISM and len(told) < fewest and family in KINDS:
            told = joined(found, {name for name, kind in KINDS.items() if kind == KINDS[family]}, band)
        if len(told) >= fewest and (band == ANY or len(told) == len(known(found[family, ANY], fewest))):
            yield from line(rung, family, band, told)
    if rung != MECHANISM:
        yield from line(rung, OTHER, ANY, joined(found, {family for family, _ in found}, ANY))


def main() -> None:
    """Print the table."""
    print(
        "# Measured / predicted of sources, or devices, that no answer comes from. By benchmarks/operator_sources.py."
    )
    print("\t".join(("rung", "family", "band", "low", "high", "rows", "groups", "covered")))
    for rung, found in ratios(sys.argv[1:]).items():
        for text in lines(rung, found):
            print(text)


if __name__ == "__main__":
    main()
