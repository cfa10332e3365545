"""A check on the screen: every row with its numbers or its reason, then scores that are the summary's."""

from __future__ import annotations

from typing import Any

from ridgeline.report.blocks import plain
from ridgeline.report.check_text import check_blocks

SCORES: dict[str, Any] = {
    "scored": 2, "refused": 1, "skipped": 0, "median_ape": 0.125, "mean_ape": 0.25, "p90_ape": 0.4, "bias": -0.031,
    "within_10": 0.5, "within_25": 0.5, "coverage": None,
}  # fmt: skip
SILENT: dict[str, Any] = {"low": None, "high": None, "predicted": None, "ape": None, "evidence": None}


def row(**keys: Any) -> dict[str, Any]:
    return {"id": "x1", "metric": "latency", "status": "scored", "reason": None, "line": 2, "measured": 2.0, **keys}


def told(*, refusals: dict[str, int], fits: dict[str, int]) -> str:
    rows = [
        row(predicted=2.25, low=2.0, high=3.0, ape=0.125, evidence="fitted"),
        row(id="x2", status="refused", reason="field 'op': 'fft' is no operator", line=3, **SILENT),
        row(id="x3", status="refused", reason="t.tsv:4: field 'value': blank", line=4, **SILENT),
    ]
    by = {f"by_{field}": {"one": SCORES, "none": SCORES | {"scored": 0}} for field in ("device", "engine", "source")}
    summary = {
        "metrics": {"latency": SCORES | by}, "fits": fits, "refusals": refusals, "skips": {}, "rows": 3,
        "kind": "kernels", "scored": 2, "refused": 1, "skipped": 0,
    }  # fmt: skip
    return plain(check_blocks(rows, summary), width=160)


def test_rows_have_their_numbers_or_their_reason_and_the_line_once() -> None:
    lines = told(refusals={}, fits={}).splitlines()
    assert lines[2].split() == ["x1", "latency", "2", "2.25", "2", "to", "3", "12.5%", "fitted"]
    assert lines[3].endswith("refused, line 3: field 'op': 'fft' is no operator")
    assert lines[4].endswith("refused: t.tsv:4: field 'value': blank")  # the reason has the line already


def test_scores_are_shares_in_percent_and_blank_where_nothing_was_scored() -> None:
    text = told(refusals={}, fits={})
    scores = next(line.split() for line in text.splitlines() if line.split()[:2] == ["latency", "2"])
    assert scores == ["latency", "2", "1", "0", "12.5%", "25.0%", "40.0%", "-3.1%", "50.0%", "50.0%"]
    assert "latency, one" in text
    assert "latency, none" not in text  # a group without a scored row says nothing
    assert text.rstrip().endswith("3 rows of kernels: 2 scored, 1 refused, 0 skipped")


def test_reasons_are_counted_and_cut_after_twelve() -> None:
    text = told(refusals={f"reason {index}": 20 - index for index in range(14)}, fits={"fits as fits": 3})
    assert "reason 11" in text
    assert "reason 12" not in text
    assert "and 2 other reasons; --json has them all" in text
    assert "Does it fit, measured as predicted" in text
    assert "3 fits as fits" in text
