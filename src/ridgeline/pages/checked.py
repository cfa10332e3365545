"""Charts of predictions against others' numbers: rows of `check` by metric, claims of papers by family."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ridgeline.pages.charts import Charts
from ridgeline.pages.curves import Curve, Point, Side, scattered
from ridgeline.pages.drawing import HUES, WIDTH, Figure, Sheet, axis, clipped

_BAND = 0.25  # of the measured value, either way


def of_rows(rows: Sequence[Mapping[str, Any]]) -> Charts:
    """One chart a metric and unit; none for rows that are no measurements."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        pair = row.get("measured"), row.get("predicted")
        if row.get("status") == "scored" and all(isinstance(one, int | float) and one > 0 for one in pair):
            groups.setdefault(f"{row['metric']}", []).append(row)
    return {name: lambda name=name: _against(name, groups[name]) for name in groups}  # type: ignore[misc]


def _against(name: str, rows: Sequence[Mapping[str, Any]]) -> Figure:
    points = [
        Point(
            x=row["measured"], y=row["predicted"], colour=HUES[0] if _inside(row) else HUES[4],
            tip=f"{row['id']}: measured {row['measured']:.4g}, predicted {row['predicted']:.4g} {row['unit']}\n"
            f"80 % interval {row['low']} to {row['high']}\nevidence: {row['evidence']}",
        )
        for row in rows
    ]  # fmt: skip
    ends = min(one.x for one in points), max(one.x for one in points)
    lines = [
        Curve(name=told, places=[(end, end * share) for end in ends], colour=colour)
        for told, share, colour in (
            ("predicted as measured", 1.0, HUES[2]), ("25 % more", 1 + _BAND, HUES[7]),
            ("25 % less", 1 - _BAND, HUES[7]),
        )
    ]  # fmt: skip
    unit = rows[0]["unit"]
    sides = (
        Side(title=f"measured [{unit}]", told=lambda value: f"{value:g}", scale="log"),
        Side(title=f"predicted [{unit}]", told=lambda value: f"{value:g}", scale="log"),
    )
    legend = [(HUES[0], "measured inside the interval"), (HUES[4], "outside")]
    return scattered(name, f"Predicted against measured: {name}", points, sides, curves=lines, legend=legend)


def _inside(row: Mapping[str, Any]) -> bool:
    low, high = row.get("low"), row.get("high")
    return low is not None and high is not None and bool(low <= row["measured"] <= high)


_LEFT, _RIGHT, _ROW, _MOST = 8.0, 12.0, 30.0, 60  # px; claims drawn of a family
_FAR = 100.0  # times the paper's number; what is farther stands at the edge


def of_claims(rows: Sequence[Mapping[str, Any]]) -> Charts:
    """A chart a family, of claims with both numbers above zero."""
    families: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        if all(isinstance(row.get(name), int | float) and row[name] > 0 for name in ("theirs", "ours", "low", "high")):
            families.setdefault(row["family"], []).append(row)
    return {name: lambda name=name: _family(name, families[name]) for name in sorted(families)}  # type: ignore[misc]


def _family(name: str, rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Ours over the paper's, on a log scale: the line is where both are the same."""
    sheet, shown = Sheet(), rows[:_MOST]
    ends = [min(max(row[end] / row["theirs"], 1 / _FAR), _FAR) for row in shown for end in ("low", "ours", "high")]
    scale = axis([0.5, 2.0, *ends], (_LEFT, WIDTH - _RIGHT), lambda value: f"{value:g}x", scale="log")
    for row in shown:
        middle = sheet.height + 22
        number = f"{row['ours']:.3g} of {row['theirs']:.3g} {row['unit'] or ''}".rstrip()
        sheet.text(_LEFT, middle - 9, clipped(f"{row['paper']} {row['system']}", WIDTH - 30 - 6.6 * len(number)))
        sheet.text(WIDTH - _RIGHT, middle - 9, number, anchor="end")
        low, ours, high = (scale.at(row[end] / row["theirs"]) for end in ("low", "ours", "high"))
        tip = (
            f"{row['system']}: {row['claim']}\npaper {row['theirs']:.4g}, ours {row['ours']:.4g} {row['unit'] or ''}"
            f" ({row['low']:.4g} to {row['high']:.4g})\n{row['checked']}: {row['verdict']}"
        )
        sheet.whisker(low, high, middle, tip)
        sheet.dot(ours, middle, HUES[4] if row["verdict"] in ("miss", "refused") else HUES[0], tip)
        sheet.height += _ROW
    one = scale.at(1.0)
    sheet.line([(one, 4), (one, sheet.height + 4)], HUES[2])
    for tick in scale.ticks(4):
        sheet.text(scale.at(tick), sheet.height + 18, scale.told(tick), anchor="middle")
    sheet.height += 22
    sheet.legend([(HUES[0], "agrees or is quoted"), (HUES[4], "misses"), (HUES[2], "the paper's number")])
    misses = sum(row["verdict"] == "miss" for row in rows)
    left_out = f" The first {_MOST} are drawn." if len(rows) > _MOST else ""
    note = f"{misses} of {len(rows)} numbers miss. Across: ours over the paper's. Whiskers are intervals.{left_out}"
    title = f"Papers of {name}: our number over theirs"
    return Figure(name=name, title=title, svg=sheet.svg(title), note=note)
