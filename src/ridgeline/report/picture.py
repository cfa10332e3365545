"""Pictures of an answer as SVG text: operators under the roofs of machines.

A picture is one self-contained ASCII string: no script, no font of its own, the same bytes for the same
input. Both axes are logarithmic and positions are taken from powers of ten; colours are those of Okabe and
Ito, which people with any kind of colour vision can tell apart, less the yellow that is lost on white.
"""

from __future__ import annotations

import html
import math
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ridgeline.errors import InputError
from ridgeline.units import rate_text, time_text

_SHAPES = (
    '<circle cx="{x}" cy="{y}" r="3"/>',
    '<path d="M{x} {y}m-3-3h6v6h-6z"/>',
    '<path d="M{x} {y}m0-4l4 7h-8z"/>',
    '<path d="M{x} {y}m0-4l4 4l-4 4l-4-4z"/>',
)
_HUES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_COLOURS = _HUES * len(_SHAPES)  # of a group; when the hues are used up they come again in the next shape
_MOST_POINTS, _MOST_LABELS, _MOST_TICKS = 2_000, 60, 12  # drawn; more would lie on each other
_LEFT, _TOP, _BELOW, _GAP = 120.0, 56.0, 64.0, 20.0  # px around the plot
_SIDE, _WIDE = 480.0, 720.0  # px up and across the plot
_CHAR, _LINE = 7.2, 14.0  # px that a character of 12 px text takes, and a line of it
_INK = "#333333"
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True, kw_only=True)
class Roof:
    """A machine's two limits: its matrix rate [FLOP/s] and its memory rate [byte/s]."""

    name: str
    peak_flop_per_s: float
    memory_bytes_per_s: float


@dataclass(frozen=True, kw_only=True)
class RoofPoint:
    """One operator on the machine of that name: its work [FLOP], its memory traffic [byte] and its time [s]."""

    name: str
    machine: str
    flop: float
    bytes: float
    seconds: float


@dataclass(kw_only=True)
class _Plot:
    """Where powers of ten lie: the decades of both axes, its size [px] and the boxes [px] that labels keep off."""

    x: tuple[int, int]
    y: tuple[int, int]
    width: float
    height: float = _SIDE
    taken: list[tuple[float, float, float, float]] = field(default_factory=list)  # left, top, right, bottom

    def at(self, log_x: float, log_y: float) -> tuple[float, float]:
        """The place [px] of a pair of base-ten logarithms."""
        across = (log_x - self.x[0]) / (self.x[1] - self.x[0])
        up = (log_y - self.y[0]) / (self.y[1] - self.y[0])
        return _LEFT + across * self.width, _TOP + (1.0 - up) * self.height

    def path(self, places: Iterable[tuple[float, float]]) -> str:
        """The pairs of logarithms as the points of a line or an area."""
        return " ".join(f"{px(x)},{px(y)}" for x, y in (self.at(*place) for place in places))

    def keep_clear(self, x: float, y: float, reach: float) -> None:
        """Lets no later label cover what lies within `reach` px of a place."""
        self.taken.append((x - reach, y - reach, x + reach, y + reach))

    def label(self, x: float, y: float, text: str, colour: str) -> str:
        """A label in the nearest free spot beside a place; a thin line of that colour leads to a moved one."""
        width = _CHAR * len(text) + 6
        moves = [(across, step * _LINE) for across in (8, 32, 64) for step in range(-12, 13)]
        moves.sort(key=lambda move: (move[0] + abs(move[1]), move))
        spots = [(left, y + down) for across, down in moves for left in (x + across, x - across - width)]
        boxes = [(left, middle - 6, left + width, middle + 6) for left, middle in spots]
        left, top, right, bottom = box = next(filter(self._free, boxes), boxes[0])
        self.taken.append(box)
        end, middle = left if left > x else right, (top + bottom) / 2
        words = _text(end, middle + 4, text, anchor="start" if left > x else "end")
        line = f'<path d="M{px(x)} {px(y)}L{px(end)} {px(middle)}" stroke="{colour}" stroke-width="0.6"/>'
        return words if box in boxes[:2] else f"{line}\n{words}"

    def _free(self, box: tuple[float, float, float, float]) -> bool:
        left, top, right, bottom = box
        inside = left >= _LEFT and right <= _LEFT + self.width and top >= _TOP and bottom <= _TOP + self.height
        return inside and not any(left < c and a < right and top < d and b < bottom for a, b, c, d in self.taken)


