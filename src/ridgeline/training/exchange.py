"""When a step gathers weights and reduces gradients, as its sharding asks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from ridgeline.facts.mechanisms import constant
from ridgeline.lower.work import Number
from ridgeline.plan.plan import Plan

SLOWDOWN = partial(constant, "overlap.compute_slowdown")  # share of the shorter of the two by which compute grows


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """When weights are gathered and gradients reduced; each a number or an array over plans (0 or 1)."""

    gather_once: Number  # before the first forward of each chunk (ZeRO 1 and 2)
    gather_always: Number  # before every forward and backward (ZeRO 3)
    reduce_always: Number  # after every backward (ZeRO 2 and 3), else after the last one
    overlap_gather: Number
    overlap_reduce: Number


def exchange_rules(plan: Plan) -> Exchange:
    """The exchanges that a plan's sharding asks for."""
    return Exchange(
        gather_once=int(plan.zero in (1, 2)),
        gather_always=int(plan.zero == 3),
        reduce_always=int(plan.zero >= 2),
        overlap_gather=int(plan.overlap_weights),
        overlap_reduce=int(plan.overlap_gradients),
    )
