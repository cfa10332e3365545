"""One step of data-parallel ranks on unlike devices: each type computes at its own pace, exchanges wait for all.

Shape letters: K types of rank, L layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ridgeline.errors import PlanError
from ridgeline.lower.tasks import TaskGraph, listed_rows
from ridgeline.plan.rules import MOST_TASKS
from ridgeline.training.exchanges import SLOWDOWN, ShardExchange

LABEL = ("forward", "backward", "gather", "reduce", "update")
FORWARD, BACKWARD, GATHER, REDUCE, UPDATE = range(len(LABEL))


@dataclass(frozen=True, kw_only=True)
class RankWork:
    """What one rank of a type does in a step: seconds of a micro-batch, how many of them, and its update [s]."""

    name: str
    forward_s: float
    backward_s: float
    micro_batches: int
    update_s: float


@dataclass(frozen=True, kw_only=True)
class UnlikeStep:
    """A step of ranks of unlike types: seconds of all layers' exchanges, and when they happen.

    Where `layered`, a layer computes all micro-batches before the next, so that each exchange happens once a step.
    """

    ranks: tuple[RankWork, ...]
    layers: int
    gather_s: float
    reduce_s: float
    rules: ShardExchange
    layered: bool

    @property
    def rounds(self) -> int:
        """Times that all layers are gone through [1]."""
        return 1 if self.layered else max(one.micro_batches for one in self.ranks)

    @property
    def compute_s(self) -> float:
        """What the slowest rank computes at least [s]."""
        return max(one.micro_batches * (one.forward_s + one.backward_s) for one in self.ranks)

    @property
    def exchange_s(self) -> float:
        """What the links carry in a step [s]."""
        gathers = 2 * self.rounds if self.rules.gather_always else int(bool(self.rules.gather_once))
        reduces = self.rounds if self.rules.reduce_always else 1
        return gathers * self.gather_s + reduces * self.reduce_s

    @property
    def bound_s(self) -> float:
        """A lower bound of the step: the slowest rank alone, or the links alone, and the slowest update [s]."""
        return max(self.compute_s, self.exchange_s) + max(one.update_s for one in self.ranks)


@dataclass
class _Tasks:
    """Tasks in the order of their streams; a stream for each type of rank, one for the links."""

    seconds: list[float] = field(default_factory=list)
    streams: list[int] = field(default_factory=list)
    kinds: list[int] = field(default_factory=list)
    rounds: list[int] = field(default_factory=list)
    layers: list[int] = field(default_factory=list)
    waits: list[list[int]] = field(default_factory=list)

    def add(self, kind: int, stream: int, seconds: float, place: tuple[int, int], waits: Sequence[int]) -> int:
        for column, value in (
            (self.kinds, kind), (self.streams, stream), (self.rounds, place[0]), (self.layers, place[1]),
        ):  # fmt: skip
            column.append(value)
        self.seconds.append(seconds)
        self.waits.append(list(waits))
        return len(self.seconds) - 1


def unlike_tasks(step: UnlikeStep) -> TaskGraph:
    """The task graph of a step, layer by layer.

    Weights of a layer arrive before any rank computes it, at most two layers ahead where gathers are hidden, else one
    after the other; a gradient leaves after every rank has computed its layer. Ranks of a type stand for each other.
    Raises `PlanError` where there are too many tasks.
    """
    count = step.rounds * step.layers * 2 * (len(step.ranks) + 2)
    if count > MOST_TASKS:
        raise PlanError(
            f"plan: a step of {count:,} tasks on devices of unlike types, at most {MOST_TASKS:,}; use larger"
            " micro-batches, or --technique decoupled-shares"
        )
    tasks, done = _Tasks(), list[list[int]]()
    for number in range(step.rounds):
        for backward in (False, True):
            _pass(step, tasks, done, number, backward=backward)
    reduced = [task for task, kind in enumerate(tasks.kinds) if kind == REDUCE][-1:]
    for stream, one in enumerate(step.ranks):
        tasks.add(UPDATE, stream, one.update_s, (0, 0), [*reduced, *done[-1]])
    return _graph(step, tasks)


def _pass(step: UnlikeStep, tasks: _Tasks, done: list[list[int]], number: int, *, backward: bool) -> None:
    """Tasks of one pass through all layers; `done` are the compute tasks of all ranks, by layer and pass."""
    rules, links, layers = step.rules, len(step.ranks), step.layers
    gathers = bool(rules.gather_always) or (bool(rules.gather_once) and number == 0 and not backward)
    reduces = backward and (bool(rules.reduce_always) or number == step.rounds - 1)
    gather_s, reduce_s = step.gather_s / layers * gathers, step.reduce_s / layers * reduces
    ahead = 2 if rules.overlap_gather else 1
    order = range(layers - 1, -1, -1) if backward else range(layers)
    start = len(done)
    arrived: dict[int, int] = {}

    def collect(place: int) -> None:
        if gathers and place < layers:
            before = start + place - ahead
            arrived[place] = tasks.add(GATHER, links, gather_s, (number, place), done[before] if before >= 0 else ())

    last: list[int] = []
    for place in range(ahead):
        collect(place)
    for place, layer in enumerate(order):
        waits = [*([arrived[place]] if gathers else []), *([] if rules.overlap_reduce else last)]
        done.append([])
        for stream, one in enumerate(step.ranks):
            each = (one.backward_s if backward else one.forward_s) / layers
            alone = each * (one.micro_batches if step.layered else min(1, max(0, one.micro_batches - number)))
            beside = gather_s * bool(rules.overlap_gather), reduce_s * bool(rules.overlap_reduce)
            slowed = alone + SLOWDOWN() * sum(min(alone, other) for other in beside)
            kind = BACKWARD if backward else FORWARD
            done[-1].append(tasks.add(kind, stream, slowed, (number, layer), waits))
        collect(place + ahead)
        last = [tasks.add(REDUCE, links, reduce_s, (number, layer), done[-1])] if reduces else []


def _graph(step: UnlikeStep, tasks: _Tasks) -> TaskGraph:
    dep_start, dep = listed_rows(tasks.waits)
    return TaskGraph(
        duration_s=np.array(tasks.seconds),
        stream=np.array(tasks.streams, dtype=np.int32),
        dep_start=dep_start,
        dep=dep,
        stream_names=(*(one.name for one in step.ranks), "links"),
        stream_device=tuple(range(len(step.ranks) + 1)),
        kind=np.array(tasks.kinds, dtype=np.int16),
        label=LABEL,
        micro_batch=np.array(tasks.rounds, dtype=np.int32),
        chunk=np.array(tasks.layers, dtype=np.int16),
    )
