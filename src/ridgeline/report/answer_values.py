"""Numbers in an answer's JSON by their dotted path, each with the interval that the answer has for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_SHARED = {
    **dict.fromkeys(
        ("tokens_per_s", "tokens_per_s_per_device", "samples_per_s", "mfu", "hfu", "mfu_causal"), "step_time_s"
    ),
    "output_tokens_per_s": "latency_s",
}
"""Rates, and the time by which they are divided, whose interval they share."""
_IN_STEP_TIME = ("run_time_s", "usd_per_step", "run_usd")
_INTERVAL = {
    "value": ("low", "high"),
    "tokens_per_s": ("low", "high"),
    "total_bytes": ("low_bytes", "high_bytes"),
    "seconds": ("low_s", "high_s"),
}


@dataclass(frozen=True, kw_only=True)
class ValueRange:
    """A number and the interval it lies in, in its own unit; one without an interval is exact."""

    low: float
    mid: float
    high: float


def value_at(answer: Mapping[str, Any], path: str) -> ValueRange:
    """The number at a dotted path, with the interval that the answer has for it; a `ValueError` where there is none.

    A part of the path is a key, a place in a list (-1 the last), `*` for the largest of a list, or `KEY=WORD` for the
    first entry whose KEY is WORD.

    >>> value_at({"memory": [{"total_bytes": 3, "low_bytes": 2, "high_bytes": 5}]}, "memory.0.total_bytes")
    ValueRange(low=2.0, mid=3.0, high=5.0)
    """
    parts = path.split(".")
    mid = _number(answer, parts)
    found = [mid, *_beside(answer, parts, mid), *_replayed(answer, parts)]
    return ValueRange(low=min(found), mid=mid, high=max(found))


def _number(answer: Any, parts: list[str]) -> float:
    for place, part in enumerate(parts):
        if part == "*":
            if not isinstance(answer, list) or not answer:
                raise ValueError(f"'{'.'.join(parts[:place])}' is no list")
            return max(_number(each, parts[place + 1 :]) for each in answer)
        answer = _step(answer, part, ".".join(parts))
    if not isinstance(answer, int | float):
        raise ValueError(f"'{'.'.join(parts)}' is {'nothing' if answer is None else 'no number'}")
    return float(answer)


def _step(answer: Any, part: str, path: str) -> Any:
    if isinstance(answer, Mapping) and part in answer:
        return answer[part]
    if isinstance(answer, list):
        key, _, word = part.partition("=")
        if word:
            answer = [each for each in answer if isinstance(each, Mapping) and str(each.get(key)) == word]
            part = "0"
        if part.lstrip("-").isdigit() and -len(answer) <= int(part) < len(answer):
            return answer[int(part)]
    raise ValueError(f"the answer has no '{path}'")


def _beside(answer: Mapping[str, Any], parts: list[str], mid: float) -> Iterator[float]:
    """The ends of the interval that stands beside a number."""
    *above, last = parts
    beside = [found for end in _INTERVAL.get(last, ()) if (found := _there(answer, [*above, end])) is not None]
    yield from beside
    time = "step_time_s" if last in _IN_STEP_TIME else _SHARED.get(last)
    if beside or above or time is None:
        return
    middle, *ends = (_there(answer, [time, end]) for end in ("value", "low", "high"))
    for end in ends:
        if middle and end:
            yield mid * end / middle if last in _IN_STEP_TIME else mid * middle / end


def _replayed(answer: Mapping[str, Any], parts: list[str]) -> Iterator[float]:
    for end in answer.get("ends") or ():
        if isinstance(end, Mapping) and (found := _there(end, parts)) is not None:
            yield found


def _there(answer: Any, parts: list[str]) -> float | None:
    try:
        return _number(answer, parts)
    except ValueError:
        return None
