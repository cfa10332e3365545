"""Pipeline stages on devices of unlike types: each stage priced on its own, one timeline for all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.cost.network import between
from ridgeline.errors import PlanError
from ridgeline.facts.mixed_file import as_if_alike
from ridgeline.facts.records import Cluster
from ridgeline.graph.model import Model
from ridgeline.graph.workload import Workload
from ridgeline.memory.stage import stage_memory
from ridgeline.plan.plan import Plan
from ridgeline.predict.divided_stages import undivided
from ridgeline.predict.predictor import Predictor
from ridgeline.seams.device_shares import DeviceDivision, MicroBatchCost, RankKind, SharesProblem
from ridgeline.seams.loss import cross_entropy
from ridgeline.training.exchanges import exchange_rules
from ridgeline.training.pipeline import pipeline_schedule
from ridgeline.training.stage_times import StageLayers, StageTimes
from ridgeline.training.unlike_ranks import RankWork, UnlikeStep

Floats = NDArray[np.float64]


class MixedPredictor(Predictor):
    """Predicts plans whose stages fill groups of unlike devices one after the other, each stage within one group.

    A stage's compute, exchanges and update are those of the same plan on a cluster of its type alone, with its group's
    network; sends between groups take the link between them.
    """

    def __init__(self, model: Model, cluster: Cluster, workload: Workload) -> None:
        assert cluster.mixed is not None
        self.kinds = tuple(Predictor(model, alike, workload) for alike in as_if_alike(cluster))
        self.devices = tuple(group.count for group in cluster.mixed.groups)
        first = self.kinds[0]
        self.model, self.cluster, self.workload = model, cluster, workload
        self.machine, self.stages, self.limits = first.machine, first.stages, first.limits
        self._prices, self.orders, self.partitions = {}, {}, {}
        self._rows: dict[tuple[str, Plan, int, bytes], dict[str, Any]] = {}
        self._sends: dict[Plan, Floats] = {}

    def ordered(self, way: Sequence[int]) -> MixedPredictor:
        """The same devices with their groups in another order, at the same prices."""
        assert self.cluster.mixed is not None
        other = copy(self)
        groups = tuple(self.cluster.mixed.groups[one] for one in way)
        other.cluster = replace(self.cluster, mixed=replace(self.cluster.mixed, groups=groups))
        other.kinds, other.devices = tuple(self.kinds[one] for one in way), tuple(self.devices[one] for one in way)
        first = other.kinds[0]
        other.machine, other.stages = first.machine, first.stages
        other.partitions, other._rows, other._sends = {}, {}, {}
        return other

    def kind_of(self, plan: Plan) -> tuple[int, ...]:
        """The group of each stage (P,); raises `PlanError` where stages are no whole number of a group."""
        each = plan.devices // plan.pp
        found: list[int] = []
        for place, count in enumerate(self.devices):
            if count % each:
                name = self.kinds[place].cluster.accelerator.name
                raise PlanError(
                    f"plan: a stage of tp {plan.tp} * dp {plan.dp} = {each} devices does not divide the {count}"
                    f" {name}; stages lie within one type: choose tp * dp that divides each group of"
                    f" {', '.join(map(str, self.devices))}"
                )
            found += [place] * (count // each)
        if len(found) != plan.pp:
            raise PlanError(
                f"plan: pp {plan.pp} stages of {each} devices, the groups hold {len(found)}; say pp {len(found)}"
            )
        return tuple(found)

    def check(self, plan: Plan) -> None:
        """Raises `PlanError` for an illegal plan, or one that is not modelled on unlike devices."""
        refuse_unmodelled(plan)
        super().check(plan)
        self.kind_of(plan)

    def prepare(self, plan: Plan) -> tuple[StageLayers, StageTimes]:
        """Layers of every stage at the first group's prices, and times of each stage on its own devices."""
        own = self._divided(plan)
        rows = self._by_stage("times", own, lambda predictor: vars(predictor.prepare(own)[1]))
        found: dict[str, Any] = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
        hops = self._hops_s(replace(own, layer_split=None))
        found["send_forward_s"] = np.append(hops, 0.0)[:, None]
        found["send_backward_s"] = np.insert(hops, 0, 0.0)[:, None]
        cost = self.kinds[0].price(own).with_logits(cross_entropy(own.loss).logits_again())
        held = self.stages.held(cost, self.split(own), pipeline_schedule(own.schedule), own.chunks)
        return held, StageTimes(**found)

    def _by_stage(self, what: str, plan: Plan, asked: Callable[[Predictor], Mapping[str, Any]]) -> list[dict[str, Any]]:
        """What is told of each stage on its own type; asked once for each number of layers that a stage has."""
        kinds, alike = self.kind_of(plan), replace(plan, layer_split=None)
        counts, *_ = self.stages.spread(self.split(plan), pipeline_schedule(plan.schedule), plan.chunks)
        keys = [(what, alike, place, counts[place].tobytes()) for place in range(plan.pp)]
        for kind in {kinds[place] for place, key in enumerate(keys) if key not in self._rows}:
            told = asked(self.kinds[kind])
            for place, key in enumerate(keys):
                if kinds[place] == kind:
                    self._rows[key] = {n: np.asarray(v)[place] for n, v in told.items() if np.ndim(v)}
        return [self._rows[key] for key in keys]

    def _divided(self, plan: Plan) -> Plan:
        """The plan with its layers said."""
        return replace(undivided(plan), layer_split=self.split(plan))

    def _hops_s(self, plan: Plan) -> Floats:
        """Seconds to hand a micro-batch from each stage but the last to the next, however layers lie (P - 1,) [s]."""
        if plan not in self._sends:
            kinds = self.kind_of(plan)
            self._sends[plan] = np.array([self._hop_s(plan, kinds, stage) for stage in range(plan.pp - 1)])
        return self._sends[plan]

    def _hop_s(self, plan: Plan, kinds: tuple[int, ...], stage: int) -> float:
        """Seconds to hand a micro-batch from a stage to the next [s]: over the slower end's link."""
        ends, each = {kinds[stage], kinds[stage + 1]}, plan.devices // plan.pp
        found = []
        for kind in ends:
            predictor = self.kinds[kind]
            stride = float(predictor.machine.tiers[-1].size - 1)
            if len(ends) == 1:
                low = (stage - kinds.index(kind)) * each
                stride = float(between(np.array(low), np.array(low + 2 * each - 1), predictor.machine))
            found.append(float(np.asarray(predictor.stages.send_seconds(predictor.layout(plan), stride))))
        return max(found)

    def memory(self, plan: Plan) -> dict[str, NDArray[Any]]:
        """Peak bytes of every stage by category, arrays over stages (P,) [byte]."""
        own = self._divided(plan)
        rows = self._by_stage("memory", own, lambda predictor: predictor.memory(own))
        return {name: np.array([row[name] for row in rows]) for name in rows[0]}

    def capacities(self, plan: Plan) -> Floats:
        """Memory of a device of each stage (P,) [byte]."""
        return np.array([self.kinds[kind].cluster.accelerator.memory_bytes for kind in self.kind_of(plan)])

    def excess_bytes(self, plan: Plan) -> float:
        """What the memories of a plan's stages lack, added up [byte]; 0 where it fits."""
        over = sum(self.memory(plan).values()) - self.capacities(plan)
        return float(np.maximum(over, 0.0).sum())

    def stage_speeds(self, plan: Plan) -> Floats:
        """Steps a second of a plan if all its stages had the devices of each one (P,) [1/s]."""
        alike = [1.0 / predictor.bound_s(undivided(plan)) for predictor in self.kinds]
        return np.array([alike[kind] for kind in self.kind_of(plan)])


