"""Data-parallel ranks on devices of unlike types: what each can do, and the step that a division of shares makes."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from functools import cache, partial

import numpy as np

from ridgeline.errors import PlanError
from ridgeline.facts.mixed_file import as_if_alike
from ridgeline.facts.records import Cluster
from ridgeline.graph.model import Model
from ridgeline.graph.workload import Workload
from ridgeline.memory.stage import stage_memory
from ridgeline.plan.plan import Plan
from ridgeline.predict.predictor import Predictor
from ridgeline.seams.device_shares import DeviceDivision, MicroBatchCost, RankKind, SharesProblem
from ridgeline.training.exchanges import exchange_rules
from ridgeline.training.stage_times import StageTimes
from ridgeline.training.unlike_ranks import RankWork, UnlikeStep

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
