"""Kernels in the order of their launch, a part of the device for each application, or the nearest deadline first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ridgeline.seams.device_turns import DeviceTurns, RunningPart


@dataclass(frozen=True, kw_only=True)
class GreedyTurns(DeviceTurns):
    """Kernels of all applications run in the order in which they were launched, each on the whole device.

    Every application has one kernel in the queue, so that the kernels of a round take k_1 + ... + k_n, of which
    application i gets k_i: those of short kernels wait for those of long ones.

    Left out: blocks of a waiting kernel that fit beside the last wave of the one that runs.
    """

    key: ClassVar[str] = "greedy-turns"
    source: ClassVar[tuple[str, ...]] = ("consumerbench", "consumerbench-code")
    claims: ClassVar[tuple[str, ...]] = ("live captions starve beside the kernels of image generation",)

    def speeds(self, running: Sequence[RunningPart], applications: int, memory_sms: float) -> list[float]:
        """A kernel of each in turn [1].

        >>> one = RunningPart(application=0, serial=0, kernel_s=3e-3, deadline_s=1.0, memory=False)
        >>> other = RunningPart(application=1, serial=1, kernel_s=1e-3, deadline_s=1.0, memory=False)
        >>> GreedyTurns().speeds([one, other], 2, 0.5)
        [0.75, 0.25]
        """
        round_s = sum(each.kernel_s for each in running)
        return [each.kernel_s / round_s for each in running]


@dataclass(frozen=True, kw_only=True)
class EqualPartitions(DeviceTurns):
    """Each application has an equal part of the multiprocessors, whether the others use theirs or not (MPS, MIG).

    On a share x kernels that wait for compute take 1/x as long, those that wait for memory max(1, s / x), s the share
    that keeps memory busy; memory-bound parts together get no more than memory's rate.
    """

    key: ClassVar[str] = "equal-partitions"
    source: ClassVar[tuple[str, ...]] = ("consumerbench", "consumerbench-code")
    claims: ClassVar[tuple[str, ...]] = ("no application starves, and parts of those that ended stay idle",)

    def speeds(self, running: Sequence[RunningPart], applications: int, memory_sms: float) -> list[float]:
        """Speed on a part of the device [1]."""
        share = 1.0 / applications
        alone = [min(1.0, share / memory_sms) if each.memory else share for each in running]
        asked = sum(speed for speed, each in zip(alone, running, strict=True) if each.memory)
        return [speed / max(asked, 1.0) if each.memory else speed for speed, each in zip(alone, running, strict=True)]


@dataclass(frozen=True, kw_only=True)
class DeadlineTurns(DeviceTurns):
    """The application whose objective ends first has the device; it yields between two kernels.

    On one device no order keeps all objectives where the order of deadlines does not, if kernels are short.
    Applications must tell the scheduler their objectives; those without one come last.
    """

    key: ClassVar[str] = "deadline-turns"
    source: ClassVar[tuple[str, ...]] = ("consumerbench",)
    claims: ClassVar[tuple[str, ...]] = ("scheduling that knows objectives keeps those that greedy sharing breaks",)

    def speeds(self, running: Sequence[RunningPart], applications: int, memory_sms: float) -> list[float]:
        """All to the nearest deadline [1]."""
        first = min(running, key=lambda each: (each.deadline_s, each.serial))
        return [1.0 if each is first else 0.0 for each in running]
