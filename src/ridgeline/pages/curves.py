"""Charts with two axes: points with their best ones, and curves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ridgeline.pages.drawing import FAINT, HUES, INK, WIDTH, Figure, Sheet, axis, frame

_LEFT, _TOP, _HEIGHT, _RIGHT = 62.0, 30.0, 230.0, 14.0  # px
_MOST = 400  # points drawn
Told = Callable[[float], str]


@dataclass(frozen=True, kw_only=True)
class Point:
    """A place with a note; `front` where nothing is better in both."""

    x: float
    y: float
    tip: str
    label: str = ""
    front: bool = True
    colour: str = HUES[0]
    reach: tuple[float, float] | None = None  # interval along x


@dataclass(frozen=True, kw_only=True)
class Side:
    """What one axis counts, and how a value of it is told."""

    title: str
    told: Told
    scale: str = "zero"  # or 'log', or 'near' the values


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A named line through places."""

    name: str
    places: Sequence[tuple[float, float]]
    colour: str


def fronted(points: Sequence[Point], *, more_x: bool = True, more_y: bool = False) -> list[Point]:
    """The points, grey where another is at least as good in both and better in one."""
    side_x, side_y = 1 if more_x else -1, 1 if more_y else -1

    def beaten(one: Point) -> bool:
        return any(
            side_x * (other.x - one.x) >= 0 and side_y * (other.y - one.y) >= 0 and (other.x, other.y) != (one.x, one.y)
            for other in points
        )

    return [
        Point(**{**vars(one), "front": False, "colour": FAINT, "tip": f"{one.tip}\ndominated"}) if beaten(one) else one
        for one in points
    ]


def scattered(
    name: str,
    title: str,
    points: Sequence[Point],
    sides: tuple[Side, Side],
    *,
    curves: Sequence[Curve] = (),
    legend: Sequence[tuple[str, str]] = (),
    note: str = "",
) -> Figure:
    """Points on two axes, with curves under them; the front is joined by a line where there are dominated ones."""
    sheet, shown = Sheet(), points[:_MOST]
    xs = [*(one.x for one in shown), *(x for curve in curves for x, _ in curve.places)]
    xs += [end for one in shown for end in one.reach or ()]
    ys = [*(one.y for one in shown), *(y for curve in curves for _, y in curve.places)]
    x = axis(xs, (_LEFT, WIDTH - _RIGHT), sides[0].told, scale=sides[0].scale)
    y = axis(ys, (_TOP + _HEIGHT, _TOP), sides[1].told, scale=sides[1].scale)
    frame(sheet, x, y, sides[0].title, sides[1].title)
    for curve in curves:
        sheet.line([(x.at(a), y.at(b)) for a, b in curve.places], curve.colour, 2.0, curve.name)
    if not all(one.front for one in shown):
        best = sorted((one.x, one.y) for one in shown if one.front)
        sheet.line([(x.at(a), y.at(b)) for a, b in best], HUES[0], 1.0)
    for one in sorted(shown, key=lambda one: one.front):
        if one.reach is not None:
            sheet.whisker(x.at(one.reach[0]), x.at(one.reach[1]), y.at(one.y), f"{one.tip}\n80 % interval")
        sheet.dot(x.at(one.x), y.at(one.y), one.colour, one.tip)
        if one.label and one.front:
            right = x.at(one.x) > WIDTH - 60
            place = x.at(one.x) + (-7 if right else 7)
            sheet.text(place, y.at(one.y) - 5, one.label, anchor="end" if right else "start", colour=INK)
    named = [*legend, *((curve.colour, curve.name) for curve in curves)]
    if named:
        sheet.legend(named)
    left_out = f" The first {_MOST} of {len(points)} are drawn." if len(points) > _MOST else ""
    return Figure(name=name, title=title, svg=sheet.svg(title), note=(note + left_out).strip())


def curved(name: str, title: str, curves: Sequence[Curve], sides: tuple[Side, Side], note: str = "") -> Figure | None:
    """Curves on two axes; None where there is none with two places."""
    kept = [curve for curve in curves if len(curve.places) > 1]
    return scattered(name, title, (), sides, curves=kept, note=note) if kept else None
