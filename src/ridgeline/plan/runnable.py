"""Which plans a training framework runs: the rules of its policy, each with what it runs instead.

Every rule broadcasts over arrays of plans, as those of `plan.rules` do; `check_runs` applies them to one plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.errors import PlanError, WorkloadError
from ridgeline.facts.frameworks import SHARDINGS, FrameworkPolicy
from ridgeline.graph.workload import Task, Workload
from ridgeline.plan.plan import Plan

Columns = Mapping[str, Any]
_FIELDS = (
    *("tp", "pp", "cp", "dp", "ep", "etp", "sequence_parallel", "overlap_tensor", "chunks", "zero"),
    *("offload_optimizer", "offload_activations", "offload_weights", "optimizer_in_backward", "loss"),
)


def check_runs(plan: Plan, workload: Workload, layers: Sequence[int], *, experts: bool) -> None:
    """Raises `PlanError` or `WorkloadError` for what the workload's framework does not run; without one, nothing does.

    `layers` are those of each pipeline place in order; `experts` says whether the model has any.
    """
    if workload.held_to_framework:
        check_workload(workload)
        said = why_not(plan, workload.policy, workload, layers, experts=experts)
        if said:
            raise PlanError(f"plan: {said}")


def check_workload(workload: Workload) -> None:
    """Raises `WorkloadError` for a job that the framework it names does not run at all."""
    said = workload_why_not(workload.policy, workload) if workload.held_to_framework else ""
    if said:
        raise WorkloadError(f"workload: {said}")


def workload_why_not(policy: FrameworkPolicy, workload: Workload) -> str:
    """Why a framework does not run a job, whatever the plan: the value and what it runs; '' where it does."""
    for word, value, known in (
        ("task", workload.task.value, policy.tasks),
        ("precision", workload.precision, policy.precisions),
    ):
        if value not in known:
            return _said(policy, f"{word} {value}", known, f"{word} {known[0]}")
    return ""


def why_not(plan: Plan, policy: FrameworkPolicy, workload: Workload, layers: Sequence[int], *, experts: bool) -> str:
    """Why a framework does not run a plan: the value, what it runs and the next step; '' where it does."""
    table = columns(plan)
    for name, kept in framework_rules(policy, workload, layers, table, experts=experts):
        if not bool(np.all(kept)):
            return _explained(name, plan, policy, workload)
    return ""


def columns(plan: Plan) -> dict[str, Any]:
    """One plan's fields as the rules ask for them."""
    table: dict[str, Any] = {name: getattr(plan, name) for name in _FIELDS}
    table |= {name: technique_name(getattr(plan, name)) for name in ("schedule", "loss", "recompute", "context_style")}
    return table | {"recompute_layers": plan.recompute_layers is not None, "zero_group": plan.zero_group or 0}


def technique_name(text: str) -> str:
    """The name of a schedule or a loss without its parameters.

    >>> technique_name("zb-h1(delay=2)")
    'zb-h1'
    """
    return text.partition("(")[0].strip()


def framework_rules(
    policy: FrameworkPolicy, workload: Workload, layers: Sequence[int], plans: Columns, *, experts: bool
) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    """Every rule of a framework by name, with whether each plan keeps it; `pp`, `chunks`, `schedule` are of one value.

    `layers` are those of each pipeline place. Where a rank shares its weights with no other, nothing is divided, and
    an undivided plan is every sharding's.
    """
    tp, pp, cp, dp, ep = (np.asarray(plans[name]) for name in ("tp", "pp", "cp", "dp", "ep"))
    ranks = dp * cp
    yield "dp", (dp == 1) | policy.data_parallel
    yield "tp", (tp == 1) | policy.tensor_parallel
    yield "sequence_parallel", ~_flag(plans, "sequence_parallel") | policy.sequence_parallel
    yield "overlap_tensor", ~_flag(plans, "overlap_tensor") | policy.tensor_overlap
    yield "schedule", (pp == 1) | np.isin(plans["schedule"], policy.schedules)
    yield "chunks", np.asarray(plans["chunks"] <= policy.most_chunks)
    yield "layer_split", (pp == 1) | keeps_split(policy, layers, stages=int(pp.max()), chunks=int(plans["chunks"]))
    yield "context_style", (cp == 1) | np.isin(plans["context_style"], policy.context_styles)
    yield "ep", (ep == 1) | policy.expert_parallel
    yield "etp", _expert_tensor(policy, plans) | (not experts)
    yield "expert_dispatch", (ep == 1) | (workload.expert_dispatch in policy.dispatchers)
    divided = (tp > 1) | (pp > 1) | (cp > 1)
    adapters = workload.task in (Task.LORA, Task.QLORA)
    yield "adapters", ~divided | policy.adapters_divided | (not adapters)
    quantized = workload.task is Task.QLORA and policy.quantized_base_alone
    yield "quantized", (~divided & (dp == 1)) | (not quantized)
    yield from _sharding_rules(policy, plans, ranks, divided)
    yield "recompute", _recomputes(policy, plans, policy.recompute)
    yield "recompute_layers", ~_flag(plans, "recompute_layers") | policy.recompute_some_layers
    yield from _offload_rules(policy, plans, ranks)
    yield "optimizer_in_backward", ~_flag(plans, "optimizer_in_backward") | policy.optimizer_in_backward
    yield "loss", np.isin(plans["loss"], policy.losses) | ("any" in policy.losses)


