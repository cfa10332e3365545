"""Applications on one device: parts of requests that get on at the speeds that a rule gives them, from event to event.

A part's kernels are many and short beside it, so that between two events each gets on evenly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

from ridgeline.seams.device_turns import DeviceTurns, RunningPart

_DONE_S = 1e-12  # what is left of a part that has ended, of rounding


@dataclass(frozen=True, kw_only=True)
class RequestPart:
    """A part of a request: time alone [s] of one of its `times`, kernels of that, objective of one [s]."""

    seconds: float
    times: int = 1
    kernels: int = 1
    memory: bool = False
    objective_s: float = inf


@dataclass(frozen=True, kw_only=True)
class Application:
    """Requests of the same parts, one after the other or one `every_s`, from when those `after` which it comes end."""

    name: str
    requests: int
    parts: tuple[RequestPart, ...]
    every_s: float | None = None
    after: tuple[int, ...] = ()
    objective_s: float = inf


@dataclass(frozen=True, kw_only=True)
class ApplicationOutcome:
    """Under one rule: share of requests that keep every objective [1], mean and longest latency [s].

    `slowdown` is the mean latency over that of the same requests alone; `normalized` the mean over requests of the
    largest latency over its objective [1], None where there is no objective; `end_s` when the last request ended.
    """

    rule: str
    application: str
    requests: int
    attained_share: float
    latency_s: float
    longest_s: float
    slowdown: float
    normalized: float | None
    end_s: float


@dataclass(eq=False)
class _Progress:
    """Where one application is: its request, part, and what is left of that [s alone]."""

    given: Application
    begin_s: float | None = None
    request: int = 0
    part: int = 0
    left_s: float = 0.0
    part_began_s: float = 0.0
    serial: int = -1
    worst: float = 0.0
    arrived_s: float = 0.0
    latencies: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)

    @property
    def done(self) -> bool:
        return self.request == self.given.requests

    def next_arrival_s(self, now_s: float) -> float:
        """When the request that is next comes [s]."""
        if self.begin_s is None or self.done:
            return inf
        return now_s if self.given.every_s is None else self.begin_s + self.request * self.given.every_s

    def start(self, now_s: float, serial: int) -> None:
        """Begins a part of the request."""
        one = self.given.parts[self.part]
        self.left_s, self.part_began_s, self.serial = one.seconds * one.times, now_s, serial
        if self.part == 0:
            self.arrived_s, self.worst = min(now_s, self.next_arrival_s(now_s)), 0.0
            self.part_began_s = self.arrived_s

    def deadline_s(self) -> float:
        """When the part must end [s]: by its own objective, or by the request's less the parts that follow."""
        one, later = self.given.parts[self.part], self.given.parts[self.part + 1 :]
        rest_s = sum(each.seconds * each.times for each in later)
        return min(self.part_began_s + one.objective_s * one.times, self.arrived_s + self.given.objective_s - rest_s)

    def end_part(self, now_s: float) -> None:
        """Ends a part, and with the last one the request."""
        one = self.given.parts[self.part]
        self.worst = max(self.worst, (now_s - self.part_began_s) / one.times / one.objective_s)
        self.part += 1
        self.serial = -1
        if self.part == len(self.given.parts):
            taken_s = now_s - self.arrived_s
            self.latencies.append(taken_s)
            self.ratios.append(max(self.worst, taken_s / self.given.objective_s))
            self.part, self.request = 0, self.request + 1


def run_shared(applications: Sequence[Application], rule: DeviceTurns, memory_sms: float) -> list[ApplicationOutcome]:
    """What each application gets under a rule, in their order.

    Raises nothing: every part takes a finite time, and every rule lets somebody get on.
    """
    runs = [_Progress(one) for one in applications]
    now_s, serial, ends = 0.0, 0, [inf] * len(runs)
    while not all(run.done for run in runs):
        for run in runs:
            if run.begin_s is None and all(runs[one].done for one in run.given.after):
                run.begin_s = now_s
            if run.serial < 0 and not run.done and (run.part or run.next_arrival_s(now_s) <= now_s):
                run.start(now_s, serial)
                serial += 1
        live = [(place, run) for place, run in enumerate(runs) if run.serial >= 0]
        speeds = rule.speeds([_seen(place, run) for place, run in live], len(runs), memory_sms) if live else []
        steps = [run.left_s / speed for (_, run), speed in zip(live, speeds, strict=True) if speed]
        comes = [run.next_arrival_s(now_s) - now_s for run in runs if run.serial < 0 and run.begin_s is not None]
        step_s = max(min([*steps, *comes], default=0.0), 0.0)
        now_s += step_s
        for (place, run), speed in zip(live, speeds, strict=True):
            run.left_s -= speed * step_s
            if run.left_s <= _DONE_S * max(now_s, 1.0):
                run.end_part(now_s)
                ends[place] = now_s
    return [_outcome(rule.key, run, end_s) for run, end_s in zip(runs, ends, strict=True)]


def _seen(place: int, run: _Progress) -> RunningPart:
    one = run.given.parts[run.part]
    return RunningPart(
        application=place, serial=run.serial, kernel_s=one.seconds / one.kernels, deadline_s=run.deadline_s(),
        memory=one.memory,
    )  # fmt: skip


def _outcome(rule: str, run: _Progress, end_s: float) -> ApplicationOutcome:
    many, alone_s = len(run.latencies), sum(one.seconds * one.times for one in run.given.parts)
    mean_s, every_s = sum(run.latencies) / many, run.given.every_s
    queued_s = max(alone_s - every_s, 0.0) * (many - 1) / 2 if every_s is not None else 0.0
    judged = any(each < inf for each in (run.given.objective_s, *(one.objective_s for one in run.given.parts)))
    return ApplicationOutcome(
        rule=rule, application=run.given.name, requests=many, attained_share=sum(r <= 1.0 for r in run.ratios) / many,
        latency_s=mean_s, longest_s=max(run.latencies), slowdown=mean_s / (alone_s + queued_s),
        normalized=sum(run.ratios) / many if judged else None, end_s=end_s,
    )  # fmt: skip
