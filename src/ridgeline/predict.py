"""The one sentence: predict(scenario) = report(simulate(price(lower(build(workload), plan, cluster))))."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.cost.interval import interval
from ridgeline.cost.machine import Machine, machine
from ridgeline.energy.power import step_energy_j
from ridgeline.facts.mechanisms import constants
from ridgeline.facts.records import Cluster, Evidence
from ridgeline.graph.flop import model_flop_per_token
from ridgeline.graph.ops import Model
from ridgeline.graph.workload import Task, Workload
from ridgeline.lower.shard import Sharder
from ridgeline.lower.split import even_split
from ridgeline.lower.tasks import TaskGraph
from ridgeline.lower.work import Layout
from ridgeline.memory.runtime import RUNTIMES, Runtime
from ridgeline.memory.stage import stage_memory
from ridgeline.plan.plan import Plan, Recompute, Schedule
from ridgeline.plan.rules import check, model_limits
from ridgeline.report.report import Estimate, OpRow, Report, Share, StageMemory
from ridgeline.timeline.simulate import Timeline, simulate
from ridgeline.training.schedules import SCHEDULE_CODE, in_flight
from ridgeline.training.stages import LayoutCost, Sharding, StageModel, StageTimes, stage_parts
from ridgeline.training.step import exchange_rules, step_bound_s, step_tasks

RECOMPUTE_CODE = {Recompute.NONE: 0, Recompute.SELECTIVE: 1, Recompute.FULL: 2}
_PART_KIND = {"matrix": "compute", "attention": "compute", "memory": "hbm", "launch": "host", "update": "hbm", "bubble": "bubble"}
_EVIDENCE_OF_PART = {"matrix": "matrix rate", "attention": "matrix rate", "memory": "memory rate", "launch": "launch", "update": "memory rate"}


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """One plan, priced and simulated."""

    plan: Plan
    micro_batches: int
    cost: LayoutCost
    counts: NDArray[np.int64]  # (P, v, kinds)
    first: NDArray[np.float64]
    last: NDArray[np.float64]
    times: StageTimes
    bound_s: float
    tasks: TaskGraph
    timeline: Timeline


class Predictor:
    """Predicts plans of one model, cluster and workload; everything that plans share is computed once."""

    def __init__(self, model: Model, cluster: Cluster, workload: Workload, *, datasheet_only: bool = False, resolved: Machine | None = None) -> None:
        self.model, self.cluster, self.workload = model, cluster, workload
        self.machine = resolved or machine(cluster, datasheet_only=datasheet_only)
        self.stages = StageModel(model, self.machine, workload)
        self.limits = model_limits(model.graph)
        self._prices: dict[tuple[Any, ...], LayoutCost] = {}

    def layout(self, plan: Plan) -> Layout:
        """The part of a plan that decides a rank's share of each operator."""
        return Layout(
            tp=plan.tp, cp=plan.cp, ep=plan.ep, etp=plan.etp, sequence_parallel=int(plan.sequence_parallel),
            ulysses=int(plan.context_style == "ulysses"), micro_batch=plan.micro_batch, overlap_tensor=int(plan.overlap_tensor),
        )  # fmt: skip

    def price(self, plan: Plan) -> LayoutCost:
        """Block prices for a plan's layout; layouts are priced once."""
        layout = self.layout(plan)
        key = tuple(vars(layout).values())
        if key not in self._prices:
            self._prices[key] = self.stages.price(layout)
        return self._prices[key]

    def split(self, plan: Plan) -> tuple[int, ...]:
        """Layers of each pipeline place."""
        return plan.layer_split or even_split(self.limits.layers, plan.pp * plan.chunks)

    def prepare(self, plan: Plan) -> tuple[LayoutCost, NDArray[np.int64], NDArray[np.float64], NDArray[np.float64], StageTimes]:
        """Prices, layers per stage and times per stage of a plan."""
        cost = self.price(plan)
        counts = self.stages.counts(self.split(plan), plan.schedule, plan.pp, plan.chunks)
        first, last = self.stages.ends(plan.schedule, plan.pp, plan.chunks)
        sharding = Sharding(
            dp=plan.dp, pp=plan.pp, zero=plan.zero, zero_group=plan.zero_group or 0, offload_optimizer=int(plan.offload_optimizer)
        )
        times = self.stages.times(
            cost, counts, first, last, recompute=RECOMPUTE_CODE[plan.recompute], sharding=sharding, recompute_layers=plan.recompute_layers
        )
        return cost, counts, first, last, times

    def evaluate(self, plan: Plan) -> Evaluation:
        """Price and simulate one plan exactly; raises PlanError for an illegal one."""
        check(plan, self.limits, self.workload, self.cluster.count)
        micro_batches = plan.micro_batches(self.workload.global_batch)
        cost, counts, first, last, times = self.prepare(plan)
        tasks = step_tasks(plan, micro_batches, times)
        bound = step_bound_s(plan.schedule, micro_batches, times, exchange_rules(plan))
        return Evaluation(
            plan=plan, micro_batches=micro_batches, cost=cost, counts=counts, first=first, last=last, times=times,
            bound_s=float(bound), tasks=tasks, timeline=simulate(tasks),
        )  # fmt: skip

    def memory(self, plan: Plan) -> dict[str, NDArray[Any]]:
        """Peak bytes of every stage by category, arrays over stages (P,) [byte]."""
        counts = self.stages.counts(self.split(plan), plan.schedule, plan.pp, plan.chunks)
        first, last = self.stages.ends(plan.schedule, plan.pp, plan.chunks)
        micro_batches = plan.micro_batches(self.workload.global_batch)
        held = in_flight(SCHEDULE_CODE[plan.schedule], plan.pp, micro_batches, plan.chunks, np.arange(plan.pp))
        per_stage = counts.sum(axis=1)
        return stage_memory(
            self.model.graph, self.workload, tp=plan.tp, cp=plan.cp, ep=plan.ep, etp=plan.etp, dp=plan.dp,
            sequence_parallel=plan.sequence_parallel, micro_batch=plan.micro_batch, zero=plan.zero,
            shard_ranks=plan.zero_group or plan.dp * plan.cp,
            layers={name: per_stage[:, i] for i, name in enumerate(self.stages.block_names)},
            first=first.sum(axis=1) > 0, last=last.sum(axis=1) > 0, in_flight=held / plan.chunks,
            head_in_flight=micro_batches if plan.schedule is Schedule.GPIPE else 1,
            recompute=RECOMPUTE_CODE[plan.recompute], recompute_layers=plan.recompute_layers,
            offload_optimizer=plan.offload_optimizer, offload_activations=plan.offload_activations, runtime=self.runtime,
        )  # fmt: skip

    @cached_property
    def runtime(self) -> Runtime:
        """Habits of the training program that show in memory, on this accelerator."""
        return replace(RUNTIMES[self.workload.framework], architecture=self.cluster.accelerator.architecture)

    @cached_property
    def flop_per_token(self) -> float:
        """Forward model FLOP per token, attention counted over all pairs (PaLM's MFU convention)."""
        return float(model_flop_per_token(self.model.graph, float(self.workload.seq_len), attention="full", encoder_seq_len=self.workload.encoder_seq_len))

    def report(self, plan: Plan) -> Report:
        """One plan, explained."""
        return _Explainer(self, self.evaluate(plan)).report()


