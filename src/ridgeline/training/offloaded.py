"""A step whose states or activations move between tiers: its tasks on lanes, and its lower bound.

Every compute task of the pipeline becomes the layers that it is made of. A layer's weights are fetched some layers
ahead, its activations leave after its forward and return before its backward, its gradient leaves after its backward.
Shape letters: P stages, v chunks per stage.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from ridgeline.lower.tasks import TaskGraph
from ridgeline.seams.lanes import COMPUTE, DOWNLOAD, LANES, NETWORK, WRITE, Ends, LaneRates, Lanes, Part
from ridgeline.seams.offload import ACTIVATIONS, GRADIENTS, KINDS, OPTIMIZER, WEIGHTS, Away, TierOffload, owner
from ridgeline.seams.schedule import BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD, Order
from ridgeline.training.exchanges import SLOWDOWN, ShardExchange
from ridgeline.training.pipeline import SEND_BACKWARD, SEND_FORWARD
from ridgeline.training.step import GATHER, REDUCE, STEP_LABEL, UPDATE

LABELS = (*STEP_LABEL, "weights", "activations", "gradients", "states")
_KIND = {name: kind for kind, name in enumerate(LABELS)}


@dataclass(frozen=True, kw_only=True)
class OffloadedStep:
    """What a step with offload is made of.

    `parts` are those of each stage and chunk in the order of a forward, `zero` the ZeRO stage, `devices` the ranks that
    share each weight, `rules` when ranks exchange; `closing_s` (P,) of each stage once a step before the update, and
    `update_s` (P,) of its update where states are on the device [s]. `forwards_alone` says that it has no backward.
    """

    parts: Sequence[Sequence[Sequence[Part]]]
    zero: int
    ranks: int
    rules: ShardExchange
    closing_s: Sequence[float]
    update_s: Sequence[float]
    forwards_alone: bool = False


def offloaded_tasks(
    base: TaskGraph, order: Order, step: OffloadedStep, found: Sequence[TierOffload], rates: LaneRates
) -> TaskGraph:
    """The exact task graph of one step; `base` are the tasks of its pipeline, of that order."""
    return _Layout(base, order, step, found, rates).build()


def stage_bound_s(
    base: TaskGraph, order: Order, step: OffloadedStep, found: Sequence[TierOffload], rates: LaneRates
) -> float:
    """Lower bound of `offloaded_tasks` [s]: what the stage with the most to do takes if it waits for no other."""
    layout = _Layout(base, order, step, found, rates)
    work = [sum(_work_s(part, BACKWARD) + part.forward_s for chunk in stage for part in chunk) for stage in step.parts]
    layout.lay_stage(int(np.argmax(work)), order.kind.shape[1])
    return layout.lanes.span_s()


def in_pieces(step: OffloadedStep, pieces: int) -> OffloadedStep:
    """The same step with every layer cut into so many pieces."""
    if pieces == 1:
        return step
    parts = [[[one for part in chunk for one in part.cut(pieces)] for chunk in stage] for stage in step.parts]
    return replace(step, parts=parts)


def lanes_bound_s(tasks: TaskGraph) -> float:
    """Lower bound of a step's time [s]: no stream runs two of its tasks at once."""
    return float(np.bincount(tasks.stream, weights=tasks.duration_s).max())


