"""How far a time on both sides, devices and processors, may be off: the 80 % interval by what it is spent on."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from ridgeline.cost.answer import interval
from ridgeline.facts.mechanisms import constant
from ridgeline.facts.records import Evidence
from ridgeline.serving.hybrid_sides import HybridParts

SIDES = ("device", "host", "link", "sync", "disk")


@cache
def spread() -> Mapping[str, tuple[float, float]]:
    """Times of the parts of an iteration over the prediction: low and high end of an 80 % interval, by side [1]."""
    host, link, start = (
        (constant(f"interval.both_sides.{name}.low"), constant(f"interval.both_sides.{name}.high"))
        for name in ("host", "link", "start")
    )
    return {"device": interval(1.0, Evidence.DERIVED), "host": host, "link": link, "sync": start, "disk": start}


def band(spent: HybridParts, *, guessed: bool = False) -> tuple[float, float]:
    """Low and high end of the 80 % interval of a time, over it [1]: of each part by what it takes.

    Squared where the job itself was `guessed`: its processors, its format or what the devices hold.
    """
    seconds, ends = {name: float(getattr(spent, name).sum()) for name in SIDES}, spread()
    whole = sum(seconds.values()) or 1.0
    low, high = (sum(ends[name][end] * seconds[name] for name in SIDES) / whole for end in (0, 1))
    return (low * low, high * high) if guessed else (low, high)
