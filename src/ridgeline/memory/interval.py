"""How far a predicted peak of memory may lie from a measured one: its 80 % interval.

States are counted exactly: weights, gradients and optimizer states are numbers times bytes. Transient bytes are not:
kernels' scratch, fragmentation and tensors of the loss differ by program. The interval is theirs alone, and its low end
never falls below the states.
"""

from __future__ import annotations

from collections.abc import Mapping

from ridgeline.facts.mechanisms import constant

STATES = ("weights", "gradients", "optimizer")
"""Memory categories that are counted exactly."""


def peak_interval(categories: Mapping[str, float]) -> tuple[float, float]:
    """Low and high end of the 80 % interval of a sum of memory categories [byte, or the unit of its values].

    Domain: training; source: rows memory.transient.low and .high of the mechanism table.
    """
    states = sum(size for name, size in categories.items() if name in STATES)
    transient = sum(size for name, size in categories.items() if name not in STATES)
    return states + constant("memory.transient.low") * transient, states + constant("memory.transient.high") * transient
