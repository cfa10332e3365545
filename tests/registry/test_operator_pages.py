"""The pages of operators tell what the benchmark found, and show a picture of every family that is fitted."""

from __future__ import annotations

from pathlib import Path

import pytest

from ridgeline.cost.families.registry import FAMILIES

ROOT = Path(__file__).parents[2]
RUNGS = ("table", "fitted", "borrowed", "common")
PAGES = sorted((ROOT / "docs").glob("*.md"))


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("|")[1:-1]]


def judged() -> dict[tuple[str, str], list[str]]:
    """Answered, median, mean, p90, bias, in 10 %, in 25 %, covered and its error, by family and rung."""
    lines = (ROOT / "benchmarks" / "operators.md").read_text(encoding="utf-8").splitlines()
    return {(row[0], row[1]): row[2:] for row in map(cells, lines) if row and row[0].startswith("`")}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_held_out_numbers_of_a_page_are_those_of_the_benchmark(page: Path) -> None:
    known = judged()
    for line in page.read_text(encoding="utf-8").splitlines():
        row = cells(line) if line.startswith("| `") else []
        if len(row) > 2 and (row[0], row[1]) in known:
            answered, median, _, *rest, _ = known[row[0], row[1]]
            assert row[2:] == [answered, median, *rest], line
        elif len(row) > 3 and (row[0], "fitted") in known and all(cell.endswith("%") for cell in row[1:]):
            found = [known[row[0], rung][at] for rung in RUNGS[: len(row) // 3] for at in (1, 3, -2)]
            assert row[1:] == found, line


@pytest.mark.parametrize("family", FAMILIES)
def test_a_page_has_the_numbers_and_the_picture_of_every_family(family: str) -> None:
    assert {rung for name, rung in judged() if name == f"`{family}`"} == set(RUNGS)
    pages = [page.read_text(encoding="utf-8") for page in PAGES]
    assert any(f"| `{family}` |" in page for page in pages)
    assert any(f"](pictures/{family}.svg)" in page for page in pages)
    assert (ROOT / "docs" / "pictures" / f"{family}.svg").stat().st_size > 1_000
