"""Trees of drafted tokens: several candidates for each place."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from operator import mul
from typing import ClassVar

from ridgeline.errors import PlanError
from ridgeline.seams.serving import Speculation
from ridgeline.seams.technique import param, shown

_MOST = 1024  # tokens


@dataclass(frozen=True, kw_only=True)
class DraftTree(Speculation):
    """A tree of drafts has several candidates after each one of the place before; a step verifies all of them.

    Those of a place are drafted at once. A candidate is accepted by its rank among siblings alone: with s(b) the
    probability that one of the b most likely is the one, a step gains 1 + s(b1) + s(b1) s(b2) + ... tokens on average.
    One candidate a place is a chain. The tree is as given; it is neither chosen for a device nor changed as it runs.
    """

    key: ClassVar[str] = "draft-tree"
    tags: ClassVar[tuple[str, ...]] = ("moe-speculation",)
    word: ClassVar[str] = "draft_tree"
    off: ClassVar[object] = ()
    source: ClassVar[tuple[str, ...]] = ("chen2024sequoia",)
    widths: tuple[int, ...] = param(
        (4, 2, 1), "tokens", "candidates after each one of the place before, for each place", low=1, high=64,
        whole=True, word="draft_tree",
    )  # fmt: skip
    acceptance: float = param(
        0.6, "1", "probability that the likeliest candidate of a place is the one; 0.6 (assumed) when absent",
        high=1.0, word="acceptance",
    )  # fmt: skip
    next_acceptance: tuple[float, ...] = param(
        (0.15, 0.08, 0.04), "1", "that of the second, third ... likeliest", high=1.0, word="next_acceptance"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        told, ranked = f"{self.key}: widths = {shown(self.widths)}", self._ranked
        if not self.widths:
            raise PlanError(f"{told}, needs a width for each place, as 4/2/1")
        if self.drafted > _MOST:
            raise PlanError(f"{told} holds {self.drafted:,} tokens, at most {_MOST:,} are drafted")
        if sum(ranked) > 1 + 1e-9:
            said = f"{self.key}: acceptance of candidates = {shown(ranked)}"
            raise PlanError(f"{said}; needs probabilities whose sum is 1 at most")
        if max(self.widths) > len(ranked):
            raise PlanError(
                f"{told} has {max(self.widths)} candidates at one place of the tree, but the acceptance of"
                f" {len(ranked)}; say that of each, most likely first, e.g. acceptance 0.6,0.15,0.08"
            )

    @property
    def _ranked(self) -> tuple[float, ...]:
        return (self.acceptance, *self.next_acceptance)

    @property
    def drafted(self) -> int:
        """b1 + b1 b2 + ..."""
        return sum(accumulate(self.widths, mul))

    @property
    def depth(self) -> int:
        """The places."""
        return len(self.widths)

    @property
    def gained(self) -> float:
        """1 + s(b1) + s(b1) s(b2) + ..."""
        reached: list[float] = list(accumulate((sum(self._ranked[:width]) for width in self.widths), mul))
        return 1.0 + sum(reached)

    def told(self) -> str:
        """Tokens drafted, the tree, and how likely each candidate is."""
        shares = ", ".join(f"{share:.0%}" for share in self._ranked)
        return f"{self.drafted} drafted in a tree of {'x'.join(map(str, self.widths))}, {shares} accepted"
