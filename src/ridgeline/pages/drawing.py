"""Figures as SVG text: bars, points, curves, spans of time, each with a note on what one points at.

A figure is one self-contained ASCII string, 420 px wide so that a phone shows it at its size, drawn for white paper;
a page gives its ink, grid and paper other colours in the dark. Colours are those of Okabe and Ito.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ridgeline.errors import InputError
from ridgeline.report.picture import escaped, px

HUES = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#8C6D31", "#7F7F7F")
INK, GRID, PAPER, FAINT = "#333333", "#d9d9d9", "#ffffff", "#bbbbbb"
WIDTH = 420.0  # px
_CHAR = 6.6  # px that a character of 12 px text takes, about
_WIDE_CHAR = 7.4  # px, where two must not touch
_LINE = 16.0  # px


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A chart of an answer: `name` is how it is asked for, `note` what it leaves out; `zooms` in time."""

    name: str
    title: str
    svg: str
    note: str = ""
    wide: bool = False
    zooms: bool = False

    def _repr_svg_(self) -> str:
        return self.svg

    def png(self, scale: float = 2.0) -> bytes:
        """The chart as PNG, `scale` pixels to one of the SVG; raises `InputError` without ridgeline[pictures]."""
        try:
            from cairosvg import svg2png
        except (ImportError, OSError):
            told = "PNG needs CairoSVG; `pip install 'ridgeline[pictures]'`, or take SVG"
            raise InputError(told) from None
        made: bytes = svg2png(bytestring=self.svg.encode(), scale=scale, background_color=PAPER)
        return made

    def save(self, path: str) -> None:
        """Writes the chart, as PNG where the path ends so, else as SVG; raises `InputError` where it cannot."""
        data = self.png() if path.lower().endswith(".png") else self.svg.encode()
        try:
            Path(path).write_bytes(data)
        except OSError as error:
            raise InputError(f"cannot be written: {error.strerror}", value=path) from None


def clipped(text: str, width: float) -> str:
    """A text cut to a width [px]."""
    most = max(4, int(width / _CHAR))
    return text if len(text) <= most else text[: most - 2] + ".."


@dataclass(kw_only=True)
class Sheet:
    """What is drawn so far, on a sheet whose height [px] grows."""

    width: float = WIDTH
    height: float = 0.0
    parts: list[str] = field(default_factory=list)

    def text(
        self, x: float, y: float, text: str, *, anchor: str = "start", bold: bool = False, colour: str = INK
    ) -> None:
        """A text whose baseline begins, is centred or ends at a place."""
        weight = ' font-weight="bold"' if bold else ""
        said = f'<text x="{px(x)}" y="{px(y)}" text-anchor="{anchor}" fill="{colour}"{weight}>{escaped(text)}</text>'
        self.parts.append(said)

    def box(self, x: float, y: float, size: tuple[float, float], colour: str, tip: str = "", more: str = "") -> None:
        """A filled rectangle of a width and height."""
        self.parts.append(box(x, y, size, colour, tip, more))

    def line(self, places: Iterable[tuple[float, float]], colour: str = INK, wide: float = 1.0, tip: str = "") -> None:
        """Straight lines from place to place."""
        points = " ".join(f"{px(x)},{px(y)}" for x, y in places)
        said = f'points="{points}" fill="none" stroke="{colour}" stroke-width="{px(wide)}"'
        self.parts.append(f"<polyline {said}>{_title(tip)}</polyline>")

    def dot(self, x: float, y: float, colour: str, tip: str = "", size: float = 4.0) -> None:
        """A point."""
        self.parts.append(f'<circle cx="{px(x)}" cy="{px(y)}" r="{px(size)}" fill="{colour}">{_title(tip)}</circle>')

    def whisker(self, low: float, high: float, y: float, tip: str = "") -> None:
        """An interval along x: a line with ends."""
        d = f"M{px(low)} {px(y - 4)}v8M{px(low)} {px(y)}H{px(high)}M{px(high)} {px(y - 4)}v8"
        self.parts.append(f'<path d="{d}" fill="none" stroke="{INK}" stroke-width="1.5">{_title(tip)}</path>')

    def legend(self, entries: Sequence[tuple[str, str]], left: float = 8.0) -> None:
        """Colours and their names below what is drawn, in as many lines as they need."""
        x = left
        self.height += _LINE
        for colour, name in entries:
            wide = 24 + _WIDE_CHAR * len(name)
            if x > left and x + wide > self.width:
                x, self.height = left, self.height + _LINE
            self.box(x, self.height - 9, (10, 10), colour)
            self.text(x + 14, self.height, name)
            x += wide
        self.height += 8

    def svg(self, title: str, kind: str = "") -> str:
        """The picture with its title, which screen readers tell."""
        w, h = px(self.width), px(self.height)
        named = f' class="{kind}"' if kind else ""
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg"{named} width="{w}" height="{h}" viewBox="0 0 {w} {h}"'
            f' role="img" aria-label="{escaped(title)}" font-family="sans-serif" font-size="12">'
            f'<rect width="100%" height="100%" fill="{PAPER}"/>{"".join(self.parts)}</svg>'
        )


