"""Times of a plan's stages on nodes whose links differ, in the order that the plan names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ridgeline.cost.machine import Machine
from ridgeline.plan.plan import Plan
from ridgeline.predict.predictor import Predictor
from ridgeline.seams.loss import cross_entropy
from ridgeline.training.pipeline import pipeline_schedule
from ridgeline.training.stage_times import StageLayers, StageTimes
from ridgeline.training.stages import StageModel
from ridgeline.training.unlike_links import LinkTimes


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
