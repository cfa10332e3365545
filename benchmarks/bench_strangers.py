"""How wrong is `check --blind` on sources that nothing here was made with? Answers benchmarks/unseen, and tells.

    PYTHONPATH=src nice python benchmarks/bench_strangers.py [--only serving ...] [--first] [--page] [--unseal]

Each open table is answered row by row in this process. Answers are kept as they come in `--keep` (a folder), a file for
each table and commit, so that a killed run goes on. `--first` writes them to unseen/first-answers.tsv.gz with
the commit that gave them, and refuses rows that have a first answer. `--page` answers nothing: it writes strangers.md
beside this file from the first answers and those kept of this commit, or of `--at`. Tables that are sealed are opened
only with `--unseal sealed`, `second`, `third`, `fourth` or `fifth`, once, at the end, into a page of their own; with
`--before COMMIT` it shows kept answers of that commit beside those of now.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import hashlib
import io
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from strangers_page import BEFORE, SEALED, TITLE, page

from ridgeline.report.as_json import as_value
from ridgeline.search.complete import complete
from ridgeline.search.post_training import measured_iteration
from ridgeline.validate.check import Checker
from ridgeline.validate.rows import read

HERE = Path(__file__).parent
UNSEEN = HERE / "unseen"
FIRST = UNSEEN / "first-answers.tsv.gz"
SIDES = ("open", "sealed", "second", "third", "fourth", "fifth")
PAGES = {side: HERE / ("strangers.md" if side == "open" else f"strangers_{side}.md") for side in SIDES}
PEERS = {side: UNSEEN / ("peer-answers.tsv" if side == "open" else f"peer-answers-{side}.tsv") for side in SIDES}
TABLES = ("training", "memory", "offload", "diffusion", "serving", "rl")
COLUMNS = (
    "table", "id", "commit", "status", "measured", "predicted", "low", "high", "evidence", "rung", "device", "engine",
    "reason",
)  # fmt: skip
_NUMBERS = ("measured", "predicted", "low", "high")

Answer = dict[str, Any]


def commit() -> str:
    """The commit of this checkout, with `-changed` and a hash when its program differs from it."""
    said = ["git", "-C", str(HERE)]
    name = subprocess.run([*said, "rev-parse", "--short=9", "HEAD"], capture_output=True, text=True, check=True).stdout
    changed = subprocess.run([*said, "diff", "HEAD", "--", "../src"], capture_output=True, check=True).stdout
    return name.strip() + (f"-changed-{hashlib.sha256(changed).hexdigest()[:6]}" if changed else "")


def tables(only: list[str], side: str) -> list[tuple[str, Path]]:
    """Names and files of the tables of one side, `open`, `sealed`, `second`, `third`, `fourth` or `fifth`."""
    paths = ((name, UNSEEN / f"{name}-{side}.tsv") for name in only or TABLES)
    return [(name, path) for name, path in paths if path.exists()]


def kept(path: Path) -> list[Answer]:
    """Answers of a file with a line each; a line that a killed run broke off is left out."""
    found = []
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                found.append(json.loads(line))
            except json.JSONDecodeError:
                break
    return found


def answered(path: Path, store: Path) -> Iterator[Answer]:
    """Every row of a table answered, those before it in `store` without asking again."""
    table = read(path)
    before = kept(store)
    store.write_text("".join(json.dumps(row) + "\n" for row in before), encoding="utf-8")
    yield from before
    checker = Checker(completer=complete, iteration=measured_iteration, blind=True)
    with store.open("a", encoding="utf-8") as out:
        for place, row in enumerate(table.rows[len(before) :], start=len(before) + 1):
            answer = dict(as_value(checker.answer(row, table)))
            out.write(json.dumps(answer) + "\n")
            out.flush()
            print(f"\r{path.name} {place}/{len(table.rows)}", end="", file=sys.stderr)
            yield answer
    print(file=sys.stderr)


def first_answers() -> dict[tuple[str, str], Answer]:
    """The committed first answers by table and row; numbers are floats, what is empty is None."""
    if not FIRST.exists():
        return {}
    with gzip.open(FIRST, "rt", encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))
    for row in rows:
        row |= {name: _number(row[name]) for name in _NUMBERS}  # type: ignore[misc]
    return {(row["table"], row["id"]): dict(row) for row in rows}


def _number(cell: str) -> float | str | None:
    try:
        return float(cell) if cell else None
    except ValueError:
        return cell  # 'fits' and 'OOM'


def write_first(rows: list[tuple[str, Answer]], at: str) -> None:
    """First answers with those that are written already; the same bytes for the same answers."""
    known = first_answers()
    again = [answer["id"] for table, answer in rows if (table, answer["id"]) in known]
    if again:
        sys.exit(f"{len(again)} rows have a first answer, {again[0]} is one: the first is written once")
    known |= {(table, row["id"]): row | {"table": table, "commit": at} for table, row in rows}
    text = io.StringIO()
    print("\t".join(COLUMNS), file=text)
    for row in known.values():
        print("\t".join(_cell(row.get(name)) for name in COLUMNS), file=text)
    FIRST.write_bytes(gzip.compress(text.getvalue().encode(), mtime=0))


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return "" if value is None else " ".join(str(value).split())


def main() -> None:
    """Answers, keeps, and writes what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], choices=TABLES)
    parser.add_argument("--keep", type=Path, default=Path(tempfile.gettempdir()) / "ridgeline-strangers")
    parser.add_argument("--first", action="store_true")
    parser.add_argument("--page", action="store_true")
    parser.add_argument("--at", default=None)
    parser.add_argument("--unseal", default="open", choices=SIDES[1:])
    parser.add_argument("--before", default=None)
    given = parser.parse_args()
    os.nice(5)
    given.keep.mkdir(parents=True, exist_ok=True)
    at, side = given.at if given.page and given.at else commit(), given.unseal
    rows: list[tuple[str, Answer]] = []
    for name, path in tables(given.only, side):
        store = given.keep / f"{at}-{name}-{side}.jsonl"
        rows += ((name, answer) for answer in (kept(store) if given.page else answered(path, store)))
    if given.first:
        write_first(rows, at)
    if given.page:
        if not rows:
            sys.exit(f"no answers of {at} are kept in {given.keep}: run it without --page first")
        now = {(name, row["id"]): row for name, row in rows}
        asked = [(name, read(path)) for name, path in tables([*TABLES], side)]
        if side == "open":
            answers = {"first": first_answers(), "now": now}
            title = TITLE.format(
                first=", ".join(sorted({str(one["commit"]) for one in answers["first"].values()})), now=at
            )
        else:
            before = [(name, given.keep / f"{given.before}-{name}-{side}.jsonl") for name in TABLES if given.before]
            was = {(name, row["id"]): row for name, store in before for row in kept(store)}
            answers = {"before": was, "now": now} if was else {"": now}
            title = SEALED.format(at=at, side=side) + (BEFORE.format(before=given.before) if was else "")
        told = page(asked, answers, title, PEERS[side])
        PAGES[side].write_text(told, encoding="utf-8")


if __name__ == "__main__":
    main()
