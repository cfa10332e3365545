"""The more urgent take the place of those who run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from ridgeline.plan.deployment import Deployment
from ridgeline.seams.serving import Instance, Queue, Urgency, of
from ridgeline.seams.technique import param


@dataclass(frozen=True, kw_only=True)
class Displacing(Urgency):
    """Who waits and is more urgent takes the place of who runs, who gives way as one does whose blocks run out.

    With a `period` each request draws another of so many priorities after that many iterations, in place of those of
    the trace.
    """

    key: ClassVar[str] = "priority-preemption"
    word: ClassVar[str] = "displaces"
    told_by: ClassVar[str] = "who waits and is more urgent takes the place of who runs"
    owns: ClassVar[frozenset[str]] = frozenset({"urgency"})
    source: ClassVar[tuple[str, ...]] = ("fastswitch",)
    period: int | None = param(
        None, "iterations", "iterations after which each request draws another priority; when absent, the trace's",
        low=1, high=1_000_000, whole=True, word="priority_period",
    )  # fmt: skip
    levels: int = param(
        4, "1", "priorities that are drawn from; 4 when absent", low=1, high=1000, word="priority_levels"
    )

    @property
    def drawn(self) -> bool:
        """Whether priorities change while requests run."""
        return self.period is not None

    def refusal(self, deployment: Deployment) -> str:
        """Priorities that change go with the queue by arrival."""
        if self.drawn and of(deployment, Queue).key not in ("", "arrival"):
            return "with priority_period is modelled with the queue arrival; leave one of them out"
        return ""

    def unfit(self, instance: Instance) -> str:
        """Engines whose batches start and end together."""
        if instance.policy.scheduler in ("static", "single"):
            return (
                f"with {instance.policy.name}, whose batches start and end together; take an engine that batches"
                " continuously"
            )
        return ""

    def numbers(self, instance: Instance, stride: int) -> Mapping[str, float]:
        """That it displaces, and how priorities are drawn."""
        return {"displaces": 1, "redraws": self.period or 0, "levels": self.levels}

    def told(self) -> str:
        """How priorities change."""
        many = "" if self.period == 1 else "s"
        return f"urgent displace{f', drawn every {self.period:,} iteration{many}' if self.period else ''}"
