"""A step whose states or activations move between tiers on lanes of its timeline, and a bound of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ridgeline.lower.tasks import TaskGraph
from ridgeline.memory.stage import activation_bytes
from ridgeline.plan.plan import Plan
from ridgeline.predict.predictor import Predictor
from ridgeline.seams.lanes import LaneRates
from ridgeline.seams.offload import TierOffload, applied
from ridgeline.seams.schedule import Order
from ridgeline.training.exchanges import exchange_rules
from ridgeline.training.offload_parts import EMBEDDING, HEAD, lane_rates, names_of, parts_of
from ridgeline.training.offloaded import OffloadedStep, lanes_bound_s, offloaded_tasks, stage_bound_s
from ridgeline.training.pipeline import pipeline_schedule
from ridgeline.training.stage_times import StageLayers, StageTimes
from ridgeline.training.step import pipeline_step


def lanes_step(predictor: Predictor, plan: Plan, held: StageLayers, times: StageTimes) -> tuple[TaskGraph, float]:
    """The exact task graph of one step, and a lower bound of its time [s]: no lane does two things at once."""
    tasks = offloaded_tasks(*_laid_from(predictor, plan, held, times))
    return tasks, lanes_bound_s(tasks)


def busiest_stage_s(predictor: Predictor, plan: Plan) -> float:
    """Lower bound of the step of a plan [s]: its busiest stage, which waits for no other; 0 where nothing moves so."""
    schedule = pipeline_schedule(plan.schedule)
    if not predictor.on_lanes(plan) or schedule.routed or schedule.paired:
        return 0.0
    return stage_bound_s(*_laid_from(predictor, plan, *predictor.prepare(plan)))


def _laid_from(
    predictor: Predictor, plan: Plan, held: StageLayers, times: StageTimes
) -> tuple[TaskGraph, Order, OffloadedStep, tuple[TierOffload, ...], LaneRates]:
    base, sequence = pipeline_step(plan, plan.micro_batches(predictor.workload.global_batch), times)
    found = applied(plan)
    return base, sequence, _offloaded(predictor, plan, held, times), found, lane_rates(predictor.machine, found)


def _offloaded(predictor: Predictor, plan: Plan, held: StageLayers, times: StageTimes) -> OffloadedStep:
    """What a step with offload on lanes is made of."""
    schedule, sharding = pipeline_schedule(plan.schedule), predictor.sharding(plan)
    priced = replace(held, cost=predictor.stages.exchanged(held.cost, sharding))
    places = schedule.layer_places(plan.pp, plan.chunks)
    names = names_of(predictor.model.graph.layers, predictor.split(plan), places, held)
    closing = np.broadcast_to(times.exchanged_s, times.optimizer_s.shape)
    kept, job = _kept(predictor, plan), predictor.workload
    return OffloadedStep(
        parts=parts_of(names, priced, times, sharding, kept, workload=job, found=applied(plan)),
        zero=plan.zero, ranks=plan.dp * plan.cp, rules=exchange_rules(plan), closing_s=closing.tolist(),
        update_s=(times.optimizer_s - closing).tolist(), forwards_alone=times.forwards_alone,
    )  # fmt: skip


def _kept(predictor: Predictor, plan: Plan) -> dict[str, float]:
    """What one micro-batch leaves of each kind of layer, of the embedding and of the head [byte]."""
    options = predictor.held(plan, in_flight=np.ones(())) | {"recompute_layers": None}
    none = dict.fromkeys(predictor.stages.block_names, 0)

    def kept(layers: dict[str, int], *, first: bool = False, last: bool = False) -> float:
        asked = options | {"layers": layers, "first": first, "last": last}
        return float(activation_bytes(predictor.model.graph, predictor.workload, **asked))

    found = {name: kept(none | {name: 1}) for name in none}
    return found | {EMBEDDING: kept(none, first=True), HEAD: kept(none, last=True)}
