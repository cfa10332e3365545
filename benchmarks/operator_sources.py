"""How far other people's measurements of operators lie from the answers they get, and all from the mechanisms.

    for rung in measured borrowed: ridgeline check KERNELS.tsv --evidence $rung --json > kernels_$rung.json, and GROUPS
    PYTHONPATH=src python benchmarks/operator_sources.py *.json > src/ridgeline/data/source_spread.tsv

Measured / predicted of rows that are not the tables' own, where the interval stated for them spans no more than
`interval.widest` (a factor of two): wider ones already hold a host, a network or sizes that are unknown. Every source
has the same weight. A family of fewer than three sources takes the row `other`, of all families and sources.

Of the mechanism, all rows whose interval is no kernel's or network's own; devices take the place of sources, since a
formula's error is a device's. The kernels of a layer that stream, measured on three devices, share what they span.

The ends are the quantiles q and 1 - q that hold four fifths of a source's rows (or a device's) when it is left out of
them; where not even the widest do, ends stretched about their middle. `covered` is nested: the share of a source's rows
inside ends whose q was chosen without it as well. Kernels shorter than 100 microseconds stand apart where enough
devices have both. `source` names what the rows are of: sources by family, or devices.
"""

from __future__ import annotations

import json
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ridgeline.facts.mechanisms import constant
from ridgeline.facts.transfer import ANY, LONG, SHORT, SHORT_S
from ridgeline.validate.operators import EVIDENCE_SPAN, OWN_SPAN, RUNGS, WIDEST

FEWEST_ROWS = 3
FEWEST = {"tables": 3, "borrowed": 3, "mechanism": 4}  # sources or devices: fewer tell no spread
MECHANISM = "mechanism"
OTHER = "other"
SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
KINDS = dict.fromkeys(("norm", "rope", "activation", "residual", "embedding"), "streams of a layer")
HELD = 0.8  # of the rows of what is left out
LEVELS = (*np.arange(0.30, -0.001, -0.0025), *(-np.arange(0.05, 2.01, 0.05)))  # below 0: stretched by 1 - level
Groups = dict[str, list[float]]  # measured / predicted seconds by source
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
            rung, family, band, source = place(row)
            if rung and (fresh or rung != MECHANISM):
                for each in (ANY, band) if rung == MECHANISM else (ANY,):
                    found[rung][family, each][source].append(ratio(row))
    return found


def place(row: dict[str, Any]) -> tuple[str, str, str, str]:
    """Rung, family, band and source of a row, of the mechanism the device; rung '' where other sources tell nothing."""
    factor = SECONDS.get(row["unit"])
    short = factor is not None and row["predicted"] * factor < SHORT_S
    band = SHORT if short else LONG
    if row["rung"] == MECHANISM:
        return MECHANISM if EVIDENCE_SPAN in row["assumptions"] else "", row["scenario"], band, row["device"]
    rung = next((name for name, rungs in RUNGS.items() if row["rung"] in rungs), "")
    own = own_span(row)
    told = rung if own is not None and own[1] <= constant(WIDEST) * own[0] else ""
    return told, row["scenario"], band, row["source"]


def ratio(row: dict[str, Any]) -> float:
    """Measured / predicted seconds of a row [1]."""
    found: float = row["measured"] / row["predicted"]
    return found if row["unit"] in SECONDS else 1 / found


def own_span(row: dict[str, Any]) -> tuple[float, float] | None:
    """The interval without other sources, of the time predicted [1]; None where no other sources are asked."""
    told = next((words for words in row["assumptions"] if words.startswith(OWN_SPAN)), "")
    own = re.match(r"\s*(\S+) to (\S+)", told.removeprefix(OWN_SPAN))
    return (float(own[1]), float(own[2])) if own else None


def spread(groups: Groups, level: float) -> tuple[float, float]:
    """Quantiles `level` and 1 - `level`, every source of the same weight; below 0, stretched about their middle."""
    values = np.concatenate([np.asarray(rows) for rows in groups.values()])
    weights = np.concatenate([np.full(len(rows), 1 / len(rows)) for rows in groups.values()])
    order = np.argsort(values)
    share = (np.cumsum(weights[order]) - weights[order] / 2) / weights.sum()
    low, high = np.interp((max(level, 0.0), 1 - max(level, 0.0)), share, np.log(values[order]))
    stretched = (high - low) / 2 * max(-level, 0.0)
    return min(float(np.exp(low - stretched)), 1.0), max(float(np.exp(high + stretched)), 1.0)


