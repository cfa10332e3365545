"""Groups of unlike degree for sequences of unlike lengths, chosen anew for each step by a program."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from math import ceil, inf
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ridgeline.errors import NoPlanError
from ridgeline.programs import Draft
from ridgeline.seams.length_balance import Floats, LengthBalance, LengthDivision, Round, SequenceCosts, SequenceGroup
from ridgeline.seams.technique import param
from ridgeline.techniques.length_balance.packed import least_degree

_SEARCHES, _GROWTH, _CLOSE = 24, 1.15, 1.01  # programs of a micro-batch, steps to the first found, and when it is near
_MARGINS = 0.0, 0.03, 0.1, 0.25  # of time and memory left to what dealing out whole sequences wastes, until it works
_NODES = 200  # of one program
_DIFFERENT = 1_024  # lengths that bucketing tells apart: its table has their square

_Counts = tuple[NDArray[np.int64], NDArray[np.int64]]


def buckets(lengths: Floats, most: int) -> NDArray[np.int64]:
    """The bucket of each of N sorted lengths, (N,): at most `most`, the tokens by which they are rounded up the fewest.

    Dynamic programming over the different lengths: cost(j) = min over i of cost(i) + sum of (length_j - length).
    """
    step = float(lengths.max()) / _DIFFERENT if len(np.unique(lengths)) > _DIFFERENT else 1.0
    values, counts = np.unique(np.ceil(lengths / step) * step, return_counts=True)
    number, total = np.append(0, np.cumsum(counts)), np.append(0.0, np.cumsum(values * counts))
    best = np.append(0.0, values * number[1:] - total[1:])
    begins = []
    for _ in range(min(most, len(values)) - 1):
        cost = best[None, :] + np.append(0.0, values)[:, None] * (number[:, None] - number) - (total[:, None] - total)
        cost[np.triu_indices(len(best))] = inf
        cost[0, 0] = 0.0
        begins.append(cost.argmin(axis=1))
        best = cost.min(axis=1)
    end, cuts = len(values), []
    for begin in reversed(begins):
        cuts.append(end := int(begin[end]))
    bucket = np.searchsorted(np.unique([cut for cut in cuts if cut]), np.arange(len(values)), side="right")
    return np.asarray(np.repeat(bucket, counts), dtype=np.int64)


@dataclass(frozen=True, kw_only=True)
class FlexibleDegrees(LengthBalance):
    """FlexSP: each micro-batch has its own groups of unlike degree: wide ones for long sequences, narrow for short.

    Sequences are sorted and cut into micro-batches of like length and equal tokens, so that long ones share one. In
    each a mixed program chooses how many groups of each degree there are and how many sequences of each length bucket
    they take, so that no group takes longer than C; the least C is searched for. Buckets come from dynamic programming.
    The paper's program has a variable for each group; here groups of a degree are one variable, and their sequences
    are dealt out afterwards, longest first: the program stays small, and the least C of which it finds none bounds all
    divisions of the buckets into such groups. The step waits for the slowest group of each micro-batch.
    Left out: changing communicators (the paper keeps a pool of them), and solving, which hides behind the step before.
    """

    key: ClassVar[str] = "flexsp"
    source: ClassVar[tuple[str, ...]] = ("flexsp-2025",)
    buckets: int = param(16, "1", "different lengths that the program tells apart", low=1, high=64)
    more: int = param(2, "micro-batches", "how many more than the fewest micro-batches are tried", high=16)

    def divide(self, lengths: Floats, costs: SequenceCosts) -> LengthDivision:
        """The best of the fewest micro-batches that memory allows, and of a few more."""
        least_degree(float(lengths.max()), costs)
        order = np.argsort(lengths, kind="stable")
        fewest = max(1, ceil(float(lengths.sum()) / (costs.ranks * costs.tokens)))
        found: list[tuple[float, LengthDivision]] = []
        for count in range(fewest, fewest + self.more + 1):
            parts = [part for part in np.split(order, _cuts(lengths[order], count)) if len(part)]
            made = [one for part in parts for one in self._rounds(lengths, part, costs)]
            rounds, bounds = zip(*made, strict=True)
            taken = float(self.step_seconds(lengths, rounds, costs).sum())
            found.append((taken, LengthDivision(rounds=rounds, bound_s=sum(bounds))))
        best = min(found, key=lambda one: one[0])[1]
        return LengthDivision(rounds=best.rounds, bound_s=min(division.bound_s for _, division in found))

    def _rounds(self, lengths: Floats, part: NDArray[np.int64], costs: SequenceCosts) -> list[tuple[Round, float]]:
        """The groups of a part with their bounds [s]: one micro-batch, or more where memory holds no division of it."""
        made = self._round(lengths, part, costs)
        if made is not None:
            return [made]
        return [one for half in np.array_split(part, 2) for one in self._rounds(lengths, half, costs)]

    def _round(self, lengths: Floats, part: NDArray[np.int64], costs: SequenceCosts) -> tuple[Round, float] | None:
        """The groups of one micro-batch and the bound of its time [s]; None where memory holds no division."""
        bucket = buckets(lengths[part], self.buckets)
        rows = [part[bucket == one] for one in range(int(bucket.max()) + 1)]
        task = _Task(lengths, rows, costs)
        best, best_s, low = None, inf, task.least_s
        proven = low
        for _ in range(_SEARCHES):
            target = low * _GROWTH if best is None else 0.5 * (low + best_s)
            taken = inf
            for margin in _MARGINS:
                counts, known = task.counts(target, margin)
                if counts is None:
                    proven = max(proven, target) if known and not margin else proven
                    break
                groups = task.dealt(counts)
                taken = float(self.step_seconds(lengths, [groups], costs)[0]) if groups else inf
                if groups and taken < best_s:
                    best, best_s = groups, taken
                if taken <= target:
                    break
            if taken > target:  # no program, or its groups have no room or no time for whole sequences
                low = target
            if best_s <= low * _CLOSE:
                break
        return (best, min(proven, best_s)) if best else None


def _cuts(lengths: Floats, count: int) -> list[int]:
    """Where sorted lengths are cut so that each of `count` parts has as many tokens."""
    reached = np.array(list(accumulate(lengths)))
    return [int(np.searchsorted(reached, reached[-1] * place / count)) for place in range(1, count)]


class _Task:
    """One micro-batch: B buckets of sequences for groups of D degrees."""

    def __init__(self, lengths: Floats, rows: list[NDArray[np.int64]], costs: SequenceCosts) -> None:
        self.lengths, self.rows, self.costs = lengths, rows, costs
        self.degrees = 2 ** np.arange(int(np.log2(costs.ranks)) + 1)
        self.room = self.degrees * costs.tokens
        self.counted = np.array([len(row) for row in rows])
        mean = np.array([lengths[row].mean() for row in rows])
        longest = np.array([lengths[row].max() for row in rows])
        self.tokens = np.array([lengths[row].sum() for row in rows]) / self.counted
        self.seconds = np.asarray(costs.seconds(mean[:, None], self.degrees))  # (B, D)
        self.fits = longest[:, None] <= self.room
        self.floor = np.asarray(costs.floor(self.degrees))
        cheapest = np.where(self.fits, np.maximum(self.seconds, self.floor), inf)
        work = (np.where(self.fits, self.seconds * self.degrees, inf).min(axis=1) * self.counted).sum()
        self.least_s = max(float(work) / costs.ranks, float(cheapest.min(axis=1).max()))

    def counts(self, target_s: float, margin: float) -> tuple[_Counts | None, bool]:
        """Groups of each degree (D,) and sequences of each bucket in them (B, D), none over `target_s`; or None.

        And whether that is proven. `margin` is the share of groups' time and memory that is left free.
        """
        allowed = self.fits & (self.seconds <= target_s) & (self.floor <= target_s)
        if not allowed.any(axis=1).all():
            return None, True
        draft = Draft()
        groups = draft.variable(len(self.degrees), high=self.costs.ranks // self.degrees, whole=True)
        most = np.where(allowed, self.counted[:, None], 0)
        given = draft.variable(allowed.shape, cost=self.seconds * self.degrees, high=most, whole=True)
        draft.row((groups, self.degrees), high=self.costs.ranks)
        draft.row((given, 1.0), low=self.counted, high=self.counted)
        draft.row((given.T, self.seconds.T), (groups[:, None], -target_s * (1.0 - margin)), high=0.0)
        draft.row(
            (given.T, np.broadcast_to(self.tokens, (len(self.degrees), len(self.rows)))),
            (groups[:, None], -self.room[:, None] * (1.0 - margin)), high=0.0,
        )  # fmt: skip
        try:
            answer = draft.solve(most_nodes=_NODES, gap=1.0)
        except NoPlanError:
            return None, False
        if answer is None:
            return None, True
        return (answer.values[groups].astype(np.int64), answer.values[given].astype(np.int64)), True

    def dealt(self, counts: _Counts) -> Round | None:
        """The groups, sequences dealt to those of each degree, longest first to the quickest; None: no room."""
        taken = [0] * len(self.rows)
        groups, first = [], 0
        for place in reversed(range(len(self.degrees))):
            number, given = int(counts[0][place]), counts[1][:, place]
            if not given.sum():
                continue
            mine: list[int] = []
            for row in reversed(range(len(self.rows))):
                mine += self.rows[row][taken[row] : taken[row] + given[row]].tolist()
                taken[row] += int(given[row])
            dealt = self._longest_first(np.array(mine), place, number)
            if dealt is None:
                return None
            for sequences in dealt:
                if sequences:
                    groups.append(
                        SequenceGroup(first=first, ranks=int(self.degrees[place]), sequences=tuple(sequences))
                    )
                first += int(self.degrees[place])
        return tuple(groups)

    def _longest_first(self, mine: NDArray[np.int64], place: int, number: int) -> list[list[int]] | None:
        mine = mine[np.argsort(-self.lengths[mine], kind="stable")]
        seconds = np.asarray(self.costs.seconds(self.lengths[mine], int(self.degrees[place])))
        busy, held = np.zeros(number), np.zeros(number)
        dealt: list[list[int]] = [[] for _ in range(number)]
        for sequence, taken in zip(mine.tolist(), seconds.tolist(), strict=True):
            ready = np.where(held + self.lengths[sequence] <= self.room[place], busy, inf)
            group = int(ready.argmin())
            if ready[group] == inf:
                return None
            dealt[group].append(sequence)
            busy[group] += taken
            held[group] += self.lengths[sequence]
        return dealt