class _Layout:
    """Records a step on lanes, stage by stage."""

    def __init__(
        self, base: TaskGraph, order: Order, step: OffloadedStep, found: Sequence[TierOffload], rates: LaneRates
    ) -> None:
        self.pieces = max((one.pieces() for one in found), default=1)
        self.base, self.order, self.step = base, order, in_pieces(step, self.pieces)
        self.lanes, self.slowdown = Lanes(rates), SLOWDOWN()
        self.owners: Mapping[str, TierOffload | None] = {kind: owner(found, kind, step.zero) for kind in KINDS}
        self.away = {kind: self._away(kind) for kind in KINDS}
        self.head: dict[int, int] = {}  # first and last task of each compute task of the pipeline
        self.tail: dict[int, int] = {}
        self.gradients: list[dict[tuple[int, int], Ends]] = []
        self.last: list[Ends] = []

    def _away(self, kind: str) -> tuple[float, float]:
        """Shares of something in another tier, and on drives [1]."""
        one = self.owners[kind]
        where = Away() if one is None else one.away(kind, self.step.zero)
        dram, nvme = float(cast(float, where.dram)), float(cast(float, where.nvme))
        return dram + nvme, nvme

    def build(self) -> TaskGraph:
        """The whole step."""
        stages, width = self.order.kind.shape
        for stage in range(stages):
            self.lay_stage(stage, width)
        everything = tuple(task for ends in self.gradients for each in ends.values() for task in each)
        everything += tuple(task for ends in self.last for task in ends)
        for stage in range(stages):
            self._update(stage, everything)
        return self._graph()

    def lay_stage(self, stage: int, width: int) -> None:
        """One stage's `width` compute tasks, with what moves around them."""
        self.lanes.stage = stage
        _Stage(self, stage, range(stage * width, (stage + 1) * width)).lay()

    def _update(self, stage: int, everything: Ends) -> None:
        """The update of a stage, after all gradients of all stages unless its technique does not wait for them."""
        lanes, step, one = self.lanes, self.step, self.owners[OPTIMIZER]
        lanes.stage, lanes.micro_batch, lanes.chunk = stage, 0, 0
        closed = lanes.add(COMPUTE, step.closing_s[stage], everything, "update")  # the norm is of all gradients
        if one is None:
            lanes.add(COMPUTE, step.update_s[stage], closed, "update")
        elif not one.early:
            parts = [part for chunk in step.parts[stage] for part in chunk]
            one.lay_update(lanes, parts, [closed] * len(parts))

    def _graph(self) -> TaskGraph:
        lanes, base = self.lanes, self.base
        compute = len(self.head)
        sends = np.arange(compute, base.tasks)
        count = len(lanes.tasks)
        seconds, lane, stage, labels, waits, micro, chunk = zip(*lanes.tasks, strict=True)
        head, tail = (
            np.concatenate(([ends[task] for task in range(compute)], np.arange(count, count + sends.size)))
            for ends in (self.head, self.tail)
        )
        waiting = np.concatenate(
            (np.repeat(np.arange(count), [len(each) for each in waits]), np.repeat(head, np.diff(base.dep_start)))
        )
        awaited = np.concatenate((np.fromiter(chain.from_iterable(waits), np.int64), tail[base.dep]))
        order = np.argsort(waiting, kind="stable")
        starts = np.concatenate(([0], np.cumsum(np.bincount(waiting, minlength=count + sends.size))))
        streams = {place: number for number, place in enumerate(dict.fromkeys(zip(lane, stage, strict=True)))}
        first = len(streams)
        names = tuple(_stream_name(*place) for place in streams)
        return TaskGraph(
            duration_s=np.concatenate((np.asarray(seconds), base.duration_s[sends])),
            stream=np.concatenate(
                (
                    np.array([streams[place] for place in zip(lane, stage, strict=True)]),
                    base.stream[sends] - self.order.stages + first,
                )
            ).astype(np.int32),
            dep_start=starts.astype(np.int64),
            dep=awaited[order],
            stream_names=names + base.stream_names[self.order.stages :],
            stream_device=tuple(place[1] for place in streams) + base.stream_device[self.order.stages :],
            kind=np.concatenate((np.array([_KIND[name] for name in labels]), base.kind[sends])).astype(np.int16),
            label=LABELS,
            micro_batch=np.concatenate((np.array(micro), base.micro_batch[sends])).astype(np.int32),
            chunk=np.concatenate((np.array(chunk), base.chunk[sends])).astype(np.int16),
        )


def _stream_name(lane: str, stage: int) -> str:
    return f"stage {stage}" if lane == COMPUTE else f"{lane} {stage}" if lane in LANES else lane


class _Use(NamedTuple):
    """One layer's part in one compute task."""

    task: int
    kind: int
    micro_batch: int
    chunk: int
    part: int
    place: tuple[int, int]  # chunk and part
    key: tuple[int, int, int]  # micro-batch, chunk and part