def box(x: float, y: float, size: tuple[float, float], colour: str, tip: str = "", more: str = "") -> str:
    """A rectangle as SVG."""
    said = f'x="{px(x)}" y="{px(y)}" width="{px(max(size[0], 0.0))}" height="{px(size[1])}" fill="{colour}"{more}'
    return f"<rect {said}>{_title(tip)}</rect>" if tip else f"<rect {said}/>"


def _title(tip: str) -> str:
    return f"<title>{escaped(tip)}</title>" if tip else ""


@dataclass(frozen=True, kw_only=True)
class Axis:
    """Values along one side: from `low` to `high` between two places [px]; `told` puts a value in words."""

    low: float
    high: float
    start: float
    end: float
    told: Callable[[float], str]
    log: bool = False

    def at(self, value: float) -> float:
        """The place of a value [px], kept inside."""
        if self.log:
            share = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + min(max(share, 0.0), 1.0) * (self.end - self.start)

    def ticks(self, most: int = 5) -> list[float]:
        """Round values along the axis, at most about `most`."""
        if self.log:
            first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
            powers = [10.0**power for power in range(first, last + 1, max(1, -(-(last - first + 1) // most)))]
            if len(powers) > 2:
                return powers
            fine = [times * 10.0**power for power in range(first - 1, last + 1) for times in (1, 2, 5)]
            kept = [value for value in fine if self.low <= value <= self.high]
            return kept if len(kept) <= most + 1 or len(powers) < 2 else powers
        step = 10 ** math.floor(math.log10((self.high - self.low) / most))
        step = next(step * times for times in (1, 2, 5, 10) if (self.high - self.low) / (step * times) <= most)
        first = math.ceil(self.low / step - 1e-9)
        return [index * step for index in range(first, math.floor(self.high / step + 1e-9) + 1)]


def axis(
    values: Iterable[float], place: tuple[float, float], told: Callable[[float], str], *, scale: str = "zero"
) -> Axis:
    """An axis around some values: from 'zero', 'near' them, or 'log' from a little below the least above zero."""
    known = [value for value in values if math.isfinite(value)]
    if scale == "log":
        known = [value for value in known if value > 0] or [1.0]
        return Axis(low=min(known) / 1.3, high=max(known) * 1.3, start=place[0], end=place[1], told=told, log=True)
    if scale == "near" and known and max(known) > min(known):
        edge = (max(known) - min(known)) / 10
        return Axis(low=min(known) - edge, high=max(known) + edge, start=place[0], end=place[1], told=told)
    most, least = max([0.0, *known]), min([0.0, *known])
    most = most if most > least else least + 1.0
    return Axis(low=least, high=most * 1.05, start=place[0], end=place[1], told=told)


def frame(sheet: Sheet, x: Axis, y: Axis, x_title: str, y_title: str) -> None:
    """Grid, ticks and titles of two axes; the title of y stands above it."""
    for value in x.ticks(4):
        sheet.line([(x.at(value), y.start), (x.at(value), y.end)], GRID)
        sheet.text(x.at(value), y.start + 15, x.told(value) if value else "0", anchor="middle")
    for value in y.ticks():
        sheet.line([(x.start, y.at(value)), (x.end, y.at(value))], GRID)
        sheet.text(x.start - 5, y.at(value) + 4, y.told(value) if value else "0", anchor="end")
    sheet.line([(x.start, y.end), (x.start, y.start), (x.end, y.start)])
    sheet.text(4, y.end - 8, y_title)
    sheet.text(x.end, y.start + 32, x_title, anchor="end")
    sheet.height = max(sheet.height, y.start + 36)
