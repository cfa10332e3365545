"""The best plans: bound every plan, simulate the promising ones until no bound can beat the best."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from ridgeline.errors import NoPlanError, PlanError
from ridgeline.facts.records import Cluster
from ridgeline.graph.model import SAMPLE, Model
from ridgeline.graph.workload import Task, Workload
from ridgeline.plan.plan import Plan
from ridgeline.plan.rules import explain as explain_rule
from ridgeline.plan.runnable import check_workload, why_not
from ridgeline.predict import Predictor
from ridgeline.predict.explain import explain
from ridgeline.predict.what_if import plan_sensitivities
from ridgeline.report.report import FrameworkRun, Infeasible, SearchReport
from ridgeline.seams.context import context_style
from ridgeline.seams.offload import FLAGS, offloads, on_lanes, tried
from ridgeline.seams.resolve import rewritten
from ridgeline.seams.setting import Setting
from ridgeline.search.frameworks import allowed, framework_runs, space_of
from ridgeline.search.grid import PricedGrid
from ridgeline.search.groups import Feasible, Group
from ridgeline.search.ranked import TIME, Ranked, Spending, plainest, plainness, spending
from ridgeline.search.space import Space, degrees, fewer_nodes, legal, plan_of
from ridgeline.units import bytes_text, time_text

_LINKS_BUDGET = 24  # plans simulated where each one's nodes are ordered first, which takes about a second
_AIM_BUDGET = 96  # plans simulated in search of what spends least of another aim than time; chosen
_LANE_BUDGET = 6  # plans simulated with each technique on lanes: their bounds leave out what moves


@dataclass(frozen=True, kw_only=True)
class _Candidate:
    bound_s: float
    group: int
    index: tuple[int, ...]


class Searcher:
    """One search over one space."""

    def __init__(self, predictor: Predictor, space: Space) -> None:
        workload = predictor.workload
        self.policy = workload.policy if workload.held_to_framework else None
        self.predictor = predictor
        self.space = (space if self.policy is None else space_of(space, self.policy)).narrowed()
        self.steps_s: dict[Plan, float | None] = {}
        self.covered = self.legal = self.feasible = self.host_full = 0
        self.infeasible: list[Infeasible] = []
        self.unrunnable: dict[str, int] = {}
        self.groups: list[Feasible] = []
        self.device_s = 0.0  # that a step computes at least, of all devices
        self.grid: PricedGrid | None = None

    def bound(self) -> None:
        """Bound and measure every plan of the space."""
        found = list(degrees(self.space, self.predictor.limits, self.predictor.workload, self.predictor.cluster))
        keep, broken = legal(found, self.predictor.limits, self.predictor.workload, self.predictor.cluster)
        kept = [item for item, ok in zip(found, keep, strict=True) if ok]
        for rule, count in broken.items():
            example = next(item for item, ok in zip(found, keep, strict=True) if not ok)
            limits, devices = self.predictor.limits, self.predictor.cluster.count
            style = context_style(example.context)
            text = explain_rule(rule, plan_of(example), style, limits, self.predictor.workload, devices)
            self.infeasible.append(
                Infeasible(reason=rule, plans=count, nearest=text.rpartition("nearest: ")[2] or text)
            )
            self.covered += count
        if not kept:
            return
        grid = self.grid = PricedGrid(self.predictor, self.space, kept)
        self.device_s = grid.least_device_s()
        for group in grid.groups():
            self._keep_runnable(group)
            real = np.isfinite(group.bound_s)
            self.legal += int(np.count_nonzero(real))
            full = group.host_full & self.space.within_host & (group.excess_bytes <= 0)
            self.host_full += int(np.count_nonzero(real & full))
            fits = (group.excess_bytes <= 0) & ~full
            self.feasible += int(np.count_nonzero(real & fits))
            self.groups.append(group.feasible(fits))  # a tenth of the plans, and none of their bytes
        self.covered += self.legal
        for why, count in self.unrunnable.items():
            self.infeasible.append(Infeasible(reason="framework", plans=count, nearest=why))
        self._note_memory()

    def _keep_runnable(self, group: Group) -> None:
        """Takes the plans that the workload's framework does not run out of a group, and counts them."""
        if self.policy is None:
            return
        predictor = self.predictor
        lost = ~allowed(self.policy, predictor.workload, group, predictor.limits) & np.isfinite(group.bound_s)
        if not lost.any():
            return
        plan = group.plan(tuple(int(one) for one in np.argwhere(lost)[0]))
        experts = predictor.limits.experts > 0
        why = why_not(plan, self.policy, predictor.workload, predictor.split(plan), experts=experts)
        self.covered += int(np.count_nonzero(lost))
        self.unrunnable.setdefault(why, 0)
        self.unrunnable[why] += int(np.count_nonzero(lost))
        group.bound_s[lost] = np.inf

    def step_s(self, plan: Plan) -> float | None:
        """Simulated step of a plan [s]; infinite where it does not fit on every stage, None where it cannot be."""
        if plan not in self.steps_s:
            try:
                seconds = self.predictor.evaluate(plan).timeline.makespan_s
                self.steps_s[plan] = seconds if self._fits_everywhere(plan) else np.inf
            except PlanError:
                self.steps_s[plan] = None
        return self.steps_s[plan]

    def _note_memory(self) -> None:
        if self.host_full:
            has = bytes_text(self.predictor.cluster.host.dram_bytes)
            near = f"a host of more than {has} of memory, or less of the model on it"
            self.infeasible.append(Infeasible(reason="host memory", plans=self.host_full, nearest=near))
        lost = self.legal - self.feasible - self.host_full
        if not lost or not self.groups:
            return
        which = min(range(len(self.groups)), key=lambda number: self.groups[number].nearest[0])
        least, place = self.groups[which].nearest
        plan = self.groups[which].plan(place)
        has, more = bytes_text(memory := self.predictor.cluster.accelerator.memory_bytes), bytes_text(memory + least)
        larger = f"a device of {more}" if more != has else f"one of {bytes_text(least)} more"  # where both read alike
        text = (
            f"the nearest misses by {bytes_text(least)}: tp {plan.tp} pp {plan.pp} cp {plan.cp} dp {plan.dp}"
            f" micro-batch {plan.micro_batch} recompute {plan.recompute} zero {plan.zero}; {larger} would hold it"
        )
        self.infeasible.append(Infeasible(reason="memory", plans=lost, nearest=text))

    def candidates(self, count: int) -> list[_Candidate]:
        """The `count` feasible plans with the lowest bounds, in order; groups that can hold none are left out."""
        found: list[_Candidate] = []
        threshold = np.inf
        for lowest, number in sorted((group.lowest_s, i) for i, group in enumerate(self.groups)):
            if lowest > threshold or not np.isfinite(lowest):
                break
            group = self.groups[number]
            bounds = group.bound_s
            places = np.argpartition(bounds, count)[:count] if bounds.size > count else np.arange(bounds.size)
            for place in places[bounds[places] <= threshold].tolist():
                found.append(_Candidate(bound_s=float(bounds[place]), group=number, index=group.place(place)))
            if len(found) >= count:
                found.sort(key=lambda item: (item.bound_s, item.group, item.index))
                found = found[:count]
                threshold = found[-1].bound_s
        return sorted(found, key=lambda item: (item.bound_s, item.group, item.index))

    def in_order(self) -> Iterator[_Candidate]:
        """All feasible plans in order of their bounds; fetched in growing batches, since few are wanted."""
        given: set[tuple[int, tuple[int, ...]]] = set()
        count = 512
        while len(given) < self.feasible:
            for candidate in self.candidates(count):
                place = (candidate.group, candidate.index)
                if place not in given:
                    given.add(place)
                    yield candidate
            count *= 8

    def run(self, *, top: int, budget: int = 400) -> Ranked:
        """As `ranked`; raises `NoPlanError` where none fits in memory."""
        found = self.ranked(top=top, budget=budget)
        if not found.plans:
            raise NoPlanError(self._nothing_fits())
        return found

    def ranked(self, *, top: int, budget: int = 400, below_s: float = np.inf) -> Ranked:
        """Simulate by bound until none can beat the best found, `budget` plans at most; perhaps none fits."""
        self.bound()
        return self.least(TIME, top=top, budget=budget, below=below_s)

    def least(self, spending: Spending, *, top: int, budget: int, below: float = np.inf) -> Ranked:
        """Of the bounded plans those that spend least, in the order of their bounds until none can beat the best."""
        ranked: list[tuple[float, Plan]] = []
        seen: set[Plan] = set()
        simulated, least = 0, np.inf
        experts = self.predictor.limits.experts > 0
        for candidate in self.in_order():
            best, floor = min(below, ranked[0][0] if ranked else np.inf), spending.floor(candidate.bound_s)
            enough = len(ranked) >= top or simulated >= budget or floor >= below
            if floor >= best and enough:
                break
            if simulated >= budget:
                least = floor
                break
            plan = plainest(self.groups[candidate.group].plan(candidate.index), experts=experts)
            plan = replace(plan, node_order=self.space.node_order) if self.predictor.cluster.links else plan
            if plan in seen:
                continue
            seen.add(plan)
            step_s = self.step_s(plan)
            if step_s is None:
                continue
            simulated += 1
            if np.isfinite(step_s) and (len(ranked) < top or spending.floor(step_s) <= ranked[top - 1][0]):
                ranked.append((spending.of(plan, step_s), plan))
                ranked.sort(key=lambda item: (item[0], plainness(item[1])))
        return Ranked(
            plans=tuple(ranked[:top]),
            covered=self.covered,
            legal=self.legal,
            feasible=self.feasible,
            simulated=simulated,
            infeasible=tuple(self.infeasible),
            least=least,
        )

    def framework_runs(self, best: tuple[float, Plan]) -> tuple[FrameworkRun, ...]:
        """Of every framework the quickest plan that it runs, compared with the `best` of all."""
        limits = self.predictor.limits

        def evaluate(plan: Plan) -> tuple[float, Plan] | None:
            plain = plainest(plan, experts=limits.experts > 0)
            seconds = self.step_s(plain)
            return None if seconds is None or not np.isfinite(seconds) else (seconds, plain)

        return framework_runs(best, self.groups, self.predictor, self.space, evaluate)

    def _fits_everywhere(self, plan: Plan) -> bool:
        table = self.predictor.memory(plan)
        peak = sum(np.broadcast_to(value, (plan.pp,)) for value in table.values())
        return bool(np.all(peak <= self.predictor.cluster.accelerator.memory_bytes))

    def _nothing_fits(self) -> str:
        reasons = "; ".join(f"{item.reason}: {item.plans} plans, {item.nearest}" for item in self.infeasible)
        predictor = self.predictor
        return (
            f"no plan of {predictor.model.name} fits on {predictor.cluster.count} x"
            f" {predictor.cluster.accelerator.name}"
            f" ({bytes_text(predictor.cluster.accelerator.memory_bytes)} each); {reasons or 'no legal degrees'};"
            " add devices, a larger accelerator, a smaller global batch or sequence, or a low-rank task"
        )


