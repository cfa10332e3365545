"""The most that a deployment can serve whatever comes when: the time that tokens alone take, in closed form.

Letters: R ranks of an instance, t tokens of one rank in an iteration, b sequences, c context [token].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ridgeline.plan.deployment import Role
from ridgeline.seams.serving import Polling, Preemption, Queue, Router, Urgency, applied, instance_devices
from ridgeline.serving.engine import Engine
from ridgeline.serving.state import Array
from ridgeline.serving.step import StepTables
from ridgeline.serving.traffic.traffic import Traffic

_ORDERS_ONLY = (Queue, Preemption, Urgency, Polling, Router)  # techniques that say when work is done, not how much


@dataclass(frozen=True, kw_only=True)
class LeastWork:
    """The least time of one instance that a mean request takes for its prompt and for its output [s]."""

    prompt_s: float
    output_s: float


def least_work(one: Engine, tables: StepTables, traffic: Traffic) -> LeastWork | None:
    """What a mean request of the traffic keeps one instance busy for at least [s]; None where nothing is known.

        prompt = sum p (u + min a(q) / q) / R,  u = min_t lane(t) / t + min_t experts(t) / t
        output = sum_j u / R + c_j min_bc d(b, c) / (b c) / R,  c_j = prompt + j

    with lane, experts, attention of chunks a and of steps d as the replay reads them, linear between points of their
    tables, so that each ratio is least at a point. An iteration takes as long as its slowest rank, no less than the
    mean of all; host time, sampling and everything that waits are left out, so no replay is faster. Techniques that
    change the work of a token are left out too (None), and tokens of prefix blocks that another request names.
    """
    plain = all(isinstance(each, _ORDERS_ONLY) for each in applied(one.deployment))
    if not plain or tables.nano is not None or tables.split is not None or tables.attention_ffn is not None:
        return None
    ranks = one.deployment.dp * one.deployment.pp
    experts = np.minimum(tables.group.mid, tables.experts(prompts=True).mid)
    token_s = _least(tables.lane.mid, tables.tokens) + _least(experts, tables.tokens)
    chunk_s = min(_least(table.mid, tables.chunks[:, None]) for table in (tables.first, tables.each))
    context_s = _least(tables.decode.mid, np.outer(tables.sequences, tables.contexts))
    prompts, steps = traffic.prompt_tokens.astype(float), traffic.output_tokens - 1.0
    prompt_s = float(_computed(one, traffic).mean()) * (token_s + chunk_s)
    output_s = float((steps * token_s + steps * (prompts + steps / 2.0) * context_s).mean())
    return LeastWork(prompt_s=prompt_s / ranks, output_s=output_s / ranks)


def _computed(one: Engine, traffic: Traffic) -> Array:
    """Tokens of each prompt (R,) that a prefix cache without limit finds nowhere [token]; all without such a cache."""
    prompts, size = traffic.prompt_tokens.astype(float), traffic.prefix_block_tokens
    if not one.policy.prefix_cache or not len(traffic.prefix_blocks):
        return prompts
    owner = np.repeat(np.arange(traffic.requests), np.diff(traffic.prefix_start))
    inside = np.arange(len(owner)) - traffic.prefix_start[owner] < traffic.prompt_tokens[owner] // size
    again = np.ones(len(owner), dtype=bool)
    again[np.unique(traffic.prefix_blocks, return_index=True)[1]] = False
    return np.maximum(prompts - size * np.bincount(owner[again & inside], minlength=traffic.requests), 1.0)


def _least(seconds: Array, amount: Array) -> float:
    """The least time of a unit on a grid, points of nothing left out [s]."""
    each = np.broadcast_to(seconds, np.broadcast_shapes(np.shape(seconds), np.shape(amount))) / np.where(
        amount > 0, amount, np.inf
    )
    known = each[np.broadcast_to(amount > 0, each.shape)]
    return max(0.0, float(known.min())) if known.size else 0.0


def most_requests_per_s(engines: Sequence[Engine], tables: Sequence[StepTables], traffic: Traffic) -> float:
    """No fleet of these instances serves requests of such lengths faster [1/s]; infinite where nothing is known.

    Whole instances add up; of pools the slower one counts.
    """
    rates = {Role.WHOLE: 0.0, Role.PREFILL: 0.0, Role.DECODE: 0.0}
    for one, table in zip(engines, tables, strict=True):
        work = least_work(one, table, traffic)
        role, count = one.deployment.role, one.deployment.instances
        if work is None:
            return np.inf
        busy = (work.prompt_s if role is not Role.DECODE else 0.0) + (
            work.output_s if role is not Role.PREFILL else 0.0
        )
        rates[role] += count / busy if busy > 0.0 else np.inf
    pools = min(rates[Role.PREFILL], rates[Role.DECODE])
    return rates[Role.WHOLE] + pools


def least_devices(works: Sequence[tuple[Engine, LeastWork | None]], rate_per_s: float) -> int | None:
    """No fleet of these shapes serves so many requests a second on fewer devices [1]; None where nothing is known.

    Prompts and outputs may be computed by instances of any shape, each where it takes the fewest devices' time.
    """
    if not works or any(work is None for _, work in works) or not np.isfinite(rate_per_s):
        return None
    prompt_s, output_s = (
        min(instance_devices(one.deployment) * getattr(work, side) for one, work in works)
        for side in ("prompt_s", "output_s")
    )
    smallest = min(instance_devices(one.deployment) for one, _ in works)
    return max(smallest, int(np.ceil(rate_per_s * (prompt_s + output_s) - 1e-9)))


def least_spent(works: Sequence[tuple[float, LeastWork | None]], traffic: Traffic) -> float:
    """The least that a mean request takes of what an instance spends a second, in any fleet of some shapes.

        max( min s * prompt + min s * output,  min s * (time in which requests come) / N )

    with s the rate of spending of each shape and its least work, of which 0 is taken where it is not known: instances
    spend while they work, and one at least is there as long as requests come.
    """
    span_s = float(traffic.arrival_s[-1] - traffic.arrival_s[0])
    sides = (
        min(rate * (getattr(work, side) if work is not None else 0.0) for rate, work in works)
        for side in ("prompt_s", "output_s")
    )
    return max(sum(sides), min(rate for rate, _ in works) * span_s / traffic.requests)
