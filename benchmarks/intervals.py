"""How many measured values lie in the 80 % interval where whole sources and whole devices are left out, and how wide.

    PYTHONPATH=src python benchmarks/intervals.py KEPT/*-{open,sealed,second,third}.jsonl
        [--write] [--page]

Reads answers that `bench_strangers.py` kept, of the tables that nothing was made with. Beyond the mechanisms' own
intervals an answer has that of whole runs of other people (`data/run_spread.tsv`): causes are independent, so that
this part can be taken out of the ends again, found anew from rows of other sources on other devices, and put back.
A source counts for as many rows as it has on a device, at most `MOST`. Rows that are off by more than `MISREAD` were
read wrongly, or their page is wrong: none of them sets an end, all of them count as missed. `--write` writes the table
of ends, `--page` writes intervals.md beside this file. The ends that ship must be those with which the answers were
given, so that they can be taken out: found once for each round of answers.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from bench_strangers import TABLES
from strangers_page import group_of

from ridgeline.facts.transfer import LENT, MEASURED, PHYSICS, RUN_RUNGS, run_spread

HERE = Path(__file__).parent
TABLE = HERE.parent / "src" / "ridgeline" / "data" / "run_spread.tsv"
PAGE = HERE / "intervals.md"
MOST = 3  # rows of a source on a device that count: they share their cause
SHOWN = 8  # rows of a group, from which the page shows it
FEWEST = 16  # rows of other sources on other devices that ends are found from
MISREAD = 20.0  # factor between measured and predicted, from which a row tells nothing of a spread
ANY = "any"
LOADED = re.compile(r"concurren|closed|disagg|poisson|open|rate\b")
KINDS = {
    "TPOT": "serving step", "ITL": "serving step", "output tokens/s": "serving step", "latency": "serving step",
    "other throughput": "serving step", "TTFT": "first token", "prompt tokens/s": "prompt",
    "memory of serving": "memory of serving", "training step": "training step", "training throughput": "training step",
    "time to train": "training step", "offload": "offload", "post-training step": "post-training",
    "post-training, parts": "post-training part", "memory of training": "memory of training",
}  # fmt: skip
"""Whose spread an answer of a group has; those of others are judged as they are stated."""
RUNGS: Mapping[str, tuple[str, ...]] = {
    "serving step": (MEASURED, LENT, PHYSICS), "training step": (MEASURED, LENT, PHYSICS), "prompt": (ANY,),
    "first token": (ANY,), "offload": (ANY,), "offload prompt": (ANY,), "post-training": (ANY,),
    "post-training part": (ANY,), "memory of serving": (ANY,), "memory of training": (ANY,),
}  # fmt: skip
_BYTES_OR_TIME = re.compile(r"[munµ]?s|sec\w*|min|h|gpu.?h\w*|[kmgt]?i?b(?:ytes?)?|(?:m?s|sec\w*)/\w+", re.IGNORECASE)
_UNSAID = re.compile(r"not stated|assumed|not in the catalog|may be all|no policy|states no|does not say|where nothing")
Ends = tuple[float, float]

HEAD = """# Intervals, judged with whole sources and whole devices left out

Written by `intervals.py --page` from blind answers to the open, sealed, second and third tables of
[unseen](unseen/README.md).
*Stated*: the share of measured values inside the 80 % interval as it is given now. *Left out*: the same with
`data/run_spread.tsv` found anew from rows of other sources on other devices alone. *Of sources*: the mean over sources.
*Width*: the median of high / low. Groups without a spread of whole runs have the stated ends in both."""


@dataclass(frozen=True)
class Row:
    """An answer as logarithms: measured over predicted, of a rate the other way round, and both ends beyond it."""

    group: str
    kind: str
    rung: str
    where: tuple[str, str]
    unsaid: int
    error: float
    stated: Ends
    rest: Ends  # without what whole runs add

    def inside(self, ends: Ends) -> bool:
        """Whether the measured value lies in an interval."""
        return -ends[0] <= self.error <= ends[1]

    def with_run(self, run: Ends) -> Ends:
        """Ends with those of whole runs put to the rest."""
        return float(np.hypot(self.rest[0], run[0])), float(np.hypot(self.rest[1], run[1]))


def answers(paths: Iterable[Path]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Table and answer of every scored row that has an interval."""
    for path in paths:
        for line in path.read_text(encoding="utf-8").splitlines():
            one = json.loads(line)
            ends = [one.get(name) for name in ("measured", "predicted", "low", "high")]
            if one["status"] == "scored" and all(isinstance(end, float | int) and end > 0 for end in ends):
                yield next(name for name in path.stem.split("-")[::-1] if name in TABLES), one