def roofline(machines: Sequence[Roof], points: Sequence[RoofPoint], *, title: str) -> str:
    """Arithmetic intensity [FLOP/byte] against attained rate [FLOP/s] as SVG, with each machine's roof.

    A roof rises with the memory rate up to the ridge, where the matrix rate takes over. An operator's
    share is its rate over the roof's at its own intensity; more than 100 % is drawn as it is. Of more than
    2,000 operators the longest are drawn, and of more than 60 the longest are labelled; the picture says so.
    """
    _few_enough("machine", [machine.name for machine in machines])
    roofs = {machine.name: _logs(machine, "peak_flop_per_s", "memory_bytes_per_s") for machine in machines}
    places = sorted(_roof_places(points, roofs), key=lambda place: -place[3])
    x_axis = _decades([*(x for _, x, *_ in places), *(peak - rate for peak, rate in roofs.values())], margin=0.3)
    y_axis = _decades([*(y for _, _, y, _ in places), *(peak for peak, _ in roofs.values())], margin=0.3)
    plot, index = _Plot(x=x_axis, y=y_axis, width=_WIDE), {name: row for row, name in enumerate(roofs)}
    marks = [_marks(index[point.machine], [plot.at(x, y)]) for point, x, y, _ in places[:_MOST_POINTS]]
    for _, x, y, _ in places[:_MOST_POINTS]:
        plot.keep_clear(*plot.at(x, y), 4)
    lines = [_roof_line(plot, _COLOURS[index[name]], peak, rate) for name, (peak, rate) in roofs.items()]
    for name, (peak, rate) in roofs.items():
        ridge = f"{name} ridge {rate_text(10 ** min(peak - rate, 300.0), 'FLOP/byte')}"
        marks.append(plot.label(*plot.at(peak - rate, peak), ridge, _COLOURS[index[name]]))
    for point, x, y, _ in places[:_MOST_LABELS]:
        peak, rate = roofs[point.machine]
        words = f"{point.name} {_percent(y - min(peak, x + rate))}"
        marks.append(plot.label(*plot.at(x, y), words, _COLOURS[index[point.machine]]))
    legend = [_roof_row(row, roof) for row, roof in enumerate(machines)]
    for most, done in ((_MOST_POINTS, "drawn"), (_MOST_LABELS, "labelled")):
        legend += [("", f"the longest {most} of {len(points)} {done}")] if len(points) > most else []
    axes = _axes(plot, "", "FLOP/s", "arithmetic intensity [FLOP/byte]", "attained rate [FLOP/s]")
    return _sheet(title, plot, [*axes, *lines, *marks], legend)


def _log(value: float, what: str) -> float:
    if not 0 < value <= sys.float_info.max:
        raise InputError(f"{what} is {value}; a logarithmic axis needs a finite number above zero")
    return round(math.log10(value), 12)


def _few_enough(kind: str, names: Sequence[str]) -> None:
    if not 0 < len(names) <= len(_COLOURS):
        raise InputError(f"{len(names)} {kind}s; a picture has at least one and tells at most {len(_COLOURS)} apart")
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"{kind} '{name}' is given {names.count(name)} times")


def _logs(record: Roof | RoofPoint, *names: str) -> list[float]:
    kind = "machine" if isinstance(record, Roof) else "point"
    return [_log(getattr(record, name), f"{kind} '{record.name}': {name}") for name in names]


def _roof_places(
    points: Sequence[RoofPoint], roofs: Mapping[str, Sequence[float]]
) -> Iterator[tuple[RoofPoint, float, float, float]]:
    """Every point with the logarithms of its intensity, its rate and its time."""
    if len(points) == 0:
        raise InputError("no points to draw")
    for point in points:
        if point.machine not in roofs:
            raise InputError(f"point '{point.name}' is on machine '{point.machine}', which has no roof here")
        flop, traffic, time = _logs(point, "flop", "bytes", "seconds")
        yield point, flop - traffic, flop - time, time


def _roof_line(plot: _Plot, colour: str, peak: float, rate: float) -> str:
    """A machine's roof from where it enters the plot, over its ridge, to the right edge; labels keep off it."""
    start = max(float(plot.x[0]), plot.y[0] - rate)
    corners = [(start, start + rate), (peak - rate, peak), (float(plot.x[1]), peak)]
    for step in range(241):  # three px apart across
        log_x = start + (plot.x[1] - start) * step / 240
        plot.keep_clear(*plot.at(log_x, min(peak, log_x + rate)), 3)
    return f'<polyline class="roof" points="{plot.path(corners)}" fill="none" stroke="{colour}" stroke-width="2"/>'


def _roof_row(index: int, roof: Roof) -> tuple[str, str]:
    mark = f'<path d="M-9 4l9-8h9" fill="none" stroke="{_COLOURS[index]}" stroke-width="2"/>{_marks(index, [(0, 3)])}'
    rates = rate_text(roof.peak_flop_per_s, "FLOP/s"), rate_text(roof.memory_bytes_per_s, "B/s")
    return mark, f"{roof.name}: {', '.join(rates)}"


