"""Judges every rung on random kernels of the public tables that no fit used; writes the table and the pictures.

    python benchmarks/operators.py    # needs ridgeline[measured]; writes benchmarks/operators.md, the lines of docs/
                                      # that begin with a family, and docs/pictures/

Shape blocks are split by a hash into five folds that are the same on every device: three are fitted to, one sets the
intervals, one (fold 0) judges. Of the rows of fold 0, ROWS of each family are drawn with SEED.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ridgeline.calibrate.least_squares import effective_rows
from ridgeline.calibrate.rungs import JUDGED, Judged, judged_sample
from ridgeline.cost.readers import READERS
from ridgeline.cost.samples import HELD_OUT, Sample, family_tables, samples
from ridgeline.facts.opdata import OpTable
from ridgeline.report.picture import scatter

ROWS, SEED = 2_000, 20261121
HERE = Path(__file__).parent
PICTURES = HERE.parent / "docs" / "pictures"
Drawn = tuple[OpTable, Sample]


def drawn() -> list[Drawn]:
    """ROWS rows of each family's held-out fold, each as likely as any other, grouped as their tables hold them."""
    rng = np.random.default_rng(SEED)
    found: list[Drawn] = []
    for family in READERS:
        kept: list[tuple[OpTable, Sample, NDArray[np.float64]]] = []
        for table in family_tables(family):
            for sample in samples(family, table):
                held = sample.where(sample.folds == HELD_OUT)
                if len(held):
                    kept.append((table, held, rng.random(len(held))))
        keys = np.sort(np.concatenate([keys for _, _, keys in kept]))
        limit = keys[min(ROWS, len(keys)) - 1]
        found += [(table, held.where(keys <= limit)) for table, held, keys in kept if (keys <= limit).any()]
    return found


def sure(inside: NDArray[np.bool_], blocks: NDArray[np.int64]) -> float:
    """Standard error of the share inside [1]: rows of a block of shapes count for what they are worth."""
    share = float(inside.mean())
    return float(np.sqrt(share * (1 - share) / effective_rows(inside.astype(float), blocks)))


def lines(found: list[Judged]) -> list[str]:
    """A Markdown row for each family and rung."""
    groups: dict[tuple[str, str], list[Judged]] = defaultdict(list)
    for one in found:
        groups[one.family, one.rung.value].append(one)
    rows = []
    for family in READERS:
        for rung in JUDGED:
            chosen = groups[family, rung.value]
            measured, predicted, low, high, blocks = (
                np.concatenate([getattr(one, name) for one in chosen] or [np.empty(0)])
                for name in ("measured", "predicted", "low", "high", "blocks")
            )
            answered = np.isfinite(predicted)
            if not answered.any():
                continue
            ratio = predicted[answered] / measured[answered]
            error = np.abs(ratio - 1)
            inside = (low[answered] <= measured[answered]) & (measured[answered] <= high[answered])
            rows.append(
                f"| `{family}` | {rung.value} | {answered.sum()} of {len(measured)} | {np.median(error):.1%} |"
                f" {error.mean():.1%} | {np.quantile(error, 0.9):.1%} | {np.median(ratio) - 1:+.1%} |"
                f" {(error < 0.1).mean():.0%} | {(error < 0.25).mean():.0%} | {inside.mean():.0%} |"
                f" {sure(inside, blocks[answered].astype(np.int64)):.0%} |"
            )
    return rows


def refreshed(page: str, rows: list[str]) -> str:
    """A page of the documentation with its held-out numbers as in `rows`: lines that begin with a family.

    Either a line for a family and rung, without mean and standard error; or one for a family, three numbers a rung.
    """
    known = {tuple(word.strip() for word in row.split("|")[1:3]): row.split("|")[3:-2] for row in rows}
    found = []
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if line.startswith("| `") and tuple(cells[:2]) in known:
            answered, median, _, *rest = known[cells[0], cells[1]]
            line = "|".join(("", f" {cells[0]} ", f" {cells[1]} ", answered, median, *rest, ""))
        elif line.startswith("| `") and (cells[0], "fitted") in known and all(c.endswith("%") for c in cells[1:]):
            rungs = [known[cells[0], rung.value] for rung in JUDGED[: len(cells) // 3]]
            line = "|".join(("", f" {cells[0]} ", *(own[at] for own in rungs for at in (1, 3, -1)), ""))
        found.append(line)
    return "\n".join(found) + "\n"


def pictures(found: list[Judged]) -> None:
    """One picture a family: fitted times against measured ones, by device."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    for family in READERS:
        groups: dict[str, tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
        for one in found:
            if one.family == family and one.rung.value == "fitted" and np.isfinite(one.predicted).any():
                answered = np.isfinite(one.predicted)
                groups[one.device][0].extend(one.measured[answered].tolist())
                groups[one.device][1].extend(one.predicted[answered].tolist())
        picture = scatter(
            dict(sorted(groups.items())), title=f"{family}: shapes that no fit used", x_title="measured",
            y_title="predicted by the fitted mechanism",
        )  # fmt: skip
        (PICTURES / f"{family}.svg").write_text(picture, encoding="utf-8")


def main() -> None:
    """Writes the table and the pictures."""
    found = [judged_sample(sample, table, rung, HELD_OUT) for table, sample in drawn() for rung in JUDGED]
    head = (
        "| family | rung | answered | median | mean | p90 | bias | in 10 % | in 25 % | covered | +- |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    )
    rows = lines(found)
    (HERE / "operators.md").write_text("\n".join((*TITLE, *head, *rows, *NOTES)) + "\n", encoding="utf-8")
    for path in PICTURES.parent.glob("*.md"):
        path.write_text(refreshed(path.read_text(encoding="utf-8"), rows), encoding="utf-8")
    pictures(found)


TITLE = (
    "# Operators: every rung on kernels that no fit used",
    "",
    f"`python benchmarks/operators.py`: {ROWS:,} random rows of each family (seed {SEED}; all where there are fewer)",
    "of the tables of aiconfigurator-core 0.12.0 whose shape blocks no fit and no interval used. `table` interpolates",
    "with them hidden; `borrowed` uses fits of other devices only, `common` those of other architectures. Errors are",
    "absolute, of the measured time; `covered` is the share inside the 80 % interval, `+-` its standard error: errors",
    "of the shapes of a block are alike, so that 2,000 rows may be worth 50.",
    "",
)
NOTES = (
    "",
    "The engine and version of each row are asked for; which of an engine's kernels ran is not told. `borrowed` has no",
    "relatives for devices that stand alone in their architecture (A100, Arc Pro B60; in attention, layers, casts and",
    "recurrences also L40S and RTX PRO 6000, alone with their memory) and none over host bridges.",
)


if __name__ == "__main__":
    sys.exit(main())