def row_of(table: str, one: Mapping[str, Any]) -> Row:
    """An answer as a row; what whole runs add at this commit is taken out of its ends."""
    group = group_of(table, one["metric"])
    kind = KINDS.get(group, "")
    if kind == "first token" and not LOADED.search(one["scenario"]):
        kind = "prompt"
    if kind == "offload" and re.match("prefill|ttft", one["metric"]):
        kind = "offload prompt"
    measured, predicted, low, high = (np.log(one[name]) for name in ("measured", "predicted", "low", "high"))
    rung = RUN_RUNGS.get(one.get("rung") or one["evidence"], ANY)
    error, stated = measured - predicted, (max(predicted - low, 0.0), max(high - predicted, 0.0))
    if not _BYTES_OR_TIME.fullmatch(one["unit"].strip()):
        error, stated = -error, stated[::-1]
        kind = "" if "poisson" in one["scenario"] else kind  # the load's
    rung = rung if rung in RUNGS.get(kind, ()) else ANY
    run = [abs(float(np.log(end))) for end in run_spread(kind, rung)] if kind else (0.0, 0.0)
    rest = [float(np.sqrt(max(far**2 - own**2, 0.0))) for far, own in zip(stated, run, strict=True)]
    unsaid = sum(bool(_UNSAID.search(words)) for words in one["assumptions"])
    where = (one["source"], one["device"])
    return Row(group, kind, rung, where, unsaid, float(error), (float(stated[0]), float(stated[1])), (rest[0], rest[1]))


def quantile(values: Sequence[float], weights: Sequence[float], place: float) -> float:
    """A quantile of weighted values."""
    order = np.argsort(values, kind="stable")
    heavy = np.asarray(weights)[order]
    middles = np.cumsum(heavy) - heavy / 2.0
    return float(np.interp(place, middles / heavy.sum(), np.asarray(values)[order]))


def weights_of(places: Sequence[Any]) -> list[float]:
    """What each row counts, so that a place counts for `MOST` rows at most."""
    counts = Counter(places)
    return [min(MOST, counts[place]) / counts[place] for place in places]


def found(rows: Sequence[Row]) -> Ends:
    """What whole runs add to both ends, so that a fifth of what rows hold lies outside: a tenth beyond each end.

    Where less than a tenth lies beyond one end without anything added, the other may miss as much more.
    """
    told = [row for row in rows if abs(row.error) < np.log(MISREAD)]
    weights = weights_of([row.where for row in told])
    lacks = [
        [max(0.0, max(0.0, sign * row.error) ** 2 - row.rest[side] ** 2) ** 0.5 for row in told]
        for side, sign in ((0, -1.0), (1, 1.0))
    ]
    missed = [float(np.average(np.greater(lack, 0.0), weights=weights)) for lack in lacks]
    low, high = (quantile(lacks[side], weights, 0.8 + min(0.1, missed[1 - side])) for side in (0, 1))
    return low, high


def others(rows: Sequence[Any], where: tuple[str, str]) -> list[Any]:
    """Rows of other sources on other devices; where these are too few, of other sources."""
    apart = [row for row in rows if row.where[0] != where[0] and row.where[1] != where[1]]
    return apart if len(apart) >= FEWEST else [row for row in rows if row.where[0] != where[0]]


