"""The seam of device turns: how applications that run at one time on one device share it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ridgeline.facts.records import Fact
from ridgeline.seams.technique import EXACT, Technique

DEVICE_TURNS = "device_turns"


@dataclass(frozen=True, kw_only=True)
class RunningPart:
    """What an application computes now: its mean kernel [s], and when it must end to keep its objective [s].

    `memory` says that its kernels wait for memory, so that fewer multiprocessors do as well; `serial` is the place in
    the order of arrival.
    """

    application: int
    serial: int
    kernel_s: float
    deadline_s: float
    memory: bool


@dataclass(frozen=True, kw_only=True)
class DeviceTurns(Technique):
    """How fast each of several applications gets on, over its speed when it is alone."""

    family: ClassVar[str] = DEVICE_TURNS
    kinds: ClassVar[frozenset[str]] = frozenset({"applications"})
    quality: ClassVar[Fact | None] = EXACT

    def speeds(self, running: Sequence[RunningPart], applications: int, memory_sms: float) -> list[float]:
        """Speed of each running part [1], of so many `applications` in all.

        `memory_sms` is the share of the multiprocessors that keeps memory as busy as all of them do [1].
        """
        raise NotImplementedError
