"""Plans that share stages, chunks and schedule: bounded and measured together, then those that may run."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from ridgeline.plan.plan import Plan
from ridgeline.search.axes import Axes
from ridgeline.search.space import plan_of

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Plans:
    """Plans that share stages, chunks and schedule, by their place (F, K, R, Z, O) on the axes of what they vary."""

    schedule: str
    techniques: tuple[str, ...]
    chunks: int
    layer_split: tuple[int, ...] | None  # None: as even as whole layers allow
    axes: Axes

    @property
    def shape(self) -> tuple[int, ...]:
        """Overlap flags, layouts, recompute, sharding and savings (F, K, R, Z, O)."""
        again, sharded, saved, layouts = self.axes.shape
        return len(self.axes.overlaps), layouts, again, sharded, saved

    def plan(self, index: tuple[int, ...]) -> Plan:
        """The plan at a place."""
        flags, layout, again, shard, away = index
        axes = self.axes
        entry = axes.entries[layout]
        zero, zero_group = axes.sharding[shard]
        recompute, recompute_layers = axes.recompute[again]
        overlap_gradients, overlap_weights = axes.overlaps[flags]
        return plan_of(
            entry.degrees,
            sequence_parallel=entry.sequence_parallel,
            overlap_tensor=entry.overlap_tensor,
            schedule=self.schedule,
            chunks=self.chunks,
            layer_split=self.layer_split,
            **vars(axes.savings[away]),
            technique=self.techniques,
            zero=zero,
            zero_group=zero_group or None,
            recompute=recompute,
            recompute_layers=recompute_layers,
            overlap_gradients=overlap_gradients,
            overlap_weights=overlap_weights,
        )


@dataclass(frozen=True, kw_only=True)
class Feasible(Plans):
    """The plans of a group that may run: lower bounds (N) [s], and where they are, flat.

    `nearest` is the least excess over a device's memory that is above 0 [byte], `least` the least of all, with the
    places of both: no other plan of the group is kept.
    """

    bound_s: Floats
    where: NDArray[np.int64]
    nearest: tuple[float, tuple[int, ...]]
    least: tuple[float, tuple[int, ...]]

    @property
    def lowest_s(self) -> float:
        """The lowest bound [s]; infinite where no plan may run."""
        return float(self.bound_s.min(initial=np.inf))

    def place(self, number: int) -> tuple[int, ...]:
        """The place of one of the plans."""
        return tuple(int(i) for i in np.unravel_index(int(self.where[number]), self.shape))

    def among(self, kept: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Which of the plans (N) are kept, of flags for the places (K, R, Z, O)."""
        found: NDArray[np.bool_] = kept.ravel()[self.where % kept.size]
        return found


@dataclass(frozen=True, kw_only=True)
class Group(Plans):
    """Bounds [s] (F, K, R, Z, O) and peak bytes of all plans of a group, as long as these are looked at.

    `excess_bytes` (K, R, Z, O) is the peak of the fullest stage looked at less the capacity: negative when it fits.
    """

    bound_s: Floats
    excess_bytes: Floats
    host_full: NDArray[np.bool_]  # of the plans (K, R, Z, O) that hold more in host memory than the host has

    def feasible(self, fits: NDArray[np.bool_]) -> Feasible:
        """What is kept of the group: the plans that are legal and fit, of flags (K, R, Z, O)."""
        where = np.flatnonzero(np.isfinite(self.bound_s) & fits)
        over = np.where(self.excess_bytes > 0, self.excess_bytes, np.inf)
        return Feasible(
            **{field.name: getattr(self, field.name) for field in fields(Plans)},
            bound_s=self.bound_s.ravel()[where], where=where, nearest=_lowest(over), least=_lowest(self.excess_bytes),
        )  # fmt: skip


def _lowest(values: Floats) -> tuple[float, tuple[int, ...]]:
    """The least of values of plans (K, R, Z, O), and its place with no overlap flag."""
    place = int(values.argmin())
    return float(values.ravel()[place]), (0, *(int(i) for i in np.unravel_index(place, values.shape)))
