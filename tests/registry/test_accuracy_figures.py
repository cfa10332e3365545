"""Figures of docs/accuracy.md are those of the pages that it names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ACCURACY = (ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8")
SERVING = (ROOT / "benchmarks" / "serving_accuracy.md").read_text(encoding="utf-8")


def cells(page: str, start: str) -> list[str]:
    """The cells of the one row that starts so."""
    (row,) = [line for line in page.splitlines() if line.startswith(start)]
    return [cell.strip() for cell in row.strip("|").split("|")]


def whole(text: str) -> str:
    """A share in the page's words, in the accuracy page's: no decimals, and no sign before 0."""
    percent = float(text.rstrip("%"))
    return f"{percent:+.0f} %" if text[0] in "+-" and round(percent) else f"{abs(percent):.0f} %"


def test_published_results_are_those_of_their_page() -> None:
    page = (ROOT / "benchmarks" / "public_results.md").read_text(encoding="utf-8")
    _, results, _, median, _, _, held = cells(page, "| all |")
    assert f"On {results} results published elsewhere" in ACCURACY
    assert f"median error is {median.replace('%', ' %')} and the 80 % intervals hold" in ACCURACY.replace("\n", " ")
    assert f"intervals hold {held.split('%')[0]} %" in ACCURACY.replace("\n", " ")


def test_serving_counts_the_rows_that_are_scored() -> None:
    scored = re.search(r"([\d,]+) scored", SERVING)
    assert scored
    assert f"Served models, on {scored[1]} public results" in ACCURACY


@pytest.mark.parametrize(
    ("told", "metric", "scenario"),
    [
        ("output tokens/s, offline", "output_tok_s", "offline"),
        ("TPOT, closed loop", "tpot_ms", "fixed-concurrency"),
        ("TTFT, closed loop", "ttft_ms", "fixed-concurrency"),
        ("TPOT, prefill and decode apart", "tpot_ms", "fixed-concurrency-disagg"),
        ("TTFT, prefill and decode apart", "ttft_ms", "fixed-concurrency-disagg"),
    ],
)
def test_serving_by_metric_is_that_of_its_page(told: str, metric: str, scenario: str) -> None:
    row = cells(SERVING, f"| {metric} | {scenario} |")
    scored, median, bias, covered = row[3], row[4], row[7], row[10]
    found = cells(ACCURACY, f"| {told} |")
    assert found[1].replace(",", "") == scored
    assert found[2:] == [whole(median), whole(bias), whole(covered)]


def test_latency_of_batches_counts_every_device_of_the_page() -> None:
    rows = [line for line in ACCURACY.splitlines() if "latency of a batch" in line]
    told = sum(int(cells(ACCURACY, row)[1].replace(",", "")) for row in rows)
    assert told == int(cells(SERVING, "| batch_latency_ms | 4")[2])
