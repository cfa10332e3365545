"""Charts of one operator on some machines: its time with interval, and where it stands under each roof."""

from __future__ import annotations

from ridgeline.pages.bars import Bar, bars
from ridgeline.pages.charts import Charts
from ridgeline.pages.curves import Curve, Point, Side, scattered
from ridgeline.pages.drawing import HUES, Figure
from ridgeline.report.operator import OperatorCost
from ridgeline.units import rate_text, time_text

_TERA = 1e12


def charts(found: list[OperatorCost]) -> Charts:
    """Charts of `op`."""
    return {"time": lambda: _times(found), "roofline": lambda: _roofline(found)}


def _tip(one: OperatorCost) -> str:
    ends = f"80 % interval {time_text(one.low_s)} to {time_text(one.high_s)}"
    source = f" ({one.source})" if one.source else ""
    return f"{one.machine}: {time_text(one.seconds)}, {ends}\nbound by {one.bound}; {one.evidence.label}{source}"


def _times(found: list[OperatorCost]) -> Figure:
    rows = [
        Bar(
            name=one.machine, told=time_text(one.seconds), interval=(one.low_s, one.high_s),
            parts=((one.seconds, HUES[place % len(HUES)], _tip(one)),),
        )
        for place, one in enumerate(found)
    ]  # fmt: skip
    return bars("time", "Time with its 80 % interval", rows)


def _roofline(found: list[OperatorCost]) -> Figure | None:
    placed = [one for one in found if min(one.flop, one.bytes, one.seconds, one.compute_s, one.memory_s) > 0]
    if not placed:
        return None
    points, roofs = [], []
    for place, one in enumerate(placed):
        colour, peak, rate = HUES[place % len(HUES)], one.flop / one.compute_s, one.bytes / one.memory_s
        at, ridge = one.flop / one.bytes, peak / rate
        points.append(Point(x=at, y=one.flop / one.seconds, tip=_tip(one), colour=colour))
        low, high = min(at, ridge) / 4, max(at, ridge) * 4
        name = f"{one.machine}, {rate_text(peak, 'FLOP/s')}"
        roofs.append(Curve(name=name, places=[(low, low * rate), (ridge, peak), (high, peak)], colour=colour))
    sides = (
        Side(title="FLOP per byte of memory traffic", told=lambda value: f"{value:g}", scale="log"),
        Side(title="attained TFLOP/s", told=lambda value: f"{value / _TERA:g}", scale="log"),
    )
    return scattered("roofline", "Under the roofs of the datasheets", points, sides, curves=roofs)
