"""Plans whose layers have strategies of their own: the best mix of each pipeline, by dynamic programming per stage.

Shape letters: P stages, L layers, V strategies. For each number of stages and of micro-batches, and each strategy of
the two ends, what a layer adds to a step under each strategy is taken from the predictor, which is additive as long as
exchanges hide under compute; where links are the longer part, seconds of links and of compute are weighed against each
other. The closed bound of what is found is then the predictor's own, and its simulation ranks it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray

from ridgeline.errors import PlanError
from ridgeline.facts.records import Cluster
from ridgeline.graph.model import Model
from ridgeline.graph.workload import Workload
from ridgeline.plan.plan import Plan
from ridgeline.plan.rules import divisors
from ridgeline.predict.explain import explain
from ridgeline.predict.predictor import Predictor
from ridgeline.predict.what_if import plan_sensitivities
from ridgeline.report.report import FrameworkRun, Report, SearchReport
from ridgeline.seams.layers import LayerStrategy
from ridgeline.seams.registry import STRATEGIES, of_family
from ridgeline.seams.resolve import rewritten
from ridgeline.search.layer_costs import LayeredPipeline
from ridgeline.search.layerwise import cheapest_layers, least_seconds
from ridgeline.techniques.strategies.layer_runs import LayerRuns, runs_text

Floats = NDArray[np.float64]
_RELEVANT = 1e-9  # tolerance: relative, under which two plans take as long
_SHOWN = 3  # of the plans found
_WEIGHTS = (0.0, 0.5, 0.9)  # of links against compute, where links may be the longer part


@dataclass(frozen=True, kw_only=True)
class LayerPlanSpace:
    """What a strategy of a layer may be, and how many stages and micro-batches are tried."""

    max_tp: int = 64
    zero: tuple[int, ...] = (0, 1, 2, 3)
    recompute: tuple[str, ...] = ("none", "selective", "full")
    max_pp: int = 64
    max_micro_batch: int = 16
    ends_zero: tuple[int, ...] = (1, 3)
    simulated: int = 12  # plans of the lowest bounds that are simulated


@dataclass(frozen=True, kw_only=True)
class LayerPlans:
    """The best plans in order of simulated step time [s], and how far the best can be from any of the space."""

    plans: tuple[tuple[float, Plan], ...]
    tried: int  # pipelines with a strategy of the ends
    solved: int
    least_s: float
    seconds: float


def _strategies(plan: Plan, space: LayerPlanSpace, predictor: Predictor) -> Iterator[LayerStrategy]:
    """Strategies that the layers of a plan may have."""
    seen = set()
    rules = [
        one
        for one in space.recompute
        if one == "none" or predictor.stages.rule(one).repeats(fused=predictor.workload.attention_kernel != "unfused")
    ]
    for tp, zero, recompute in product(divisors(plan.tp * plan.dp, space.max_tp), space.zero, rules):
        for parallel in (True, False) if tp > 1 else (False,):
            one = LayerStrategy(tp=tp, zero=zero, sequence_parallel=parallel, recompute=recompute)
            try:
                own = one.of(plan)
                predictor.check(own)
            except PlanError:
                continue
            if own.dp * own.cp == 1 and zero:
                continue
            if own not in seen:
                seen.add(own)
                yield one


def _pipelines(predictor: Predictor, space: LayerPlanSpace) -> Iterator[LayeredPipeline]:
    """Every number of stages and of sequences in a pipeline slot, with the strategies of its layers."""
    limits, workload, devices = predictor.limits, predictor.workload, predictor.cluster.count
    for pp in divisors(devices, min(space.max_pp, limits.layers)):
        ranks = devices // pp
        for sequences in divisors(workload.global_batch):
            if workload.global_batch // sequences < pp or sequences > space.max_micro_batch * ranks:
                continue
            for tp in divisors(ranks, space.max_tp):
                if sequences % (ranks // tp) == 0:
                    plan = Plan(tp=tp, pp=pp, dp=ranks // tp, micro_batch=sequences // (ranks // tp))
                    variants = list(_strategies(plan, space, predictor))
                    if variants:
                        yield LayeredPipeline(predictor, plan, variants)
                    break  # of all degrees of tensor parallelism the strategies are the same


class LayerSearcher:
    """One search over pipelines, strategies of the ends and strategies of each layer."""

    def __init__(self, predictor: Predictor, space: LayerPlanSpace) -> None:
        self.predictor, self.space = predictor, space
        self.room = float(predictor.cluster.accelerator.memory_bytes)
        self.texts = predictor.model.techniques
        self.solved = 0

    def run(self) -> LayerPlans:
        """Solve pipelines in order of their lower bound until none can beat the best found."""
        started = time.perf_counter()
        tasks = sorted(self._tasks(), key=lambda item: item[0])
        found: dict[Plan, float] = {}
        least_s = np.inf
        for bound_s, pipeline, end in tasks:
            best_s = min(found.values(), default=np.inf)
            if bound_s >= best_s:
                break
            least_s = min(least_s, bound_s)
            self.solved += 1
            for plan in self._solve(pipeline, end):
                found[plan] = self._of(plan).bound_s(plan)
        order = sorted(found, key=lambda one: found[one])[: self.space.simulated]
        ranked = sorted(((self._fitting_s(plan), plan) for plan in order), key=lambda item: item[0])
        return LayerPlans(
            plans=tuple((seconds, plan) for seconds, plan in ranked if np.isfinite(seconds)),
            tried=len(tasks),
            solved=self.solved,
            least_s=float(least_s),
            seconds=time.perf_counter() - started,
        )

    def _tasks(self) -> Iterator[tuple[float, LayeredPipeline, int]]:
        for pipeline in _pipelines(self.predictor, self.space):
            for number, own in enumerate(pipeline.plans):
                if own.recompute == "none" and (own.zero in self.space.ends_zero or own.dp * own.cp == 1):
                    bound_s = self._least_s(pipeline, number)
                    if np.isfinite(bound_s):
                        yield bound_s, pipeline, number

    def _least_s(self, pipeline: LayeredPipeline, number: int) -> float:
        """Lower bound of a step of this pipeline with these ends [s]: each stage's own work, and the way to it."""
        ends, m = pipeline.ends_s(number), pipeline.micro_batches
        each, rest = pipeline.bytes(number)
        stages = []
        for s, layers in enumerate(pipeline.stages):
            choices = pipeline.choices(s, number, weight=0.0)
            room = self.room - float(rest[:, s].min())
            if room < each[:, s].min() * len(layers):
                return np.inf
            stages.append(least_seconds(choices, room) + m * ends[s])
        one = np.array(stages)
        way = (one.sum() - one) / m if len(one) > 1 else np.zeros(1)
        return float(np.max(one + way * (m > 1)))

    def _solve(self, pipeline: LayeredPipeline, number: int) -> Iterator[Plan]:
        """The best strategies of each stage, for each weight of links against compute."""
        end = pipeline.plans[number]
        linked = False
        for weight in _WEIGHTS:
            if weight and not linked:
                return
            chosen = []
            for s in range(len(pipeline.stages)):
                found = self._stage(pipeline, s, number, weight)
                if found is None:
                    break
                chosen += [pipeline.variants[one] for one in found]
                rows = np.arange(found.size)
                works, links = (pipeline.seconds(pipeline.stages[s], one)[rows, found].sum() for one in (0.0, 1.0))
                linked = linked or bool(links > works)
            else:
                yield self._plan(end, chosen)

    def _stage(self, pipeline: LayeredPipeline, s: int, number: int, weight: float) -> NDArray[np.int64] | None:
        """Strategies of a stage's layers: the best for each size of what is needed besides, of the largest in use."""
        choices = pipeline.choices(s, number, weight=weight)
        rest = pipeline.bytes(number)[1][:, s]
        best, best_s = None, np.inf
        for most in np.unique(rest.round(-6)):
            seconds = np.where(rest.round(-6) <= most, choices.seconds, np.inf)
            allowed = replace(choices, seconds=seconds)
            if not np.isfinite(seconds).any():
                continue
            found = cheapest_layers(allowed, self.room - most - 1e6, below_s=best_s)
            if found is not None:
                best, best_s = found.strategies, found.seconds
        return best

    def _plan(self, end: Plan, chosen: Sequence[LayerStrategy]) -> Plan:
        shown = []
        for one in chosen:
            own = one.of(end)
            split = own.sequence_parallel
            shown.append(LayerStrategy(
                tp=own.tp if own.tp != end.tp else None,
                zero=own.zero if own.zero != end.zero else None,
                sequence_parallel=own.sequence_parallel if own.tp > 1 and split != end.sequence_parallel else None,
                recompute=own.recompute if own.recompute != end.recompute else None,
            ))  # fmt: skip
        if len(set(shown)) == 1 and shown[0] == LayerStrategy():
            return replace(end, technique=self.texts)
        return replace(end, technique=(*self.texts, LayerRuns(runs=runs_text(shown)).text))

    def _of(self, plan: Plan) -> Predictor:
        """The predictor for a plan's techniques; prices are shared."""
        other = object.__new__(Predictor)
        other.__dict__.update(self.predictor.__dict__)
        other.model = replace(self.predictor.model, techniques=plan.technique)
        return other

    def _fitting_s(self, plan: Plan) -> float:
        """Simulated step of a plan [s]; infinite where it does not fit on every stage."""
        predictor = self._of(plan)
        peak = sum(np.broadcast_to(value, (plan.pp,)) for value in predictor.memory(plan).values())
        if np.any(peak > self.room):
            return np.inf
        return predictor.evaluate(plan).timeline.makespan_s