def refuse_unmodelled(plan: Plan) -> None:
    """Raises `PlanError` for a choice that is not modelled on devices of unlike types."""
    usual = Plan(tp=plan.tp, pp=plan.pp, dp=plan.dp)
    for name in (
        "cp", "ep", "chunks", "zero_group", "layer_split", "offload_optimizer", "offload_activations",
        "offload_weights", "optimizer_in_backward",
    ):  # fmt: skip
        if name == "layer_split" and plan.pp > 1:
            continue
        if getattr(plan, name) != getattr(usual, name):
            raise PlanError(
                f"plan: {name} {getattr(plan, name)} on devices of unlike types is not modelled; leave it out, or name"
                " one type as the cluster"
            )
    schedule = pipeline_schedule(plan.schedule)
    if plan.pp > 1 and (schedule.copies > 1 or schedule.barriers()):
        raise PlanError(f"plan: schedule {plan.schedule} on devices of unlike types is not modelled; use 1f1b")


_SHARDED = ("optimizer", "gradients", "weights")  # by the stage of ZeRO that shards them


class UnlikeRanks:
    """Prices ranks of one plan on a cluster of unlike devices: its groups are tp ranks wide, all share the batch."""

    def __init__(self, model: Model, cluster: Cluster, workload: Workload, plan: Plan) -> None:
        assert cluster.mixed is not None
        self.cluster, self.workload, self.plan = cluster, workload, plan
        for group in cluster.mixed.groups:
            if group.tiers[0].size % plan.tp:
                raise PlanError(
                    f"plan: tp {plan.tp} does not divide the {group.tiers[0].size} {group.accelerator.name} of a node;"
                    " tensor ranks lie within a node, say tp 1"
                )
        if plan.devices != cluster.count:
            raise PlanError(f"plan: tp {plan.tp} * dp {plan.dp} use {plan.devices} of {cluster.count} devices; use all")
        self.counts = tuple(group.count // plan.tp for group in cluster.mixed.groups)
        self.predictors = tuple(Predictor(model, alike, workload) for alike in as_if_alike(cluster))
        self.cost = cache(self._cost)
        self.times = cache(self._times)

    def _asked(self, kind: int, size: int, many: int = 1) -> tuple[Predictor, Plan]:
        """Predictor and plan of a step in which all ranks, as of one type, have so many micro-batches of a size."""
        own = self.predictors[kind]
        assert own.profile.hidden  # known before the copy, for all copies: no batch changes it
        found = copy(own)
        found.workload = replace(self.workload, global_batch=self.plan.dp * size * many)
        return found, replace(self.plan, micro_batch=size)

    def _times(self, kind: int, size: int) -> StageTimes:
        predictor, plan = self._asked(kind, size)
        return predictor.prepare(plan)[1]

    def _held(self, kind: int, size: int, many: int) -> tuple[float, float]:
        """Bytes of a rank, with so many micro-batches in flight, beside what is sharded, and its even shard [byte].

        One micro-batch came before, so that gradients wait at every moment.
        """
        predictor, plan = self._asked(kind, size, many + 1)
        asked = predictor.held(plan, in_flight=np.array([float(many)]))
        parts = stage_memory(predictor.model.graph, predictor.workload, **asked)
        sharded = sum(float(np.max(parts[name])) for name in _SHARDED[: plan.zero])
        return float(np.max(sum(parts.values()))) - sharded, sharded

    def _cost(self, kind: int, size: int) -> MicroBatchCost:
        times = self.times(kind, size)
        one, two = (self._held(kind, size, many)[0] for many in (1, 2))
        return MicroBatchCost(
            forward_s=float(times.forward_s.sum()),
            backward_s=float(times.backward_input_s.sum() + times.backward_weight_s.sum()),
            held_bytes=one,
            more_bytes=max(0.0, two - one),
        )

    def problem(self) -> SharesProblem:
        """What shares are chosen by."""
        kinds = []
        for place, (count, predictor) in enumerate(zip(self.counts, self.predictors, strict=True)):
            device, runtime = predictor.cluster.accelerator, predictor.runtime
            idle = float(runtime.context_bytes) + float(np.max(runtime.workspace_bytes(grouped=False)))
            kinds.append(
                RankKind(
                    name=device.name,
                    ranks=count,
                    capacity_bytes=device.memory_bytes,
                    idle_bytes=idle,
                    cost=partial(self.cost, place),
                )
            )
        sharded = self._held(0, self.plan.micro_batch, 1)[1]
        return SharesProblem(
            kinds=tuple(kinds), sequences=self.workload.global_batch, state_bytes=sharded * self.plan.dp,
            micro_batch=self.plan.micro_batch,
        )  # fmt: skip

    def step(self, division: DeviceDivision) -> UnlikeStep:
        """The step that a division makes: exchanges at the pace of the slowest type's links, its least shard counted.

        A ring of uneven shards carries all of them but the neighbour's: (1 - least share) / (1 - 1 / N) of even ones.
        Raises `PlanError` where layered accumulation has whole weights.
        """
        if division.layered and self.plan.zero < 3:
            raise PlanError(f"plan: layered gradient accumulation shards weights; say zero 3, not {self.plan.zero}")
        kinds = sorted({one.kind for one in division.shares})
        ranks = self.plan.dp
        largest = {kind: max(o.micro_batch for o in division.shares if o.kind == kind) or 1 for kind in kinds}
        seen = [self.times(kind, largest[kind]) for kind in kinds]
        uneven = 1.0
        if ranks > 1 and self.plan.zero:
            uneven = (1.0 - min(one.state_share for one in division.shares)) / (1.0 - 1.0 / ranks)
        works = []
        for one in division.shares:
            size = one.micro_batch or 1
            cost, times = self.cost(one.kind, size), self.times(one.kind, size)
            share = one.state_share * ranks if self.plan.zero else 1.0
            closing = float(np.max(times.exchanged_s))
            works.append(
                RankWork(
                    name=self.predictors[one.kind].cluster.accelerator.name, forward_s=cost.forward_s,
                    backward_s=cost.backward_s, micro_batches=one.micro_batches,
                    update_s=(float(times.optimizer_s.max()) - closing) * share + closing,
                )
            )  # fmt: skip
        return UnlikeStep(
            ranks=tuple(works),
            layers=self.predictors[0].limits.layers,
            gather_s=uneven * max(float(times.gather_s.sum()) for times in seen),
            reduce_s=uneven * max(float(times.reduce_s.sum()) for times in seen),
            rules=exchange_rules(self.plan),
            layered=division.layered,
        )