class _Stage:
    """Lays the layers of one stage's compute tasks, with what moves around them."""

    def __init__(self, whole: _Layout, stage: int, tasks: range) -> None:
        self.whole, self.lanes, self.parts = whole, whole.lanes, whole.step.parts[stage]
        self.uses = [use for task in tasks for use in self._uses(task)]
        rules = whole.step.rules
        self.gathers, self.gathers_once, self.reduces = (
            bool(each) for each in (rules.gather_always, rules.gather_once, rules.reduce_always)
        )
        self.shared = whole.step.ranks > 1
        self.fetches = bool(whole.away[WEIGHTS][0]) or self.gathers or self.gathers_once
        self.moves = bool(whole.away[ACTIVATIONS][0])
        self.ends: list[Ends] = []  # of each use
        weights, kept = whole.owners[WEIGHTS], whole.owners[ACTIVATIONS]
        self.ahead = (weights.ahead() if weights else 1) if int(np.all(whole.step.rules.overlap_gather)) else 0
        self.buffers = self.ahead + 1 + (weights.leaving() if weights else 0)
        self.left: list[Ends] = []  # when the weights of each use are there no more
        self.together = weights.together() if weights and self.ahead else 1
        self.blocked: Ends = ()  # what the device waits for before it computes on
        self.back = round(kept.kept_layers() * whole.pieces) - 1 if kept else 0
        self.resident: deque[tuple[int, int]] = deque(maxlen=self.ahead + 1)
        self.fetched: dict[int, Ends] = {}
        self.restored: dict[int, Ends] = {}
        self.stored: dict[tuple[int, int, int], Ends] = {}
        self.saves: dict[int, Ends] = {}
        self.seen: set[tuple[int, int]] = set()
        self.forward_at = {use.key: n for n, use in enumerate(self.uses) if use.kind == FORWARD}
        self.backward_at = {use.key: n for n, use in enumerate(self.uses) if use.kind in (BACKWARD, BACKWARD_INPUT)}
        self.ending = (FORWARD,) if whole.step.forwards_alone else (BACKWARD, BACKWARD_WEIGHT)
        self.final = {use.place: n for n, use in enumerate(self.uses) if use.kind in self.ending}
        self.gradients: dict[tuple[int, int], Ends] = {}
        self.work_s = {
            (kind, chunk, part): _work_s(one, kind)
            for kind in _WORK for chunk, layers in enumerate(self.parts) for part, one in enumerate(layers)
        }  # fmt: skip

    def _uses(self, task: int) -> list[_Use]:
        base = self.whole.base
        kind, micro, chunk = int(base.kind[task]), int(base.micro_batch[task]), int(base.chunk[task])
        if kind not in _WORK:  # a pass that all stages take part in
            return [_Use(task, kind, micro, chunk, -1, (chunk, -1), (micro, chunk, -1))]
        count = len(self.parts[chunk])
        each = range(count) if kind == FORWARD else reversed(range(count))
        return [_Use(task, kind, micro, chunk, part, (chunk, part), (micro, chunk, part)) for part in each]

    def lay(self) -> None:
        """Record every use in the stage's order; what is fetched ahead is recorded as its buffer falls free."""
        whole, lanes, head, tail, before = self.whole, self.lanes, self.whole.head, self.whole.tail, cast(Ends, ())
        fetched, most = 0, len(self.uses)
        for number, use in enumerate(self.uses):
            lanes.micro_batch, lanes.chunk = use.micro_batch, use.chunk
            room = min(most, number // self.together * self.together + self.ahead + 1) if self.fetches else 0
            while fetched < room:
                freed = self.left[fetched - self.buffers] if fetched >= self.buffers else ()
                self._fetch(fetched, (before if fetched > self.ahead else ()) + freed)
                fetched += 1
            if self.moves:
                self._restore(number + self.back, before)
            self._compute(number, use)
            before = self.ends[-1]
            head.setdefault(use.task, before[0])
            tail[use.task] = before[0]
        whole.gradients.append(self.gradients)
        whole.last.append(self.ends[-1])

    def part(self, use: _Use) -> Part:
        """The layer of a use."""
        return self.parts[use.chunk][use.part]

    def _fetch(self, number: int, after: Ends) -> None:
        """Bring the weights of a use, unless they are still there: from drives and host, then from the other ranks."""
        use, step = self.uses[number], self.whole.step
        place = use.place
        if use.part < 0 or use.kind == BACKWARD_WEIGHT or place in self.resident:
            return
        part, (away, stored) = self.part(use), self.whole.away[WEIGHTS]
        gathered = self.gathers or (self.gathers_once and use.kind == FORWARD and place not in self.seen)
        self.seen.add(place)
        if not away and not gathered:
            return
        self.resident.append(place)
        one = self.whole.owners[WEIGHTS]
        share = part.share_bytes if step.zero >= 3 and one is not None and one.partitioned() else part.weight_bytes
        ends = self.lanes.fetch(away * share, stored * share, after, "weights")
        if gathered and part.gather_s > 0 and step.ranks > 1:
            ends = self.lanes.add(NETWORK, part.gather_s, ends, STEP_LABEL[GATHER])
        self.fetched[number] = ends

    def _moves(self, key: tuple[int, int, int]) -> bool:
        """Whether the activations of a layer's forward leave: those of the last layers before a backward stay."""
        return self.moves and self.backward_at[key] - self.forward_at[key] > 2 * self.back + 1

    def _restore(self, number: int, after: Ends) -> None:
        """Bring back the activations of a backward that is so near."""
        if number >= len(self.uses) or self.uses[number].kind not in (BACKWARD, BACKWARD_INPUT):
            return
        use = self.uses[number]
        if not self._moves(use.key):
            return
        one, (away, stored) = self.whole.owners[ACTIVATIONS], self.whole.away[ACTIVATIONS]
        size = self.part(use).kept_bytes
        after = after + self.stored.pop(use.key)
        direct = one is not None and one.direct
        self.restored[number] = self.lanes.fetch(away * size, stored * size, after, "activations", direct=direct)

    def _compute(self, number: int, use: _Use) -> None:
        """The work of a use, once its weights and activations are there and the buffers of earlier ones are free."""
        if use.part < 0:
            base = self.whole.base
            self.ends.append(self.lanes.add(COMPUTE, float(base.duration_s[use.task]), (), STEP_LABEL[use.kind]))
            self.left.append(self.ends[-1])
            return
        part, kind = self.parts[use.chunk][use.part], use.kind
        seconds = self.work_s[kind, use.chunk, use.part]
        fetched = self.fetched.pop(number, ())
        after = fetched + self.restored.pop(number, ()) + self.saves.pop(number - self.back - 1, ()) + self.blocked
        self.blocked = ()
        final = kind in self.ending and self.final[use.place] == number
        reduces = part.reduce_s > 0 and kind in self.ending and (self.reduces or final)
        if self.shared and (fetched or reduces):
            exchanged = part.gather_s * bool(fetched) + part.reduce_s * reduces
            seconds += self.whole.slowdown * min(exchanged, seconds)
        ends = self.lanes.add(COMPUTE, seconds, after, STEP_LABEL[kind])
        self.ends.append(ends)
        self.left.append(ends)
        if self.moves and kind == FORWARD and use.key in self.backward_at and self._moves(use.key):
            one, (away, stored) = self.whole.owners[ACTIVATIONS], self.whole.away[ACTIVATIONS]
            size, direct = part.kept_bytes, one is not None and one.direct
            self.saves[number] = self.lanes.store(away * size, stored * size, ends, "activations", direct=direct)
            self.stored[use.key] = self.saves[number]
        if final or ((reduces or self.whole.away[GRADIENTS][0]) and kind in self.ending):
            self._gradient(use, part, ends, reduces=reduces, final=final)

    def _gradient(self, use: _Use, part: Part, ends: Ends, *, reduces: bool, final: bool) -> None:
        """Reduce a layer's gradient, and hand it to the tier that keeps it; updates that do not wait follow at once."""
        lanes, whole = self.lanes, self.whole
        away, stored = whole.away[GRADIENTS]
        if reduces:
            ends = lanes.add(NETWORK, part.reduce_s, ends, STEP_LABEL[REDUCE])
        if away and (final or whole.step.zero >= 2 or whole.step.ranks == 1):
            one = whole.owners[GRADIENTS]
            if one is not None and one.widens():
                ends = lanes.move(DOWNLOAD, away * part.new_bytes, ends, "gradients")
                ends = lanes.host_copy(away * (part.new_bytes + part.gradient_bytes), ends, "gradients")
                self.blocked = ends
            else:
                ends = lanes.move(DOWNLOAD, away * part.gradient_bytes, ends, "gradients")
            if final:
                ends = lanes.move(WRITE, stored * part.gradient_bytes, ends, "gradients")
        if not final:
            return
        one = whole.owners[OPTIMIZER]
        if one is not None and one.early:
            ends = one.lay_update(lanes, [part], [ends])[0]
            self.left[-1] = ends if whole.step.forwards_alone else self.left[-1]
        self.gradients[use.place] = ends


_WORK = (FORWARD, BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT)


def _work_s(part: Part, kind: int) -> float:
    """Seconds of one kind of work of a layer, without what slows it [s]."""
    if kind == FORWARD:
        return part.forward_s
    return (part.input_s if kind != BACKWARD_WEIGHT else 0.0) + (part.weight_s if kind != BACKWARD_INPUT else 0.0)


def exposed_update_s(tasks: TaskGraph, end_s: NDArray[np.float64]) -> float:
    """Seconds from the last forward or backward of a step to its end: what of the update nothing hides [s]."""
    worked = np.isin(tasks.kind, _WORK)
    return float(end_s.max() - end_s[worked].max())


def device_update_s(tasks: TaskGraph, stage: int) -> float:
    """Seconds in which a stage's device updates weights beside its forwards and backwards [s]."""
    own = tasks.stream == tasks.stream_names.index(_stream_name(COMPUTE, stage))
    return float(tasks.duration_s[own & (tasks.kind == UPDATE)].sum())


def without_moves(tasks: TaskGraph) -> TaskGraph:
    """The same step where links, drives and the host's memory take no time."""
    kept = np.isin(tasks.kind, (*_WORK, UPDATE, SEND_FORWARD, SEND_BACKWARD))
    return replace(tasks, duration_s=np.where(kept, tasks.duration_s, 0.0))
