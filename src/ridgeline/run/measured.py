"""What a run showed, from the answers of its ranks, and its phases beside what was predicted."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Generic, TypeVar

import numpy as np

from ridgeline.facts.records import Cluster

Span = tuple[str, float, float]  # kind, begin [s], end [s]
_SEND, _RECEIVE = "send", "recv"


def moving_s(ranks: Sequence[Sequence[Span]]) -> list[dict[str, float]]:
    """Seconds in which each rank's bytes move, by kind [s]: its spans from the moment that all ranks have come.

    The ranks must form one group, whose n-th call of a kind is one collective, and a send's bytes arrive when the
    peer's receiving ends: two ranks, for sends. Calls that overlap in time are counted once. Kinds whose calls differ
    in number between ranks are left out.
    """
    calls = [_by_kind(spans) for spans in ranks]
    found: list[dict[str, float]] = [{} for _ in ranks]
    for kind in sorted({name for one in calls for name in one} - {_SEND, _RECEIVE}):
        if len({len(one[kind]) for one in calls}) != 1:
            continue
        begun = [max(begins) for begins in zip(*([begin for begin, _ in one[kind]] for one in calls), strict=True)]
        for rank, one in enumerate(calls):
            spans = [(max(begin, last), end) for (begin, end), last in zip(one[kind], begun, strict=True)]
            found[rank][kind] = union_s(spans)
    if len(ranks) == 2:
        for rank, (sender, receiver) in enumerate((calls, calls[::-1])):
            sent, received = sender[_SEND], receiver[_RECEIVE]
            if sent and len(sent) == len(received):
                spans = [(max(begin, ready), end) for (begin, _), (ready, end) in zip(sent, received, strict=True)]
                found[rank][_SEND] = union_s(spans)
    return found


def _by_kind(spans: Sequence[Span]) -> Mapping[str, list[tuple[float, float]]]:
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for kind, begin, end in sorted(spans, key=lambda span: span[1]):
        found[kind].append((begin, end))
    return found


def union_s(spans: Sequence[tuple[float, float]]) -> float:
    """Seconds that some of the spans cover [s].

    >>> union_s([(0.0, 2.0), (1.0, 3.0), (5.0, 6.0), (7.0, 6.0)])
    4.0
    """
    total, reached = 0.0, float("-inf")
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total


def idle_share(busy_s: Sequence[float], whole_s: float) -> float:
    """Mean share of a time in which ranks do not compute [1]: 1 - sum(busy) / (ranks whole); a pipeline's bubble.

    >>> idle_share([3.0, 2.0], 4.0)
    0.375
    """
    return 1.0 - sum(busy_s) / (len(busy_s) * whole_s)


@dataclass(frozen=True, kw_only=True)
class MeasuredRun:
    """What a run showed: per step and phase the slowest rank's seconds, losses, memory per rank, collectives.

    `memory_bytes` is the peak of PyTorch's allocator, `process_bytes` the growth of the process on a processor (heap
    and libraries too), a value a rank. `collectives` holds by kind `calls`, `seconds` from call to end and `moving`
    seconds once all ranks had come (absent where that cannot be told), medians over steps of the rank that spent most.
    `idle_shares` is the part of each step's pipeline in which a stage does not compute, mean over ranks; empty
    without a pipeline.
    """

    phases_s: tuple[Mapping[str, float], ...]
    losses: tuple[float, ...]
    memory_bytes: tuple[float, ...]
    process_bytes: tuple[float, ...] = ()
    collectives: Mapping[str, Mapping[str, float]]
    idle_shares: tuple[float, ...] = ()
    device: str


def merged(ranks: Sequence[Mapping[str, Any]], device: str, *, one_group: bool) -> MeasuredRun:
    """The answers of all ranks as one; `one_group` says that every collective is of all ranks."""
    steps = range(len(ranks[0]["phases"]))
    phases = tuple(
        {name: max(one["phases"][step][name] for one in ranks) for name in ranks[0]["phases"][step]} for step in steps
    )
    last = max(one["stage"] for one in ranks)
    told = [one["losses"] for one in ranks if one["stage"] == last]
    return MeasuredRun(
        phases_s=phases,
        losses=tuple(sum(column) / len(column) for column in zip(*told, strict=True)),
        memory_bytes=tuple(float(one["tensor_bytes"]) for one in ranks),
        process_bytes=tuple(float(one["grown_bytes"]) for one in ranks),
        collectives=_collectives(ranks, one_group=one_group),
        idle_shares=tuple(_idle(ranks, step) for step in steps) if last else (),
        device=device,
    )


def _idle(ranks: Sequence[Mapping[str, Any]], step: int) -> float:
    phases = [one["phases"][step] for one in ranks]
    whole = max(one["forward"] + one["backward"] for one in phases)
    return idle_share([one["computing"] for one in phases], whole)


def _collectives(ranks: Sequence[Mapping[str, Any]], *, one_group: bool) -> dict[str, dict[str, float]]:
    """Calls and seconds by kind on the rank that spent most in them, medians over all observed steps but the first."""
    observed = [_of_step([one["spans"][step] for one in ranks], one_group) for step in range(len(ranks[0]["spans"]))]
    later = observed[1:] or observed
    if not any(later):
        return {}
    names = {kind for ranks_of in later for one in ranks_of for kind in one}

    def middle(rank: int, kind: str, field: str) -> float:
        seen = [ranks_of[rank][kind][field] for ranks_of in later if field in ranks_of[rank].get(kind, {})]
        return median(seen) if seen else 0.0

    busiest = max(range(len(ranks)), key=lambda rank: sum(middle(rank, kind, "seconds") for kind in names))
    found = {}
    for kind in sorted(names):
        fields = {field for ranks_of in later for one in ranks_of for field in one.get(kind, {})}
        found[kind] = {field: middle(busiest, kind, field) for field in sorted(fields)}
    return {kind: entry for kind, entry in found.items() if entry["calls"]}


def _of_step(ranks: Sequence[Any], one_group: bool) -> list[dict[str, dict[str, float]]]:
    """By rank and kind: calls, seconds from call to end, and seconds of moving bytes where they can be told."""
    moving = moving_s(ranks) if one_group else [{} for _ in ranks]
    found = []
    for spans, moved in zip(ranks, moving, strict=True):
        mine: dict[str, dict[str, float]] = {}
        for kind in {span[0] for span in spans}:
            own = [(begin, end) for name, begin, end in spans if name == kind]
            mine[kind] = {"calls": float(len(own)), "seconds": union_s(own)}
            if kind in moved:
                mine[kind]["moving"] = moved[kind]
        found.append(mine)
    return found


Told = TypeVar("Told")


@dataclass(frozen=True, kw_only=True)
class RunPhase:
    """One part of a run: predicted with its 80 % interval, measured with its 10th and 90th percentile, in `unit`.

    `within` says that the row is busy time inside other rows, which overlap may hide; it is no part of the gap.
    """

    name: str
    predicted: float
    low: float
    high: float
    measured: float
    measured_low: float
    measured_high: float
    unit: str = "s"
    within: bool = False

    @property
    def error(self) -> float | None:
        """(predicted - measured) / measured [1]; None where nothing was measured."""
        return (self.predicted - self.measured) / self.measured if self.measured else None

    @property
    def covered(self) -> bool:
        """Whether the measured value lies in the interval."""
        return self.low <= self.measured <= self.high


@dataclass(frozen=True, kw_only=True)
class Comparison(Generic[Told]):
    """What was predicted and run: the report, what was measured, rows by phase, and the phase with the widest gap."""

    report: Told
    measured: MeasuredRun
    phases: tuple[RunPhase, ...]
    gaps: Mapping[str, float]  # absolute differences of the phases that add up to the whole [s]
    remarks: tuple[str, ...] = ()

    @property
    def widest(self) -> str:
        """The phase that explains most of the gap."""
        return max(self.gaps, key=lambda name: self.gaps[name])

    @property
    def widest_share(self) -> float:
        """Its share of all phases' differences [1]."""
        total = sum(self.gaps.values())
        return self.gaps[self.widest] / total if total else 0.0

    def phase(self, name: str) -> RunPhase:
        """The row of a phase."""
        return next(one for one in self.phases if one.name == name)


def phase_of(
    name: str,
    predicted: float,
    ends: tuple[float, float],
    seen: Sequence[float],
    *,
    unit: str = "s",
    within: bool = False,
) -> RunPhase:
    """A row: the prediction with the ends of its interval, the median, 10th and 90th percentile of what was seen."""
    low, median, high = (float(value) for value in np.quantile(seen, [0.1, 0.5, 0.9]))
    return RunPhase(
        name=name,
        predicted=predicted,
        low=ends[0],
        high=ends[1],
        measured=median,
        measured_low=low,
        measured_high=high,
        unit=unit,
        within=within,
    )


def elsewhere(cluster: Cluster, device: str) -> list[str]:
    """A note where the prediction is for a machine that cannot be the one that ran."""
    part = cluster.accelerator
    if (part.architecture == "cpu") == (device == "cpu"):
        return []
    return [f"predicted for {part.name}, run on this machine's {device}: --on here predicts what ran"]