def with_fewer_nodes(searcher: Searcher, spread: Ranked, *, top: int) -> tuple[Ranked, Searcher]:
    """What a search found, and what is quicker on fewer whole nodes, where their link may cost more than they bring;
    with the search that found the best.

    A count of nodes is searched only where what the cheapest layout computes leaves room below the best found.
    """
    cluster, space = searcher.predictor.cluster, searcher.space
    found, finder = spread, searcher
    for devices in fewer_nodes(cluster) if space.devices is None and "dp" not in space.fixed else ():
        best_s = found.plans[0][0]
        if searcher.device_s >= devices * best_s:
            break
        part = Searcher(searcher.predictor, replace(space, devices=devices))
        found = found.joined(part.ranked(top=top, below_s=best_s), top)
        finder = part if found.plans[0][0] < best_s else finder
    return found, finder


def _aimed(found: Ranked, searcher: Searcher, aim: str, *, top: int) -> tuple[Ranked, str]:
    """The plans that spend least of an aim, by the search that found the quickest ones, and what they cost in time.

    Those on fewer nodes, of which only the quickest were searched, are no quicker than the quickest of all, nor than
    an nth of what n devices compute at least.
    """
    predictor, grid = searcher.predictor, searcher.grid
    assert grid is not None  # of a search that found a plan
    spent, quickest_s = spending(aim, predictor, grid), found.plans[0][0] * (1.0 - found.gap)
    ranked = searcher.least(spent, top=top, budget=_AIM_BUDGET)
    cluster, space = predictor.cluster, searcher.space
    if "dp" not in space.fixed and (
        others := {cluster.count, *fewer_nodes(cluster)} - {space.devices or cluster.count}
    ):
        longest_s = (max(quickest_s, searcher.device_s / devices) for devices in others)
        ranked = replace(ranked, least=min(ranked.least, *map(spent.floor, longest_s)))
    (quick_s, quick), (least, plan) = found.plans[0], ranked.plans[0]
    less, slower = 1.0 - least / spent.of(quick, quick_s), (searcher.step_s(plan) or quick_s) / quick_s - 1.0
    told = f"{aim} of a step: {less:.1%} less than the quickest plan, which is {slower:.1%} quicker"
    return replace(ranked, simulated=len(searcher.steps_s)), told


