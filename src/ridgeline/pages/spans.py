"""The timeline of a step: a row per stream, a span per task, which a page can zoom and pan in time."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ridgeline.lower.tasks import TaskGraph
from ridgeline.pages.drawing import GRID, HUES, Figure, Sheet, box, clipped, px
from ridgeline.report.picture import escaped
from ridgeline.timeline.simulate import Timeline
from ridgeline.units import time_text

_WIDE, _LEFT, _ROW, _BAR = 1080.0, 120.0, 20.0, 16.0  # px
_VIEW = 1_000_000.0  # of the view's own units along time
_STREAMS, _SPANS, _TICKS = 32, 20_000, 7  # drawn at most


def timeline(name: str, title: str, tasks: TaskGraph, found: Timeline) -> Figure:
    """The streams of a step over time; where there are more spans than are drawn, short neighbours are one."""
    shown = [place for place in range(len(tasks.stream_names)) if np.any(tasks.stream == place)]
    drawn = shown[:_STREAMS]
    total_s = found.makespan_s or 1.0
    count = int(np.isin(tasks.stream, drawn).sum())
    least_s = 0.0 if count <= _SPANS else 2.0 * total_s * len(drawn) / _SPANS
    kinds = dict.fromkeys(tasks.label[int(kind)] for kind in np.unique(tasks.kind[np.isin(tasks.stream, drawn)]))
    colours = {label: HUES[place % len(HUES)] for place, label in enumerate(kinds)}
    sheet = Sheet(width=_WIDE)
    height, wide = _ROW * len(drawn), _WIDE - _LEFT - 10
    rows, used = [], dict[str, None]()
    for row, stream in enumerate(drawn):
        stream_name = tasks.stream_names[stream]
        sheet.text(4, 20 + row * _ROW, clipped(stream_name, _LEFT - 8))
        spans: dict[str, list[tuple[float, float, int]]] = {}
        for start, end, label, batch in _spans(tasks, found, stream, least_s):
            spans.setdefault(label, []).append((start / total_s, end / total_s, batch))
        rows += [_path(f"{label}, {stream_name}", row, colours[label], each) for label, each in spans.items()]
        used |= dict.fromkeys(spans)
    inner = f'x="{px(_LEFT)}" y="6" width="{px(wide)}" height="{px(height)}" viewBox="0 0 {px(_VIEW)} {px(height)}"'
    back = box(0, 0, (_VIEW, height), GRID, more=' opacity="0.35"')
    sheet.parts.append(f'<svg class="view" {inner} preserveAspectRatio="none">{back}{"".join(rows)}</svg>')
    sheet.height = height + 6
    _ticks(sheet, total_s, wide)
    sheet.legend([(colours[label], label) for label in colours if label in used])
    svg = sheet.svg(title, "zooms").replace("<svg ", f'<svg data-seconds="{float(total_s)!r}" ', 1)
    notes = [f"{len(drawn)} of {len(shown)} streams."] if len(shown) > len(drawn) else []
    notes += [f"Neighbours shorter than {time_text(least_s)} are drawn as one; --trace has all."] if least_s else []
    return Figure(name=name, title=title, svg=svg, note=" ".join(notes), wide=True, zooms=True)


def _path(name: str, row: int, colour: str, spans: list[tuple[float, float, int]]) -> str:
    """All spans of a kind on a stream as one path; a page finds the one under the pointer, and its micro-batch."""
    y, places = px(row * _ROW + 2), [(round(start * _VIEW), round(end * _VIEW)) for start, end, _ in spans]
    d = "".join(f"M{start} {y}h{max(end - start, 1)}v{_BAR:g}h-{max(end - start, 1)}z" for start, end in places)
    batches = " ".join(str(batch) for *_, batch in spans)
    return f'<path class="spans" d="{d}" fill="{colour}" data-batches="{batches}"><title>{escaped(name)}</title></path>'


def _ticks(sheet: Sheet, total_s: float, wide: float) -> None:
    """Times under the view; a page writes others where it is zoomed."""
    sheet.parts.append('<g class="ticks">')
    for tick in range(_TICKS):
        told = time_text(total_s * tick / (_TICKS - 1)) if tick else "0 s"
        anchor = "end" if tick == _TICKS - 1 else "start"
        sheet.text(_LEFT + wide * tick / (_TICKS - 1), sheet.height + 16, told, anchor=anchor)
    sheet.parts.append("</g>")
    sheet.height += 20


def _spans(tasks: TaskGraph, found: Timeline, stream: int, least_s: float) -> Iterator[tuple[float, float, str, int]]:
    """Start and end [s], label and micro-batch (-1 for none) of each span; short neighbours become one."""
    start, end, label, batch = 0.0, -1.0, "", -1
    order = np.flatnonzero(tasks.stream == stream)
    order = order[np.argsort(found.start_s[order], kind="stable")]
    columns = (found.start_s, found.end_s, tasks.kind, tasks.micro_batch)
    for begins, ends, kind, micro_batch in zip(*(column[order].tolist() for column in columns), strict=True):
        if label and max(ends - begins, end - start) < least_s and begins - end < least_s:
            end = max(end, ends)
            continue
        if label:
            yield start, end, label, batch
        start, end, label, batch = begins, ends, tasks.label[kind], micro_batch
    if label:
        yield start, end, label, batch
