"""Charts of `advise`: the best stack step by step, and what limits the scenario."""

from __future__ import annotations

from ridgeline.pages.bars import Bar, bars
from ridgeline.pages.charts import Charts
from ridgeline.pages.drawing import HUES, Figure
from ridgeline.report.advice import Advice, AdvisedValue
from ridgeline.report.advice_text import bar_value, gain_text, most_of
from ridgeline.units import bytes_text, time_text


def charts(advice: Advice) -> Charts:
    """The waterfall, gains of each technique alone, and the limits."""
    return {"waterfall": lambda: _waterfall(advice), "gains": lambda: _gains(advice), "limits": lambda: _limits(advice)}


def _waterfall(advice: Advice) -> Figure:
    """The objective, or the memory of a device where it does not fit at first, step by step."""
    by_memory = most_of(advice)[0]
    rows, before = [], None
    steps: list[tuple[str, float | None, float, AdvisedValue | None, str]]
    steps = [("as written", advice.value, advice.memory_bytes, None, "")]
    steps += [(one.written, one.value, one.memory_bytes, one.gain, one.why) for one in advice.stack]
    for name, value, memory, gain, why in steps:
        amount = memory if by_memory else value or 0.0
        told = bytes_text(memory) if by_memory else bar_value(advice, value, memory)
        tip = "\n".join(filter(None, (name, told, "" if gain is None else gain_text(gain), why)))
        rows.append(Bar(name=name, parts=((amount, HUES[0], tip),), told=told, ghost=before or 0.0))
        before = amount
    limit = advice.capacity_bytes if by_memory else advice.floor
    what = "memory of a device" if by_memory else advice.measure
    note = "The line is the capacity." if by_memory else advice.floor_why and f"The line: {advice.floor_why}."
    return bars("waterfall", f"Best stack: {what}", rows, mark=limit, note=note)


def _gains(advice: Advice) -> Figure | None:
    found = [(one, one.gain) for one in advice.helps[:16] if one.gain is not None]
    if not found:
        return None
    rows = [
        Bar(
            name=one.written, told=f"{gain.value:.2f}x", interval=(gain.low, gain.high),
            parts=((gain.value, HUES[2], f"{one.written}: {gain_text(gain)}\n{one.why}\n{one.quality}"),),
        )
        for one, gain in found
    ]  # fmt: skip
    return bars("gains", "What helps, each alone", rows, mark=1.0)


def _limits(advice: Advice) -> Figure | None:
    if not advice.limits:
        return None
    rows = [
        Bar(
            name=one.part, told=f"{time_text(one.seconds)}, {one.share:.0%}",
            parts=((one.seconds, HUES[1], f"{one.part}: keeps {one.kind} busy for {time_text(one.seconds)}"),),
        )
        for one in advice.limits
    ]  # fmt: skip
    return bars("limits", "What limits it", rows)
