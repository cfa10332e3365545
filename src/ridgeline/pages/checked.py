"""Charts of `check`: predictions against measurements, a metric each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ridgeline.pages.charts import Charts
from ridgeline.pages.curves import Curve, Point, Side, scattered
from ridgeline.pages.drawing import HUES, Figure

_BAND = 0.25  # of the measured value, either way


def charts(rows: Sequence[Mapping[str, Any]]) -> Charts:
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
