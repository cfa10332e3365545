"""A device divided between prompts and decode steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from ridgeline.errors import PlanError
from ridgeline.seams.serving import Instance, Partition
from ridgeline.seams.technique import param


@dataclass(frozen=True, kw_only=True)
class DividedDevice(Partition):
    """Prompts are computed beside decode steps, each on a share of a device's multiprocessors.

    Without a `share` it is the one with which both get on most, chosen whenever an iteration of prompts begins. With
    `slack` one side is made as short as the other allows, which takes at most so many times its time alone: prompts,
    or decode steps where the cache is filled to `fill`.
    """

    key: ClassVar[str] = "divided-device"
    word: ClassVar[str] = "split"
    told_by: ClassVar[str] = "prompts are computed beside decode steps, each on a share of a device's multiprocessors"
    source: ClassVar[tuple[str, ...]] = ("shi2025nexus",)
    share: float | None = param(
        None, "1", "that share for prompts; when absent, the best one", low=0.01, high=0.99, word="split_share"
    )
    slack: float | None = param(
        None, "1", "maximum slowdown of the side not favoured, relative to running alone", low=1.0, high=100.0,
        word="split_slack",
    )  # fmt: skip
    fill: float | None = param(
        None, "1", "cache in use from which decode is favoured; when absent, 70%", high=1.0, word="split_fill"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.slack is not None and self.share is not None:
            raise PlanError(f"{self.key}: slack = {self.slack}, of a share that is not stated; leave split_share out")
        if self.fill is not None and self.slack is None:
            raise PlanError(f"{self.key}: fill = {self.fill}, needs a slack; say split_slack as well")

    def unfit(self, instance: Instance) -> str:
        """Engines that swap, or whose batches start and end together."""
        from ridgeline.seams.serving import preemption_of

        way, policy = preemption_of(instance.deployment, instance.policy), instance.policy
        if way == "swap" or policy.scheduler in ("static", "single"):
            return (
                f"with {policy.name}, which is {policy.scheduler} and whose preemption is {way}; a device is divided"
                " where engines batch continuously and recompute: take such an engine, or say preemption recompute"
            )
        return ""

    def numbers(self, instance: Instance, stride: int) -> Mapping[str, float]:
        """The share, the slack and the fill; prompts come first, and nothing is prepared ahead."""
        from ridgeline.facts.mechanisms import constant
        from ridgeline.serving.nano import shares
        from ridgeline.serving.state import PREFILL_FIRST

        memory_sms, link_sms = shares()
        return {
            "split": 1, "scheduler": PREFILL_FIRST, "ahead": 0, "late_results": 0, "split_share": self.share or 0.0,
            "split_slack": self.slack or 0.0, "memory_sms": memory_sms, "link_sms": link_sms,
            "split_fill": constant("serve.split_fill") if self.fill is None else self.fill,
        }  # fmt: skip

    def told(self) -> str:
        """The share, or how it changes."""
        changes = "" if self.fill is None else f", sides change at {self.fill:.0%}"
        sides = f"{changes}, slack {self.slack:g}" if self.slack else ""
        return f"split{f', {self.share:.0%} for prompts' if self.share else ''}{sides}"