def _sharding_rules(
    policy: FrameworkPolicy, plans: Columns, ranks: NDArray[Any], divided: NDArray[np.bool_]
) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    zero, group, pp, ep = (np.asarray(plans[name]) for name in ("zero", "zero_group", "pp", "ep"))
    lone = (ranks == 1) & (zero == 0)
    yield "zero", lone | np.isin(zero, stages_of(policy.sharding))
    yield "zero_in_pipelines", lone | (pp == 1) | np.isin(zero, stages_of(policy.sharding_in_pipelines))
    yield "zero_with_experts", lone | (ep == 1) | np.isin(zero, stages_of(policy.sharding_with_experts))
    whole = (group == 0) | (group >= ranks) | (zero == 0)
    yield "zero_group", whole | np.isin(zero, stages_of(policy.sharding_in_groups))
    yield "replicas", (zero > 0) | (ranks == 1) | ~divided | (not policy.replicas_alone)


def _offload_rules(
    policy: FrameworkPolicy, plans: Columns, ranks: NDArray[Any]
) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    pp, zero = np.asarray(plans["pp"]), np.asarray(plans["zero"])
    for kind in ("optimizer", "activations", "weights"):
        away = _flag(plans, f"offload_{kind}")
        yield f"offload_{kind}", ~away | (kind in policy.offload)
        yield f"offload_{kind}_in_pipelines", ~away | (pp == 1) | (kind in policy.offload_in_pipelines)
    lone = (ranks == 1) & (zero == 0)
    sharded = lone | np.isin(zero, stages_of(policy.optimizer_offload_sharding))
    yield "offload_optimizer_sharding", ~_flag(plans, "offload_optimizer") | sharded
    again = _recomputes(policy, plans, policy.activation_offload_recompute)
    yield "offload_activations_recompute", ~_flag(plans, "offload_activations") | again


def _recomputes(policy: FrameworkPolicy, plans: Columns, known: Sequence[str]) -> NDArray[np.bool_]:
    """Which plans have a rule of recompute that is known; a framework's own selective rule is 'selective'."""
    return np.isin(plans["recompute"], (*known, policy.selective) if "selective" in known else known)


def stages_of(shardings: Sequence[str]) -> list[int]:
    """The ZeRO stages of what ranks divide."""
    return [SHARDINGS.index(name) for name in shardings]


def keeps_split(policy: FrameworkPolicy, layers: Sequence[int], *, stages: int, chunks: int) -> bool:
    """Whether a framework divides layers so over pipeline places, which are in order: every stage's first chunk first.

    >>> from ridgeline.facts.frameworks import framework_policy
    >>> keeps_split(framework_policy("megatron@0.9"), (7, 8, 8, 9), stages=4, chunks=1)
    True
    """
    if len(layers) != stages * chunks:
        return False  # a split that was stated for another number of chunks
    kind = policy.layer_splits if chunks == 1 else policy.chunk_splits
    held = np.asarray(layers).reshape(chunks, stages)
    if kind == "any":
        return True
    if kind == "even":
        return int(held.max() - held.min()) <= 1
    middle = held[:, 1:-1] if kind == "ends" and stages > 1 else held
    return bool(np.all(held == held[0]) and (middle.size == 0 or np.all(middle == middle[0, 0])))


