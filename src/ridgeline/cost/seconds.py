"""Times with their intervals, as arrays over what is asked of a served layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ridgeline.cost.formats import form
from ridgeline.cost.mechanism import device_rates
from ridgeline.facts.mechanisms import constant
from ridgeline.facts.records import Accelerator
from ridgeline.lower.work import Number

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Seconds:
    """Time with its 80 % interval, and how long the matrix units and the memory are busy in it, arrays [s].

    `below` and `above` [s] are what is a shape's own of how far each end is from the middle. In a sum the squares of
    these add up, and what all shapes of a kernel share adds up as it is: far^2 = (sum_i s_i)^2 + sum_i own_i^2, with
    s_i^2 = far_i^2 - own_i^2. `least` [s] is what the datasheet of the machine allows at best (`cost.limits`).
    """

    mid: Array
    low: Array
    high: Array
    compute: Array
    memory: Array
    below: Array | float = 0.0
    above: Array | float = 0.0
    least: Array | float = 0.0

    def __post_init__(self) -> None:
        for name in ("below", "above", "least"):
            object.__setattr__(self, name, np.broadcast_to(getattr(self, name), np.shape(self.mid)))

    def __add__(self, other: Seconds) -> Seconds:
        mid, low, high = self.mid + other.mid, self.low + other.low, self.high + other.high
        below, above = np.hypot(self.below, other.below), np.hypot(self.above, other.above)
        if np.any(below):
            low = np.where(below > 0.0, mid - np.hypot(self._shared_below + other._shared_below, below), low)
        if np.any(above):
            high = np.where(above > 0.0, mid + np.hypot(self._shared_above + other._shared_above, above), high)
        return Seconds(
            mid=mid, low=low, high=high, compute=self.compute + other.compute, memory=self.memory + other.memory,
            below=below, above=above, least=self.least + other.least,
        )  # fmt: skip

    def at(self, grid: Array, place: Number) -> Seconds:
        """Along a grid, at one place or an array of them."""
        return Seconds(**{name: np.interp(place, grid, value) for name, value in vars(self).items()})

    def at_two(self, rows: Array, columns: Array, row: Number, column: Number) -> Seconds:
        """Between rows and columns, at one place or an array of them."""
        up, across = _around(rows, row), _around(columns, column)

        def read(value: Array) -> Array:
            full = np.broadcast_to(value, (len(rows), len(columns)))
            first, last = (
                _joined(columns, across, full[line, across[0]], full[line, across[1]], column) for line in up
            )
            return _joined(rows, up, first, last, row)

        return Seconds(**{name: read(value) for name, value in vars(self).items()})

    @property
    def quickest(self) -> Array:
        """The low end, but no quicker than the machine's own limit, nor than the middle [s]."""
        return np.minimum(np.maximum(self.low, self.least), np.maximum(self.mid, self.low))

    @property
    def _shared_below(self) -> Array:
        return np.sqrt(np.maximum((self.mid - self.low) ** 2 - np.square(self.below), 0.0))

    @property
    def _shared_above(self) -> Array:
        return np.sqrt(np.maximum((self.high - self.mid) ** 2 - np.square(self.above), 0.0))

    @property
    def alike(self) -> Seconds:
        """The same, all of whose error is shared: what comes again as wrong in the next iteration [s]."""
        return replace(self, below=0.0, above=0.0)

    def times(self, factor: float | Array) -> Seconds:
        """The same, `factor` times over [s]."""
        return Seconds(**{name: factor * value for name, value in vars(self).items()})

    def streamed(self, links: Seconds | None = None) -> Seconds:
        """The slowest of compute, memory and `links`, where operators run side by side in one kernel [s].

        Ends are as far from it as those of operators one after the other are from theirs.
        """
        whole = self if links is None else self + links
        apart = np.maximum(self.compute, self.memory)
        mid = apart if links is None else np.maximum(apart, links.mid)
        share = mid / np.maximum(whole.mid, 1e-30)
        return Seconds(
            mid=mid, low=share * whole.low, high=share * whole.high, compute=self.compute, memory=self.memory
        )

    def beyond(self, other: Seconds) -> Seconds:
        """What this takes more than the other, never less than nothing, with the interval that this one has [s]."""
        share = np.maximum(0.0, 1.0 - other.mid / np.maximum(self.mid, 1e-30))
        busy = {name: np.maximum(0.0, getattr(self, name) - getattr(other, name)) for name in ("compute", "memory")}
        return Seconds(mid=share * self.mid, low=share * self.low, high=share * self.high, **busy)

    def where(self, here: Array | NDArray[np.bool_], other: Seconds) -> Seconds:
        """This `here`, else the other [s]."""
        return Seconds(**{name: np.where(here, value, getattr(other, name)) for name, value in vars(self).items()})


def stacked(rows: Sequence[Seconds]) -> Seconds:
    """Times over the same grid as the rows of one table [s]."""
    return Seconds(**{name: np.stack([vars(row)[name] for row in rows]) for name in vars(rows[0])})


def nothing(shape: tuple[int, ...]) -> Seconds:
    """No time at all [s]."""
    zero = np.zeros(shape)
    return Seconds(mid=zero, low=zero, high=zero, compute=zero, memory=zero)


def unfitted(mid: Array, *, compute: Array | None = None, memory: Array | None = None) -> Seconds:
    """Time of a link or a stream by its datasheet's rates, with the interval of these [s]."""
    none, low, high = 0.0 * mid, constant("interval.unfitted.low"), constant("interval.unfitted.high")
    return Seconds(
        mid=mid, low=low * mid, high=high * mid, compute=none if compute is None else compute,
        memory=none if memory is None else memory,
    )  # fmt: skip


def banded(kind: str, mid: Array, compute: Array, memory: Array) -> Seconds:
    """Time with the interval that mechanisms of a kind are known to have, `kind.low` to `kind.high` of it [s]."""
    low, high = constant(f"{kind}.low"), constant(f"{kind}.high")
    return Seconds(mid=mid, low=low * mid, high=high * mid, compute=compute, memory=memory)


def kernel_limit_s(part: Accelerator, dtype: str, flop: Number, moved_bytes: Number) -> Array:
    """The longer of FLOP at the peak rate of a format and of bytes at the peak of the memory [s]."""
    _, peak, memory, *_ = device_rates(part, form(dtype).matrix)
    return np.asarray(np.maximum(np.asarray(flop) / peak, np.asarray(moved_bytes) / memory), dtype=float)


def limited(time: Seconds, limit_s: Array | float) -> Seconds:
    """A time that is no shorter than what the machine allows at best, which it remembers [s]."""
    mid = np.maximum(time.mid, limit_s)
    return replace(time, mid=mid, high=np.maximum(time.high, mid), least=limit_s)


def _around(grid: Array, place: Number) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Indices of the two points of a grid around places."""
    near = np.clip(np.searchsorted(grid, place, side="right") - 1, 0, max(0, len(grid) - 2))
    return near, np.minimum(near + 1, len(grid) - 1)


def _joined(
    grid: Array, around: tuple[NDArray[np.intp], NDArray[np.intp]], first: Array, last: Array, place: Number
) -> Array:
    """The straight line between values at two points, level beyond them; as `numpy.interp` rounds it."""
    begin, end = (grid[index] for index in around)
    slope = (last - first) / np.where(end > begin, end - begin, 1.0)
    return np.asarray(np.where(place >= end, last, np.where(place <= begin, first, slope * (place - begin) + first)))
