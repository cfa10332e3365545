"""Horizontal bars: stacked parts, intervals, a mark at a limit; names stand above their bars, as on a phone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ridgeline.pages.drawing import FAINT, HUES, WIDTH, Figure, Sheet, axis, clipped

_ROW, _BAR, _LEFT, _RIGHT = 34.0, 14.0, 8.0, 12.0  # px
_MOST = 24  # rows drawn


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One row: its name, parts (amount, colour, note) and total in words; `ghost` is the amount of the row before."""

    name: str
    parts: tuple[tuple[float, str, str], ...]
    told: str
    interval: tuple[float, float] | None = None
    ghost: float = 0.0


def bars(
    name: str,
    title: str,
    rows: Sequence[Bar],
    *,
    mark: float | None = None,
    legend: Sequence[tuple[str, str]] = (),
    note: str = "",
) -> Figure:
    """A figure of rows of bars on one scale, with a line at `mark`."""
    sheet, shown = Sheet(), rows[:_MOST]
    tops = [max(sum(part[0] for part in row.parts), row.ghost, *(row.interval or ())) for row in shown]
    scale = axis([*tops, mark or 0.0], (_LEFT, WIDTH - _RIGHT), str)
    for row in shown:
        y = sheet.height + 14
        sheet.text(_LEFT, y, clipped(row.name, WIDTH - 30 - 6.6 * len(row.told)))
        sheet.text(WIDTH - _RIGHT, y, row.told, anchor="end")
        x, top = _LEFT, y + 4
        if row.ghost:
            sheet.box(x, top, (scale.at(row.ghost) - x, _BAR), FAINT)
        done = 0.0
        for amount, colour, tip in row.parts:
            start, done = scale.at(done), done + amount
            sheet.box(start, top, (scale.at(done) - start, _BAR), colour, tip)
        if row.interval is not None:
            ends = [scale.at(end) for end in row.interval]
            sheet.whisker(ends[0], ends[1], top + _BAR / 2, f"{row.name}: 80 % interval")
        if mark is not None:
            sheet.line([(scale.at(mark), top - 2), (scale.at(mark), top + _BAR + 2)], HUES[4], 2.0)
        sheet.height += _ROW
    sheet.height += 4
    if legend:
        sheet.legend(legend)
    left_out = f" The first {_MOST} of {len(rows)} are drawn." if len(rows) > _MOST else ""
    return Figure(name=name, title=title, svg=sheet.svg(title), note=(note + left_out).strip())