def _decades(logs: Iterable[float], margin: float = 0.0) -> tuple[int, int]:
    """Whole powers of ten around all of the logarithms, at least one decade apart."""
    known = list(logs)
    low, high = math.floor(min(known) - margin), math.ceil(max(known) + margin)
    return low, max(high, low + 1)


def _percent(log_share: float) -> str:
    share = 10 ** min(log_share, 300.0) * 100
    return f"{share:.0f} %" if 10 <= share < 1e6 else f"{share:.2g} %"


def px(value: float) -> str:
    """A coordinate, to a hundredth of a pixel."""
    return f"{round(value, 2) + 0.0:.2f}".rstrip("0").rstrip(".")


def _marks(index: int, places: Iterable[tuple[float, float]]) -> str:
    """A group's marks at places [px], in its colour and shape."""
    shape = _SHAPES[index // len(_HUES)]
    marks = "\n".join(shape.format(x=px(x), y=px(y)) for x, y in places)
    return f'<g class="points" fill="{_COLOURS[index]}" fill-opacity="0.75">{marks}</g>'


def escaped(text: str) -> str:
    """Text that any XML reader takes as it is: markup escaped, what XML cannot hold replaced, ASCII only."""
    return html.escape(_NOT_XML.sub("\ufffd", text)).encode("ascii", "xmlcharrefreplace").decode("ascii")


def _text(x: float, y: float, text: str, *, anchor: str = "start", more: str = "") -> str:
    return f'<text x="{px(x)}" y="{px(y)}" text-anchor="{anchor}"{more}>{escaped(text)}</text>'


def _tick(power: int, unit: str) -> str:
    """A power of ten in its unit, for people: '10 us', '1 TFLOP/s', '100'."""
    if unit == "s" and -12 <= power < 4:
        return time_text(float(f"1e{power}"))
    if unit != "s" and -4 <= power < 21:
        return rate_text(float(f"1e{power}"), unit).strip()
    return f"1e{power} {unit}".strip()


def _axes(plot: _Plot, x_unit: str, y_unit: str, x_title: str, y_title: str) -> list[str]:
    """Grid lines at powers of ten with their labels, the plot's edge and the titles of both axes."""
    right, bottom, middle = _LEFT + plot.width, _TOP + plot.height, _TOP + plot.height / 2
    words = [_text(_LEFT + plot.width / 2, bottom + 44, x_title, anchor="middle")]
    words.append(_text(16, middle, y_title, anchor="middle", more=f' transform="rotate(-90 16 {px(middle)})"'))
    grid = ""
    for power in range(plot.x[0], plot.x[1] + 1, -(-(plot.x[1] - plot.x[0]) // _MOST_TICKS)):
        x = plot.at(power, plot.y[0])[0]
        grid += f"M{px(x)} {px(_TOP)}V{px(bottom)}"
        words.append(_text(x, bottom + 18, _tick(power, x_unit), anchor="middle"))
    for power in range(plot.y[0], plot.y[1] + 1, -(-(plot.y[1] - plot.y[0]) // _MOST_TICKS)):
        y = plot.at(plot.x[0], power)[1]
        grid += f"M{px(_LEFT)} {px(y)}H{px(right)}"
        words.append(_text(_LEFT - 8, y + 4, _tick(power, y_unit), anchor="end"))
    edge = f'<path d="M{px(_LEFT)} {px(_TOP)}V{px(bottom)}H{px(right)}" fill="none" stroke="{_INK}"/>'
    return [f'<path class="grid" d="{grid}" stroke="#d9d9d9"/>', edge, *words]


def _sheet(title: str, plot: _Plot, lines: Iterable[str], legend: Sequence[tuple[str, str]]) -> str:
    """The whole picture on white: title, plot and, right of it, a legend of marks and words."""
    side = _LEFT + plot.width + _GAP
    width = max(side + 24 + _CHAR * max(len(words) for _, words in legend), _LEFT + 10 * len(title)) + _GAP
    height = max(_TOP + plot.height + _BELOW, _TOP + 18 * len(legend) + _GAP)
    size = f'width="{px(width)}" height="{px(height)}" viewBox="0 0 {px(width)} {px(height)}"'
    rows = [
        f'<g transform="translate({px(side + 9)} {px(_TOP + 8 + 18 * row)})">{mark}{_text(15, 4, words)}</g>'
        for row, (mark, words) in enumerate(legend)
    ]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" font-family="sans-serif" font-size="12">'
    head += f'\n<title>{escaped(title)}</title>\n<rect width="100%" height="100%" fill="#ffffff"/>\n<g fill="{_INK}">'
    name = _text(_LEFT, 32, title, more=' font-size="16" font-weight="bold"')
    return "\n".join([head, name, *lines, *rows, "</g>\n</svg>\n"])