def _flag(plans: Columns, name: str) -> NDArray[np.bool_]:
    return np.asarray(plans[name]).astype(bool)


def _expert_tensor(policy: FrameworkPolicy, plans: Columns) -> NDArray[np.bool_]:
    tp, etp = np.asarray(plans["tp"]), np.asarray(plans["etp"])
    kinds = policy.expert_tensor
    return np.asarray(("any" in kinds) | ((etp == 1) & ("one" in kinds)) | ((etp == tp) & ("tp" in kinds)))


def _said(policy: FrameworkPolicy, value: str, known: Sequence[str], nearest: str) -> str:
    runs = f"it runs {', '.join(known)}" if known else "it has none"
    return f"{policy.label} does not run {value}; {runs}; nearest: {nearest}, or another framework"


def _explained(rule: str, plan: Plan, policy: FrameworkPolicy, workload: Workload) -> str:
    """A broken rule: the plan's value, what the framework runs, the nearest legal choice."""
    kinds = {
        "zero": (f"zero {plan.zero}", policy.sharding),
        "zero_in_pipelines": (f"zero {plan.zero} with pp {plan.pp}", policy.sharding_in_pipelines),
        "zero_with_experts": (f"zero {plan.zero} with ep {plan.ep}", policy.sharding_with_experts),
        "zero_group": (f"zero {plan.zero} over groups of {plan.zero_group} ranks", policy.sharding_in_groups),
        "offload_optimizer_sharding": (f"offload_optimizer with zero {plan.zero}", policy.optimizer_offload_sharding),
    }
    if rule in kinds:
        value, known = kinds[rule]
        near = min(stages_of(known), key=lambda stage: abs(stage - plan.zero), default=None)
        step = "no zero_group" if rule == "zero_group" else f"zero {near}" if near is not None else "pp 1, ep 1"
        return _said(policy, value, [f"zero {stage}" for stage in stages_of(known)], step)
    tensor = [f"etp {name}" for name in policy.expert_tensor]
    lists: dict[str, tuple[str, Sequence[str], str, str]] = {
        "schedule": (f"schedule {plan.schedule}", policy.schedules, "schedule", "pp 1"),
        "context_style": (f"context_style {plan.context_style} with cp {plan.cp}", policy.context_styles, "", "cp 1"),
        "recompute": (f"recompute {plan.recompute}", policy.recompute, "recompute", ""),
        "loss": (f"loss {plan.loss}", policy.losses, "loss", ""),
        "expert_dispatch": (f"expert_dispatch {workload.expert_dispatch}", policy.dispatchers, "expert_dispatch", ""),
        "etp": (f"etp {plan.etp} with tp {plan.tp}", tensor, "", "such an etp"),
        "offload_activations_recompute": (
            f"offload_activations with recompute {plan.recompute}", policy.activation_offload_recompute,
            "recompute", "",
        ),
    }  # fmt: skip
    if rule in lists:
        value, has, word, other = lists[rule]
        return _said(policy, value, has, f"{word} {has[0]}" if word and has else other)
    if rule == "layer_split":
        kind = policy.layer_splits if plan.chunks == 1 else policy.chunk_splits
        return _said(policy, "these layers of pipeline places", [f"splits that are {kind}"], "another pp or chunks")
    if rule in ("replicas", "adapters"):
        what = "zero 0" if rule == "replicas" else f"task {workload.task.value}"
        value = f"{what} with tp {plan.tp}, pp {plan.pp}, cp {plan.cp}"
        return _said(policy, value, ["it with data parallelism alone"], "tp 1, pp 1 and cp 1")
    if rule == "quantized":
        return _said(policy, f"task qlora on {plan.devices} devices", ["it on one device"], "one device")
    if rule == "chunks":
        return _said(policy, f"chunks {plan.chunks}", [f"up to {policy.most_chunks}"], f"chunks {policy.most_chunks}")
    if rule in ("dp", "tp", "ep"):
        return _said(policy, f"{rule} {getattr(plan, rule)}", [f"{rule} 1"], f"{rule} 1")
    word = rule.removesuffix("_in_pipelines")
    return _said(policy, rule.replace("_in_pipelines", " in pipelines"), [f"plans without {word}"], f"no {word}")
