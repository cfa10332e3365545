"""Which groups of measured rows are predicted worse than the kept figures say? Every row is answered blind.

    PYTHONPATH=src python benchmarks/accuracy_gate.py [--truth FOLDER] [--accept WHY] [--page]

Rows are those of benchmarks/unseen (open tables) and, where a folder of truth tables is given, those of
`{training,memory,offload,diffusion,serving}.tsv` there; a group is a kind of metric of one source, and a kind of metric
over all sources of a folder. A group of eight rows or more whose median error has grown by more than two points, or
that answers fewer rows than `accuracy_gate.tsv` says, ends the run with exit code 1. `--accept WHY` writes the figures
of now instead, with the reason in each row that grew; "Changed predictions" of the changelog has to say the same.
`--page` writes `accuracy_blind.md`, and its table into docs/accuracy.md. A killed run goes on where it stopped.
"""

from __future__ import annotations

import argparse
import csv
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import bench_strangers
import numpy as np
import strangers_page

from ridgeline.validate.rows import read

HERE = Path(__file__).parent
KEPT = HERE / "accuracy_gate.tsv"
PAGE = HERE / "accuracy_blind.md"
DOCS = HERE.parent / "docs" / "accuracy.md"
COLUMNS = ("rows", "answered", "error", "bias", "p90", "inside", "width")
GROWTH = 0.02  # by which a median error may grow unsaid [1]
FEWEST = 8  # rows of a group that is judged

Answer = Mapping[str, Any]
Group = tuple[str, str, str]  # set of tables, kind of metric, source

TITLE = """# Accuracy, blind

`ridgeline check --blind` on public measurements: nothing is used that a row does not say, neither a recipe of a
benchmark nor a habit of a source. **Read** are tables that were read while the models were made; **unseen** are open
sources that nothing was made with, after their readers were mended. *Error* is the median of
|predicted / measured - 1|, *inside* the share of measured values in the 80 % interval, *width* the median of its
high / low. Refused rows are counted in *rows* alone. Rows that a table itself rules out of scoring are left out.

Written by `accuracy_gate.py --page`; the weekly script compares the same figures with `accuracy_gate.tsv`.
"""


def answers(path: Path, folder: Path) -> list[tuple[str, Answer]]:
    """Source and answer of every row of a table that may be scored."""
    store = folder / f"{bench_strangers.commit()}-{path.parent.name}-{path.stem}.jsonl"
    rows = {row.id: row for row in read(path).rows}
    told = bench_strangers.answered(path, store)
    return [(rows[each["id"]].source, each) for each in told if each["status"] != "skipped"]


def asked(truth: Path | None) -> list[tuple[str, str, Path]]:
    """Set, table and file of everything that is answered."""
    found = [("unseen", *each) for each in bench_strangers.tables([], "open")]
    if truth is not None:
        found += [("read", name, truth / f"{name}.tsv") for name in bench_strangers.TABLES]
    return [each for each in found if each[2].exists()]


def grouped(truth: Path | None, folder: Path) -> dict[Group, list[Answer]]:
    """Answers by set, kind of metric and source; source `all` has every row of a kind."""
    groups: dict[Group, list[Answer]] = defaultdict(list)
    whole = asked(truth)
    with ProcessPoolExecutor(2) as pool:
        found = pool.map(answers, [path for *_, path in whole], [folder] * len(whole))
        for (side, table, _), rows in zip(whole, found, strict=True):
            for source, answer in rows:
                kind = strangers_page.group_of(table, answer["metric"])
                groups[side, kind, source].append(answer)
                groups[side, kind, "all"].append(answer)
    return groups


def figures(rows: Sequence[Answer]) -> dict[str, float]:
    """Counts, errors and intervals of a group; no errors where nothing was answered with a number."""
    scored = [row for row in rows if row["status"] == "scored" and isinstance(row["predicted"], int | float)]
    told: dict[str, float] = {"rows": len(rows), "answered": len(scored)}
    if not scored:
        return told
    signed = np.array([row["predicted"] / row["measured"] - 1 for row in scored])
    ranged = [row for row in scored if row["low"] is not None]
    told |= {"error": float(np.median(abs(signed))), "bias": float(np.median(signed))}
    told["p90"] = float(np.quantile(abs(signed), 0.9))
    if ranged:
        told["inside"] = float(np.mean([row["low"] <= row["measured"] <= row["high"] for row in ranged]))
        told["width"] = float(np.median([row["high"] / row["low"] for row in ranged if row["low"] > 0] or [np.nan]))
    return told


def kept() -> dict[Group, dict[str, str]]:
    """The figures that were last accepted."""
    if not KEPT.exists():
        return {}
    with KEPT.open(encoding="utf-8", newline="") as lines:
        rows = csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
        return {(row["set"], row["kind"], row["source"]): row for row in rows}


