"""Advice in words, tables and bars; as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ridgeline.report.advice import Advice, AdvisedValue
from ridgeline.report.as_json import as_value
from ridgeline.report.blocks import Block, Line, Table, blank, labelled, listed
from ridgeline.units import bytes_text, time_text

_WHOLE = 1_000  # of a value, from which on it is told in whole numbers
_BAR = 40  # columns of the longest bar
_MORE = ("goodput", "throughput", "cache")  # objectives of which more is better
_HELPS, _REFUSED, _IDLE = 8, 40, 24  # lines of those that do not apply, or do not help


def value_text(advice: Advice, value: float) -> str:
    """A value of the objective with its unit."""
    if advice.unit == "s":
        return time_text(value)
    if advice.unit == "byte":
        return bytes_text(value)
    told = f"{value:,.0f}" if value >= _WHOLE else f"{value:,.4g}"
    return f"${told}" if advice.unit.startswith("USD") else f"{told} {advice.unit}"


def gain_text(found: AdvisedValue | None) -> str:
    """How many times better, with its interval."""
    if found is None:
        return "-"
    return f"{found.value:.2f}x ({found.low:.2f} to {found.high:.2f})"


def advice_blocks(advice: Advice) -> list[Block]:
    """What `ridgeline advise` prints: limits, the floor, what helps, the best stack, what does not."""
    more = advice.measure in _MORE
    rows = [("asked", f"{'more' if more else 'less'} {advice.measure}")]
    rows += [("baseline", advice.baseline)]
    rows += [("load", advice.load)] if advice.load else []
    rows += [("now", _now(advice))]
    rows += [("limited by", advice.limit)] if advice.limit and advice.fits else []
    if advice.floor is not None:
        rows.append(("at best", f"{value_text(advice, advice.floor)}: {advice.floor_why}"))
    blocks: list[Block] = [Line(text=advice.title, strong=True), *labelled(rows), blank()]
    blocks += _limits(advice)
    blocks += _stack(advice)
    blocks += _helps(advice)
    blocks += _listed("Tried, of no use alone", ("it is", "words"), _grouped(advice.idle), _IDLE)
    blocks += _listed("Techniques that do not apply", ("word", "why"), list(advice.refused.items()), _REFUSED)
    told = f"{advice.tried:,} changes and stacks bounded, {advice.simulated:,} simulated or replayed"
    return [*blocks, *listed((*advice.assumed, told), "Notes")[:-1]]


def _now(advice: Advice) -> str:
    if not advice.fits:
        return (
            f"does not fit: {bytes_text(advice.memory_bytes)} of {bytes_text(advice.capacity_bytes)} a device,"
            f" {bytes_text(advice.excess_bytes)} too much"
        )
    value = "does not run" if advice.value is None else value_text(advice, advice.value)
    return f"{value}; {bytes_text(advice.memory_bytes)} of {bytes_text(advice.capacity_bytes)} a device"


def _limits(advice: Advice) -> list[Block]:
    if not advice.limits:
        return []
    rows = tuple(
        (one.part, one.kind, time_text(one.seconds), f"{one.share:.0%}", "#" * max(1, round(one.share * _BAR)))
        for one in advice.limits
    )
    title = "What limits it" if advice.fits else "What would limit it, if it did fit"
    columns = ("part", "keeps busy", "time", "share", "")
    table = Table(columns=columns, rows=rows, right=frozenset({"time", "share"}))
    return [Line(text=title, strong=True), table, blank()]


def _stack(advice: Advice) -> list[Block]:
    if not advice.stack:
        return [Line(text="Nothing tried helps by half a percent or more.", strong=True), blank()]
    reached = "" if advice.best is None else f": {value_text(advice, advice.best)}"
    total = "" if advice.stack_gain is None else f", {gain_text(advice.stack_gain)}"
    fits = "" if advice.best is not None else " (it still does not fit)"
    lines: list[Block] = [Line(text=f"Best stack{reached}{total}{fits}", strong=True)]
    steps: list[tuple[str, float | None, float, AdvisedValue | None]]
    steps = [("as written", advice.value, advice.memory_bytes, None)]
    steps += [(one.written, one.value, one.memory_bytes, one.gain) for one in advice.stack]
    rows = [
        (name, bar_value(advice, value, size), *_bar(advice, value, size), "" if gain is None else f"{gain.value:.2f}x")
        for name, value, size, gain in steps
    ]
    by_memory = any(one.value is None for one in advice.stack) or advice.value is None
    columns = ("step", advice.measure, "memory a device", "memory" if by_memory else "", "gain")
    table = Table(columns=columns, rows=tuple(rows), right=frozenset({advice.measure, "memory a device", "gain"}))
    last = [("write", advice.stack_words)] + ([("runs in", advice.stack_effort)] if advice.stack_effort else [])
    return [*lines, table, blank(), *labelled([*last, *_part(advice)]), blank()]


def _part(advice: Advice) -> list[tuple[str, str]]:
    """What of the stack one program runs, and how far that goes."""
    one = advice.part
    if one is None:
        return []
    reached = "it still does not fit" if one.value is None else value_text(advice, one.value)
    far = f"{reached}{'' if one.gain is None else f', {gain_text(one.gain)}'}"
    return [("of it", f"{one.programs} {'run' if ', ' in one.programs else 'runs'} {one.words}: {far}")]


def bar_value(advice: Advice, value: float | None, memory_bytes: float) -> str:
    """The objective after a step in words, or why it has none."""
    if value is not None:
        return value_text(advice, value)
    return "does not fit" if memory_bytes > advice.capacity_bytes else "host is full"


def most_of(advice: Advice) -> tuple[bool, float]:
    """Whether bars are of memory, as where the baseline does not fit, and the largest [the objective's or byte]."""
    values = [advice.value, *(one.value for one in advice.stack)]
    if None in values:
        return True, max(advice.memory_bytes, *(one.memory_bytes for one in advice.stack))
    return False, max(value for value in values if value is not None)


def _bar(advice: Advice, value: float | None, memory_bytes: float) -> tuple[str, str]:
    by_memory, most = most_of(advice)
    amount = memory_bytes if by_memory else (value or 0.0)
    return bytes_text(memory_bytes), "#" * max(1, round(amount / most * _BAR / 2))


def _helps(advice: Advice) -> list[Block]:
    if not advice.helps:
        return []
    blocks: list[Block] = [Line(text="What helps, each alone", strong=True)]
    for place, one in enumerate(advice.helps[:_HELPS], start=1):
        gained = gain_text(one.gain)
        if one.gain is None:
            gained = "fits" if one.fits else f"{bytes_text(one.excess_bytes)} too much left"
        blocks += [Line(text=f"{place}. {one.written}: {gained}", indent=2, hang=3, strong=True)]
        rows = [("does", one.what), ("because", one.why), ("then", f"{one.then} limits" if one.then else "")]
        rows += [("memory", bytes_text(one.memory_bytes) + " a device"), ("accuracy", one.quality), ("in", one.effort)]
        blocks += [Line(text=f"{name:<10}{text}", indent=5, hang=10) for name, text in rows if text]
    more = len(advice.helps) - _HELPS
    blocks += [Line(text=f"and {more} more (--json)", indent=2)] if more > 0 else []
    return [*blocks, blank()]


def _listed(title: str, columns: tuple[str, str], rows: Sequence[tuple[str, str]], most: int) -> list[Block]:
    """A titled table of the first `most` rows, and how many more there are; nothing where there are none."""
    if not rows:
        return []
    more = [Line(text=f"and {len(rows) - most} more (--json)", indent=2)] if len(rows) > most else []
    return [Line(text=title, strong=True), Table(columns=columns, rows=tuple(rows[:most])), *more, blank()]


def _grouped(found: Mapping[str, str]) -> list[tuple[str, str]]:
    """What was tried in vain, words of one result together, the least harm first."""
    groups: dict[str, list[str]] = {}
    for word, why in found.items():
        groups.setdefault(why, []).append(word)
    return [(why, ", ".join(words)) for why, words in groups.items()]


def advice_as_dict(advice: Advice) -> dict[str, Any]:
    """The advice with stable keys and SI numbers, for `--json`; infinite and unknown numbers are null."""
    return {**as_value(advice), "fits": advice.fits}
