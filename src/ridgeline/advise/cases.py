"""What advice asks of one kind of scenario: the changes that may be tried, a bound, an outcome."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Generic, Protocol, TypeVar

from ridgeline.facts.records import Evidence, Fact
from ridgeline.seams.technique import EXACT

S = TypeVar("S")  # a choice: a plan with its workload, deployments, a division of pictures

TIME, MEMORY, GOODPUT, DOLLARS, JOULES = "time", "memory", "goodput", "dollars", "joules"


@dataclass(frozen=True, kw_only=True)
class Change(Generic[S]):
    """A technique or a lever that may be put on a choice; of one `slot` a stack has one.

    `put` gives the choice with it, or raises `RidgelineError`. `refused` says why it does not apply to what it was
    asked about, '' where it does. `words` is how a person writes it, `key` its technique's name.
    """

    words: str
    slot: str
    what: str
    put: Callable[[S], S]
    refused: str = ""
    key: str = ""
    quality: Fact | None = None
    export: Mapping[str, str] = field(default_factory=dict)

    @property
    def exact(self) -> bool:
        """Whether it changes where and when things are computed, not what."""
        return self.quality is not None and self.quality.source == EXACT.source

    @property
    def measured(self) -> bool:
        """Whether somebody measured what it costs in accuracy, or nothing is to be measured."""
        return self.quality is not None and self.quality.evidence is not Evidence.ASSUMED


@dataclass(frozen=True, kw_only=True)
class TrialOutcome:
    """What a choice comes to: the `value` of the objective, less is better, and the memory of its fullest device.

    `held` says by what that memory is held [byte]; `parts` split its seconds by name, `kinds` say what each keeps busy;
    empty where nobody asked for them. `ends` are the value at both ends of what its prices may be wrong, low then high.
    """

    value: float
    memory_bytes: float
    excess_bytes: float
    held: Mapping[str, float] = field(default_factory=dict)
    parts: Mapping[str, float] = field(default_factory=dict)
    kinds: Mapping[str, str] = field(default_factory=dict)
    ends: tuple[float, float] | None = None

    @property
    def fits(self) -> bool:
        """Whether it runs in the memory there is."""
        return self.excess_bytes <= 0.0

    @property
    def score(self) -> tuple[float, float]:
        """Order of outcomes, less is better: by what does not fit, then by value."""
        return (max(0.0, self.excess_bytes), self.value)


def ends_range(before: TrialOutcome, after: TrialOutcome) -> tuple[float, float]:
    """Low and high end of after over before [1]: both at the same end of what their prices may be wrong."""
    ratios = [after.value / before.value]
    for one, other in zip(before.ends or (), after.ends or (), strict=False):
        if 0.0 < one < inf and 0.0 < other < inf:
            ratios.append(other / one)
    return min(ratios), max(ratios)


class AdviceCase(Protocol[S]):
    """One kind of scenario: training, serving, pictures."""

    base: S
    bounds_nothing: bool  # whether `bound` knows of memory alone, and each trial is a replay

    def changes(self, on: S) -> Iterator[Change[S]]:
        """Every technique and lever, with why it does not apply to a choice where it does not."""

    def bound(self, on: S) -> TrialOutcome:
        """The least that the value of a choice can be, and its memory; raises where there is no such choice."""

    def closer(self, on: S) -> float:
        """A bound of the value of a choice that takes longer to find and may be higher; 0 where there is none."""
        return 0.0

    def outcome(self, on: S) -> TrialOutcome:
        """What a choice comes to, without its parts; raises `RidgelineError` where it cannot be run."""

    def explained(self, on: S) -> TrialOutcome:
        """What a choice comes to, with its parts and ends."""

    def range_of(self, before: TrialOutcome, after: TrialOutcome) -> tuple[float, float]:
        """Low and high end of after over before [1], where what both have in common errs alike: at the same end."""
        return ends_range(before, after)

    def lists(self, change: Change[S]) -> bool:
        """Whether policy files of programs say if they have a change; else the technique alone does."""
        return False

    def programs(self, on: S) -> tuple[str, ...]:
        """Programs that run a choice, by name; none where no files say it."""
        return ()