def with_layer_plans(
    report: SearchReport,
    model: Model,
    cluster: Cluster,
    workload: Workload,
    *,
    space: LayerPlanSpace | None = None,
    evidence: str | None = None,
) -> SearchReport:
    """The report of a search with the quicker of the plans that have a strategy for each layer, in order."""
    own = report.best[0].plan.technique
    found = search_layers(model, cluster, workload, space=space, evidence=evidence, techniques=own)
    reports = list(report.best)
    for step_s, plan in found.plans[:_SHOWN]:
        if of_family(STRATEGIES, plan.technique) is not None and step_s < report.best[0].step_time.value * (
            1 - _RELEVANT
        ):
            predictor = Predictor(
                rewritten(model, plan.technique), cluster, workload, datasheet_only=evidence == "datasheet"
            )
            evaluation = predictor.evaluate(plan)
            shown = explain(predictor, evaluation)
            reports.append(
                shown
                if reports[len(report.best) :]
                else replace(shown, what_if=plan_sensitivities(predictor, evaluation))
            )
    reports.sort(key=lambda one: one.step_time.value)
    return replace(
        report,
        best=tuple(reports[: len(report.best)]),
        covered=report.covered + found.tried,
        simulated=report.simulated + len(found.plans),
        bound_gap=max(
            0.0,
            1.0
            - min(found.least_s, (1 - report.bound_gap) * report.best[0].step_time.value) / reports[0].step_time.value,
        ),
        seconds=report.seconds + found.seconds,
        frameworks=tuple(_behind(run, report.best[0], reports[0]) for run in report.frameworks),
    )


def _behind(run: FrameworkRun, uniform: Report, best: Report) -> FrameworkRun:
    """What a framework runs beside the best plan of all, which no framework here runs if its layers differ."""
    if best is uniform or run.plan is None or run.slowdown is None:
        return run
    slower = (1 + run.slowdown) * uniform.step_time.value / best.step_time.value - 1
    return replace(run, slowdown=slower, why=run.why or f"{run.name} runs all layers in one way")


def search_layers(
    model: Model,
    cluster: Cluster,
    workload: Workload,
    *,
    space: LayerPlanSpace | None = None,
    evidence: str | None = None,
    techniques: tuple[str, ...] = (),
) -> LayerPlans:
    """The best plans with a strategy for each layer; without experts, on the whole cluster.

    Raises `PlanError` for a model with experts, whose layers' degrees fold over each other.
    """
    predictor = Predictor(rewritten(model, techniques), cluster, workload, datasheet_only=evidence == "datasheet")
    if predictor.limits.experts:
        raise PlanError(f"{model.name} has experts; strategies for each layer are searched for dense models")
    return LayerSearcher(predictor, space or LayerPlanSpace()).run()
