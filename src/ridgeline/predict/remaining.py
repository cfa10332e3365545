"""Steps of a plan on what is left of its devices: each stage priced for its own ranks, layers and micro-batch.

Shape letters: P stages, L layers.
"""

from __future__ import annotations

from copy import copy
from dataclasses import fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.errors import PlanError
from ridgeline.plan.plan import Plan
from ridgeline.predict.predictor import Predictor
from ridgeline.seams.checkpoint import Remaining
from ridgeline.seams.registry import STRATEGIES, of_family
from ridgeline.timeline.simulate import busy_s, simulate
from ridgeline.training.pipeline import pipeline_schedule
from ridgeline.training.stage_times import StageTimes
from ridgeline.training.step import step_tasks

_COMPUTE = "forward_s", "backward_input_s", "backward_weight_s"


def simulated(predictor: Predictor, plan: Plan) -> bool:
    """Whether steps of a plan on fewer devices can be simulated: layers alike, links alike, states on the devices."""
    alike = of_family(STRATEGIES, plan.technique) is None and predictor.cluster.links is None
    return alike and not predictor.on_lanes(plan) and not pipeline_schedule(plan.schedule).barriers()


class SimulatedRemaining:
    """Fills `seams.checkpoint.RemainingSteps` for one plan; what was priced or simulated once is kept."""

    def __init__(self, predictor: Predictor, plan: Plan) -> None:
        self.predictor, self.plan = predictor, plan
        self._rows: dict[tuple[Any, ...], tuple[StageTimes, NDArray[np.float64]]] = {}
        self._steps: dict[Remaining, float] = {}

    @property
    def whole(self) -> Remaining:
        """The plan with all its devices."""
        plan = self.plan
        return Remaining(
            ranks=(plan.dp,) * plan.pp,
            sequences=(plan.micro_batch,) * plan.pp,
            split=self.predictor.split(plan),
            speeds=(1.0,) * plan.pp,
            micro_batches=plan.micro_batches(self.predictor.workload.global_batch),
        )

    @property
    def movable(self) -> bool:
        """Whether each stage is one run of layers."""
        return self.plan.chunks == 1

    def lost(self, hosts: int) -> tuple[int, ...]:
        """Data-parallel ranks that each stage loses, (P,) [1]; ranks stand in the order tensor, context, data, pipe."""
        plan, rank = self.plan, self.plan.tp * self.plan.cp
        node = min(self.predictor.cluster.node_devices, plan.devices)
        count = -(-plan.devices // node)
        places = {(2 * one + 1) * count // (2 * hosts) for one in range(min(hosts, count))}
        hit = {device // rank for place in places for device in range(place * node, (place + 1) * node)}
        found = np.bincount([one // plan.dp for one in hit if one < plan.pp * plan.dp], minlength=plan.pp)
        return tuple(found.tolist())

    def layer_s(self, ranks: int, sequences: int) -> NDArray[np.float64]:
        """Forward and backward of each layer for one micro-batch, the ends with the first and last, (L,) [s]."""
        layers = sum(self.predictor.split(self.plan))
        own = replace(
            self.plan, pp=layers, chunks=1, schedule="1f1b", dp=ranks, micro_batch=sequences, layer_split=(1,) * layers
        )
        times = self.predictor.prepare(own)[1]
        return np.asarray(sum(np.asarray(getattr(times, name)) for name in _COMPUTE)).reshape(-1)

    def step_s(self, remaining: Remaining) -> float:
        """Time of a step [s]; infinite where a stage does not hold its states and activations."""
        if remaining not in self._steps:
            self._steps[remaining] = self._step_s(remaining)
        return self._steps[remaining]

    def _step_s(self, remaining: Remaining) -> float:
        plan = replace(self.plan, schedule=remaining.schedule or self.plan.schedule, layer_split=remaining.split)
        try:
            pipeline_schedule(plan.schedule).check(plan.pp, remaining.micro_batches, plan.chunks)
        except PlanError:
            return float("inf")
        ways = [self._priced(plan, remaining, stage) for stage in range(plan.pp)]
        room = self.predictor.cluster.accelerator.memory_bytes
        if max(held[stage] for stage, (_, held) in enumerate(ways)) > room:
            return float("inf")
        base = ways[0][0]
        mixed: dict[str, Any] = {
            one.name: np.stack([np.asarray(getattr(times, one.name))[stage] for stage, (times, _) in enumerate(ways)])
            for one in fields(StageTimes)
            if np.ndim(getattr(base, one.name))
        }
        speeds = np.asarray(remaining.speeds)[:, None]
        mixed |= {name: mixed[name] / speeds for name in _COMPUTE}
        tasks = step_tasks(plan, remaining.micro_batches, replace(base, **mixed))
        timeline = simulate(tasks)
        if not remaining.staggered:
            return timeline.makespan_s
        return float(busy_s(tasks, timeline).span_s[: plan.pp].max())

    def _priced(self, plan: Plan, remaining: Remaining, stage: int) -> tuple[StageTimes, NDArray[np.float64]]:
        """Times of all stages and their peak bytes (P,), as if each had this one's ranks and micro-batch."""
        ranks, sequences = remaining.ranks[stage], remaining.sequences[stage]
        key = plan.schedule, ranks, sequences, remaining.split, remaining.micro_batches
        if key not in self._rows:
            own = replace(plan, dp=ranks, micro_batch=sequences)
            asked = copy(self.predictor)
            batch = ranks * sequences * remaining.micro_batches
            asked.workload = replace(asked.workload, global_batch=batch)
            held = np.asarray(sum(np.asarray(part) for part in asked.memory(own).values()), dtype=np.float64)
            self._rows[key] = asked.prepare(own)[1], np.broadcast_to(held, (plan.pp,))
        return self._rows[key]
