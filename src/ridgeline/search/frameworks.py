"""Which plans of a search a training framework runs, and what the best of these costs more than the best of all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.facts.frameworks import FrameworkPolicy, framework_policy
from ridgeline.facts.policies import FRAMEWORKS
from ridgeline.graph.workload import Workload
from ridgeline.lower.split import even_split
from ridgeline.plan.plan import Plan
from ridgeline.plan.rules import ModelLimits
from ridgeline.plan.runnable import framework_rules, keeps_split, stages_of, technique_name, why_not, workload_why_not
from ridgeline.predict import Predictor
from ridgeline.report.report import FrameworkRun
from ridgeline.search.groups import Feasible, Plans
from ridgeline.search.space import Space

Bounded = tuple[float, Feasible]  # with the lowest bound of its plans [s]
Evaluate = Callable[[Plan], tuple[float, Plan] | None]
_MOST_EVALUATIONS = 40  # simulated for one framework; beyond it the slowdown is an upper bound


def space_of(space: Space, policy: FrameworkPolicy) -> Space:
    """The space without the choices that a framework never runs, and with its own where it runs none of the usual.

    What is left still holds combinations that it does not run: `allowed` tells them.
    """
    runs, recomputes = policy.schedules, (*policy.recompute, policy.selective)
    tried = tuple(one for one in space.schedules if technique_name(one) in runs)
    zero = stages_of(policy.sharding)
    usual = tuple(stage for stage in space.zero if stage in (0, *zero))
    fixed = dict(space.fixed) if policy.data_parallel else {"dp": 1, **space.fixed}

    def both(tried: tuple[bool, ...], runs_it: bool) -> tuple[bool, ...]:
        return tuple(one for one in tried if runs_it or not one) or (False,)

    return replace(
        space,
        fixed=fixed,
        schedules=tuple(dict.fromkeys(("1f1b", *(tried or runs)))),  # 1F1B is that of one stage
        max_pp=space.max_pp if runs else 1,
        max_tp=space.max_tp if policy.tensor_parallel else 1,
        max_cp=space.max_cp if policy.context_styles else 1,
        max_ep=space.max_ep if policy.expert_parallel else 1,
        max_chunks=min(space.max_chunks, policy.most_chunks),
        context_style=tuple(one for one in space.context_style if technique_name(one) in policy.context_styles)
        or (policy.context_styles or ("ring",))[:1],
        zero=usual if "optimizer" in policy.sharding else tuple(sorted({0, *usual, *zero})),
        zero_in_pipelines=(0, *stages_of(policy.sharding_in_pipelines))
        if "optimizer" not in policy.sharding
        else space.zero_in_pipelines,
        recompute=tuple(one for one in space.recompute if technique_name(one) in recomputes) or space.recompute,
        recompute_shares=space.recompute_shares if policy.recompute_some_layers else (1.0,),
        sequence_parallel=both(space.sequence_parallel, policy.sequence_parallel),
        overlap_tensor=both(space.overlap_tensor, policy.tensor_overlap),
        offload_optimizer=both(space.offload_optimizer, "optimizer" in policy.offload),
        offload_weights=both(space.offload_weights, "weights" in policy.offload),
        offload_activations=both(space.offload_activations, "activations" in policy.offload),
        optimizer_in_backward=both(space.optimizer_in_backward, policy.optimizer_in_backward),
        loss=tuple(one for one in space.loss if {technique_name(one), "any"} & {*policy.losses}) or (Plan.loss,),
        balance_stages=space.balance_stages and "any" in (policy.layer_splits, policy.chunk_splits),
    )


def _runs_stages(policy: FrameworkPolicy, group: Plans, limits: ModelLimits) -> bool:
    """Whether a framework runs any plan of a group, by what all its plans share: stages, schedule, chunks, layers."""
    stages = group.axes.entries[0].degrees.pp
    layers = group.layer_split or even_split(limits.layers, stages * group.chunks)
    return stages == 1 or (
        technique_name(group.schedule) in policy.schedules
        and group.chunks <= policy.most_chunks
        and keeps_split(policy, layers, stages=stages, chunks=group.chunks)
    )


def allowed(policy: FrameworkPolicy, workload: Workload, group: Plans, limits: ModelLimits) -> NDArray[np.bool_]:
    """Which plans (K, R, Z, O) of a group a framework runs."""
    axes = group.axes
    stages = axes.entries[0].degrees.pp
    table: dict[str, Any] = {name: axes.degree(name) for name in ("tp", "cp", "dp", "ep", "etp")}
    table |= {"pp": np.asarray(stages), "chunks": group.chunks, "schedule": technique_name(group.schedule)}
    styles = [technique_name(one.degrees.context) for one in axes.entries]
    table["context_style"] = np.array(styles)[None, None, None, :]
    for name in ("sequence_parallel", "overlap_tensor"):
        table[name] = np.array([getattr(one, name) for one in axes.entries])[None, None, None, :]
    kinds = [(technique_name(kind), most is not None) for kind, most in axes.recompute]
    table["recompute"] = np.array([kind for kind, _ in kinds])[:, None, None, None]
    table["recompute_layers"] = np.array([some for _, some in kinds])[:, None, None, None]
    table |= {"zero": axes.zero, "zero_group": axes.zero_group}
    for name in ("offload_optimizer", "offload_weights", "offload_activations", "optimizer_in_backward"):
        table[name] = axes.saving(name)
    table["loss"] = np.vectorize(technique_name)(axes.saving("loss"))
    layers = group.layer_split or even_split(limits.layers, stages * group.chunks)
    kept = np.ones(axes.shape, dtype=bool)
    for _, keeps in framework_rules(policy, workload, layers, table, experts=limits.experts > 0):
        kept &= keeps
    return np.moveaxis(kept, -1, 0)


def _has_more(space: Space, policy: FrameworkPolicy) -> bool:
    """Whether a search for the framework alone tries choices that this space lacks, so that it may find better."""
    own = space_of(space, policy).narrowed()
    return any(
        set(getattr(own, name)) - set(getattr(space, name)) for name in ("schedules", "zero", "zero_in_pipelines")
    )


def framework_runs(
    best: tuple[float, Plan], groups: Sequence[Feasible], predictor: Predictor, space: Space, evaluate: Evaluate
) -> tuple[FrameworkRun, ...]:
    """Of every framework the best plan of a search that it runs, priced as the best of all is, quickest first.

    `best` is the quickest of all, with its step [s]; `groups` are the plans of `space` with their bounds; `evaluate`
    simulates a plan, and gives None where it does not fit.
    """
    workload, limits = predictor.workload, predictor.limits
    lowest = [(group.lowest_s, group) for group in groups]
    bounded = sorted((one for one in lowest if np.isfinite(one[0])), key=lambda one: one[0])
    found = []
    for name in FRAMEWORKS.names():
        policy = framework_policy(name)
        why = workload_why_not(policy, workload)
        if why:
            found.append(FrameworkRun(name=name, plan=None, slowdown=None, at_most=False, why=why))
            continue
        layers = best[1].layer_split or even_split(limits.layers, best[1].pp * best[1].chunks)
        why = why_not(best[1], policy, workload, layers, experts=limits.experts > 0)
        if not why:
            found.append(FrameworkRun(name=name, plan=best[1], slowdown=0.0, at_most=False, why=""))
            continue
        seconds, plan, at_most = _quickest(policy, bounded, workload, limits, evaluate)
        slowdown = None if plan is None else seconds / best[0] - 1.0
        at_most = plan is not None and (at_most or _has_more(space, policy))
        found.append(FrameworkRun(name=name, plan=plan, slowdown=slowdown, at_most=at_most, why=why))
    return tuple(sorted(found, key=lambda one: (one.slowdown is None, one.slowdown or 0.0, one.name.casefold())))


def _quickest(
    policy: FrameworkPolicy, groups: Sequence[Bounded], workload: Workload, limits: ModelLimits, evaluate: Evaluate
) -> tuple[float, Plan | None, bool]:
    """The quickest plan that a framework runs, its step [s], and whether a quicker one may be left.

    `groups` come in order of their lowest bounds.
    """
    seconds: float = np.inf
    plan: Plan | None = None
    tried = 0
    for bound_s, group in groups:
        if bound_s >= seconds:
            break
        if not _runs_stages(policy, group, limits):
            continue
        kept = allowed(policy, workload, group, limits)
        if not kept.any():
            continue
        bounds = np.where(group.among(kept), group.bound_s, np.inf)
        while float(bounds.min(initial=np.inf)) < seconds:
            if tried >= _MOST_EVALUATIONS:
                return seconds, plan, True
            place = int(bounds.argmin())
            bounds[place] = np.inf
            tried += 1
            found = evaluate(group.plan(group.place(place)))
            if found is not None and found[0] < seconds:
                seconds, plan = found
    return seconds, plan, False
