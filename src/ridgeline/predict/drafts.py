"""Speculative decoding with a model that drafts: its time beside a step, its weights and its cache."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ridgeline.cost.machine import Machine, machine
from ridgeline.facts.records import Cluster
from ridgeline.graph.model import Model
from ridgeline.plan.deployment import Deployment, Role
from ridgeline.predict.serving import Operation, simulate_serving
from ridgeline.report.serving import ServingReport
from ridgeline.scenario.serving import fitting_instances
from ridgeline.scenario.serving_words import replaced
from ridgeline.seams.serving import Speculation, of
from ridgeline.serving.capacity import token_bytes
from ridgeline.serving.engine import Engine, engine
from ridgeline.serving.metrics import decode_parts, prefill_parts
from ridgeline.serving.traffic.traffic import Traffic
from ridgeline.units import bytes_text

_ROUNDS = 2  # replays: the first, for one sequence, tells at which batch the second drafts


def drafted(
    model: Model, draft: Model, where: Machine, one: Deployment, *, batch: float, context: float, prompt: float,
    operation: Operation = Operation(),  # noqa: B008  (immutable)
) -> Deployment:  # fmt: skip
    """The deployment with what a model that drafts takes, at a batch [sequence] and context [token] of one rank.

    draft share        = step of the draft, one token a sequence / step of the model, all drafted tokens verified
    draft prompt share = the draft's iterations over one prompt [token] / those of the model

    Both by the same engine on the same devices and in the same degrees, but of a pipeline the draft is on the last
    stage alone; the draft in its checkpoint's format. Raises `PlanError` where the degrees do not divide it. Evidence:
    derived.
    """
    alone = replaced(
        one, draft_tokens=0, weights="", other_weights="", pp=1, role=Role.WHOLE, expert_skew=None, ep=1
    )  # fmt: skip
    small, large = (
        engine(each, where, deployment, policies=operation.policies, offline=operation.offline)
        for each, deployment in ((draft, alone), (model, one))
    )
    longest = max(int(context) + 1, int(prompt) + 1, 2)
    steps, prompts = [], []
    for made in (small, large):
        tables = made.tables(longest_prompt=longest, longest=longest)
        steps.append(_device_s(decode_parts(made, tables, batch, context)))
        prompts.append(_device_s(prefill_parts(made, tables, prompt)))
    return replaced(
        one, draft_share=steps[0] / steps[1], draft_prompt_share=prompts[0] / prompts[1],
        draft_bytes=small.capacity.weights_bytes,
        draft_token_bytes=token_bytes(small.steps.served.kinds, small.formats)[0],
    )  # fmt: skip


def drafted_for(
    model: Model,
    draft: Model,
    cluster: Cluster,
    traffic: Traffic,
    *,
    operation: Operation = Operation(),  # noqa: B008
) -> Callable[[Deployment], Deployment]:
    """What gives a deployment that a search tries the share and the memory of a model that drafts.

    Where nothing was replayed yet the batch N [sequence] of a rank is that with which all devices keep pace with the
    traffic of rate r [1/s] and o tokens an answer: N gained = r o step(N) over the ranks, at most all that may run (N
    the users over the ranks in a closed loop). Found by halving, as step(N) / N falls. Evidence: derived.
    """
    where = machine(cluster)
    prompt, output = float(np.mean(traffic.prompt_tokens)), float(np.mean(traffic.output_tokens))
    span_s = float(traffic.arrival_s[-1] - traffic.arrival_s[0])
    rate = (traffic.requests - 1) / span_s if span_s > 0 else math.inf
    known: dict[Deployment, Deployment] = {}

    def found(one: Deployment) -> Deployment:
        if one not in known:
            made = engine(model, where, one, policies=operation.policies)
            ranks = max(1, fitting_instances(one, cluster)) * one.dp * one.pp
            most = float(made.policy.max_seqs)
            if traffic.concurrency is not None:
                batch = min(max(1.0, traffic.concurrency / ranks), most)
            else:
                batch = _pace(made, rate * output / ranks, prompt + output / 2.0, most)
            known[one] = drafted(
                model, draft, where, one, batch=batch, context=prompt + output / 2.0, prompt=prompt, operation=operation
            )
        return known[one]

    return found


def _pace(made: Engine, tokens_per_s: float, context: float, most: float) -> float:
    """The fewest sequences of a rank that gain so many tokens a second, at most `most` [sequence]."""
    tables = made.tables(longest_prompt=int(context) + 1, longest=int(context) + 1)
    low, high, gained = 1.0, most, of(made.deployment, Speculation).gained
    for _ in range(20):
        middle = 0.5 * (low + high)
        step_s = sum(decode_parts(made, tables, middle, context).values())
        low, high = (low, middle) if middle * gained >= tokens_per_s * step_s else (middle, high)
    return high


def _device_s(parts: Mapping[str, float]) -> float:
    """What the device takes, its drafts apart [s]."""
    return sum(seconds for name, seconds in parts.items() if name not in ("host", "drafts"))


def simulate_drafted(
    draft: Model, model: Model, cluster: Cluster, deployments: Sequence[Deployment], traffic: Traffic, *,
    operation: Operation = Operation(), assumed: Sequence[str] = (), **asked: Any,  # noqa: B008
) -> ServingReport:  # fmt: skip
    """`simulate_serving` with a model that drafts, at the mean batch and context of the replay itself."""
    where = operation.resolved or machine(cluster)
    operation = replace(operation, resolved=where)
    prompt = float(np.mean(traffic.prompt_tokens))
    batch, context = 1.0, float(np.mean(traffic.prompt_tokens + traffic.output_tokens / 2.0))
    for _ in range(_ROUNDS):
        chosen = [
            drafted(model, draft, where, one, batch=batch, context=context, prompt=prompt, operation=operation)
            for one in deployments
        ]
        told = (*assumed, _told(draft, chosen[-1]))
        report = simulate_serving(model, cluster, chosen, traffic, operation=operation, assumed=told, **asked)
        last = chosen[-1]
        batch = max(1.0, report.replay.mean_sequences / (last.dp * last.pp))
        context = report.replay.mean_context or context
    return report


def _told(draft: Model, one: Deployment) -> str:
    drafts = of(one, Speculation)
    weights, token = bytes_text(drafts.held_bytes), bytes_text(drafts.token_bytes)
    return (
        f"{draft.name} drafts a token in {drafts.share or 0.0:.1%} of a step at the mean batch, reads prompts in"
        f" {drafts.prompt_share or 0.0:.1%} of their time, and holds {weights} of weights"
        f" and {token} of cache for a token on each device of the last stage"
    )
