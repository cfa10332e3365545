"""One check of which techniques go together, and the model that they make of a model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ridgeline.errors import PlanError
from ridgeline.plan.plan import Plan
from ridgeline.seams.graph import GraphRewrite
from ridgeline.seams.registry import listed
from ridgeline.seams.technique import Technique

if TYPE_CHECKING:
    from ridgeline.graph.model import Model
    from ridgeline.plan.deployment import Deployment
    from ridgeline.plan.sampling import Division


def together(techniques: Iterable[Technique], degrees: frozenset[str] = frozenset()) -> tuple[Technique, ...]:
    """The techniques, where each slot has one owner and each need is filled, by `degrees` too; else `PlanError`."""
    chosen = tuple(techniques)
    owners: dict[str, Technique] = {}
    for one in chosen:
        for slot in sorted(one.slots()):
            if slot in owners:
                raise PlanError(f"{owners[slot].key} and {one.key} both fill '{slot}'; leave one of them out")
            owners[slot] = one
    for one in chosen:
        lost = sorted(one.needs - owners.keys() - degrees)
        if lost:
            raise PlanError(f"{one.key} needs something that fills '{lost[0]}'; add it, or leave {one.key} out")
    return chosen


def filled_slots(plan: Plan | Deployment | Division) -> frozenset[str]:
    """Slots that the degrees, options and techniques of a plan fill."""
    if not isinstance(plan, Plan):
        from ridgeline.plan.deployment import Deployment

        if not isinstance(plan, Deployment):
            return plan.wide.union(*(one.slots() for one in map(listed, plan.technique)))
        from ridgeline.seams.deployment_slots import occupied

        return occupied(plan)
    degrees = {"stages": plan.pp, "contexts": plan.cp, "tensor ranks": plan.tp, "expert ranks": plan.ep}
    by_degree = {name for name, size in (*degrees.items(), ("data ranks", plan.dp)) if size > 1}
    return frozenset(by_degree).union(*(one.slots() for one in map(listed, plan.technique)))


def rewritten(model: Model, texts: Sequence[str], kind: str = "training") -> Model:
    """The model with the techniques of a plan or deployment put in place; as it is where they are in place already.
    `kind` says what it is asked of: training or serving.

    Raises `PlanError` for techniques that do not go together, or do not apply to the model.
    """
    if model.techniques == tuple(texts):
        return model
    if model.techniques:
        raise PlanError(
            f"model {model.name}: {', '.join(model.techniques)} are in place; start from the model as it is"
        )
    graph = model.graph
    for one in together(map(listed, texts)):
        if kind not in one.kinds:
            raise PlanError(f"{one.key} is of {' and '.join(sorted(one.kinds))}, and this is {kind}; leave it out")
        if one.in_plan:
            continue
        if not isinstance(one, GraphRewrite):
            raise PlanError(
                f"{one.key} is one of the {one.family}, which a plan or workload names by a word of their own"
            )
        refused = one.refusal(graph)
        if refused:
            raise PlanError(f"{one.key} does not apply to {model.name}: {refused}; leave it out")
        graph = one.rewrite(graph)
    return replace(model, graph=graph, techniques=tuple(texts))
