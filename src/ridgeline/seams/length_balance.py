"""The seam of unlike lengths: which ranks compute which sequences of one training step.

Shape letters: N sequences of a step, R ranks that share them (data times context), d ranks of a group, a degree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ridgeline.seams.registry import technique
from ridgeline.seams.setting import Setting
from ridgeline.seams.technique import EXACT, Technique

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class SequenceGroup:
    """Sequences that the ranks `first` to `first` + `ranks` - 1 compute together, packed in one micro-batch.

    With `moved` their activations wait in host memory.
    """

    first: int
    ranks: int
    sequences: tuple[int, ...]
    moved: bool = False


Round = tuple[SequenceGroup, ...]
"""Groups that run one after another where they share a rank; all ranks wait for each other at its end."""


class SequenceCosts(Protocol):
    """What sequences cost on groups of ranks, at the prices of the plan."""

    @property
    def ranks(self) -> int:
        """Ranks R that share the sequences [1]."""

    @property
    def node(self) -> int:
        """Ranks of a group whose links are those of one machine, at most [1]."""

    @property
    def tokens(self) -> float:
        """Tokens that one rank's memory holds the activations of [token]."""

    def seconds(self, lengths: ArrayLike, degree: ArrayLike) -> Floats:
        """Forward and backward of a sequence among others that fill its group, in the shape of both [s]."""

    def linear_seconds(self, tokens: ArrayLike) -> Floats:
        """The part of it that grows with tokens alone, on one rank [s]."""

    def moved_seconds(self, tokens: ArrayLike) -> Floats:
        """Activations of so many tokens of one rank to host memory and back [s]."""

    def relaid_seconds(self, tokens: ArrayLike) -> Floats:
        """So many tokens of one rank to other ranks and back, in each layer, forward and backward [s]."""

    def floor(self, degree: ArrayLike) -> Floats:
        """What the smallest micro-batch of a group takes [s]."""


@dataclass(frozen=True, kw_only=True)
class LengthDivision:
    """How a step's sequences are divided, and the least that any division of this kind could take, 0 unknown [s]."""

    rounds: tuple[Round, ...]
    bound_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class LengthBalance(Technique):
    """How sequences of unlike lengths are given to ranks: to groups of which degree, in which order."""

    family: ClassVar[str] = "length_balance"
    quality = EXACT

    def applies(self, setting: Setting) -> str:
        """Not where all sequences are of one length."""
        alike = not getattr(setting.workload, "lengths", "")
        return super().applies(setting) or ("all sequences have one length; say lengths" if alike else "")

    def divide(self, lengths: Floats, costs: SequenceCosts) -> LengthDivision:
        """The groups of a step's sequences of N lengths [token]; raises `NoPlanError` where one fits in no group."""
        raise NotImplementedError

    def group_seconds(self, lengths: Floats, group: SequenceGroup, costs: SequenceCosts) -> float:
        """What the ranks of a group take for it [s]."""
        own = lengths[list(group.sequences)]
        taken = float(costs.seconds(own, group.ranks).sum())
        return max(taken, float(costs.floor(group.ranks)))

    def step_seconds(self, lengths: Floats, rounds: Sequence[Round], costs: SequenceCosts) -> Floats:
        """What each round takes, (rounds,) [s]: of its ranks the longest, groups of shared ranks one after another."""
        taken = []
        for groups in rounds:
            ready = np.zeros(costs.ranks)
            for group in groups:
                ranks = slice(group.first, group.first + group.ranks)
                ready[ranks] = ready[ranks].max() + self.group_seconds(lengths, group, costs)
            taken.append(float(ready.max()))
        return np.array(taken)


def length_balance(name: str) -> LengthBalance:
    """The way that a plan names; raises `UnknownNameError` for a name of none."""
    return cast(LengthBalance, technique("length_balance", name))
