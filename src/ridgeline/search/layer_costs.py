"""What layers of a pipeline add to a step and to each stage's memory under each of their strategies.

Shape letters: P stages, L layers, V strategies, kinds of layers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.memory.query import MemoryOptions
from ridgeline.memory.stage import stage_memory
from ridgeline.plan.plan import Plan
from ridgeline.predict.predictor import Predictor
from ridgeline.seams.layers import LayerStrategy
from ridgeline.search.layerwise import LayerChoices
from ridgeline.training.exchanges import SLOWDOWN
from ridgeline.training.layerwise import relayout_s
from ridgeline.training.pipeline import pipeline_schedule
from ridgeline.training.stage_times import StageLayers
from ridgeline.training.stages import WEIGHTS

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class LayerSeconds:
    """What one layer adds to a step, (kinds, V): compute and exchanges of a micro-batch, update [s]."""

    compute_s: Floats
    gather_s: Floats
    reduce_s: Floats
    forward_s: Floats
    backward_s: Floats
    update_s: Floats


class LayeredPipeline:
    """One number of stages and micro-batches: strategies of a layer, and what they take."""

    def __init__(self, predictor: Predictor, plan: Plan, variants: Sequence[LayerStrategy]) -> None:
        self.predictor, self.plan = predictor, plan
        self.micro_batches = plan.micro_batches(predictor.workload.global_batch)
        self.variants = list(variants)
        self._bytes: dict[int, tuple[Floats, Floats]] = {}
        self.plans = [one.of(plan) for one in variants]
        self.zero = np.array([one.zero for one in self.plans])
        graph = predictor.model.graph
        self.kinds = np.array([predictor.stages.block_names.index(name) for name in graph.layers])
        split = predictor.split(plan)
        self.stages = np.split(np.arange(len(self.kinds)), np.cumsum(split)[:-1])

    @cached_property
    def added(self) -> LayerSeconds:
        """What one more layer of each kind takes under each strategy."""
        alike: dict[Plan, list[int]] = {}
        for number, own in enumerate(self.plans):
            alike.setdefault(replace(own, zero=0, recompute=Plan.recompute), []).append(number)
        found: dict[str, Floats] = {}
        for own, numbers in alike.items():
            for name, values in self._added(own, [self.plans[one] for one in numbers]).items():
                table = found.setdefault(name, np.empty((len(self.predictor.stages.block_names), len(self.plans))))
                table[:, numbers] = values
        return LayerSeconds(**found)

    def _added(self, own: Plan, plans: Sequence[Plan]) -> Mapping[str, Floats]:
        """What a second layer of each kind adds to a stage under plans of one layout (kinds, V) [s]."""
        stages = self.predictor.stages
        zero, recompute = np.array([one.zero for one in plans]), np.array([one.recompute for one in plans])
        names = stages.block_names
        counts = np.array(
            [[np.eye(len(names), dtype=np.int64)[kind] * many] for kind in range(len(names)) for many in (1, 2)]
        )
        none = np.zeros(counts.shape[:2])
        cost = stages.price(self.predictor.layout(own), sorted(set(recompute.tolist())))
        held = StageLayers(cost=cost, names=names, counts=counts, first=none, last=none)
        schedule = pipeline_schedule(Plan.schedule)
        sharding = replace(self.predictor.sharding(own), pp=1, zero=zero)
        found = stages.times(held, sharding=sharding, schedule=schedule, recompute=recompute)
        less = found.message_s + np.zeros(none.shape)
        forward = found.forward_s - less - found.turn_s
        backward = found.backward_input_s - less - found.back_turn_s + found.backward_weight_s
        exchanged = [found.gather_s, found.reduce_s]

        def slope(table: Floats) -> Floats:
            each = np.asarray(table).reshape(-1, len(names), 2)
            found: Floats = np.broadcast_to(each[..., 1] - each[..., 0], (len(plans), len(names))).T
            return found

        gather, reduce = map(slope, exchanged)
        return {
            "compute_s": slope(forward + backward),
            "forward_s": slope(forward),
            "backward_s": slope(backward),
            "gather_s": gather * (zero > 0),
            "reduce_s": reduce,
            "update_s": slope(found.optimizer_s),
        }

    @cached_property
    def changes(self) -> Floats:
        """Seconds of a micro-batch between layers of two strategies, forward and backward (V, V) [s]."""
        layouts = [self.predictor.layout(one) for one in self.plans]
        different = {(one.tp, one.sequence_parallel): one for one in layouts}
        pairs = {
            (a, b): sum(relayout_s(self.predictor.stages, different[a], different[b]))
            for a in different
            for b in different
        }
        keys = [(one.tp, one.sequence_parallel) for one in layouts]
        return np.array([[pairs[a, b] for b in keys] for a in keys])

    def seconds(self, layers: NDArray[np.int64], weight: float) -> Floats:
        """What each layer of a stage adds to a step under each strategy, links weighed by `weight`, (L, V) [s].

        Exchanges of every micro-batch slow the compute beside them; those of a step hide but for one piece of as many
        as the stage has layers.
        """
        one, m = self.added, self.micro_batches
        always, once = self.zero >= WEIGHTS, (self.zero >= 1) & (self.zero < WEIGHTS)
        often = self.zero >= 2
        slow_gather = np.minimum(one.gather_s, one.forward_s) * (always * m + once)
        slow_gather = slow_gather + np.minimum(one.gather_s, one.backward_s) * always * m
        slow_reduce = np.minimum(one.reduce_s, one.backward_s) * np.where(often, m, 1)
        work = m * one.compute_s + SLOWDOWN() * (slow_gather + slow_reduce)
        work = work + (one.gather_s + one.reduce_s) / len(layers) if self.plan.pp == 1 else work
        links = one.gather_s * (2 * m * always + once) + one.reduce_s * np.where(often, m, 1)
        whole = (1 - weight) * work + weight * links + one.update_s
        return np.asarray(whole[self.kinds[layers]])

    def ends_s(self, end: int) -> Floats:
        """Seconds of a micro-batch that the embedding and the head take on each stage, of strategy `end` (P,) [s]."""
        cost, total = self.predictor.price(self.plans[end]), np.zeros(self.plan.pp)
        for at, one in ((0, cost.embedding), (-1, cost.head)):
            for phase in (one.forward, one.backward_input, one.backward_weight):
                total[at] += float(np.asarray(phase.seconds))
        return total

    def choices(self, stage: int, end: int, *, weight: float) -> LayerChoices:
        """What the strategies of a stage's layers cost, where both ends have strategy `end`."""
        layers = self.stages[stage]
        changes = self.changes * self.micro_batches * (1 - weight)
        return LayerChoices(
            seconds=self.seconds(layers, weight),
            bytes=np.repeat(self.bytes(end)[0][None, :, stage], len(layers), axis=0),
            relayout=changes,
            enter=changes[end],
            leave=changes[:, end],
        )

    def bytes(self, end: int) -> tuple[Floats, Floats]:
        """Bytes that a layer adds to each stage under each strategy, and what else is needed, (V, P) [byte].

        `end` is the strategy of the embedding and the head.
        """
        if end not in self._bytes:
            self._bytes[end] = self._held_bytes(self.plans[end])
        return self._bytes[end]

    def _held_bytes(self, plan: Plan) -> tuple[Floats, Floats]:
        predictor = self.predictor
        counts = np.array([len(one) for one in self.stages])
        schedule = pipeline_schedule(plan.schedule)
        flight = schedule.in_flight(plan.pp, self.micro_batches, 1, np.arange(plan.pp)).astype(float)

        def column(name: str) -> NDArray[Any]:
            return np.array([getattr(one, name) for one in self.plans])[:, None]

        dp = column("dp")
        own = predictor.of_layers(plan, np.zeros(len(self.kinds), dtype=bool), in_flight=flight)
        table = [np.bincount(self.kinds[one], minlength=len(predictor.stages.block_names)) for one in self.stages]
        shares = np.array(table) / counts[:, None]

        def held(many: NDArray[np.int64]) -> Floats:
            layers = {name: shares[:, i] * many for i, name in enumerate(predictor.stages.block_names)}
            other = own.copy()
            other["layers"], other["first"], other["last"] = layers, False, False
            other["tp"], other["dp"], other["shard_ranks"] = column("tp"), dp, dp * plan.cp
            other["micro_batch"], other["sequence_parallel"] = column("micro_batch"), column("sequence_parallel")
            other["zero"], other["recompute"] = column("zero"), column("recompute")
            options: MemoryOptions = {**own, "others": [other]}
            found = stage_memory(predictor.model.graph, predictor.workload, **options)
            return np.asarray(sum(found.values()))

        full = held(counts)
        each = full - held(np.maximum(counts - 1, 1)) if counts.min() > 1 else full - held(counts * 0)
        return each, full - counts * each
