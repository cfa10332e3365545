"""An engine that serves one model on given devices: its policy, formats, memory, and the tables of its iterations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ridgeline.cost.formats import form
from ridgeline.cost.machine import Machine
from ridgeline.cost.network import send_seconds
from ridgeline.cost.served import Formats
from ridgeline.errors import PlanError
from ridgeline.facts.engine_schema import EnginePolicy
from ridgeline.facts.engines import engine_policy
from ridgeline.graph.ops import Model
from ridgeline.plan.deployment import Deployment, Preemption, Role
from ridgeline.serving.capacity import Capacity, capacity
from ridgeline.serving.clock import Times
from ridgeline.serving.state import MIXED_BATCHES, PREFILL_FIRST, STATIC, Rules
from ridgeline.serving.step import StepModel, StepTables

_SCHEDULERS = {"prefill-first": PREFILL_FIRST, "mixed": MIXED_BATCHES, "static": STATIC, "single": STATIC}
_EXPERTS_ONLY = frozenset({"w4a16_mxfp4", "w4a8_mxfp4_mxfp8"})  # checkpoints in which only experts are so narrow

Policies = Callable[..., EnginePolicy]


@dataclass(frozen=True, kw_only=True)
class Engine:
    """One instance of a deployment on a machine, ready to be priced; raises `NoPlanError` if it will not start."""

    model: Model
    machine: Machine
    deployment: Deployment
    policy: EnginePolicy
    formats: Formats
    steps: StepModel

    @cached_property
    def capacity(self) -> Capacity:
        """How the fullest device's memory is divided."""
        part = self.machine.cluster.accelerator
        return capacity(self.model, self.steps.served, self.deployment, self.policy, self.formats, part)

    def tables(self, *, longest_prompt: int, longest: int) -> StepTables:
        """The tables of iterations for prompts and contexts up to these lengths [token]."""
        budget = min(self.policy.token_budget, max(longest_prompt, 1) * self.policy.max_seqs)
        most = max(budget, longest_prompt if not self.policy.chunked else 0, self.policy.max_seqs)
        most = int(most * (1 + self.deployment.draft_tokens))
        return self.steps.tables(most_tokens=most, most_sequences=self.policy.max_seqs, most_context=longest)

    def times(self, tables: StepTables) -> Times:
        """The tables and the host's share as the compiled loop reads them."""
        policy, deployment = self.policy, self.deployment
        graphs = policy.graph_sizes if deployment.graphs is not False else ()
        if policy.graph_max:
            graphs = tuple(size for size in graphs if size <= policy.graph_max)
        group = policy.group_host_s if deployment.instance_devices > 1 else 0.0
        host = policy.step_host_s + group
        layers = len(self.model.graph.layers)
        drafting = deployment.draft_share if deployment.draft_share is not None else 1.0 / layers
        prefill_graphs = float(graphs[-1]) if graphs and policy.graph_prefill else 0.0
        return Times(
            tokens=tables.tokens,
            lane=tables.lane.mid + policy.exposed_host_s,
            group=tables.group.mid,
            sequences=tables.sequences,
            head=tables.head.mid,
            contexts=tables.contexts,
            decode=np.ascontiguousarray(np.broadcast_to(tables.decode.mid, _shape(tables))),
            chunks=tables.chunks,
            pasts=tables.pasts,
            first=np.ascontiguousarray(np.broadcast_to(tables.first.mid, _prompt_shape(tables))),
            each=np.ascontiguousarray(np.broadcast_to(tables.each.mid, _prompt_shape(tables))),
            graphs=np.array(graphs, dtype=float),
            eager_s=tables.kernels * policy.eager_kernel_host_s,
            step_host_s=host,
            seq_host_s=policy.seq_host_s,
            overlapped=policy.overlapped_host,
            prefill_graphs=prefill_graphs,
            balance=max(1.0, deployment.pp * tables.stage_share),
            hops=float(deployment.pp - 1),
            send_start_s=tables.send_start_s,
            send_s=tables.send_s,
            ranks=deployment.dp,
            drafted=float(deployment.draft_tokens),
            gained=deployment.gained,
            draft_share=deployment.draft_tokens * drafting,
        )

    def rules(self, *, prefix_tokens: int = 0, stride: int = 0) -> Rules:
        """What the scheduler does; `stride` devices lie between pools that send caches to each other."""
        policy, deployment = self.policy, self.deployment
        tokens = policy.block_tokens
        blocks = self.capacity.cache_tokens // tokens
        shares = policy.prefix_cache if deployment.prefix_cache is None else deployment.prefix_cache
        shared = prefix_tokens // tokens * tokens if shares and prefix_tokens >= tokens else 0
        reserve = {"whole": 1.0, "estimate": policy.output_estimate_floor}.get(policy.admits, 0.0)
        each = self.capacity.token_bytes
        host = self.machine.cluster.host.device_bytes_per_s
        preemption = deployment.preemption.value if deployment.preemption else policy.preemption
        start = float(send_seconds(1.0, stride, self.machine)) if stride else 0.0
        moved = float(send_seconds(each * 1e4, stride, self.machine)) - start if stride else 0.0
        return Rules(
            scheduler=_SCHEDULERS[policy.scheduler],
            chunked=policy.chunked,
            token_budget=policy.token_budget,
            max_seqs=policy.max_seqs,
            block_tokens=tokens,
            period=max(1, round(tokens / deployment.gained)),
            capacity=blocks,
            kept_free=int(policy.watermark * blocks),
            reserve=reserve,
            swaps=preemption == Preemption.SWAP.value,
            swap_token_s=each / host,
            ranks=deployment.dp * deployment.pp,
            prefix_tokens=shared,
            move_token_s=moved / 1e4,
            move_start_s=start,
        )


