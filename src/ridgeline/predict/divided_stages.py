"""Stages on nodes and devices unlike each other: times in the order of nodes, and layers by speed and memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np

from ridgeline.cost.machine import Machine
from ridgeline.errors import PlanError
from ridgeline.plan.plan import Plan
from ridgeline.predict.predictor import Predictor
from ridgeline.seams.loss import cross_entropy
from ridgeline.seams.registry import PARTITIONS, family_of, of_family
from ridgeline.seams.stage_partition import Floats, Integers, StagePartition, StagePartitionProblem
from ridgeline.timeline.simulate import simulate
from ridgeline.training.pipeline import pipeline_schedule
from ridgeline.training.stage_times import StageLayers, StageTimes
from ridgeline.training.stages import StageModel
from ridgeline.training.unlike_links import LinkTimes, over_link, stage_ring


def undivided(plan: Plan) -> Plan:
    """The plan with its layers divided evenly."""
    others = tuple(text for text in plan.technique if family_of(text.partition("(")[0].strip()) != PARTITIONS)
    return replace(plan, technique=others)


def divided_layers(predictor: Predictor, plan: Plan) -> tuple[int, ...]:
    """Layers of each place [1]; found once for each plan. Raises `PlanError` for a plan without stages."""
    if plan not in predictor.partitions:
        asked = of_family(PARTITIONS, plan.technique)
        assert isinstance(asked, StagePartition)
        if plan.pp == 1:
            raise PlanError(f"plan: {asked.key} divides layers among stages, and the plan has pp 1; leave it out")
        found = asked.divide(_problem(predictor, undivided(plan)))
        predictor.partitions[plan] = tuple(int(layers) for layers in found)
    return predictor.partitions[plan]


def _problem(predictor: Predictor, plan: Plan) -> StagePartitionProblem:
    """What layers of a plan are divided by, its nodes in the order that suits even stages."""
    order = predictor.node_order(plan)

    @cache
    def as_divided(split: tuple[int, ...]) -> Plan:
        found = replace(plan, layer_split=split)
        if order:
            predictor.orders[found] = order
        return found

    bound_s = cache(lambda split: predictor.bound_s(as_divided(split)))
    lacking = cache(lambda split: predictor.excess_bytes(as_divided(split)))

    def seconds(partitions: Integers) -> Floats:
        return np.array([bound_s(tuple(one)) for one in partitions.tolist()])

    def excess_bytes(partitions: Integers) -> Floats:
        return np.array([lacking(tuple(one)) for one in partitions.tolist()])

    def simulated_s(partition: Integers) -> float:
        one = as_divided(tuple(partition.tolist()))
        return simulate(predictor.step(one, *predictor.prepare(one))[0]).makespan_s

    return StagePartitionProblem(
        layers=predictor.limits.layers, speeds=_of_places(predictor.stage_speeds(plan), plan), seconds=seconds,
        excess_bytes=excess_bytes, simulated_s=simulated_s,
    )  # fmt: skip


def _of_places(speeds: Floats, plan: Plan) -> Floats:
    """Of each place in the chain of layers the speed of the slowest stage that has it [1/s]."""
    places = pipeline_schedule(plan.schedule).layer_places(plan.pp, plan.chunks)
    found = np.full(int(places.max()) + 1, np.inf)
    np.minimum.at(found, places, np.broadcast_to(speeds[:, None], places.shape))
    return found


def speeds_over_links(predictor: Predictor, plan: Plan) -> Floats:
    """Steps a second of a plan if all stages had the links of each one's own ring (P,) [1/s]."""
    links, node = predictor.cluster.links, predictor.machine.tiers[0].size
    if links is None:
        return np.ones(plan.pp) / predictor.bound_s(plan)
    order, found, known = np.array(predictor.node_order(plan)), [], dict[tuple[float, float], float]()
    for stage in range(plan.pp):
        ring = order[stage_ring(plan, node, stage)]
        link = links.best
        if len(ring):
            pairs = ring[:, 0], ring[:, 1]
            link = float(links.bytes_per_s[pairs].min()), float(links.latency_s[pairs].max())
        if link not in known:
            alike = replace(predictor.cluster, links=None)
            machine = over_link(predictor.machine, links, *link)
            known[link] = Predictor(predictor.model, alike, predictor.workload, resolved=machine).bound_s(plan)
        found.append(1.0 / known[link])
    return np.array(found)


def ordered_times(
    predictor: Predictor, plan: Plan, held: StageLayers, timed: Callable[[StageModel, StageLayers], StageTimes]
) -> StageTimes:
    """Times of all stages [s]; `timed` prices them on one machine. The order is found once for each plan."""
    stages = predictor.stages
    crosses = max(plan.tp * plan.cp, plan.ep * plan.etp) > predictor.machine.tiers[0].size  # layers' exchanges too

    def seen(machine: Machine) -> StageTimes:
        if not crosses:
            return timed(stages.on(machine), held)
        there = StageModel(predictor.model, machine, predictor.workload)
        cost = there.price(held.cost.layout, [plan.recompute])
        return timed(there, replace(held, cost=cost.with_logits(cross_entropy(plan.loss).logits_again())))

    def send(machine: Machine, stride: float) -> float:
        return float(np.asarray(stages.on(machine).send_seconds(held.cost.layout, stride)))

    links = LinkTimes(
        plan=plan, schedule=pipeline_schedule(plan.schedule), machine=predictor.machine, base=timed(stages, held),
        timed=seen, micro_batches=plan.micro_batches(predictor.workload.global_batch), send=send,
    )  # fmt: skip
    if plan not in predictor.orders:
        predictor.orders[plan] = tuple(links.order().tolist())
    return links.times(np.array(predictor.orders[plan]))