def _idle_why(predictor: Predictor, spread: Plan) -> str:
    """Why nodes are left idle: what the best plan on all of them takes, and over which link."""
    report, cluster = explain(predictor, predictor.evaluate(spread)), predictor.cluster
    link = next(tier for tier in cluster.tiers if tier.size > cluster.node_devices)
    return (
        f"the link between nodes, {link.bytes_per_s * 8e-9:g} Gb/s, limits: a search over all"
        f" {cluster.count} devices finds {time_text(report.step_time.value)} at best ({report.limit})"
    )


def _offloaded(
    searcher: Searcher, model: Model, setting: Setting, *, top: int, why: NoPlanError
) -> tuple[Ranked, Searcher]:
    """The best plans whose states or activations move on lanes, for a model that fits no other way, and their search.

    Each technique that applies is searched by itself. Raises `why` where none fits, or where a framework is named that
    is not known to run them.
    """
    space, workload = searcher.space, searcher.predictor.workload
    found: list[tuple[float, int, Ranked, Searcher]] = []
    if workload.held_to_framework or on_lanes(offloads(space.techniques)):
        raise why
    still = replace(space, **{word: (False,) for word in FLAGS if word not in space.fixed})  # type: ignore[arg-type]
    for text in tried(setting):
        techniques = (*space.techniques, text)
        own = Predictor(rewritten(model, techniques), setting.cluster, workload)
        part = Searcher(own, replace(still, fixed={**space.fixed, "technique": techniques}))
        ranked = part.ranked(top=top, budget=_LANE_BUDGET)
        if ranked.plans:
            found.append((ranked.plans[0][0], len(found), ranked, part))
    if not found:
        raise why
    _, _, best, finder = min(found)
    return best, finder


