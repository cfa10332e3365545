"""Eighty-per-cent intervals around a predicted time, from the residuals of its evidence rung."""

from __future__ import annotations

from ridgeline.facts.mechanisms import constant
from ridgeline.facts.records import Evidence


def interval(seconds: float, rung: Evidence) -> tuple[float, float]:
    """Low and high end of the 80 % interval of a time [s].

    The factors are the 10 % and 90 % quantiles of measured / predicted over operator rows, per rung; rungs
    below the measured one have wider ones. What is assumed has both ends of the derived rung as much farther out as on
    the one measured device whose vendor lends nothing. Source: rows interval.* of the mechanism table.
    """
    if rung is Evidence.ASSUMED:
        far, (low, high) = constant("interval.foreign"), interval(seconds, Evidence.DERIVED)
        return low / far, high * far
    name = "measured" if rung >= Evidence.MEASURED else rung.name.lower()
    return seconds * constant(f"interval.{name}.low"), seconds * constant(f"interval.{name}.high")
