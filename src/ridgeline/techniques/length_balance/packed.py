"""Sequences of unlike lengths on groups of one degree: packing, with one degree of context parallelism for all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ridgeline.errors import NoPlanError
from ridgeline.seams.length_balance import Floats, LengthBalance, LengthDivision, SequenceCosts, SequenceGroup
from ridgeline.seams.setting import Setting
from ridgeline.seams.technique import param


def best_fit(lengths: Floats, room: float) -> list[list[int]]:
    """Sequences packed into as few micro-batches of `room` tokens as best-fit-decreasing needs, by their places."""
    packs: list[list[int]] = []
    left = np.zeros(len(lengths))
    for place in np.argsort(-lengths, kind="stable").tolist():
        fits = np.flatnonzero(left[: len(packs)] >= lengths[place])
        if len(fits):
            pack = int(fits[np.argmin(left[fits])])
        else:
            pack = len(packs)
            packs.append([])
            left[pack] = room
        packs[pack].append(place)
        left[pack] -= lengths[place]
    return packs


def least_degree(length: float, costs: SequenceCosts) -> int:
    """The fewest ranks, a power of two, that hold a sequence; raises `NoPlanError` where all together do not."""
    degree = 1
    while degree * costs.tokens < length:
        degree *= 2
    if degree > costs.ranks:
        raise NoPlanError(
            f"a sequence of {length:,.0f} tokens needs {length / costs.tokens:,.1f} ranks, the plan has {costs.ranks};"
            " use more devices, recompute, or shorter sequences"
        )
    return degree


@dataclass(frozen=True, kw_only=True)
class Packed(LengthBalance):
    """All groups have one degree, which holds the longest sequence; shorter ones are packed together.

    Best-fit-decreasing packing into micro-batches of what a group's memory holds, the costliest micro-batches first
    to the group that is free; every round waits for its slowest group, as ZeRO gathers weights of all ranks.
    """

    key: ClassVar[str] = "packed"
    source: ClassVar[tuple[str, ...]] = ("ulysses-2023", "best-fit-packing-2024")
    degree: int = param(
        0, "ranks", "ranks of each group; 0: the fewest that hold the longest sequence", low=0, high=2**20
    )

    def axes(self, setting: Setting) -> tuple[str, ...]:
        """The least degree, and fixed ones up to a machine's devices."""
        most = min(setting.cluster.count, 64)
        return (self.text, *(f"packed(degree={2**i})" for i in range(1, int(np.log2(most)) + 1)))

    def divide(self, lengths: Floats, costs: SequenceCosts) -> LengthDivision:
        """Packs in the order of their cost, so many at once as there are groups."""
        least = least_degree(float(lengths.max()), costs)
        degree = self.degree or least
        if degree < least or costs.ranks % degree:
            raise NoPlanError(
                f"packed: degree {degree}, the longest sequence needs {least} and {costs.ranks} ranks must be a"
                f" multiple; say degree={least}"
            )
        packs = best_fit(lengths, degree * costs.tokens)
        taken = costs.seconds(lengths, degree)
        packs.sort(key=lambda pack: -float(taken[pack].sum()))
        at_once = costs.ranks // degree
        rounds = tuple(
            tuple(
                SequenceGroup(first=place * degree, ranks=degree, sequences=tuple(pack))
                for place, pack in enumerate(packs[begin : begin + at_once])
            )
            for begin in range(0, len(packs), at_once)
        )
        return LengthDivision(rounds=rounds)