def search(
    model: Model,
    cluster: Cluster,
    workload: Workload,
    *,
    limits: Space | None = None,
    top: int = 5,
    evidence: str | None = None,
    aim: str = "time",
) -> SearchReport:
    """The plans of a space with least of an aim, each explained, with the search's own account.

    Fine-tunes may also hold weights and activations on the host, fuse the loss and update in backward. Raises
    `NoPlanError` where nothing fits, `PlanError` for networks of images and other samples.
    """
    if SAMPLE in model.dims:
        told = "plans are searched for language models; `ridgeline predict` answers one plan of its networks"
        raise PlanError(f"{model.name} counts samples of {model.dims[SAMPLE]} tokens: {told}")
    started = time.perf_counter()
    check_workload(workload)
    space = limits or Space()
    built = rewritten(model, space.techniques)
    predictor = Predictor(built, cluster, workload, datasheet_only=evidence == "datasheet")
    setting = Setting(model=built, cluster=cluster, workload=workload)
    searcher = Searcher(predictor, space if workload.task is Task.PRETRAIN else space.thrifty(setting))
    try:
        spread = searcher.run(top=top, budget=400 if cluster.links is None else _LINKS_BUDGET)
        ranked, searcher = with_fewer_nodes(searcher, spread, top=top)
    except NoPlanError as error:
        spread, searcher = ranked, searcher = _offloaded(searcher, model, setting, top=top, why=error)
    predictor, quickest_s = searcher.predictor, ranked.plans[0][0]
    aimed = ""
    if aim != "time":
        ranked, aimed = _aimed(ranked, searcher, aim, top=top)
    ranked = ranked.plain_first()
    evaluations = [predictor.evaluate(plan) for _, plan in ranked.plans]
    reports = [explain(predictor, evaluation) for evaluation in evaluations]
    why = _idle_why(predictor, spread.plans[0][1]) if quickest_s < spread.plans[0][0] else ""
    reports[0] = replace(reports[0], what_if=plan_sensitivities(predictor, evaluations[0]), idle_why=why)
    return SearchReport(
        best=tuple(reports),
        covered=ranked.covered,
        legal=ranked.legal,
        feasible=ranked.feasible,
        simulated=ranked.simulated,
        pruned_by_bound=ranked.feasible - ranked.simulated,
        infeasible=ranked.infeasible,
        bound_gap=ranked.gap,
        aim=aim,
        aimed=aimed,
        frameworks=()
        if workload.held_to_framework or built.techniques != predictor.model.techniques
        else searcher.framework_runs((searcher.step_s(plan := ranked.plans[0][1]) or quickest_s, plan)),
        seconds=time.perf_counter() - started,
    )
