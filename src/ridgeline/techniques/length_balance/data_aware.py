"""Each sequence on just as many ranks as it needs; ranks run different numbers of micro-batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from math import ceil
from typing import ClassVar

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from ridgeline.seams.length_balance import Floats, LengthBalance, LengthDivision, SequenceCosts, SequenceGroup
from ridgeline.seams.technique import param
from ridgeline.techniques.length_balance.packed import best_fit, least_degree

_Item = tuple[int, tuple[int, ...], bool]  # ranks, sequences by their places, whether activations move


@dataclass(frozen=True, kw_only=True)
class DataAware(LengthBalance):
    """ByteScale: hybrid data parallelism, whose ranks share long sequences and take short ones alone, balanced by time.

    A sequence has the fewest ranks, of any number, that hold it and take no longer than an even share of the step, up
    to the number for which the step is the quickest: a ring over many machines may take longer than it saves. With
    `offload` the part r of its activations waits in host memory that goes there and back beside its computation,
    r = seconds(s, d) / moved(s / d) at most 1, so that (1 - r) s / d tokens must fit. Short ones are packed into what
    one rank holds. The longest in time go first, each to the adjoining ranks that are free the soonest; nobody waits
    for others before the step ends, when gradients are reduced. Left out: how ranks that run more micro-batches gather
    sharded weights without the others (here weights are gathered at the plan's cost for each), the host's own memory,
    and links that groups across machines share.
    """

    key: ClassVar[str] = "bytescale"
    source: ClassVar[tuple[str, ...]] = ("bytescale-2025",)
    offload: bool = param(True, "", "activations that hide behind computation wait in host memory")

    def divide(self, lengths: Floats, costs: SequenceCosts) -> LengthDivision:
        """Long sequences and packs of short ones, by time, to the ranks that are free first."""
        least_degree(float(lengths.max()), costs)
        long = np.flatnonzero(lengths > costs.tokens)
        short = np.flatnonzero(lengths <= costs.tokens)
        least = [self._needed(float(lengths[place]), costs) for place in long]
        work = sum(float(costs.seconds(lengths[place], one)) * one for place, one in zip(long, least, strict=True))
        even_s = (work + float(costs.seconds(lengths[short], 1).sum())) / costs.ranks
        packs = best_fit(lengths[short], costs.tokens) if len(short) else []
        alone: list[_Item] = [(1, tuple(short[pack].tolist()), False) for pack in packs]
        caps = [2**power for power in range((costs.ranks - 1).bit_length() + 1)] if len(long) else [1]
        found = []
        taken_s = cache(lambda ranks, held: float(costs.seconds(lengths[list(held)], ranks).sum()))
        for most in sorted({min(max(cap, *least, 1), costs.ranks) for cap in caps}) if len(long) else [1]:
            spread = [
                self._spread(int(place), float(lengths[place]), range(one, most + 1), even_s, costs)
                for place, one in zip(long, least, strict=True)
            ]
            found.append(self._placed([*spread, *alone], taken_s, costs))
        return min(found, key=lambda one: float(self.step_seconds(lengths, one.rounds, costs).sum()))

    def _placed(self, items: list[_Item], taken_s: Callable[..., float], costs: SequenceCosts) -> LengthDivision:
        """The longest in time first, each to the adjoining ranks that are free the soonest."""
        times = [taken_s(ranks, held) for ranks, held, _ in items]
        ready, groups = np.zeros(costs.ranks), []
        for place in np.argsort([-taken for taken in times], kind="stable").tolist():
            ranks, held, moved = items[place]
            begins = sliding_window_view(ready, ranks).max(axis=1)
            first = int(begins.argmin())
            ready[first : first + ranks] = begins[first] + times[place]
            groups.append(SequenceGroup(first=first, ranks=ranks, sequences=held, moved=moved))
        work = sum(taken * ranks for taken, (ranks, _, _) in zip(times, items, strict=True))
        return LengthDivision(rounds=(tuple(groups),), bound_s=max(work / costs.ranks, *times))

    def _needed(self, length: float, costs: SequenceCosts) -> int:
        """The fewest ranks that hold a sequence, with what of its activations is hidden on the host."""
        whole = ceil(length / costs.tokens)
        for ranks in range(1, whole if self.offload else 0):
            moved_s = float(costs.moved_seconds(length / ranks))
            away = min(1.0, float(costs.seconds(length, ranks)) / moved_s) if moved_s > 0 else 0.0
            if (1.0 - away) * length / ranks <= costs.tokens:
                return ranks
        return whole

    def _spread(self, place: int, length: float, allowed: range, even_s: float, costs: SequenceCosts) -> _Item:
        """Ranks of one long sequence: as few as hold it and take no longer than an even share; whether it moves."""
        degrees = np.array(allowed)
        taken = costs.seconds(length, degrees)
        quick = np.flatnonzero(taken <= even_s)
        ranks = int(degrees[quick[0] if len(quick) else taken.argmin()])
        return ranks, (place,), ranks * costs.tokens < length
