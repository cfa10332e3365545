"""An engine's policy with what a deployment says laid over it, and what follows from it for kernels and lowering."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from ridgeline.cost.engine_kernels import WIDE_EXPERT_RANKS, OwnKernels
from ridgeline.cost.host_times import dispatch_seconds, scheduler_slowness
from ridgeline.facts.engines import EnginePolicy
from ridgeline.facts.records import Accelerator
from ridgeline.lower.pieces import Fusions
from ridgeline.plan.deployment import Deployment, Role
from ridgeline.seams.serving import Beams, PromptDevice, Speculation, of

_LONGEST_BUDGET = 131_072  # tokens of an iteration that holds a whole context, where none is said
_SCHEDULED = ("step_host_s", "seq_host_s", "group_host_s", "exposed_host_s")
_WAYS = ("prefill-first", "mixed")  # schedulers of continuous batches, without and with prompts beside what runs
_KEYS = {
    "token_budget": "token_budget", "max_seqs": "max_seqs", "chunked": "chunked", "memory_fraction": "memory_fraction",
    "block_tokens": "block_tokens", "prefix_cache": "prefix_cache", "overlap": "overlapped_host",
}  # fmt: skip
"""Options that stand for a key of the policy."""


def policy_in_force(
    policy: EnginePolicy, deployment: Deployment, part: Accelerator, *, context: int, offline: bool
) -> EnginePolicy:
    """The policy by which a deployment runs: its options win, and the host is as slow as `part`'s scheduler.

    `context` [token] is the longest of the model, 0 where it is not known; `offline` requests are handed over in the
    engine's own process.
    """
    said = deployment.options
    changes: dict[str, Any] = {
        key: getattr(said, name) for name, key in _KEYS.items() if getattr(said, name) is not None
    }
    if said.memory_fraction is not None:  # what is reserved stands for a fraction that nobody stated
        changes |= {"reserved_bytes": 0.0, "reserved_rank_bytes": 0.0}
    if policy.budget_covers_context and said.token_budget is None:
        changes["token_budget"] = max(policy.token_budget, min(context, _LONGEST_BUDGET))
    if policy.scheduler == "single":
        changes.setdefault("max_seqs", 1)
    if offline:
        changes |= {"request_host_s": 0.0, "prompt_token_host_s": 0.0}
    if of(deployment, Speculation).drafted and not policy.drafts_overlap:
        changes.setdefault("overlapped_host", False)
    changes["block_tokens"] = changes.get("block_tokens", policy.block_tokens) * deployment.kv_ranks  # one on each
    if said.mixed is not None and policy.scheduler in _WAYS:
        changes["scheduler"] = _WAYS[said.mixed]
    elif said.chunked and policy.scheduler == "prefill-first" and policy.chunks_mix:
        changes["scheduler"] = "mixed"
    if of(deployment, PromptDevice).applied:
        changes |= {"chunked": False, "scheduler": _WAYS[0] if policy.scheduler in _WAYS else policy.scheduler}
    slow = scheduler_slowness(part) if policy.python_host else 1.0
    return replace(policy, **changes, **{name: slow * getattr(policy, name) for name in _SCHEDULED})


def expert_backend(one: Deployment, policy: EnginePolicy) -> str:
    """The engine's word for its kernels of experts, as said or by the policy; '' those that were measured."""
    if one.options.expert_backend:
        return one.options.expert_backend
    if one.ep >= WIDE_EXPERT_RANKS and policy.wide_backend:
        prompts = one.role is Role.PREFILL
        return (policy.wide_prompt_backend if prompts else "") or policy.wide_backend
    return "" if one.ep > 1 and policy.expert_backend_alone else policy.expert_backend


def fusions_of(policy: EnginePolicy, part: Accelerator) -> Fusions:
    """Operators that the engine's kernels hold together; modules of Python launch chains one by one."""
    alone = not policy.fused_norm and (policy.python_host or dispatch_seconds(part) is not None)
    return Fusions(
        norm=policy.fused_norm, reduced_norm=policy.fused_all_reduce_norm, latents=policy.merged_latents, chains=alone,
        layer_kernels=policy.layer_kernels, whole_groups=policy.whole_groups,
    )  # fmt: skip


def own_kernels(policy: EnginePolicy, deployment: Deployment, context: int) -> OwnKernels:
    """What prices know of the engine's kernels, for contexts of up to `context` tokens; 0 where that is not known."""
    return OwnKernels(
        unmeasured=policy.own_kernels, vector_rows=policy.vector_rows, wide=policy.wide_products,
        score_bytes=policy.score_bytes, groups=policy.decode_groups, splits=policy.decode_splits,
        per_query=policy.keys_per_query, block_heads=policy.block_heads,
        room=min(policy.graph_context or math.inf, context or math.inf), tuned_share=policy.tuned_share,
        tuned_range=(policy.tuned_share_least, policy.tuned_share_most), skinny_share=policy.skinny_share,
        skinny_range=(policy.skinny_share_least, policy.skinny_share_most), graph_wait_s=policy.graph_reduce_s,
        graph_rows=float(max(policy.graph_sizes, default=0)), apart_wait_s=policy.apart_reduce_s,
        pass_bytes=policy.pass_bytes, half_sums=policy.half_sums, earlier=policy.earlier_attention,
        choice_wait_s=policy.choice_wait_s, all_meet=policy.prompts_meet and deployment.role is Role.PREFILL,
        pipelined=policy.pipelined, beams=of(deployment, Beams).width,
    )  # fmt: skip
