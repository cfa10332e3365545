"""Prices and simulates plans of one model on one cluster; what plans share is computed once."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.cost.machine import Machine, machine
from ridgeline.errors import PlanError
from ridgeline.facts.records import Cluster
from ridgeline.graph.flop import index_flop_per_token, mean_context, model_flop_per_token, op_flop_per_token
from ridgeline.graph.model import Model
from ridgeline.graph.ops import AttentionOp
from ridgeline.graph.workload import Workload
from ridgeline.lower.split import even_split
from ridgeline.lower.tasks import TaskGraph
from ridgeline.lower.work import Layout
from ridgeline.memory.profile import GraphProfile, profile_graph
from ridgeline.memory.query import MemoryOptions, MemoryStage, resolve
from ridgeline.memory.runtime import Runtime, runtime_of
from ridgeline.memory.stage import activation_bytes, device_memory, host_bytes, tier_bytes
from ridgeline.plan.plan import Plan
from ridgeline.plan.rules import check, model_limits
from ridgeline.seams.context import context_style
from ridgeline.seams.data_exchange import check as check_exchange
from ridgeline.seams.data_exchange import data_exchange
from ridgeline.seams.loss import cross_entropy
from ridgeline.seams.offload import FLAGS, applied, means, offloads, on_lanes
from ridgeline.seams.offload import check as check_offloads
from ridgeline.seams.registry import PARTITIONS, STRATEGIES, of_family
from ridgeline.timeline.simulate import Timeline, simulate
from ridgeline.training.bounds import step_bound_s
from ridgeline.training.exchanges import Sharding, exchange_rules
from ridgeline.training.pipeline import pipeline_schedule
from ridgeline.training.stage_times import LayoutCost, StageLayers, StageTimes
from ridgeline.training.stages import StageModel
from ridgeline.training.step import step_tasks, with_moved_activations


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """One plan, priced and simulated."""

    plan: Plan
    micro_batches: int
    held: StageLayers
    times: StageTimes
    bound_s: float
    tasks: TaskGraph
    timeline: Timeline

    @property
    def passes(self) -> float:
        """Micro-batches that go through each chunk [1]: all, or those of its copy of the weights."""
        return self.micro_batches / pipeline_schedule(self.plan.schedule).copies


class Predictor:
    """Predicts plans of one model, cluster and workload; everything that plans share is computed once."""

    def __init__(
        self,
        model: Model,
        cluster: Cluster,
        workload: Workload,
        *,
        datasheet_only: bool = False,
        resolved: Machine | None = None,
    ) -> None:
        self.model, self.cluster, self.workload = model, cluster, workload
        self.machine = resolved or machine(cluster, datasheet_only=datasheet_only, techniques=model.techniques)
        if resolved is None and cluster.links is not None:
            from ridgeline.training.unlike_links import best_links

            self.machine = best_links(self.machine)
        self.stages = StageModel(model, self.machine, workload)
        self.limits = model_limits(model.graph)
        self._prices: dict[tuple[Any, ...], LayoutCost] = {}
        self._last: tuple[Plan, MemoryStage] | None = None
        self.orders: dict[Plan, tuple[int, ...]] = {}  # of nodes, by plan, where links between them differ
        self.partitions: dict[Plan, tuple[int, ...]] = {}  # layers of each place, by plan, where a technique divides

    def on(self, machine: Machine) -> Predictor:
        """The same on a machine whose rates alone differ: nodes and layers stand where they are."""
        other = copy(self)
        other.machine, other.cluster, other.stages = machine, machine.cluster, self.stages.repriced(machine)
        other._prices = {}
        return other

    def layout(self, plan: Plan) -> Layout:
        """The part of a plan that decides a rank's share of each operator."""
        return Layout(
            tp=plan.tp,
            cp=plan.cp,
            ep=plan.ep,
            etp=plan.etp,
            sequence_parallel=int(plan.sequence_parallel),
            context=plan.context_style,
            micro_batch=plan.micro_batch,
            overlap_tensor=int(plan.overlap_tensor),
        )

    def price(self, plan: Plan) -> LayoutCost:
        """Block prices for a plan's layout and recompute; each pair is priced once."""
        layout = self.layout(plan)
        key = (plan.recompute, *vars(layout).values())
        if key not in self._prices:
            self._prices[key] = self.stages.price(layout, [plan.recompute])
        return self._prices[key]

    def split(self, plan: Plan) -> tuple[int, ...]:
        """Layers of each pipeline place; raises `PlanError` where there are fewer places than layers or copies need."""
        if plan.layer_split is None and plan.technique and of_family(PARTITIONS, plan.technique) is not None:
            from ridgeline.predict.divided_stages import divided_layers

            return divided_layers(self, plan)
        copies = pipeline_schedule(plan.schedule).copies
        if plan.pp * plan.chunks < copies:
            raise PlanError(
                f"plan: schedule {plan.schedule} holds {copies} copies of the weights, needs pp x chunks >= {copies},"
                f" got {plan.pp * plan.chunks}; nearest: schedule 1f1b"
            )
        return plan.layer_split or even_split(self.limits.layers, plan.pp * plan.chunks // copies)

    def prepare(self, plan: Plan) -> tuple[StageLayers, StageTimes]:
        """Prices and layers of every stage of a plan, and their times."""
        if of_family(STRATEGIES, plan.technique) is not None:
            return self._prepare_layered(plan)
        schedule = pipeline_schedule(plan.schedule)
        cost = self.stages.shared(self.price(plan), schedule, plan.pp)
        cost = cost.with_logits(cross_entropy(plan.loss).logits_again())
        held = self.stages.held(cost, self.split(plan), schedule, plan.chunks)
        timed = partial(
            StageModel.times, recompute=plan.recompute, sharding=self.sharding(plan),
            recompute_layers=plan.recompute_layers, schedule=schedule,
        )  # fmt: skip
        times = timed(self.stages, held)
        if self.cluster.links is not None:
            from ridgeline.predict.divided_stages import ordered_times

            times = ordered_times(self, plan, held, timed)
        if means(plan, "offload_activations") and not self.on_lanes(plan):
            kept = activation_bytes(self.model.graph, self.workload, **self.held(plan, in_flight=np.ones(plan.pp)))
            rate = self.machine.host_link_bytes_per_s
            times = with_moved_activations(
                times, np.broadcast_to(kept, (plan.pp,)), held.counts, on=1, host_bytes_per_s=rate
            )
        return held, times

    def groups(self, plan: Plan) -> tuple[tuple[Plan, NDArray[np.bool_]], ...]:
        """The plan as layers that are run alike see it, with which layers (L,) they are; the whole plan's own first."""
        if of_family(STRATEGIES, plan.technique) is None:
            return ((plan, np.ones(self.limits.layers, dtype=bool)),)
        from ridgeline.seams.layers import layer_plans

        each = layer_plans(plan, self.limits.layers)
        own = replace(plan, technique=(), sequence_parallel=plan.sequence_parallel and plan.tp > 1)
        return tuple((one, np.array([it == one for it in each])) for one in dict.fromkeys((own, *each)))

    def _prepare_layered(self, plan: Plan) -> tuple[StageLayers, StageTimes]:
        """As `prepare`, where layers have strategies of their own."""
        from ridgeline.seams.layers import layer_plans
        from ridgeline.training.layerwise import LayerGroup, chain_relayouts, layered_times, merged

        schedule, split = pipeline_schedule(plan.schedule), self.split(plan)
        places = schedule.layer_places(plan.pp, plan.chunks)
        again = cross_entropy(plan.loss).logits_again()
        groups = []
        for number, (own, chosen) in enumerate(self.groups(plan)):
            held = self.stages.held(self.price(own).with_logits(again), split, schedule, plan.chunks, chosen=chosen)
            if number:
                held = replace(held, first=held.first * 0, last=held.last * 0)
            groups.append(LayerGroup(plan=own, sharding=self.sharding(own), held=held))
        layouts = [self.layout(own) for own in layer_plans(plan, self.limits.layers)]
        by_place = np.searchsorted(np.cumsum(split), np.arange(len(layouts)), side="right")
        changes = chain_relayouts(self.stages, self.layout(groups[0].plan), layouts, by_place, int(places.max()) + 1)
        relayouts = changes[:, places]
        return merged(groups, relayouts), layered_times(self.stages, groups, relayouts, schedule)

    def node_order(self, plan: Plan) -> tuple[int, ...]:
        """The node at each place of a plan's ranks, where links between nodes differ; empty where they do not."""
        if self.cluster.links is not None and plan not in self.orders:
            self.prepare(plan)
        return self.orders.get(plan, ())

    def check(self, plan: Plan) -> None:
        """Raises `PlanError` for an illegal plan, or one whose layers' strategies are."""
        check(plan, context_style(plan.context_style), self.limits, self.workload, self.cluster.count)
        check_exchange(plan, unlike_links=self.cluster.links is not None)
        if self.on_lanes(plan) and pipeline_schedule(plan.schedule).paired:
            raise PlanError(
                f"plan: schedule {plan.schedule} runs a forward and a backward at once, beside which layers that move"
                " between tiers are not modelled; nearest: schedule 1f1b"
            )
        if of_family(STRATEGIES, plan.technique) is None:
            return
        words = (*FLAGS, "optimizer_in_backward")
        named = [word for word in words if getattr(plan, word)] + [one.key for one in offloads(plan.technique)]
        if named:
            raise PlanError(f"plan: {named[0]} with a strategy for each layer is not modelled; leave one of them out")
        if pipeline_schedule(plan.schedule).barriers():
            raise PlanError(f"plan: schedule {plan.schedule} with a strategy for each layer is not modelled; use 1f1b")
        if plan.recompute_layers is not None:
            raise PlanError("plan: recompute_layers with a strategy for each layer; say it in the runs instead")
        for own, _ in self.groups(plan):
            check(own, context_style(plan.context_style), self.limits, self.workload, self.cluster.count)

    def on_lanes(self, plan: Plan) -> bool:
        """Whether what the plan keeps in other tiers moves on lanes of its timeline, not in closed form."""
        return on_lanes(applied(plan))

    def sharding(self, plan: Plan) -> Sharding:
        """The plan's choices about model states, without what moves on lanes."""
        folded = not self.on_lanes(plan)
        return Sharding(
            dp=plan.dp,
            pp=plan.pp,
            zero=plan.zero,
            zero_group=plan.zero_group or 0,
            offload_optimizer=int(folded and means(plan, "offload_optimizer")),
            offload_weights=int(folded and means(plan, "offload_weights")),
        )

    def step(self, plan: Plan, held: StageLayers, times: StageTimes) -> tuple[TaskGraph, float]:
        """The exact task graph of one step, and a lower bound of its time [s]."""
        micro_batches, schedule = plan.micro_batches(self.workload.global_batch), pipeline_schedule(plan.schedule)
        if schedule.routed:
            from ridgeline.predict.routed import routed_step

            return routed_step(self, plan, schedule, held, times)
        if not self.on_lanes(plan):
            bound = step_bound_s(schedule, micro_batches, times, exchange_rules(plan))
            return step_tasks(plan, micro_batches, times), float(bound)
        from ridgeline.predict.on_lanes import lanes_step

        return lanes_step(self, plan, held, times)

    def evaluate(self, plan: Plan) -> Evaluation:
        """Price and simulate one plan exactly; raises PlanError for an illegal one."""
        self.check(plan)
        if plan.technique != self.model.techniques:
            raise PlanError(
                f"plan: technique {', '.join(plan.technique) or 'none'}, the predictor's model has"
                f" {', '.join(self.model.techniques) or 'none'}; make a predictor of seams.resolve.rewritten's model"
            )
        schedule = pipeline_schedule(plan.schedule)
        if plan.pp == 1 and not schedule.alone:
            raise PlanError(f"plan: schedule {plan.schedule} needs pp >= 2, got pp 1; nearest: schedule 1f1b")
        micro_batches = plan.micro_batches(self.workload.global_batch)
        schedule.check(plan.pp, micro_batches, plan.chunks)
        check_offloads(plan, nvme_bytes=self.cluster.host.nvme_bytes, forwards=self.stages.forwards)
        held, times = self.prepare(plan)
        tasks, bound = self.step(plan, held, times)
        return Evaluation(
            plan=plan,
            micro_batches=micro_batches,
            held=held,
            times=times,
            bound_s=bound,
            tasks=tasks,
            timeline=simulate(tasks),
        )

    def bound_s(self, plan: Plan) -> float:
        """Lower bound of a step of a plan in closed form [s]."""
        micro_batches = plan.micro_batches(self.workload.global_batch)
        schedule = pipeline_schedule(plan.schedule)
        return float(step_bound_s(schedule, micro_batches, self.prepare(plan)[1], exchange_rules(plan)))

    def memory(self, plan: Plan) -> dict[str, NDArray[Any]]:
        """Peak bytes of every stage by category, arrays over stages (P,) [byte]."""
        return device_memory(self._held_by(plan))

    def excess_bytes(self, plan: Plan) -> float:
        """What the memories of a plan's stages lack, added up [byte]; 0 where it fits."""
        over = sum(self.memory(plan).values()) - self.cluster.accelerator.memory_bytes
        return float(np.maximum(over, 0.0).sum())

    def stage_speeds(self, plan: Plan) -> NDArray[np.float64]:
        """Steps a second of a plan if all its stages had the devices and links of each one (P,) [1/s]."""
        from ridgeline.predict.divided_stages import speeds_over_links

        return speeds_over_links(self, plan)

    def host_bytes(self, plan: Plan) -> float:
        """What the fullest host holds of states and activations [byte]."""
        return float(np.max(host_bytes(self._held_by(plan)))) * min(self.cluster.host.devices, plan.devices)

    def drive_bytes(self, plan: Plan) -> float:
        """What the fullest host keeps of states and activations on its drives [byte]."""
        return float(np.max(tier_bytes(self._held_by(plan), "nvme"))) * min(self.cluster.host.devices, plan.devices)

    def _held_by(self, plan: Plan) -> MemoryStage:
        """What the stages of a plan hold; kept of the last plan asked about."""
        if self._last is None or self._last[0] != plan:
            options = self.held(plan, in_flight=self._in_flight(plan))
            self._last = (plan, resolve(self.model.graph, self.workload, options))
        return self._last[1]

    def _in_flight(self, plan: Plan) -> NDArray[np.float64]:
        """Micro-batches that each stage holds at its peak, in units of all its chunks (P,) [1]."""
        micro_batches = plan.micro_batches(self.workload.global_batch)
        schedule = pipeline_schedule(plan.schedule)
        return schedule.in_flight(plan.pp, micro_batches, plan.chunks, np.arange(plan.pp)) / plan.chunks

    def held(self, plan: Plan, *, in_flight: NDArray[Any]) -> MemoryOptions:
        """What is asked about the memory of a plan's stages."""
        own, *others = self.groups(plan) if of_family(STRATEGIES, plan.technique) is not None else ((plan, None),)
        found = self.of_layers(*own, in_flight=in_flight)
        for other in others:
            found.setdefault("others", []).append(  # type: ignore[attr-defined]
                {**self.of_layers(*other, in_flight=in_flight), "first": False, "last": False}
            )
        return found

    def of_layers(self, plan: Plan, chosen: NDArray[np.bool_] | None, *, in_flight: NDArray[Any]) -> MemoryOptions:
        """What is asked about the memory of stages of which some layers are `chosen` (L,); None: all."""
        schedule = pipeline_schedule(plan.schedule)
        counts, first, last = self.stages.spread(self.split(plan), schedule, plan.chunks, chosen=chosen)
        micro_batches = plan.micro_batches(self.workload.global_batch)
        per_stage = counts.sum(axis=1)
        return MemoryOptions(
            tp=plan.tp,
            cp=plan.cp,
            ep=plan.ep,
            etp=plan.etp,
            dp=plan.dp,
            sequence_parallel=plan.sequence_parallel,
            micro_batch=plan.micro_batch,
            zero=plan.zero,
            shard_ranks=plan.zero_group or plan.dp * plan.cp,
            layers={name: per_stage[:, i] for i, name in enumerate(self.stages.block_names)},
            first=first.sum(axis=1) > 0,
            last=last.sum(axis=1) > 0,
            ends=plan.pp if schedule.barriers() else 1,
            in_flight=in_flight,
            head_in_flight=schedule.head_in_flight(micro_batches),
            micro_batches=micro_batches,
            recompute=plan.recompute,
            recompute_layers=plan.recompute_layers,
            offload_optimizer=plan.offload_optimizer,
            offload_activations=plan.offload_activations,
            offload_weights=plan.offload_weights,
            optimizer_in_backward=plan.optimizer_in_backward,
            loss=plan.loss,
            offloads=offloads(plan.technique),
            exchange=data_exchange(plan.technique),
            runtime=self.runtime,
            profile=self.profile,
        )

    @cached_property
    def runtime(self) -> Runtime:
        """Memory behaviour of the training framework on this accelerator."""
        return runtime_of(self.workload.policy, self.cluster.accelerator.architecture)

    @cached_property
    def profile(self) -> GraphProfile:
        """Sums of the model's graph that its memory is made of."""
        return profile_graph(self.model.graph, self.workload, self.runtime)

    def layers_flop_per_token(self, attention: str = "full") -> float:
        """The part of `model_flop_per_token` that layers take: without embedding, logits and loss [FLOP/token]."""
        graph, tokens = self.model.graph, float(self.workload.seq_len)
        ends = sum(op_flop_per_token(op, tokens) for op in (*graph.embedding, *graph.head))
        return self.model_flop_per_token(attention) - float(ends)

    def attention_flop_per_token(self, attention: str = "full") -> float:
        """The part of `model_flop_per_token` that attention cores take [FLOP/token]."""
        graph, tokens = self.model.graph, float(self.workload.seq_len)
        cores = [op for name in graph.layers for op in graph.blocks[name].ops if isinstance(op, AttentionOp)]
        return float(
            sum(
                op_flop_per_token(op, mean_context(op, tokens, attention=attention))
                + index_flop_per_token(op, tokens, attention=attention)
                for op in cores
            )
        )

    def model_flop_per_token(self, attention: str = "full") -> float:
        """Forward model FLOP per token, attention counted over all pairs (PaLM's MFU convention) or 'causal' ones."""
        encoded = self.workload.encoder_seq_len
        seq_len = float(self.workload.seq_len)
        return float(model_flop_per_token(self.model.graph, seq_len, attention=attention, encoder_seq_len=encoded))
