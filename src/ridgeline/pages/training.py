"""Charts of one training plan: memory, time, the timeline of a step, operators under the roof, memory over time."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ridgeline.lower.tasks import TaskGraph
from ridgeline.pages.bars import Bar, bars
from ridgeline.pages.charts import Charts
from ridgeline.pages.curves import Curve, Point, Side, curved, scattered
from ridgeline.pages.drawing import GRID, HUES, Figure, Sheet, box, clipped
from ridgeline.report.picture import escaped, px
from ridgeline.report.report import OpRow, Report, StageMemory
from ridgeline.timeline.simulate import Timeline
from ridgeline.units import bytes_text, rate_text, time_text

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


_BOUNDS = {"compute": HUES[0], "hbm": HUES[1], "link": HUES[2], "host": HUES[3]}
_GIB, _TERA = 2.0**30, 1e12
_LEAST = 1e-4  # of the time, below which a part has no bar: what rounding leaves
_STAGES, _PLACES, _TASKS = 8, 400, 200_000  # drawn over time: stages, places of a curve; tasks that are read


def charts(report: Report) -> Charts:
    """Charts of `predict`."""
    return {
        "memory": lambda: memory(report),
        "time": lambda: _time(report),
        "timeline": lambda: _timeline(report),
        "roofline": lambda: _roofline(report),
        "memory-over-time": lambda: _over_time(report),
    }


def memory(report: Report) -> Figure:
    """Peak bytes of a device of each stage by category, with interval and capacity."""
    names = list(dict.fromkeys(name for stage in report.memory for name in stage.categories))
    colours = {name: HUES[place % len(HUES)] for place, name in enumerate(names)}
    rows = [_stage(stage, colours) for stage in report.memory]
    legend = [(colour, name) for name, colour in colours.items() if any(s.categories.get(name) for s in report.memory)]
    capacity = report.memory[0].capacity_bytes
    note = f"The line is the capacity, {bytes_text(capacity)}; whiskers are 80 % intervals."
    return bars("memory", "Peak memory of a device", rows, mark=capacity, legend=legend, note=note)


def _stage(stage: StageMemory, colours: dict[str, str]) -> Bar:
    parts = tuple(
        (size, colours[name], f"stage {stage.stage}, {name}: {bytes_text(size)}")
        for name, size in stage.categories.items()
        if size > 0
    )
    low, high = stage.interval_bytes
    told = f"{bytes_text(stage.total_bytes)} ({bytes_text(low)} to {bytes_text(high)})"
    return Bar(name=f"stage {stage.stage}", parts=parts, told=told, interval=(low, high))


def _time(report: Report) -> Figure:
    """The step with its interval, and what it is made of on the critical stage."""
    colours = {share.label: HUES[place % len(HUES)] for place, share in enumerate(report.shares)}
    step, total = report.step_time, sum(share.seconds for share in report.shares) or 1.0
    rungs = "; ".join(f"{name}: {rung.label}" for name, rung in report.evidence.items())

    def tip(label: str, kind: str, seconds: float) -> str:
        return f"{label} ({kind}): {time_text(seconds)}, {seconds / total:.1%} of the step\n{rungs}"

    parts = [(one.seconds, colours[one.label], tip(one.label, one.kind, one.seconds)) for one in report.shares]
    rows = [Bar(name="step", told=time_text(step.value), parts=tuple(parts), interval=(step.low, step.high))]
    rows += [
        Bar(
            name=f"{one.label} ({one.kind})", told=f"{time_text(one.seconds)}, {one.seconds / total:.0%}", parts=(part,)
        )
        for one, part in zip(report.shares, parts, strict=True)
        if one.seconds >= _LEAST * total
    ]
    note = f"80 % interval {time_text(step.low)} to {time_text(step.high)}; limited by {report.limit}."
    return bars("time", "Where the step time goes", rows, note=note)


def _timeline(report: Report) -> Figure | None:
    if report.tasks is None or report.timeline is None:
        return None
    return timeline("timeline", "Timeline of one step", report.tasks, report.timeline)


def _roofline(report: Report) -> Figure | None:
    part = report.cluster.accelerator
    shown = [(one, one.forward_s + one.backward_s) for one in report.ops]
    placed = [(one, s) for one, s in shown if one.flop > 0 and one.bytes > 0 and s > 0]
    if not placed:
        return None
    formats = [name for name in ("bf16", "fp16", "fp32") if name in part.peak_flop_per_s][:1]
    formats += ["fp8"] if "fp8" in str(report.workload.precision) and "fp8" in part.peak_flop_per_s else []
    points = [_operator(one, s) for one, s in placed]
    lows, highs = min(one.x for one in points) / 2, max(one.x for one in points) * 2
    roofs = []
    for place, name in enumerate(formats):
        peak = part.peak_flop_per_s[name]
        ridge = peak / part.memory_bytes_per_s
        ends = (min(lows, ridge / 4), max(highs, ridge * 4))
        places = [(ends[0], ends[0] * part.memory_bytes_per_s), (ridge, peak), (ends[1], peak)]
        roofs.append(Curve(name=f"{name} roof, {rate_text(peak, 'FLOP/s')}", places=places, colour=HUES[4 + place]))
    bounds = [
        (colour, f"bound by {name}") for name, colour in _BOUNDS.items() if any(o.bound == name for o, _ in placed)
    ]
    without = len(shown) - len(placed)
    note = f"Datasheet roofs of {part.name}; {without} operators without FLOP are not drawn."
    sides = (
        Side(title="FLOP per byte of memory traffic", told=lambda value: f"{value:g}", scale="log"),
        Side(title="attained TFLOP/s", told=lambda value: f"{value / _TERA:g}", scale="log"),
    )
    return scattered("roofline", "Operators under the roof", points, sides, curves=roofs, legend=bounds, note=note)


def _operator(one: OpRow, seconds: float) -> Point:
    tip = (
        f"{one.block}.{one.op}, {one.layers} layers: {time_text(seconds)} forward and backward\n"
        f"{rate_text(one.flop / seconds, 'FLOP/s')}, {bytes_text(one.bytes)} moved, bound by {one.bound}\n"
        f"evidence: {one.evidence.label}"
    )
    return Point(x=one.flop / one.bytes, y=one.flop / seconds, tip=tip, colour=_BOUNDS.get(one.bound, HUES[7]))


def _over_time(report: Report) -> Figure | None:
    """Bytes of the stages while micro-batches come and go: activations by how many are in flight."""
    if report.tasks is None or report.timeline is None or len(report.memory) < 2 or report.tasks.tasks > _TASKS:
        return None
    curves = []
    held = report.memory if len(report.memory) <= _STAGES else (*report.memory[: _STAGES // 2], *report.memory[-4:])
    for place, stage in enumerate(held):
        kept = stage.total_bytes - stage.categories.get("activations", 0.0)
        flights = list(_in_flight(report, stage.stage))
        most = max((count for _, count in flights), default=0)
        if most:
            each = stage.categories.get("activations", 0.0) / most
            steps = [(at, (kept + each * count) / _GIB) for at, count in flights]
            stride = -(-len(steps) // _PLACES)
            colour = HUES[place % len(HUES)]
            curves.append(Curve(name=f"stage {stage.stage}", places=steps[::stride], colour=colour))
    sides = (Side(title="time", told=time_text), Side(title="GiB of a device", told=lambda value: f"{value:g}"))
    note = "Activations follow the micro-batches in flight; all other categories are drawn at their peak."
    return curved("memory-over-time", "Memory over the step", curves, sides, note)


def _in_flight(report: Report, stage: int) -> Iterator[tuple[float, int]]:
    """Times [s] at which the micro-batches of a stage whose activations are held change, and how many then are."""
    tasks, found = report.tasks, report.timeline
    assert tasks is not None
    assert found is not None
    mine = np.isin(tasks.stream, [place for place, device in enumerate(tasks.stream_device) if device == stage])
    chosen = mine & (tasks.micro_batch >= 0)
    forward = np.array([label == "F" for label in tasks.label])[tasks.kind]
    backward = np.array([label.startswith(("B", "W")) for label in tasks.label])[tasks.kind]
    which = tasks.micro_batch * (int(tasks.chunk.max(initial=0)) + 1) + tasks.chunk
    begun, ended = (np.full(int(which.max(initial=0)) + 1, empty) for empty in (np.inf, -np.inf))
    np.minimum.at(begun, which[chosen & forward], found.start_s[chosen & forward])
    np.maximum.at(ended, which[chosen & backward], found.end_s[chosen & backward])
    begins, ends = begun[np.isfinite(begun)], ended[np.isfinite(begun) & np.isfinite(ended)]
    at, change = np.concatenate((begins, ends)), np.repeat((1, -1), (len(begins), len(ends)))
    order = np.lexsort((change, at))
    counts = np.cumsum(change[order]).tolist()
    for time_s, before, after in zip(at[order].tolist(), [0, *counts], counts, strict=False):
        yield time_s, before
        yield time_s, after
