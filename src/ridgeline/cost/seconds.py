"""Times with their intervals, as arrays over what is asked of a served layer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ridgeline.facts.mechanisms import constant

Array = NDArray[np.float64]
_UNFITTED = (0.85, 1.3)  # of unfitted links and streams: the residuals of datasheet rates (interval.* of mechanisms)


@dataclass(frozen=True, kw_only=True)
class Seconds:
    """Time with its 80 % interval, and how long the matrix units and the memory are busy in it, arrays [s]."""

    mid: Array
    low: Array
    high: Array
    compute: Array
    memory: Array

    def __add__(self, other: Seconds) -> Seconds:
        return Seconds(
            mid=self.mid + other.mid,
            low=self.low + other.low,
            high=self.high + other.high,
            compute=self.compute + other.compute,
            memory=self.memory + other.memory,
        )

    def times(self, factor: float) -> Seconds:
        """The same, `factor` times over [s]."""
        return Seconds(**{name: factor * value for name, value in vars(self).items()})

    def beyond(self, other: Seconds) -> Seconds:
        """What this takes more than the other, never less than nothing, with the interval that this one has [s]."""
        share = np.maximum(0.0, 1.0 - other.mid / np.maximum(self.mid, 1e-30))
        busy = {name: np.maximum(0.0, getattr(self, name) - getattr(other, name)) for name in ("compute", "memory")}
        return Seconds(mid=share * self.mid, low=share * self.low, high=share * self.high, **busy)

    def where(self, here: Array | NDArray[np.bool_], other: Seconds) -> Seconds:
        """This `here`, else the other [s]."""
        return Seconds(**{name: np.where(here, value, getattr(other, name)) for name, value in vars(self).items()})


def nothing(shape: tuple[int, ...]) -> Seconds:
    """No time at all [s]."""
    zero = np.zeros(shape)
    return Seconds(mid=zero, low=zero, high=zero, compute=zero, memory=zero)


def unfitted(mid: Array, *, compute: Array | None = None, memory: Array | None = None) -> Seconds:
    """Time of a link or a stream by its datasheet's rates, with the interval of these [s]."""
    none = 0.0 * mid
    return Seconds(
        mid=mid, low=_UNFITTED[0] * mid, high=_UNFITTED[1] * mid, compute=none if compute is None else compute,
        memory=none if memory is None else memory,
    )  # fmt: skip


def banded(kind: str, mid: Array, compute: Array, memory: Array) -> Seconds:
    """Time with the interval that mechanisms of a kind are known to have, `kind.low` to `kind.high` of it [s]."""
    low, high = constant(f"{kind}.low"), constant(f"{kind}.high")
    return Seconds(mid=mid, low=low * mid, high=high * mid, compute=compute, memory=memory)
