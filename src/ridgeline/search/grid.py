"""Bounds and memory of every plan of a space, by broadcasting.

Layouts are priced once, all together. Plans that share stages, chunks and schedule form a group whose axes are
layout (K), recompute (R), sharding (Z) and optimizer offload (O); stage times are (K, R, Z, O, P, v) by broadcasting.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product

import numpy as np
from numpy.typing import NDArray

from ridgeline.cost.price import BlockCost
from ridgeline.lower.split import balanced_split, even_split
from ridgeline.lower.work import Layout
from ridgeline.memory.stage import device_peak, stage_memory
from ridgeline.plan.plan import Plan, Recompute, Schedule
from ridgeline.predict import RECOMPUTE_CODE, Predictor
from ridgeline.search.space import Degrees, Space, alone, chunk_choices, plan_of
from ridgeline.training.exchange import Exchange
from ridgeline.training.schedules import SCHEDULE_CODE, SPLIT_BACKWARD, in_flight
from ridgeline.training.stages import LayoutCost, Sharding
from ridgeline.training.step_bound import StepBound

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]
WITHOUT_AXIS = ("offload_activations",)
ALL_LAYERS = 1_000_000  # more than any stage has


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One layout in the grid: degrees and the two choices that change a rank's share."""

    degrees: Degrees
    sequence_parallel: bool
    overlap_tensor: bool


@dataclass(frozen=True, kw_only=True)
class Group:
    """Bounds [s] and peak bytes of all plans that share stages, chunks and schedule.

    `bound_s` (F, K, R, Z, O) over overlap flags, layouts, recompute, sharding and offload; `excess_bytes`
    (K, R, Z, O) is the peak of the fullest stage looked at less the capacity: negative when it fits.
    """

    schedule: Schedule
    chunks: int
    layer_split: tuple[int, ...] | None  # None: as even as whole layers allow
    entries: tuple[Entry, ...]
    recompute: tuple[tuple[Recompute, int | None], ...]  # with the layers of a stage it is limited to
    sharding: tuple[tuple[int, int], ...]
    offload: tuple[bool, ...]
    overlaps: tuple[tuple[bool, bool], ...]
    bound_s: Floats
    excess_bytes: Floats
    stated: Mapping[str, object] = field(default_factory=dict)  # fields of Plan without an axis

    def plan(self, index: tuple[int, ...]) -> Plan:
        """The plan at an index of `bound_s`."""
        flags, layout, again, shard, away = index
        entry = self.entries[layout]
        zero, zero_group = self.sharding[shard]
        overlap_gradients, overlap_weights = self.overlaps[flags]
        return plan_of(
            entry.degrees,
            sequence_parallel=entry.sequence_parallel,
            overlap_tensor=entry.overlap_tensor,
            schedule=self.schedule,
            chunks=self.chunks,
            layer_split=self.layer_split,
            **self.stated,
            zero=zero,
            zero_group=zero_group or None,
            recompute=self.recompute[again][0],
            recompute_layers=self.recompute[again][1],
            offload_optimizer=self.offload[away],
            overlap_gradients=overlap_gradients,
            overlap_weights=overlap_weights,
        )