def without(groups: Groups, name: str) -> Groups:
    """The groups of all others."""
    return {other: rows for other, rows in groups.items() if other != name}


def held(groups: Groups, level: float) -> float:
    """Mean share of a source's rows inside what the other sources span [1]."""
    ends = {name: spread(without(groups, name), level) for name in groups}
    return float(
        np.mean([np.mean([ends[name][0] <= value <= ends[name][1] for value in rows]) for name, rows in groups.items()])
    )


def chosen(groups: Groups) -> float:
    """The narrowest level whose ends hold what is left out of them."""
    return next((level for level in LEVELS if held(groups, level) >= HELD), LEVELS[-1])


def left_out(groups: Groups) -> dict[str, tuple[float, float]]:
    """Ends for each source that know nothing of it: neither its rows nor the level chosen with them."""
    others = {name: without(groups, name) for name in groups}
    return {name: spread(rest, chosen(rest) if len(rest) > 1 else 0.0) for name, rest in others.items()}


Ends = tuple[float, float]


def judged_ends(paths: list[str]) -> Callable[[dict[str, Any]], Ends | None]:
    """What other sources span about the answer to a row, by ends that know nothing of the row's own source [1].

    None where no other sources are asked: the row's own interval stands.
    """
    known: dict[tuple[str, str, str], tuple[dict[str, Ends], Ends]] = {}
    for rung, found in ratios(paths).items():
        for family, band, groups in telling(rung, found):
            known[rung, family, band] = left_out(groups), spread(groups, chosen(groups))

    def ends(row: dict[str, Any]) -> Ends | None:
        own, mechanism = own_span(row), row["rung"] == MECHANISM
        _, family, band, source = place(row)
        rung = MECHANISM if mechanism else next((name for name, words in RUNGS.items() if row["rung"] in words), "")
        if own is None and not (mechanism and EVIDENCE_SPAN in row["assumptions"]):
            return None
        keys = [(rung, family, band), (rung, family, ANY), (rung, OTHER, ANY)]
        key = next((key for key in keys if key in known), None)
        if key is None:
            return None
        each, every = known[key]
        low, high = next((each[name] for name in (source, f"{family} {source}") if name in each), every)
        if own is not None and own[1] > constant(WIDEST) * own[0]:
            low, high = min(low, own[0]), max(high, own[1])
        return low, high

    return ends


def line(rung: str, family: str, band: str, groups: Groups) -> Iterator[str]:
    """A row of the table: the narrowest ends that hold what is left out of them; none of a band too thin to tell."""
    level = chosen(groups)
    if band != ANY and level <= 0:
        return
    low, high = spread(groups, level)
    ends = left_out(groups)
    covered = np.mean(
        [np.mean([ends[name][0] <= value <= ends[name][1] for value in rows]) for name, rows in groups.items()]
    )
    cells = (rung, family, band, f"{low:.3f}", f"{high:.3f}", sum(map(len, groups.values())), len(groups))
    yield "\t".join(map(str, (*cells, f"{covered:.2f}", "; ".join(sorted(groups)))))


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


def telling(rung: str, found: Found) -> Iterator[tuple[str, str, Groups]]:
    """Families and bands that stand alone in the table for one kind of rung, with the groups that tell their ends.

    A band where as many groups tell as do of all lengths.
    """
    for (family, band), groups in sorted(found.items()):
        fewest, told = FEWEST[rung], known(groups, FEWEST[rung])
        if rung == MECHANISM and len(told) < fewest and family in KINDS:
            told = joined(found, {name for name, kind in KINDS.items() if kind == KINDS[family]}, band)
        if len(told) >= fewest and (band == ANY or len(told) == len(known(found[family, ANY], fewest))):
            yield family, band, told
    if rung != MECHANISM:
        yield OTHER, ANY, joined(found, {family for family, _ in found}, ANY)


def main() -> None:
    """Print the table."""
    print(
        "# Measured / predicted of sources, or devices, that no answer comes from; source names them."
        " By benchmarks/operator_sources.py."
    )
    print("\t".join(("rung", "family", "band", "low", "high", "rows", "groups", "covered", "source")))
    for rung, found in ratios(sys.argv[1:]).items():
        for family, band, groups in telling(rung, found):
            for text in line(rung, family, band, groups):
                print(text)


if __name__ == "__main__":
    main()
