"""Bounds and memory of every plan of a space, by broadcasting.

Layouts are priced once, all together. Plans that share stages, chunks and schedule form a group whose axes are
recompute (R), sharding (Z), what saves memory (O) and layout (K), the longest, on which NumPy's loops run; stage times
are (R, Z, O, K, P, v) by broadcasting. A group tells them with layouts first.
"""

from __future__ import annotations

import os
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import reduce
from itertools import islice, product
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.cost.phases import PARTS, BlockCost
from ridgeline.lower.split import balanced_split, even_split
from ridgeline.lower.work import Layout
from ridgeline.memory.activations import kept_bytes
from ridgeline.memory.query import MemoryOptions, MemoryStage, as_array, resolve, shared_ends
from ridgeline.memory.stage import device_memory, device_peak, host_bytes, tier_bytes
from ridgeline.plan.plan import Plan
from ridgeline.predict import Predictor
from ridgeline.seams.offload import offloads, on_lanes
from ridgeline.seams.schedule import PipelineSchedule, Shape
from ridgeline.search.axes import Axes, entries, recompute_axis, repeats, savings, sharding_axis
from ridgeline.search.groups import Floats, Group
from ridgeline.search.space import Degrees, Space, chunk_choices
from ridgeline.training.bounds import StepBound
from ridgeline.training.exchanges import ShardExchange, Sharding
from ridgeline.training.pipeline import pipeline_schedule
from ridgeline.training.stage_times import LayoutCost
from ridgeline.training.step import with_moved_activations

_ONCE = dict.fromkeys(PARTS, 1.0)  # each second of a step for what it is
_THREADS = min(os.cpu_count() or 1, 4)  # each holds the arrays of one group


@dataclass(frozen=True, kw_only=True)
class _Family:
    """Plans on the same number of stages, and all that is the same for their schedules, chunks and layer splits."""

    stages: int
    axes: Axes
    cost: LayoutCost  # exchanges included
    sharding: Sharding
    held: MemoryStage  # of no layers yet; its plans are the layouts that differ in memory
    alike: NDArray[np.int64]  # which of these each layout is
    repeats: NDArray[np.bool_]

    def by_layout(self, held: NDArray[Any]) -> NDArray[Any]:
        """What is known of layouts that differ in memory, for every layout: their axis is the last."""
        return np.take(held, self.alike, axis=-1)