def entries(found: list[Degrees], space: Space, seq_len: int) -> list[Entry]:
    """Every layout of the degrees: sequence parallelism and pipelined collectives where they apply."""
    result = []
    for item in found:
        can = item.tp > 1 and (seq_len // item.cp) % item.tp == 0
        for parallel in [s for s in space.sequence_parallel if can or not s] or [False]:
            for pipelined in [o for o in space.overlap_tensor if item.tp > 1 or not o] or [False]:
                result.append(Entry(degrees=item, sequence_parallel=parallel, overlap_tensor=pipelined))
    return result


class Grid:
    """Prices a space for one predictor; iterate `groups` for the bounds."""

    def __init__(self, predictor: Predictor, space: Space, found: list[Degrees]) -> None:
        self.predictor, self.space = predictor, space
        self.workload = predictor.workload
        self.entries = entries(found, space, self.workload.seq_len)
        self._layouts, self._index = self._unique()
        self.cost = predictor.stages.price(self._layouts)

    def _unique(self) -> tuple[Layout, list[int]]:
        """Each different layout once, as arrays, and where each entry's is."""
        keys: dict[tuple[int, ...], int] = {}
        index = []
        for entry in self.entries:
            d = entry.degrees
            key = (
                d.tp,
                d.cp,
                d.ep,
                d.etp,
                int(entry.sequence_parallel),
                int(d.ulysses),
                d.micro_batch,
                int(entry.overlap_tensor),
            )
            index.append(keys.setdefault(key, len(keys)))
        columns = np.array(list(keys), dtype=float).reshape(-1, 8)[:, :, None, None, None]  # (K, 8, 1, 1, 1)
        names = ("tp", "cp", "ep", "etp", "sequence_parallel", "ulysses", "micro_batch", "overlap_tensor")
        return Layout(**{name: columns[:, i] for i, name in enumerate(names)}), index

    def groups(self) -> Iterator[Group]:
        """Every group of plans, bounded and measured."""
        by_stages: dict[int, list[int]] = defaultdict(list)
        for position, entry in enumerate(self.entries):
            by_stages[entry.degrees.pp].append(position)
        for stages, members in sorted(by_stages.items()):
            for schedule in self.space.schedules if self._sharding(stages) else ():
                for chunks in chunk_choices(schedule, stages, self.predictor.limits.layers, self.space):
                    kept = [i for i in members if _runs(schedule, stages, self.entries[i].degrees.micro_batches)]
                    for split in self._splits(stages, chunks, kept) if kept else ():
                        yield self._group(stages, schedule, chunks, kept, split)

    def _splits(self, stages: int, chunks: int, members: list[int]) -> list[tuple[int, ...] | None]:
        """Even layers, and layers balanced with the embedding and the head counted where that differs.

        The balance is struck for the middle one of the group's layouts: times scale alike, so others are near it.
        """
        if stages == 1 or not self.space.balance_stages or "layer_split" in self.space.fixed:
            stated = self.space.fixed.get("layer_split")
            return [tuple(stated) if isinstance(stated, list | tuple) else None]
        cost = _take(self.cost, np.array([self._index[members[len(members) // 2]]]))

        def seconds(block: BlockCost) -> float:
            phases = (block.forward, block.backward_input, block.backward_weight)
            return float(sum(np.asarray(phase.seconds).max() for phase in phases))

        per_block = {name: seconds(block) for name, block in cost.blocks.items()}
        balanced = balanced_split(
            [per_block[name] for name in self.predictor.model.graph.layers],
            stages * chunks,
            first_seconds=seconds(cost.embedding),
            last_seconds=seconds(cost.head),
        )
        even = even_split(self.predictor.limits.layers, stages * chunks)
        return [None] if balanced == even else [None, balanced]

    def _group(
        self, stages: int, schedule: Schedule, chunks: int, members: list[int], layer_split: tuple[int, ...] | None
    ) -> Group:
        model, space = self.predictor.stages, self.space
        mine = tuple(self.entries[i] for i in members)
        where = np.array([self._index[i] for i in members])
        cost = _take(self.cost, where)

        def column(name: str) -> NDArray[np.int64]:
            return np.array([getattr(e.degrees, name) for e in mine], dtype=np.int64)[:, None, None, None]

        dp, batches = column("dp"), column("micro_batches")
        again = self._recompute(stages)
        shards = self._sharding(stages)
        zero = np.array([z for z, _ in shards])[None, None, :, None]
        zero_group = np.array([g for _, g in shards])[None, None, :, None]
        offload = np.array([int(o) for o in space.offload_optimizer])[None, None, None, :]
        codes = np.array([RECOMPUTE_CODE[r] for r, _ in again])[None, :, None, None]
        limited = np.array([ALL_LAYERS if n is None else n for _, n in again])[None, :, None, None]
        split = self.predictor.split(Plan(pp=stages, chunks=chunks, layer_split=layer_split))
        counts = model.counts(split, schedule, stages, chunks)
        first, last = model.ends(schedule, stages, chunks)
        times = model.times(
            cost,
            counts,
            first,
            last,
            recompute=codes,
            recompute_layers=limited,
            sharding=Sharding(dp=dp, pp=stages, zero=zero, zero_group=zero_group, offload_optimizer=offload),
        )
        shape = (len(mine), len(again), len(shards), offload.shape[-1])
        overlaps = tuple(product(space.overlap_gradients, space.overlap_weights))
        bounds = np.empty((len(overlaps), *shape))
        bound = StepBound(schedule, batches, times)
        for busy in (False, True):  # exchanges of every micro-batch cost more to bound: apart
            chosen = np.flatnonzero((zero.ravel() >= 2) == busy)
            if not chosen.size:
                continue
            mine_zero = zero[:, :, chosen]
            part = bound.sharded(chosen)
            for i, (gradients, weights) in enumerate(overlaps):
                rules = Exchange(
                    gather_once=(mine_zero == 1) | (mine_zero == 2),
                    gather_always=mine_zero == 3,
                    reduce_always=mine_zero >= 2,
                    overlap_gather=int(weights),
                    overlap_reduce=int(gradients),
                )
                bounds[i][:, :, chosen] = part.seconds(rules)
        bounds[self._repeats(overlaps, shards, mine, shape)] = np.inf
        excess = self._excess(
            cost,
            counts,
            first,
            last,
            schedule,
            chunks,
            batches=batches,
            dp=dp,
            zero=zero,
            zero_group=zero_group,
            codes=codes,
            limited=limited,
            offload=offload,
        )
        return Group(
            schedule=schedule,
            chunks=chunks,
            layer_split=layer_split,
            entries=mine,
            recompute=again,
            sharding=shards,
            offload=space.offload_optimizer,
            overlaps=overlaps,
            stated={name: self.space.fixed[name] for name in WITHOUT_AXIS if name in self.space.fixed},
            bound_s=bounds,
            excess_bytes=np.broadcast_to(excess, shape),
        )

    def _repeats(
        self,
        overlaps: tuple[tuple[bool, bool], ...],
        shards: tuple[tuple[int, int], ...],
        mine: tuple[Entry, ...],
        shape: tuple[int, ...],
    ) -> NDArray[np.bool_]:
        """Plans (F, K, R, Z, O) that are not legal or the same as another of the group, so that each counts once.

        A sharding group must divide the data-parallel ranks; over all of them it is no group, over one rank nothing is
        sharded, and what is not exchanged cannot overlap.
        """
        experts = self.predictor.limits.experts > 0
        ranks = np.array([e.degrees.dp * e.degrees.cp for e in mine])[:, None, None, None]
        lone = np.array([alone(e.degrees, experts=experts) for e in mine])[:, None, None, None]
        zero, group = (np.array(column)[None, None, :, None] for column in zip(*shards, strict=True))
        lost = (group > 0) & (ranks % np.maximum(group, 1) > 0)
        plain = np.isin(zero, [z for z, g in shards if g == 0])
        holders = np.array([e.degrees.tp * e.degrees.cp * e.degrees.dp / (e.degrees.ep * e.degrees.etp) for e in mine])
        most = np.maximum(ranks, holders[:, None, None, None] if experts else 0)
        lost |= plain & (group > 0) & (group >= most)
        if (0, 0) in shards:
            lost |= (zero > 0) & lone
        found = np.zeros((len(overlaps), *shape), dtype=bool)
        for i, (gradients, weights) in enumerate(overlaps):
            idle = (not weights and (gradients, True) in overlaps) & (zero == 0)
            idle = idle | ((not gradients and (True, weights) in overlaps) & lone)
            found[i] = np.broadcast_to(lost | idle, shape)
        return found

    def _recompute(self, stages: int) -> tuple[tuple[Recompute, int | None], ...]:
        """Recompute choices that differ, full ones for several numbers of a stage's layers.

        Fused attention keeps no scores, so selective recompute of the core equals none.
        """
        fused = self.workload.attention_kernel != "unfused" and len(self.space.recompute) > 1
        same = fused and self.predictor.runtime.selective == "core" and Recompute.NONE in self.space.recompute
        stated = self.space.fixed.get("recompute_layers")
        per_stage = max(1, self.predictor.limits.layers // stages)
        partial = sorted({max(1, round(share * per_stage)) for share in self.space.recompute_shares if share < 1})
        limits: list[int | None] = [None, *(n for n in partial if n < per_stage)]
        found: list[tuple[Recompute, int | None]] = []
        for kind in self.space.recompute:
            if stated is not None or "recompute" in self.space.fixed:
                found.append((kind, None if stated is None else int(str(stated))))
            elif kind is Recompute.FULL:
                found += [(kind, limit) for limit in limits]
            elif not (same and kind is Recompute.SELECTIVE):
                found.append((kind, None))
        return tuple(found)

    def _sharding(self, stages: int) -> tuple[tuple[int, int], ...]:
        """(zero, zero_group) choices; 0 shards over all data-parallel ranks. Pipelines re-gather per micro-batch, so
        by default they shard states only."""
        stated = "zero" in self.space.fixed
        wide = [(z, 0) for z in self.space.zero if stages == 1 or z <= 1 or stated or self.space.zero_in_node]
        if self.space.zero_in_node:
            node = self.predictor.cluster.host.devices
            wide += [(z, node) for z in self.space.zero if z > 0 and node > 1]
        group = self.space.fixed.get("zero_group")
        if group is not None:
            wide = [(z, int(str(group))) for z, _ in wide]
        return tuple(dict.fromkeys(wide))

    def _excess(
        self,
        cost: LayoutCost,
        counts: NDArray[np.int64],
        first: Floats,
        last: Floats,
        schedule: Schedule,
        chunks: int,
        *,
        batches: Whole,
        dp: Whole,
        zero: Whole,
        zero_group: Whole,
        codes: Whole,
        limited: Whole,
        offload: Whole,
    ) -> Floats:
        """Peak of the fullest of the first two and the last stage, less the device's capacity [byte]."""
        layout = cost.layout
        stages = counts.shape[0]
        per_stage = counts.sum(axis=1)
        shard = np.where(zero_group > 0, np.minimum(zero_group, dp * layout.cp), dp * layout.cp)
        worst: Floats | None = None
        for stage in sorted({0, min(1, stages - 1), stages - 1}):
            held = in_flight(SCHEDULE_CODE[schedule], stages, batches, chunks, stage) / chunks
            table = stage_memory(
                self.predictor.model.graph,
                self.workload,
                tp=layout.tp,
                cp=layout.cp,
                ep=layout.ep,
                etp=layout.etp,
                dp=dp,
                sequence_parallel=np.asarray(layout.sequence_parallel) > 0,
                micro_batch=layout.micro_batch,
                zero=zero,
                shard_ranks=shard,
                layers={name: float(per_stage[stage, i]) for i, name in enumerate(self.predictor.stages.block_names)},
                first=float(first[stage].sum()) > 0,
                last=float(last[stage].sum()) > 0,
                in_flight=held,
                head_in_flight=batches if schedule is Schedule.GPIPE else 1,
                micro_batches=batches,
                recompute=codes,
                recompute_layers=limited,
                offload_optimizer=offload > 0,
                offload_activations=bool(self.space.fixed.get("offload_activations")),
                runtime=self.predictor.runtime,
            )
            peak = device_peak(table)
            worst = peak if worst is None else np.maximum(worst, peak)
        assert worst is not None
        return worst - self.predictor.cluster.accelerator.memory_bytes


def _runs(schedule: Schedule, stages: int, micro_batches: int) -> bool:
    """Whether a schedule is defined for this many micro-batches."""
    if schedule is Schedule.INTERLEAVED:
        return micro_batches % stages == 0
    return schedule not in SPLIT_BACKWARD or stages > 1


def _take(cost: LayoutCost, where: NDArray[np.int64]) -> LayoutCost:
    """The prices of some layouts, by position on the leading axis."""
    total = int(np.asarray(cost.layout.tp).shape[0])

    def pick(value: object) -> object:
        if isinstance(value, np.ndarray) and value.ndim and value.shape[0] == total:
            return value[where]
        if hasattr(value, "__dataclass_fields__"):
            return type(value)(**{name: pick(getattr(value, name)) for name in value.__dataclass_fields__})
        if isinstance(value, dict):
            return {name: pick(item) for name, item in value.items()}
        return value

    return pick(cost)  # type: ignore[return-value]
