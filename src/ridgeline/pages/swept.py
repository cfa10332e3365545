"""Charts of `sweep`: the chosen number over the words that vary, beside a second number, and what was refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from ridgeline.pages.bars import Bar, bars
from ridgeline.pages.charts import Charts
from ridgeline.pages.curves import Curve, Point, Side, fronted, scattered
from ridgeline.pages.drawing import HUES, Figure
from ridgeline.report.blocks import reason_of

Row = Mapping[str, Any]
_NUMBERS = (
    "step_time_s", "tokens_per_s", "good_rps", "goodput_rps", "output_tokens_per_s", "tpot_p99_s", "seconds",
)  # fmt: skip
_SECOND = ("memory.0.total_bytes", "energy_j_per_step", "usd_per_step", "usd_per_h", "ttft_p99_s", "energy_j")
_MOST, _WORDS = 8, 4  # curves of a panel; words that have a chart each
_MORE = ("per_s", "rps", "mfu", "goodput", "attained")  # of what more is better


class Swept(Protocol):
    """The records of a sweep, with the words that vary in it and the columns that were asked for."""

    words: Sequence[str]
    columns: Sequence[str]

    def __iter__(self) -> Iterator[Row]:
        """Each record."""


def charts(found: Swept) -> Charts:
    """The number over each word that varies, against a second number, and reasons of what has no answer."""
    done = [row for row in found if row["status"] == "answered"]
    numbers = [name for name in dict.fromkeys(name for row in done[:100] for name in row) if name not in found.words]
    numbers = [name for name in numbers if any(_number(row.get(name)) for row in done) and name != "number"]
    numbers = [name for name in numbers if not name.endswith(("_low", "_high"))]
    chosen = [name for name in (*found.columns, *_NUMBERS, *_SECOND, *numbers) if name in numbers]
    drawn: dict[str, Any] = {}
    if chosen:
        first = chosen[0]
        varied = [word for word in found.words if len({str(row.get(word)) for row in done}) > 1]
        for word in varied[:_WORDS]:
            other = next((one for one in varied if one != word), "")
            drawn[f"by-{word}"] = lambda word=word, other=other: _response(done, first, word, other)
        others = [name for name in (*found.columns[1:], *_SECOND, *chosen[1:]) if name in chosen[1:]]
        second = next((name for name in others if len({row.get(name) for row in done}) > 1), "")
        if second:
            drawn["front"] = lambda: _front(done, found.words, first, second)
    return {**drawn, "refused": lambda: _refused(list(found))}


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _told(value: float) -> str:
    if abs(value) < 1e4:
        return f"{value:.4g}"
    scales = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
    size, letter = next(one for one in scales if abs(value) >= one[0])
    return f"{value / size:.3g}{letter}"


def _better(name: str) -> bool:
    return any(part in name for part in _MORE)


def _words(row: Row, words: Sequence[str]) -> str:
    return f"#{row['number']}: " + ", ".join(f"{word} {row[word]}" for word in words if row.get(word) is not None)


def _response(rows: Sequence[Row], name: str, word: str, other: str) -> Figure | None:
    """The best value at each value of a word, a curve for each value of another; places in order where it is a text."""
    values = list(dict.fromkeys(row[word] for row in rows if row.get(word) is not None))
    numeric = all(map(_number, values))
    places = {value: float(value) if numeric else float(place) for place, value in enumerate(values, 1)}
    ahead = max if _better(name) else min
    kinds = list(dict.fromkeys(row.get(other) for row in rows)) if other else [None]
    points, curves = list[Point](), list[Curve]()
    for at, kind in enumerate(kinds[:_MOST]):
        best: dict[float, Row] = {}
        for row in rows:
            if row.get(word) in places and _number(row.get(name)) and (not other or row.get(other) == kind):
                x = places[row[word]]
                best[x] = ahead((row, best[x]), key=lambda one: float(one[name])) if x in best else row
        line = [(x, float(row[name])) for x, row in sorted(best.items())]
        colour, label = HUES[at % len(HUES)], f"{other} {kind}" if other else name
        curves.append(Curve(name=label, places=line, colour=colour))
        points += [
            Point(x=x, y=float(row[name]), colour=colour, tip=_tip(row, name, word, other)) for x, row in best.items()
        ]
    if len(points) < 2:
        return None
    texts = {float(place): str(value) for value, place in places.items()}
    least, most = min(places.values()), max(places.values())
    scale = "log" if numeric and 0 < least <= most / 8 else "near"
    across = Side(title=word, told=_told if numeric else lambda x: texts.get(x, ""), scale=scale)
    up = Side(title=name, told=_told)
    much = f" The first {_MOST} of {len(kinds)} values of {other} are drawn." if len(kinds) > _MOST else ""
    note = f"The {'greatest' if ahead is max else 'least'} of {len(rows):,} answered cases at each place.{much}"
    return scattered(f"by-{word}", f"{name} by {word}", points, (across, up), curves=curves, note=note)


def _tip(row: Row, name: str, *words: str) -> str:
    low, high = row.get(f"{name}_low"), row.get(f"{name}_high")
    ends = f"\n80 % interval {low:.4g} to {high:.4g}" if _number(low) and _number(high) else ""
    rung = f"\nevidence: {row[f'{name}_evidence']}" if f"{name}_evidence" in row else ""
    return f"{_words(row, [word for word in words if word])}\n{name} {row[name]:.4g}{ends}{rung}"


def _front(rows: Sequence[Row], words: Sequence[str], first: str, second: str) -> Figure | None:
    """Cases by two numbers; of many, those nearest to the front and a part of the others."""
    known = [row for row in rows if _number(row.get(first)) and _number(row.get(second))]
    points = [Point(x=row[first], y=row[second], tip=_tip(row, first, *words) + f"\n{second} {row[second]:.4g}")
              for row in known]  # fmt: skip
    more = _better(first), _better(second)
    best = _ahead(points, *more)
    rest = [one for one in points if one not in best]
    shown = [*best, *rest[:: max(1, -(-len(rest) // 300))]]
    if len(points) < 2:
        return None
    sides = Side(title=first, told=_told, scale="near"), Side(title=second, told=_told, scale="near")
    thinned = f" {len(shown):,} of {len(points):,} cases are drawn." if len(shown) < len(points) else ""
    note = f"Grey: another is better in both; {len(best):,} are not.{thinned}"
    kept = fronted(shown, more_x=more[0], more_y=more[1])
    return scattered("front", f"{first} and {second}", kept, sides, note=note)


def _ahead(points: Sequence[Point], more_x: bool, more_y: bool) -> list[Point]:
    """The points that none is better than in both, at most 100, by one pass in the order of the first."""
    side_x, side_y = 1 if more_x else -1, 1 if more_y else -1
    found, most = list[Point](), float("-inf")
    for one in sorted(points, key=lambda one: (-side_x * one.x, -side_y * one.y)):
        if side_y * one.y > most:
            most = side_y * one.y
            found.append(one)
    return found[:100]


def _refused(rows: Sequence[Row]) -> Figure | None:
    """Cases without an answer by reason, the most frequent first."""
    failed = [row for row in rows if row.get("error")]
    reasons = Counter(reason_of(row["error"]) for row in failed)
    if not reasons:
        return None
    first = {reason_of(row["error"]): row for row in reversed(failed)}
    shown = [
        Bar(name=row["error"], told=f"{many:,}", parts=((many, HUES[4 if row["status"] == "refused" else 1],
            f"{row['status']}: {many:,} cases, the first #{row['number']}\n{row['error']}"),))
        for row, many in ((first[reason], many) for reason, many in reasons.most_common(12))
    ]  # fmt: skip
    title = f"{reasons.total():,} of {len(rows):,} cases have no answer, by reason"
    return bars("refused", title, shown, legend=[(HUES[4], "refused"), (HUES[1], "impossible")])