def engine(
    model: Model,
    machine: Machine,
    deployment: Deployment,
    *,
    offline: bool = False,
    policies: Policies = engine_policy,
) -> Engine:
    """The engine of a deployment; its choices win over the policy file's. Raises for degrees that cannot be."""
    if deployment.instance_devices > machine.cluster.count:
        raise PlanError(
            f"deployment: one instance takes tp {deployment.tp} * pp {deployment.pp} * dp {deployment.dp} ="
            f" {deployment.instance_devices} devices, the cluster has {machine.cluster.count}"
        )
    part = machine.cluster.accelerator
    context = model.max_positions or 0
    policy = policies(
        deployment.engine, deployment.version, memory_bytes=part.memory_bytes, offline=offline,
        context_tokens=context, ranks=deployment.instance_devices, device=part.name,
    )  # fmt: skip
    if policy.budget_covers_context and deployment.token_budget is None:
        policy = replace(policy, token_budget=max(policy.token_budget, min(context, 131_072)))
    if policy.scheduler == "single":
        policy = replace(policy, max_seqs=1)
    stated = {
        "token_budget": deployment.token_budget, "max_seqs": deployment.max_seqs, "chunked": deployment.chunked,
        "memory_fraction": deployment.memory_fraction,
    }  # fmt: skip
    policy = replace(policy, **{name: value for name, value in stated.items() if value is not None})  # type: ignore[arg-type]
    if deployment.chunked and policy.scheduler == "prefill-first" and policy.name == "vLLM":
        policy = replace(policy, scheduler="mixed")  # vLLM's chunked prefill mixes
    formats = formats_of(deployment)
    steps = StepModel(model, machine, deployment, formats)
    return Engine(model=model, machine=machine, deployment=deployment, policy=policy, formats=formats, steps=steps)


def formats_of(deployment: Deployment) -> Formats:
    """The number formats of a deployment's weights and cache."""
    feed = form(deployment.weights or "bf16").name
    other = deployment.other_weights or ("bf16" if feed in _EXPERTS_ONLY else feed)
    return Formats(feed=feed, attention=form(other).name, cache=form(deployment.kv or "bf16").name)


def _shape(tables: StepTables) -> tuple[int, int]:
    return len(tables.sequences), len(tables.contexts)


def _prompt_shape(tables: StepTables) -> tuple[int, int]:
    return len(tables.chunks), len(tables.pasts)


def pool_role(deployment: Deployment) -> tuple[int, int]:
    """Whether an instance gives requests on, and which it takes: 1 those that arrive, 2 those sent on."""
    return {Role.WHOLE: (0, 1), Role.PREFILL: (1, 1), Role.DECODE: (0, 2)}[deployment.role]
