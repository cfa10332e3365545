"""When a scheduler takes new prompts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from ridgeline.seams.serving import Instance, Polling
from ridgeline.seams.technique import param

_UNTIL = ("look", "all", "full")


@dataclass(frozen=True, kw_only=True)
class SchedulerPolling(Polling):
    """A scheduler takes new prompts every few iterations, not in each.

    At the next poll whoever has come by then is taken (`look`); or all wait until each attention rank has one that fits
    (`all`), or until they fill a share of an iteration's budget (`full`), so many iterations at most.
    """

    key: ClassVar[str] = "scheduler-polling"
    word: ClassVar[str] = "receive_interval"
    owns: ClassVar[frozenset[str]] = frozenset({"polling"})
    off: ClassVar[object] = 1
    source: ClassVar[tuple[str, ...]] = ("tensorrt-llm",)
    interval: int = param(
        2, "iterations", "iterations after which a scheduler takes new prompts; 1 when absent", low=1, high=1_000_000,
        word="receive_interval",
    )  # fmt: skip
    hold: str = param(
        "look", "", "what prompts wait for: the next poll, all ranks, or a full iteration", word="hold", choices=_UNTIL
    )
    share: float = param(1.0, "1", "of an iteration's budget that is full enough", high=1.0, word="hold_share")

    def numbers(self, instance: Instance, stride: int) -> Mapping[str, float]:
        """Iterations from poll to poll, what for, and the tokens that are enough."""
        return {
            "receive_steps": self.interval,
            "holds": _UNTIL.index(self.hold),
            "enough": self.share * instance.policy.token_budget,
        }