def predict(model: Model, cluster: Cluster, workload: Workload, plan: Plan, *, evidence: str | None = None) -> Report:
    """Predict one plan on one cluster; `evidence='datasheet'` uses no rate that anyone measured."""
    return Predictor(model, cluster, workload, datasheet_only=evidence == "datasheet").report(plan)


class _Explainer:
    """Turns an evaluation into a report."""

    def __init__(self, predictor: Predictor, evaluation: Evaluation) -> None:
        self.predictor, self.it = predictor, evaluation

    def parts(self) -> dict[str, float]:
        """Seconds of the step on the busiest stage, by part; they add up to the makespan."""
        it, plan = self.it, self.it.plan
        work = (it.times.forward_s + it.times.backward_input_s + it.times.backward_weight_s).sum(axis=1)
        stage = int(np.argmax(work))
        counts = it.counts[stage].sum(axis=0)
        share = min(1.0, plan.recompute_layers / max(1, int(counts.sum()))) if plan.recompute_layers is not None else 1.0
        one = stage_parts(
            it.cost, self.predictor.stages.block_names, counts, float(it.first[stage].sum()), float(it.last[stage].sum()),
            recompute=RECOMPUTE_CODE[plan.recompute], share=share,
        )  # fmt: skip
        parts = {name: seconds * it.micro_batches for name, seconds in one.items() if seconds > 0}
        parts["update"] = float(it.times.optimizer_s.max())
        rest = it.timeline.makespan_s - sum(parts.values())
        quiet = replace(it.times, gather_s=it.times.gather_s * 0, reduce_s=it.times.reduce_s * 0)
        without = simulate(step_tasks(plan, it.micro_batches, quiet)).makespan_s
        parts["data link"] = min(rest, it.timeline.makespan_s - without)
        parts["bubble"] = rest - parts["data link"]
        return {name: seconds for name, seconds in parts.items() if seconds > 0}

    def memory(self) -> tuple[StageMemory, ...]:
        table = self.predictor.memory(self.it.plan)
        capacity = self.predictor.cluster.accelerator.memory_bytes
        return tuple(
            StageMemory(stage=s, categories={name: float(np.broadcast_to(value, (self.it.plan.pp,))[s]) for name, value in table.items()}, capacity_bytes=capacity)
            for s in range(self.it.plan.pp)
        )

    def evidence(self) -> dict[str, Evidence]:
        """The rung behind each mechanism."""
        pricer, device = self.predictor.stages.pricer, self.predictor.machine.device
        found = {
            "matrix rate": device.evidence.get(f"matrix.{pricer.precision.compute}", Evidence.DATASHEET),
            "memory rate": device.evidence.get("hbm", Evidence.DATASHEET),
            "links": self.predictor.machine.link_evidence,
            "launch": constants()["launch.host.eager"].evidence,
        }
        return found

    def lowest(self, parts: Mapping[str, float], evidence: Mapping[str, Evidence]) -> Evidence:
        """The lowest rung among mechanisms that make up more than a twentieth of the step."""
        step = self.it.timeline.makespan_s
        used = [evidence[_EVIDENCE_OF_PART.get(part, "links")] for part, seconds in parts.items() if part != "bubble" and seconds > step / 20]
        return min(used, default=Evidence.DERIVED)

    def report(self) -> Report:
        it, predictor, workload = self.it, self.predictor, self.predictor.workload
        parts, step_s = self.parts(), it.timeline.makespan_s
        evidence = self.evidence()
        rung = self.lowest(parts, evidence)
        low, high = interval(step_s, rung)
        tokens = workload.step_tokens * (1 - workload.padding)
        trained = 3.0 if workload.task in (Task.PRETRAIN, Task.FULL) else 2.0
        model_flop = predictor.flop_per_token * workload.step_tokens * trained
        again = {Recompute.FULL: 1.0}.get(it.plan.recompute, 0.0)
        hardware_flop = model_flop + again * predictor.flop_per_token * workload.step_tokens
        peak = predictor.cluster.accelerator.peak_flop_per_s.get(predictor.stages.precision.compute) or predictor.machine.device.matrix_rate(predictor.stages.precision.compute)
        total_peak = peak * it.plan.devices
        energy = step_energy_j(parts, predictor.cluster)
        price, carbon = predictor.cluster.price_usd_per_device_h, predictor.cluster.carbon_kg_per_j
        steps = None if workload.tokens is None else workload.tokens / workload.step_tokens
        shares = tuple(
            Share(label=name, kind=_PART_KIND.get(name, "link"), seconds=seconds)
            for name, seconds in sorted(parts.items(), key=lambda item: -item[1])
        )
        return Report(
            model=predictor.model, cluster=predictor.cluster, workload=workload, plan=it.plan,
            step_time=Estimate(value=step_s, low=low, high=high, unit="s", evidence=rung), bound_s=it.bound_s,
            tokens_per_s=tokens / step_s, model_flop=model_flop, hardware_flop=hardware_flop,
            mfu=model_flop / step_s / total_peak, hfu=hardware_flop / step_s / total_peak,
            run_time_s=None if steps is None else steps * step_s,
            energy_j_per_step=energy, power_w=energy / step_s,
            usd_per_step=None if price is None else price.value * predictor.cluster.count * step_s / 3600,
            carbon_kg_per_step=None if carbon is None else carbon.value * energy,
            memory=self.memory(), shares=shares, limit=_limit(shares, step_s), ops=self.ops(),
            assumptions=self.assumptions(), sources=self.sources(), evidence=evidence, tasks=it.tasks, timeline=it.timeline,
        )  # fmt: skip

    def ops(self) -> tuple[OpRow, ...]:
        """Every operator of every block kind on one rank, one micro-batch."""
        stages = self.predictor.stages
        sharder = Sharder(self.predictor.workload, self.it.cost.layout)
        graph = self.predictor.model.graph
        groups = [("embedding", 1, graph.embedding, None), *((n, graph.layers.count(n), b.ops, b) for n, b in graph.blocks.items()), ("head", 1, graph.head, None)]
        rung = self.evidence()
        rows = []
        for name, layers, ops, block in groups:
            work = sharder.block(block) if block is not None else sharder.end(ops)
            merged: dict[str, list[Any]] = {}
            for priced in stages.pricer.rows(work):
                seconds = float(np.asarray(priced.seconds))
                if seconds <= 0:
                    continue
                row = merged.setdefault(priced.work.name, [0.0, 0.0, 0.0, 0.0, priced.bound])
                row[0 if priced.work.phase.value == "forward" else 1] += seconds
                row[2] += float(np.asarray(priced.flop))
                row[3] += float(np.asarray(priced.bytes))
            for op, (forward, backward, flop, size, bound) in merged.items():
                mechanism = {"compute": "matrix rate", "hbm": "memory rate", "link": "links"}[bound]
                rows.append(OpRow(block=name, op=op, layers=layers, forward_s=forward, backward_s=backward, flop=flop, bytes=size, bound=bound, evidence=rung[mechanism]))
        return tuple(rows)

    def assumptions(self) -> tuple[str, ...]:
        workload, cluster = self.predictor.workload, self.predictor.cluster
        found = [
            "MFU counts attention over all token pairs (PaLM's convention) and no recompute",
            "experts receive equal numbers of tokens" if self.predictor.limits.experts else "",
            f"{workload.padding:.0%} of positions are padding and count as no tokens" if workload.padding else "",
            f"price: {cluster.price_usd_per_device_h.conditions}" if cluster.price_usd_per_device_h else "no price is known for this accelerator",
            *self.predictor.model.notes,
        ]
        return tuple(text for text in found if text)

    def sources(self) -> tuple[str, ...]:
        accelerator = self.predictor.cluster.accelerator
        used = [fact.source for name, fact in accelerator.sustained.items() if name in ("hbm", f"matrix.{self.predictor.stages.precision.compute}")]
        used += [fact.source for name, fact in accelerator.facts.items() if name in ("memory_bytes", "peak_flop_per_s.bf16")]
        used += [tier.fact.source for tier in cluster_tiers(self.predictor.cluster) if tier.fact is not None]
        return tuple(dict.fromkeys(used))


def cluster_tiers(cluster: Cluster) -> tuple[Any, ...]:
    """The network tiers that a job on this cluster can use."""
    return cluster.tiers


def _limit(shares: tuple[Share, ...], step_s: float) -> str:
    """One line: the largest part of the step and the next."""
    text = ", then ".join(f"{share.label} ({share.kind}) {share.seconds / step_s:.0%}" for share in shares[:2])
    return f"{text} of the step" if text else "nothing to do"
