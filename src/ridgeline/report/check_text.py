"""A check against measurements in tables: every row, then how wrong the rows were."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ridgeline.report.blocks import Block, Line, Table, blank

_REASONS = 12  # most frequent ones that are shown
_SCORES = ("median_ape", "mean_ape", "p90_ape", "bias", "within_10", "within_25", "coverage")
_TITLES = ("median", "mean", "p90", "bias", "in 10%", "in 25%", "coverage")
_COUNTS = ("scored", "refused", "skipped")


def check_blocks(rows: Sequence[Mapping[str, Any]], summary: Mapping[str, Any]) -> list[Block]:
    """Rows first, so that a terminal ends on the summary: errors by metric, device, engine and source."""
    blocks: list[Block] = [_rows(rows), blank()]
    blocks += [Line(text="Absolute percentage errors by metric", strong=True), _scores("metric", summary["metrics"])]
    blocks.append(blank())
    for field in ("device", "engine", "source"):
        groups = {
            f"{metric}, {name}": scores
            for metric, found in summary["metrics"].items()
            for name, scores in found[f"by_{field}"].items()
            if scores["scored"]
        }
        if groups:
            blocks += [Line(text=f"By {field}", strong=True), _scores(f"metric, {field}", groups), blank()]
    blocks += [*_fits(summary["fits"]), *_reasons("Refused", summary["refusals"])]
    blocks += _reasons("Skipped", summary["skips"])
    counts = ", ".join(f"{summary[name]} {name}" for name in _COUNTS)
    blocks.append(Line(text=f"{summary['rows']} rows of {summary['kind']}: {counts}", strong=True))
    return blocks


def _rows(rows: Sequence[Mapping[str, Any]]) -> Table:
    cells = tuple(
        (
            row["id"],
            row["metric"],
            _number(row["measured"]),
            _number(row["predicted"]),
            "" if row["low"] is None else f"{_number(row['low'])} to {_number(row['high'])}",
            _share(row["ape"]),
            row["evidence"] or f"{row['status']}{_at(row)}: {row['reason']}",
        )
        for row in rows
    )
    columns = ("row", "metric", "measured", "predicted", "80 % interval", "error", "evidence or reason")
    return Table(columns=columns, rows=cells, right=frozenset(columns[2:6]), indent=0)


def _at(row: Mapping[str, Any]) -> str:
    """The line of a row in its table, where its reason does not tell it."""
    line = row.get("line")
    return "" if line is None or f":{line}:" in str(row["reason"]) else f", line {line}"


def _number(value: object) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, int | float) else str(value)


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def _scores(title: str, groups: Mapping[str, Mapping[str, Any]]) -> Table:
    rows = tuple(
        (name, *(str(scores[count]) for count in _COUNTS), *(_share(scores[score]) for score in _SCORES))
        for name, scores in groups.items()
    )
    columns = (title, *_COUNTS, *_TITLES)
    return Table(columns=columns, rows=rows, right=frozenset(columns[1:]))


def _fits(table: Mapping[str, int]) -> Iterator[Block]:
    if any(table.values()):
        told = ", ".join(f"{count} {name}" for name, count in table.items())
        yield Line(text="Does it fit, measured as predicted", strong=True)
        yield Line(text=told, indent=2)
        yield blank()


def _reasons(title: str, reasons: Mapping[str, int]) -> Iterator[Block]:
    if reasons:
        yield Line(text=title, strong=True)
        shown = list(reasons.items())[:_REASONS]
        rows = tuple((str(count), reason) for reason, count in shown)
        yield Table(columns=("rows", "reason"), rows=rows, right=frozenset({"rows"}))
        if len(reasons) > len(shown):
            yield Line(text=f"and {len(reasons) - len(shown)} other reasons; --json has them all", indent=2)
        yield blank()