def left_out(rows: Sequence[Row]) -> dict[Row, Ends]:
    """The ends of each row by rows of its kind and rung, of other sources on other devices; else those stated."""
    pools: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        pools[row.kind, row.rung].append(row)
    ends, known = {}, {}
    for row in rows:
        key = (row.kind, row.rung, row.where)
        if row.kind and key not in known:
            known[key] = found(others(pools[row.kind, row.rung], row.where))
        ends[row] = row.with_run(known[key]) if row.kind else row.stated
    return ends


def table(rows: Sequence[Row], ends: Mapping[Row, Ends], key: Callable[[Row], str], what: str) -> list[str]:
    """A table of how many rows lie inside, and how wide the median interval is, as stated and left out."""
    lines = [f"| {what} | rows | sources | stated: inside | width | left out: inside | of sources | width |"]
    lines.append("|---|" + 7 * "---|")
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        groups[key(row)].append(row)
    for name in sorted(groups):
        own = groups[name]
        by_source: dict[str, list[bool]] = defaultdict(list)
        for row in own:
            by_source[row.where[0]].append(row.inside(ends[row]))
        if len(own) < SHOWN:
            continue
        held = (np.mean([row.inside(row.stated) for row in own]), np.mean([row.inside(ends[row]) for row in own]))
        wide = [
            float(np.exp(np.median([sum(of(row)) for row in own]))) for of in (lambda r: r.stated, ends.__getitem__)
        ]
        each = np.mean([np.mean(one) for one in by_source.values()])
        lines.append(
            f"| {name} | {len(own)} | {len(by_source)} | {held[0]:.0%} | {wide[0]:.2f} | {held[1]:.0%} | {each:.0%}"
            f" | {wide[1]:.2f} |"
        )
    return lines


def spread_table(rows: Sequence[Row], ends: Mapping[Row, Ends]) -> str:
    """`data/run_spread.tsv`: ends over what is predicted, of each kind and rung."""
    lines = [
        "# Measured over predicted of whole runs of other people, beyond the intervals of the mechanisms, by what an"
        " answer rests on; inside is judged with whole sources and devices left out. By benchmarks/intervals.py, from"
        " end-to-end rows: no prediction uses them.",
        "kind\trung\tlow\thigh\trows\tsources\tinside\tsource",
    ]
    for kind, rungs in RUNGS.items():
        for rung in rungs:
            own = [row for row in rows if (row.kind, row.rung) == (kind, rung)]
            low, high = found(own)
            inside = np.mean([row.inside(ends[row]) for row in own])
            sources = len({row.where[0] for row in own})
            tables = "open, sealed, second and third tables of benchmarks/unseen"
            cells = (
                kind,
                rung,
                f"{np.exp(-low):.2f}",
                f"{np.exp(high):.2f}",
                len(own),
                sources,
                f"{inside:.2f}",
                tables,
            )
            lines.append("\t".join(map(str, cells)))
    return "\n".join(lines) + "\n"


def page(rows: Sequence[Row], ends: Mapping[Row, Ends]) -> str:
    """The whole page."""
    by: dict[str, Callable[[Row], str]] = {
        "metric": lambda row: row.kind if row.kind == "offload prompt" else row.group,
        "metric, rung": lambda row: f"{row.group}, {row.rung}",
        "metric, settings unsaid": lambda row: f"{row.group}, {min(row.unsaid, 4)}{'+' * (row.unsaid >= 4)}",
    }
    parts = [HEAD]
    parts += [f"## By {what}\n\n" + "\n".join(table(rows, ends, key, what)) for what, key in by.items()]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    """Prints, and writes what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("answers", nargs="+", type=Path)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--page", action="store_true")
    given = parser.parse_args()
    scored = list(answers(given.answers))
    rows = [row_of(*one) for one in scored]
    ends = left_out(rows)
    told, spreads = page(rows, ends), spread_table(rows, ends)
    print(told, spreads, sep="\n")
    if given.write:
        TABLE.write_text(spreads, encoding="utf-8")
    if given.page:
        PAGE.write_text(told, encoding="utf-8")


if __name__ == "__main__":
    main()
