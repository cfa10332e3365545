"""How far a time on both sides, devices and processors, may be off: the 80 % interval by what it is spent on."""

from __future__ import annotations

from ridgeline.cost.interval import interval
from ridgeline.facts.records import Evidence
from ridgeline.serving.hybrid_sides import HybridParts

SPREAD = {
    "device": interval(1.0, Evidence.DERIVED),  # kernels of other devices
    "host": (0.7, 1.63),  # clocks are base clocks, and the best kernels read at 0.9 of nominal instead of 0.66
    "link": (0.88, 1.3),  # a link never runs above its nominal rate
    "sync": (0.5, 2.0),  # starts are assumed
    "disk": (0.5, 2.0),  # latencies are assumed
}
"""Times of the parts of an iteration against the prediction: low and high end of an 80 % interval, as factors [1]."""


def band(spent: HybridParts, *, guessed: bool = False) -> tuple[float, float]:
    """Low and high end of the 80 % interval of a time, over it [1]: of each part by what it takes.

    Squared where the job itself was `guessed`: its processors, its format or what the devices hold.
    """
    seconds = {name: float(getattr(spent, name).sum()) for name in SPREAD}
    whole = sum(seconds.values()) or 1.0
    low, high = (sum(SPREAD[name][end] * seconds[name] for name in SPREAD) / whole for end in (0, 1))
    return (low * low, high * high) if guessed else (low, high)
