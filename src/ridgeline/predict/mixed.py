"""A training step on devices of unlike types, as a plan says it or the best one found."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ridgeline.errors import PlanError
from ridgeline.facts.records import Cluster
from ridgeline.graph.model import Model
from ridgeline.graph.workload import Workload
from ridgeline.plan.plan import Plan
from ridgeline.predict.explain import explain
from ridgeline.predict.mixed_stages import MixedPredictor, UnlikeRanks, refuse_unmodelled
from ridgeline.predict.predictor import Predictor
from ridgeline.report.mixed import DeviceUse, MixedReport
from ridgeline.seams.device_shares import DeviceShares
from ridgeline.seams.registry import PARTITIONS, SHARES, STRATEGIES, family_of, listed, of_family, technique
from ridgeline.seams.resolve import rewritten, together
from ridgeline.timeline.simulate import simulate
from ridgeline.training.pipeline import pipeline_schedule
from ridgeline.training.unlike_ranks import unlike_tasks

EVEN = "even-shares"
_OWN = (SHARES, PARTITIONS)


def predict_mixed(
    model: Model, cluster: Cluster, workload: Workload, plan: Plan, *, priced: dict[object, Any] | None = None
) -> MixedReport:
    """One plan on devices of unlike types: without a pipeline all ranks share the batch, else stages fill the groups.

    `priced` keeps what plans of one model, cluster and workload have in common.
    Raises `PlanError` for what is not modelled, `NoPlanError` where a division of shares finds no memory.
    """
    refuse_unmodelled(plan)
    together(map(listed, plan.technique))
    others = tuple(text for text in plan.technique if _family(text) not in _OWN)
    if of_family(STRATEGIES, others) is not None:
        raise PlanError("plan: a strategy for each layer on devices of unlike types is not modelled; leave it out")
    if plan.pp == 1 and of_family(PARTITIONS, plan.technique) is not None:
        raise PlanError("plan: a partition of stages, and the plan has pp 1; say pp, or a technique of device shares")
    if plan.pp > 1 and of_family(SHARES, plan.technique) is not None:
        raise PlanError(
            "plan: device shares divide the batch, stages of a pipeline take layers; say pp 1, or a partition"
        )
    built = rewritten(model, others)
    known = {} if priced is None else priced
    if plan.pp > 1:
        key: object = (others, tuple(one.accelerator.name for one in _groups(cluster)))
        if key not in known:
            known[key] = MixedPredictor(built, cluster, workload)
        return _staged(known[key], plan).with_limits()
    base = _without_own(plan)
    key = (others, replace(base, micro_batch=1))
    if key not in known:
        known[key] = UnlikeRanks(built, cluster, workload, base)
    ranks = known[key]
    ranks.plan = base
    return _shared(ranks, plan).with_limits()


def _groups(cluster: Cluster) -> tuple[Cluster, ...]:
    assert cluster.mixed is not None
    return cluster.mixed.groups


def _family(text: str) -> str:
    return family_of(text.partition("(")[0].strip())


def _without_own(plan: Plan) -> Plan:
    return replace(plan, technique=tuple(text for text in plan.technique if _family(text) not in _OWN))


def _spread(predictors: tuple[Predictor, ...], plan: Plan) -> tuple[float, float]:
    """Low and high end of a step over its time [1]: of each type alone, the widest of all."""
    ends = []
    for one in predictors:
        told = explain(one, one.evaluate(plan)).step_time
        ends.append((told.low / told.value, told.high / told.value))
    return min(low for low, _ in ends), max(high for _, high in ends)


def _tokens(workload: Workload) -> float:
    return float(workload.global_batch * workload.seq_len)


def _usd_per_h(cluster: Cluster) -> float | None:
    prices = [(one.price_usd_per_device_h, one.count) for one in _groups(cluster)]
    known = [fact.value * count for fact, count in prices if fact is not None]
    return sum(known) if len(known) == len(prices) else None


def _staged(predictor: MixedPredictor, plan: Plan) -> MixedReport:
    cluster, workload = predictor.cluster, predictor.workload
    predictor.check(plan)
    times = predictor.prepare(plan)
    tasks, bound_s = predictor.step(plan, *times)
    step_s = simulate(tasks).makespan_s
    kinds, layers = predictor.kind_of(plan), predictor.split(plan)
    micro_batches = plan.micro_batches(workload.global_batch)
    held, room = np.sum(list(predictor.memory(plan).values()), axis=0), predictor.capacities(plan)
    stage = times[1]
    work = (stage.forward_s + stage.backward_input_s + stage.backward_weight_s).sum(axis=-1) * micro_batches
    moved = (stage.gather_s + stage.reduce_s).sum(axis=-1) * (micro_batches if plan.zero >= 2 else 1)
    uses = []
    for kind, one in enumerate(predictor.kinds):
        own = [place for place, each in enumerate(kinds) if each == kind]
        fullest = max(own, key=lambda place: held[place])
        uses.append(
            DeviceUse(
                device=one.cluster.accelerator.name, devices=predictor.devices[kind],
                layers=tuple(layers[place] for place in own), micro_batch=plan.micro_batch, micro_batches=micro_batches,
                sequences=workload.global_batch, state_share=sum(layers[place] for place in own) / sum(layers),
                memory_bytes=float(held[fullest]), capacity_bytes=float(room[fullest]),
                busy=float(max(work[place] for place in own)) / step_s,
            )
        )  # fmt: skip
    low, high = _spread(predictor.kinds, _without_own(plan))
    return MixedReport(
        plan=plan, cluster=cluster, sequences=workload.global_batch, tokens=_tokens(workload),
        step_s=step_s, low_s=step_s * low, high_s=step_s * high, bound_s=bound_s, layered=False,
        exchange_share=float(moved.max()) / step_s, uses=tuple(uses), usd_per_h=_usd_per_h(cluster),
        sources=_sources(plan, pipeline_schedule(plan.schedule).source),
    )  # fmt: skip


def _shared(ranks: UnlikeRanks, plan: Plan) -> MixedReport:
    cluster, workload = ranks.cluster, ranks.workload
    asked = of_family(SHARES, plan.technique) or technique(SHARES, EVEN)
    assert isinstance(asked, DeviceShares)
    problem = ranks.problem()
    division = asked.divide(problem)
    step = ranks.step(division)
    step_s = simulate(unlike_tasks(step)).makespan_s
    uses = tuple(
        DeviceUse(
            device=problem.kinds[one.kind].name, devices=one.ranks * plan.tp, layers=(), micro_batch=one.micro_batch,
            micro_batches=one.micro_batches, sequences=one.ranks * one.sequences,
            state_share=one.state_share * one.ranks if plan.zero else 1.0,
            memory_bytes=one.held_bytes + one.state_share * problem.state_bytes,
            capacity_bytes=problem.kinds[one.kind].capacity_bytes,
            busy=work.micro_batches * (work.forward_s + work.backward_s) / step_s,
        )
        for one, work in zip(division.shares, step.ranks, strict=True)
    )  # fmt: skip
    even = replace(ranks.plan, micro_batch=1)
    alike = tuple(
        Predictor(one.model, one.cluster, replace(workload, global_batch=even.dp), resolved=one.machine)
        for one in ranks.predictors
    )
    low, high = _spread(alike, even)
    return MixedReport(
        plan=plan, cluster=cluster, sequences=workload.global_batch, tokens=_tokens(workload),
        step_s=step_s, low_s=step_s * low, high_s=step_s * high, bound_s=step.bound_s, layered=division.layered,
        exchange_share=step.exchange_s / step_s, uses=uses, usd_per_h=_usd_per_h(cluster),
        sources=_sources(plan, asked.source),
    )  # fmt: skip


def _sources(plan: Plan, first: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys([*first, *(key for text in plan.technique for key in listed(text).source)]))
