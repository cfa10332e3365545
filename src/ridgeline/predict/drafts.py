"""Speculative decoding with a model that drafts: its time beside a step, its weights and its cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ridgeline.cost.machine import Machine, machine
from ridgeline.facts.engines import engine_policy
from ridgeline.facts.records import Cluster
from ridgeline.graph.checkpoint import served_weights
from ridgeline.graph.ops import Model
from ridgeline.plan.deployment import Deployment
from ridgeline.predict.serving import simulate_serving
from ridgeline.report.serving import ServingReport
from ridgeline.serving.capacity import token_bytes
from ridgeline.serving.engine import Policies, engine
from ridgeline.serving.metrics import decode_parts
from ridgeline.serving.traffic.traffic import Traffic
from ridgeline.units import bytes_text

_ROUNDS = 2  # replays: the first, for one sequence, tells at which batch the second drafts


def drafted(
    model: Model, draft: Model, where: Machine, one: Deployment, *, batch: float, context: float,
    policies: Policies | None = None, offline: bool = False,
) -> Deployment:  # fmt: skip
    """The deployment with what a model that drafts takes, at a batch [sequence] and context [token] of one rank.

    draft share = step of the draft, one token a sequence / step of the model, all drafted tokens verified

    Both on the same devices, in the same degrees and by the same engine; the draft in its checkpoint's format. Raises
    `PlanError` where the degrees do not divide it. Evidence: derived.
    """
    rates = frozenset(where.cluster.accelerator.peak_flop_per_s)
    alone = replace(
        one, weights=served_weights(draft, rates)[0], other_weights="", draft_tokens=0, draft_tree=(), acceptance=0.0,
        next_acceptance=(), draft_share=None, draft_bytes=0.0, draft_token_bytes=0.0, expert_skew=None, ep=1,
    )  # fmt: skip
    known = policies or engine_policy
    small, large = (
        engine(each, where, deployment, policies=known, offline=offline)
        for each, deployment in ((draft, alone), (model, one))
    )
    longest = max(int(context) + 1, 2)
    spent = []
    for made in (small, large):
        tables = made.tables(longest_prompt=longest, longest=longest)
        parts = decode_parts(made, tables, batch, context)
        spent.append(sum(seconds for name, seconds in parts.items() if name != "host"))
    return replace(
        one, draft_share=spent[0] / spent[1], draft_bytes=small.capacity.weights_bytes,
        draft_token_bytes=token_bytes(small.steps.served.kinds, small.formats)[0],
    )  # fmt: skip


def simulate_drafted(
    model: Model, draft: Model, cluster: Cluster, deployments: Sequence[Deployment], traffic: Traffic, **words: Any
) -> ServingReport:
    """`simulate_serving` with a model that drafts, at the mean batch and context of the replay itself."""
    where = machine(cluster)
    batch, context = 1.0, float(np.mean(traffic.prompt_tokens + traffic.output_tokens / 2.0))
    kept = {name: words[name] for name in ("policies", "offline") if name in words}
    assumed = tuple(words.pop("assumed", ()))
    for _ in range(_ROUNDS):
        chosen = [drafted(model, draft, where, one, batch=batch, context=context, **kept) for one in deployments]
        report = simulate_serving(
            model, cluster, chosen, traffic, resolved=where, assumed=(*assumed, _told(draft, chosen[-1])), **words
        )
        last = chosen[-1]
        batch = max(1.0, report.replay.mean_sequences / (last.dp * last.pp))
        context = report.replay.mean_context or context
    return report


def _told(draft: Model, one: Deployment) -> str:
    weights, token = bytes_text(one.draft_bytes), bytes_text(one.draft_token_bytes)
    return (
        f"{draft.name} drafts a token in {one.draft_share or 0.0:.1%} of a step at the mean batch, and holds {weights}"
        f" of weights and {token} of cache for a token on each device"
    )
