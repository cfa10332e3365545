"""Figures of docs/accuracy.md and of the pages of errors are those of the pages that they name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ACCURACY = (ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8")
IN_SAMPLE = (ROOT / "benchmarks" / "accuracy_in_sample.md").read_text(encoding="utf-8")
BLIND = (ROOT / "benchmarks" / "accuracy_blind.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")
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
    assert f"Served models, on {scored[1]} public results" in IN_SAMPLE


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
    found = cells(IN_SAMPLE, f"| {told} |")
    assert found[1].replace(",", "") == scored
    assert found[2:] == [whole(median), whole(bias), whole(covered)]


def test_latency_of_batches_counts_every_device_of_the_page() -> None:
    rows = [line for line in IN_SAMPLE.splitlines() if "latency of a batch" in line]
    told = sum(int(cells(IN_SAMPLE, row)[1].replace(",", "")) for row in rows)
    assert told == int(cells(SERVING, "| batch_latency_ms | 4")[2])


def blind(side: str, metric: str) -> list[str]:
    """The row of a kind of metric over all sources in the page of blind errors."""
    lines = [line for line in BLIND.splitlines() if line.startswith(f"| {side} | {metric} | all |")]
    return [cell.strip() for cell in lines[0].strip("|").split("|")]


@pytest.mark.parametrize(
    "metric", ["TPOT", "TTFT", "output tokens/s", "training step", "memory of training", "offload"]
)
def test_published_errors_are_blind_ones(metric: str) -> None:
    told = cells(ACCURACY, f"| {metric} |")
    for place, side in ((1, "unseen"), (5, "read")):
        row = blind(side, metric)
        assert told[place].split(" of ")[0].replace(",", "") == row[4].split(" ")[0]
        assert abs(float(told[place + 1].rstrip("%")) - float(row[5].rstrip("%"))) <= 0.51
        assert told[place + 2] == row[8]
        assert f"{metric} {told[place + 1].rstrip('%')} %" in README if side == "unseen" else True