def grown(now: Mapping[Group, dict[str, float]], before: Mapping[Group, dict[str, str]]) -> dict[Group, str]:
    """Groups that are answered worse than the kept figures say, and how."""
    found = {}
    for group, old in before.items():
        new = now.get(group)
        if new is None or float(old["answered"]) < FEWEST:
            continue
        if new["answered"] < float(old["answered"]):
            found[group] = f"answers {new['answered']:.0f} rows, {old['answered']} before"
        elif new["error"] > float(old["error"]) + GROWTH:
            found[group] = f"median error {new['error']:.1%}, {float(old['error']):.1%} before"
    return found


def accept(now: Mapping[Group, dict[str, float]], why: str) -> None:
    """Writes the figures of now; groups that were not answered keep theirs, those that grew say why."""
    before = kept()
    worse = grown(now, before)
    lines = ["\t".join(("set", "kind", "source", *COLUMNS, "why"))]
    for group in sorted(before.keys() | now.keys()):
        old = before.get(group, {})
        if group not in now:
            lines.append("\t".join((*group, *(old[name] for name in (*COLUMNS, "why")))))
            continue
        cells = [f"{now[group][name]:.4g}" if name in now[group] else "" for name in COLUMNS]
        lines.append("\t".join((*group, *cells, why if group in worse else old.get("why", ""))))
    KEPT.write_text("\n".join(lines) + "\n", encoding="utf-8")


def page(now: Mapping[Group, dict[str, float]]) -> str:
    """Tables by kind of metric, then the groups that are furthest off, then all sources."""
    order = {name: place for place, (name, *_) in enumerate(strangers_page.GROUPS)}
    kinds = sorted((group for group in now if group[2] == "all"), key=lambda group: (group[0], order[group[1]]))
    parts = sorted((group for group in now if group[2] != "all"), key=lambda g: (g[0], order[g[1]], g[2]))
    judged = [group for group in parts if now[group]["answered"] >= FEWEST]
    worst = sorted(judged, key=lambda group: -now[group]["error"])[:20]
    sections = [TITLE, "## By metric", _table(kinds, now), "## Furthest off", _table(worst, now)]
    return "\n\n".join([*sections, "## By source", _table(parts, now)]) + "\n"


def summary(now: Mapping[Group, dict[str, float]]) -> str:
    """A table of kinds of metric over all sources: error, bias, share inside and width, of each set of tables."""
    lines = [
        "| metric | unseen: rows | error | inside | width | read: rows | error | inside | width |",
        "|---" * 9 + "|",
    ]
    for name, *_ in strangers_page.GROUPS:
        cells: list[str] = []
        for side in ("unseen", "read"):
            told = now.get((side, name, "all"), {"answered": 0.0})
            if told["answered"] < FEWEST:
                cells += ["", "", "", ""]
                continue
            held = [f"{told['inside']:.0%}", f"{told['width']:.1f}"] if "inside" in told else ["", ""]
            cells += [f"{told['answered']:,.0f} of {told['rows']:,.0f}", f"{told['error']:.0%}", *held]
        if any(cells):
            lines.append("| " + " | ".join((name, *cells)) + " |")
    return "\n".join(lines)


def _table(groups: Iterable[Group], now: Mapping[Group, dict[str, float]]) -> str:
    lines = ["| tables | metric | source | rows | answered | error | bias | p90 | inside | width |", "|---" * 10 + "|"]
    for group in groups:
        told = now[group]
        share = f"{told['answered']:.0f} ({told['answered'] / told['rows']:.0%})"
        cells = ["", "", "", "", ""]
        if "error" in told:
            cells[:3] = f"{told['error']:.1%}", f"{told['bias']:+.1%}", f"{told['p90']:.0%}"
        if "inside" in told:
            cells[3:] = f"{told['inside']:.0%}", f"{told['width']:.2f}"
        lines.append("| " + " | ".join((*group, f"{told['rows']:.0f}", share, *cells)) + " |")
    return "\n".join(lines)


def main() -> None:
    """Answers all rows; compares, accepts or tells."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--truth", type=Path, help="folder of the truth tables")
    parser.add_argument("--accept", metavar="WHY", help="why what grew is right; the figures of now are kept")
    parser.add_argument("--page", action="store_true", help=f"write {PAGE.name}")
    parser.add_argument("--keep", type=Path, default=Path(tempfile.gettempdir()) / "ridgeline-accuracy")
    given = parser.parse_args()
    given.keep.mkdir(parents=True, exist_ok=True)
    now = {group: figures(rows) for group, rows in grouped(given.truth, given.keep).items()}
    worse = grown(now, kept())
    for group, how in sorted(worse.items()):
        print(", ".join(group) + ": " + how)
    if given.page:
        PAGE.write_text(page(now), encoding="utf-8")
        start, end = "<!-- from benchmarks/accuracy_blind.md -->", "<!-- end -->"
        before, _, rest = DOCS.read_text(encoding="utf-8").partition(start)
        DOCS.write_text(f"{before}{start}\n{summary(now)}\n{end}{rest.partition(end)[2]}", encoding="utf-8")
    if given.accept is not None:
        accept(now, given.accept)
    elif worse:
        sys.exit("say so in the changelog's Changed predictions and run again with --accept WHY, or mend it")
    print(f"{len(now)} groups, {len(worse)} answered worse")


if __name__ == "__main__":
    main()
