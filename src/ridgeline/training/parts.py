"""What a stage's time is made of, and the same step with each part on the resource it holds.

Shape letters: P stages, v chunks per stage.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ridgeline.cost.phases import PARTS, BlockCost, PhaseCost
from ridgeline.lower.tasks import TaskGraph, dependency_rows
from ridgeline.lower.work import Number
from ridgeline.seams.schedule import BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD
from ridgeline.training.stage_times import StageLayers, StageTimes

Floats = NDArray[np.float64]
LINK_PARTS = ("tensor link", "context link", "expert link", "host link")
HOST_PARTS = ("launch",)


@dataclass(frozen=True, kw_only=True)
class PartTable:
    """Seconds of one micro-batch that one part takes on every stage and chunk, (P, v)."""

    forward_s: Floats
    backward_input_s: Floats
    backward_weight_s: Floats

    @property
    def total_s(self) -> Floats:
        """All phases together [s]."""
        return self.forward_s + self.backward_input_s + self.backward_weight_s


@dataclass(frozen=True, kw_only=True)
class StageParts:
    """What the stage times of one plan are made of; its rule of recompute covers so many layers a stage (None: all)."""

    held: StageLayers
    times: StageTimes
    recompute: str
    recompute_layers: int | None

    def tables(self) -> dict[str, PartTable]:
        """Every part of the stage times; they add up to them [s]."""
        changed = self.held.relayouts
        copies = (self.times.gather_copy_s, self.times.reduce_copy_s)
        gathered, reduced = (np.zeros(self.held.first.shape) + each for each in copies)
        found = {part: self._table(lambda phase, part=part: phase.parts.get(part, 0.0)) for part in PARTS}  # type: ignore[misc]
        if changed is not None:
            link = found["tensor link"]
            found["tensor link"] = replace(
                link, forward_s=link.forward_s + changed[0], backward_input_s=link.backward_input_s + changed[1]
            )
        found["launch"] = _with_messages(found["launch"], self.times)
        found["copies"] = PartTable(forward_s=gathered, backward_input_s=gathered, backward_weight_s=reduced)
        waits = (self.times.host_wait_s, self.times.host_back_wait_s)
        out, back = (np.zeros(self.held.first.shape) + each for each in waits)
        found["host link"] = PartTable(forward_s=out, backward_input_s=back, backward_weight_s=np.zeros(out.shape))
        return found

    def bytes(self) -> Floats:
        """Bytes of one micro-batch through device memory, all phases of every stage and chunk, (P, v) [byte]."""
        found: Floats = self._table(lambda phase: phase.bytes).total_s
        return found

    def hosts(self) -> tuple[PartTable, PartTable]:
        """The launch part on the quickest and on the slowest host; messages and turns take what they do [s]."""
        quick, slow = self._table(lambda phase: phase.hosts[0]), self._table(lambda phase: phase.hosts[1])
        return _with_messages(quick, self.times), _with_messages(slow, self.times)

    def _table(self, read: Callable[[PhaseCost], Number]) -> PartTable:
        """What `read` takes from each phase, (P, v)."""
        return PartTable(
            forward_s=self._sum("forward", read),
            backward_input_s=self._sum("backward_input", read) + self._repeated(read),
            backward_weight_s=self._sum("backward_weight", read),
        )

    def _sum(self, phase: str, read: Callable[[PhaseCost], Number]) -> Floats:
        def of(block: BlockCost) -> float:
            return float(np.asarray(read(getattr(block, phase))))

        held = self.held
        return held.layers(of) + (of(held.cost.embedding) * held.first + of(held.cost.head) * held.last)

    def _repeated(self, read: Callable[[PhaseCost], Number]) -> Floats:
        held, name = self.held, self.recompute
        if any(name not in block.again for block in held.cost.blocks.values()):
            return np.zeros(held.first.shape)
        share = np.ones((held.counts.shape[0], 1))
        if self.recompute_layers is not None:
            share = np.minimum(1.0, self.recompute_layers / np.maximum(held.counts.sum(axis=(1, 2)), 1)[:, None])
        return np.asarray(held.layers(lambda block: float(np.asarray(read(block.again[name])))) * share)


def _with_messages(launched: PartTable, times: StageTimes) -> PartTable:
    return replace(
        launched,
        forward_s=launched.forward_s + times.message_s + times.turn_s,
        backward_input_s=launched.backward_input_s + times.message_s + times.back_turn_s,
    )


def by_resource(tasks: TaskGraph, tables: dict[str, PartTable]) -> TaskGraph:
    """The same step with the link and host time inside compute tasks on streams of their own.

    Each compute task that exposes collectives or launches is cut into compute, link and host, one after the other;
    the next task of its stage waits for the last of them, so every start and end of the step stays.
    """
    link, host = (_shares(tables, parts) for parts in (LINK_PARTS, HOST_PARTS))
    compute = np.isin(tasks.kind, (FORWARD, BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT))
    stages = 1 + max(tasks.stream_device)
    stage, chunk = np.asarray(tasks.stream_device)[tasks.stream], np.maximum(tasks.chunk, 0)
    kind = np.where(compute, tasks.kind, 0)
    parts = np.where(compute, np.stack((link[kind, stage, chunk], host[kind, stage, chunk])), 0.0) * tasks.duration_s
    streams, names, devices = [tasks.stream], list(tasks.stream_names), list(tasks.stream_device)
    durations = [tasks.duration_s - parts.sum(axis=0)]
    last = np.arange(tasks.tasks)
    waiting, awaited = [tasks.waiting], [tasks.dep]
    owners = [np.arange(tasks.tasks)]
    count = tasks.tasks
    for seconds, title in zip(parts, ("link", "host"), strict=True):
        chosen = np.flatnonzero(seconds > 0)
        used = np.flatnonzero(np.bincount(stage[chosen], minlength=1))
        number = np.full(stages, -1)
        number[used] = len(names) + np.arange(used.size)
        names += [f"{title} of stage {s}" for s in used]
        devices += used.tolist()
        mine = count + np.arange(chosen.size)
        waiting.append(mine)
        awaited.append(last[chosen])
        last[chosen] = mine
        streams.append(number[stage[chosen]].astype(np.int32))
        durations.append(seconds[chosen])
        owners.append(chosen)
        count += chosen.size
    owner = np.concatenate(owners)
    before = tasks.previous
    cut = np.flatnonzero((before >= 0) & (last[np.maximum(before, 0)] != before))
    old = np.concatenate((last[awaited[0]], *awaited[1:], last[before[cut]]))
    dep_start, dep = dependency_rows(np.concatenate((*waiting, cut)), old, count)
    return replace(
        tasks,
        duration_s=np.concatenate(durations),
        stream=np.concatenate(streams),
        dep_start=dep_start,
        dep=dep,
        stream_names=tuple(names),
        stream_device=tuple(devices),
        kind=tasks.kind[owner],
        micro_batch=tasks.micro_batch[owner],
        chunk=tasks.chunk[owner],
    )


def _shares(tables: dict[str, PartTable], parts: tuple[str, ...]) -> Floats:
    """Share of each kind of compute task that some parts take, (kinds, P, v) [1]."""

    def phases(chosen: tuple[str, ...]) -> Floats:
        forward, inputs, weights = (
            np.asarray(sum(getattr(tables[part], name) for part in chosen))
            for name in ("forward_s", "backward_input_s", "backward_weight_s")
        )
        return np.stack((forward, inputs + weights, inputs, weights))  # F, B, Bi, W

    whole = phases(tuple(tables))
    return np.divide(phases(parts), whole, out=np.zeros_like(whole), where=whole > 0)