class PricedGrid:
    """Prices a space for one predictor; iterate `groups` for the bounds."""

    def __init__(self, predictor: Predictor, space: Space, found: list[Degrees]) -> None:
        self.predictor, self.space = predictor, space
        self.workload = predictor.workload
        self.entries = entries(found, space, self.workload.seq_len)
        self.offloads = offloads(predictor.model.techniques)
        self.on_lanes = on_lanes(self.offloads)
        self._layouts, self._index = self._unique()
        self.cost = predictor.stages.price(self._layouts, space.recompute)

    def _unique(self) -> tuple[Layout, list[int]]:
        """Each different layout once, as arrays, and where each entry's is."""
        names = ("tp", "cp", "ep", "etp", "context", "micro_batch")
        degrees = attrgetter(*names)
        keys: dict[tuple[int | str, ...], int] = {}
        index = [
            keys.setdefault((*degrees(one.degrees), one.sequence_parallel, one.overlap_tensor), len(keys))
            for one in self.entries
        ]
        found: dict[str, Any] = {}
        for name, column in zip((*names, "sequence_parallel", "overlap_tensor"), zip(*keys, strict=True), strict=True):
            kind = str if name == "context" else float
            found[name] = np.array(column, dtype=kind)[None, None, None]  # (1, 1, 1, K)
        return Layout(**found), index

    def groups(self) -> Iterator[Group]:
        """Every group of plans, bounded and measured, always in the same order; a thread a core works ahead."""
        asked = self._asked()  # taken as threads come free: what layouts share is held for those at work
        with ThreadPoolExecutor(_THREADS) as pool:
            ahead = deque(pool.submit(self._group, *one) for one in islice(asked, _THREADS + 1))
            while ahead:
                group = ahead.popleft().result()
                ahead.extend(pool.submit(self._group, *one) for one in islice(asked, 1))
                yield group

    def least_device_s(self) -> float:
        """Device-seconds that a step computes at least, in the cheapest layout [s]: no plan on n devices is quicker
        than an nth of it."""
        seconds = sum(self._spent(_ONCE))
        return float(np.min(seconds))

    def least_spent(self, weights: Mapping[str, float]) -> float:
        """The least sum over devices of seconds of each part times its weight that a step spends, in any layout and on
        any count of stages, where each stage spends what the one with the most work does.

        That one has no less work than the mean of P stages; of which blocks is open, so that those with the least
        weight a second are taken, as far as the model has them.
        """
        stages: dict[int, set[int]] = defaultdict(set)
        for entry, place in zip(self.entries, self._index, strict=True):
            stages[entry.degrees.pp].add(place)
        seconds, spent = (np.stack(self._spent(each)) for each in (_ONCE, weights))
        each = np.divide(spent, seconds, out=np.zeros_like(spent), where=seconds > 0)
        order = np.argsort(each, axis=0)
        has, each = (np.take_along_axis(one, order, axis=0) for one in (seconds, each))
        before = np.cumsum(has, axis=0) - has
        least = np.inf
        for count, places in stages.items():
            mine = sorted(places)
            work = has[:, mine].sum(axis=0) / count
            taken = np.clip(work - before[:, mine], 0.0, has[:, mine])
            least = min(least, float((each[:, mine] * taken).sum(axis=0).min()) * count)
        return least

    def _spent(self, weights: Mapping[str, float]) -> list[Floats]:
        """Device-seconds of a step by block kind, embedding and head, times the weight of each part; (K,) each [s]."""
        cost, layers = self.cost.forwards_alone(self.predictor.stages.forwards), self.predictor.model.graph.layers
        blocks = [
            (cost.embedding, 1),
            (cost.head, 1),
            *((one, layers.count(name)) for name, one in cost.blocks.items()),
        ]
        ranks = np.asarray(cost.layout.tp) * cost.layout.cp
        rounds = self.workload.global_batch / np.asarray(cost.layout.micro_batch)
        return [np.ravel(_seconds(block, weights) * count * ranks * rounds) for block, count in blocks]

    def _asked(self) -> Iterator[tuple[_Family, PipelineSchedule, int, tuple[int, ...] | None]]:
        """What makes each group: plans, schedule, chunks and split of the layers."""
        by_stages: dict[int, list[int]] = defaultdict(list)
        for position, entry in enumerate(self.entries):
            by_stages[entry.degrees.pp].append(position)
        for stages, members in sorted(by_stages.items()):
            families: dict[tuple[int, ...], _Family] = {}
            splits: dict[tuple[int, int], list[tuple[int, ...] | None]] = {}
            sharded = sharding_axis(self.predictor, self.space, stages)
            sizes = {self.entries[i].degrees.micro_batches for i in members}
            for schedule in map(pipeline_schedule, self.space.schedules if sharded else ()):
                runs = {size for size in sizes if _runs(schedule, stages, size)}
                kept = tuple(i for i in members if self.entries[i].degrees.micro_batches in runs)
                if not kept:
                    continue
                for chunks in chunk_choices(schedule, stages, self.predictor.limits.layers, self.space):
                    if kept not in families:
                        families[kept] = self._family(stages, kept)
                    middle = kept[len(kept) // 2]  # times of a group's layouts scale alike, so others are near it
                    places = stages * chunks // schedule.copies
                    if (middle, places) not in splits:
                        splits[middle, places] = self._splits(places, middle)
                    for split in splits[middle, places]:
                        yield families[kept], schedule, chunks, split

    def _splits(self, places: int, entry: int) -> list[tuple[int, ...] | None]:
        """Even layers over places, and layers balanced with the ends of one entry counted where that differs."""
        stated = self.space.fixed.get("layer_split")
        if isinstance(stated, list | tuple):
            return [tuple(stated)] if len(stated) == places else []
        if places == 1 or not self.space.balance_stages:
            return [None]
        cost = _take(self.cost, np.array([self._index[entry]]))

        per_block = {name: float(_seconds(block).max()) for name, block in cost.blocks.items()}
        balanced = balanced_split(
            [per_block[name] for name in self.predictor.model.graph.layers],
            places,
            first_seconds=float(_seconds(cost.embedding).max()),
            last_seconds=float(_seconds(cost.head).max()),
        )
        even = even_split(self.predictor.limits.layers, places)
        return [None] if balanced == even else [None, balanced]

    def _family(self, stages: int, members: tuple[int, ...]) -> _Family:
        """Prices of these layouts and shardings for every schedule, chunks and split of the layers."""
        predictor, space = self.predictor, self.space
        axes = Axes(
            entries=tuple(self.entries[i] for i in members),
            recompute=recompute_axis(predictor, space, stages),
            sharding=sharding_axis(predictor, space, stages),
            savings=savings(space),
            overlaps=tuple(product(space.overlap_gradients, space.overlap_weights)),
        )
        sharding = Sharding(
            dp=axes.dp,
            pp=stages,
            zero=axes.zero,
            zero_group=axes.zero_group,
            offload_optimizer=axes.saving("offload_optimizer"),
            offload_weights=axes.saving("offload_weights"),
        )
        cost = _take(self.cost, np.array([self._index[i] for i in members])).with_logits(axes.logits_again)
        held, alike = self._held(axes)
        return _Family(
            stages=stages,
            axes=axes,
            cost=predictor.stages.exchanged(cost, sharding),
            sharding=sharding,
            held=held,
            alike=alike,
            repeats=repeats(axes, experts=predictor.limits.experts > 0),
        )

    def _held(self, axes: Axes) -> tuple[MemoryStage, NDArray[np.int64]]:
        """What is asked about the memory of a stage, once for layouts that hold the same, and which of these each is.

        How tensor collectives overlap and in what style context is exchanged changes no byte.
        """
        names = ("tp", "cp", "ep", "etp", "dp", "micro_batch", "micro_batches")
        degrees = attrgetter(*names)
        keys = [(*degrees(e.degrees), e.sequence_parallel) for e in axes.entries]
        different, alike = np.unique(np.array(keys), axis=0, return_inverse=True)
        column = dict(zip((*names, "sequence_parallel"), different.T[:, None, None, None], strict=True))
        ranks = column["dp"] * column["cp"]
        options = MemoryOptions(
            tp=column["tp"],
            cp=column["cp"],
            ep=column["ep"],
            etp=column["etp"],
            dp=column["dp"],
            sequence_parallel=column["sequence_parallel"],
            micro_batch=column["micro_batch"],
            micro_batches=column["micro_batches"],
            zero=axes.zero,
            shard_ranks=np.where(axes.zero_group > 0, np.minimum(axes.zero_group, ranks), ranks),
            layers={},
            recompute=axes.rules,
            recompute_layers=axes.limited,
            offload_optimizer=axes.saving("offload_optimizer"),
            offload_activations=axes.saving("offload_activations"),
            offload_weights=axes.saving("offload_weights"),
            optimizer_in_backward=axes.saving("optimizer_in_backward"),
            loss=axes.saving("loss"),
            offloads=self.offloads,
            exchange=self.predictor.stages.exchange,
            runtime=self.predictor.runtime,
        )
        return resolve(self.predictor.model.graph, self.workload, options), alike.ravel()

    def _group(
        self, family: _Family, schedule: PipelineSchedule, chunks: int, layer_split: tuple[int, ...] | None
    ) -> Group:
        model, axes, stages = self.predictor.stages, family.axes, family.stages
        split = self.predictor.split(Plan(pp=stages, chunks=chunks, layer_split=layer_split, schedule=schedule.text))
        cost = family.cost
        if schedule.barriers():
            cost = model.shared(cost, schedule, stages).with_logits(axes.logits_again)
            cost = model.exchanged(cost, family.sharding)
        layers = model.held(cost, split, schedule, chunks)
        counts, first, last = layers.counts, layers.first, layers.last
        times = model.times(
            layers, recompute=axes.rules, recompute_layers=axes.limited, schedule=schedule, sharding=family.sharding
        )

        def held(stage: int) -> MemoryStage:
            """What is asked about the memory of one stage."""
            count = counts[stage].sum(axis=0)
            return replace(
                family.held,
                profile=shared_ends(family.held.profile, stages if schedule.barriers() else 1),
                layers={name: as_array(count[i]) for i, name in enumerate(model.block_names)},
                first=as_array(float(first[stage].sum()) > 0),
                last=as_array(float(last[stage].sum()) > 0),
                in_flight=schedule.in_flight(stages, family.held.micro_batches, chunks, stage) / chunks,
                head_in_flight=as_array(schedule.head_in_flight(family.held.micro_batches)),
            )

        if np.any(axes.saving("offload_activations")):
            alone = [kept_bytes(replace(held(stage), in_flight=as_array(1))) for stage in range(stages)]
            times = with_moved_activations(
                times,
                np.stack([family.by_layout(each) for each in alone], axis=-1),
                counts,
                on=axes.saving("offload_activations"),
                host_bytes_per_s=self.predictor.machine.host_link_bytes_per_s,
            )
        if self.on_lanes:  # what moves beside the compute hides under it at best
            work = (times.forward_s + times.backward_input_s + times.backward_weight_s).sum(axis=-1).max(axis=-1)
            bounds = np.broadcast_to(axes.batches * work / schedule.copies, (len(axes.overlaps), *axes.shape)).copy()
        else:
            bounds = _bounds_s(axes, StepBound(schedule, axes.batches, times))
        np.copyto(bounds, np.inf, where=family.repeats)
        excess, host = self._excess([held(stage) for stage in sorted({0, min(1, stages - 1), stages - 1})])
        return Group(
            schedule=schedule.text,
            techniques=self.predictor.model.techniques,
            chunks=chunks,
            layer_split=layer_split,
            axes=axes,
            bound_s=np.moveaxis(bounds, -1, 1),
            excess_bytes=np.moveaxis(np.broadcast_to(family.by_layout(excess), axes.shape), -1, 0),
            host_full=np.moveaxis(np.broadcast_to(family.by_layout(host > 0), axes.shape), -1, 0),
        )

    def _excess(self, looked: list[MemoryStage]) -> tuple[Floats, Floats]:
        """Peak of the fullest of some stages, less the device's capacity, and what their ranks hold in one host's
        memory, less that [byte]."""
        cluster = self.predictor.cluster
        worst: Floats = np.asarray(reduce(np.maximum, (device_peak(device_memory(stage)) for stage in looked)))
        ranks = min(cluster.host.devices, cluster.count)
        host = np.asarray(reduce(np.maximum, map(host_bytes, looked))) * ranks - cluster.host.dram_bytes
        if self.offloads:
            drives = reduce(np.maximum, (tier_bytes(stage, "nvme") for stage in looked)) * ranks
            host = np.maximum(host, drives - cluster.host.nvme_bytes)
        return worst - cluster.accelerator.memory_bytes, host


def _bounds_s(axes: Axes, bound: StepBound) -> Floats:
    """Lower bounds of the step time (F, R, Z, O, K) [s]."""
    bounds = np.empty((len(axes.overlaps), *axes.shape))
    for busy in (False, True):  # exchanges of every micro-batch cost more to bound: apart
        chosen = np.flatnonzero((axes.zero.ravel() >= 2) == busy)
        if not chosen.size:
            continue
        zero, part = axes.zero[:, chosen], bound.sharded(chosen)
        for place, (gradients, weights) in enumerate(axes.overlaps):
            rules = ShardExchange(
                gather_once=(zero == 1) | (zero == 2),
                gather_always=zero == 3,
                reduce_always=zero >= 2,
                overlap_gather=int(weights),
                overlap_reduce=int(gradients),
            )
            bounds[place][:, chosen] = part.seconds(rules)
    return bounds


def _seconds(block: BlockCost, weights: Mapping[str, float] = _ONCE) -> Floats:
    """What one layer computes of a micro-batch, forward and backward, each part times its weight [s]."""
    phases = (block.forward, block.backward_input, block.backward_weight)
    parts = (weights[name] * np.asarray(part) for phase in phases for name, part in phase.parts.items())
    return sum(parts, start=np.zeros(()))


def _runs(schedule: PipelineSchedule, stages: int, micro_batches: int) -> bool:
    """Whether a schedule is defined for this many micro-batches."""
    chunks = next(iter(schedule.chunk_counts(stages, 2)))
    shape = Shape(stages=stages, chunks=chunks, micro_batches=micro_batches)
    return (stages > 1 or schedule.alone) and not schedule.refusal(shape)


def _take(cost: LayoutCost, where: NDArray[np.int64]) -> LayoutCost:
    """The prices of some layouts, by position on the last axis."""
    total = int(np.asarray(cost.layout.tp).shape[-1])

    def pick(value: object) -> object:
        if isinstance(value, np.ndarray) and value.ndim and value.shape[-1] == total:
            return value[..., where]
        if hasattr(value, "__dataclass_fields__"):
            return type(value)(**{name: pick(getattr(value, name)) for name in value.__dataclass_fields__})
        if isinstance(value, dict):
            return {name: pick(item) for name, item in value.items()}
        return (lambda: pick(value())) if callable(value) else value

    return pick(cost)  # type: ignore[return-value]
