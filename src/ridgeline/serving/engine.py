"""An engine that serves one model on given devices: its policy, formats, memory, and the tables of its iterations."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ridgeline.cost.engine_limits import dispatch_seconds, host_slowness
from ridgeline.cost.formats import form
from ridgeline.cost.machine import Machine, of_kind
from ridgeline.cost.network import send_seconds
from ridgeline.cost.own_kernels import OwnKernels
from ridgeline.cost.served import Formats
from ridgeline.errors import PlanError
from ridgeline.facts.engine_schema import EnginePolicy
from ridgeline.facts.engines import ModelTraits, engine_policy
from ridgeline.facts.mechanisms import constant
from ridgeline.facts.records import Cluster
from ridgeline.graph.ops import Model
from ridgeline.lower.pieces import Fusions
from ridgeline.plan.deployment import Deployment, Hold, Preemption, Queue, Role
from ridgeline.serving.adapters import adapter_bytes
from ridgeline.serving.apart import attention_side, check_experts_fit, expert_layers
from ridgeline.serving.capacity import Capacity, capacity, expert_capacity
from ridgeline.serving.kept import host_rate, kept_numbers
from ridgeline.serving.loans import loan_numbers, preemption_of
from ridgeline.serving.nano import shares
from ridgeline.serving.state import (
    EACH_LOOK,
    MIXED_BATCHES,
    PREFILL_FIRST,
    RULE,
    STATIC,
    WHEN_ALL,
    WHEN_FULL,
    Records,
)
from ridgeline.serving.step import Shelf, StepModel, StepTables

_SCHEDULERS = {"prefill-first": PREFILL_FIRST, "mixed": MIXED_BATCHES, "static": STATIC, "single": STATIC}
_HOLDS = {Hold.LOOK: EACH_LOOK, Hold.ALL: WHEN_ALL, Hold.FULL: WHEN_FULL}
_QUANTIZED = frozenset({"fp8", "nvfp4"})  # formats of checkpoints that also say how the cache is kept
_LONGEST_PERIOD = 32  # steps in which blocks of sequences that gain several tokens a step are counted
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
        if self.deployment.expert_devices is None:
            found = capacity(self.model, self.steps.served, self.deployment, self.policy, self.formats, part)
            held_by = self.deployment.dp if self.deployment.tokens_stay else 1  # every rank holds the caches of all
            return replace(found, cache_tokens=found.cache_tokens // held_by)
        held = attention_side(self.steps.served)
        found = capacity(self.model, held, self.deployment, self.policy, self.formats, part)
        there = self.steps.expert_prices.part
        experts = expert_capacity(self.steps.served, self.deployment, self.policy, self.formats, there)
        check_experts_fit(self.steps.served, experts, self.model.name)
        return replace(found, experts_bytes=experts[0], experts_memory_bytes=there.memory_bytes)

    def placed(self, deployment: Deployment) -> Engine:
        """The same engine in another role or number of instances; what one instance holds is known already."""
        found = replace(self, deployment=deployment)
        vars(found)["capacity"] = self.capacity
        return found

    def tables(self, *, longest_prompt: int, longest: int) -> StepTables:
        """The tables of iterations for prompts and contexts up to these lengths [token]."""
        budget = min(self.policy.token_budget, max(longest_prompt, 1) * self.policy.max_seqs)
        whole = not self.policy.chunked or self.deployment.elastic_tokens is not None
        most = max(budget, longest_prompt if whole else 0, self.policy.max_seqs)
        most = int(most * (1 + self.deployment.draft_tokens))
        captured = self.graphs[-1] if self.graphs else 0
        return self.steps.tables(
            most_tokens=most, most_sequences=self.policy.max_seqs, most_context=longest,
            beside_tokens=min(self.policy.shared_beside_tokens, captured), captured=bool(self.graphs),
            whole_cache=self.policy.whole_cache,
        )  # fmt: skip

    def _launched_s(self, kernels: float) -> float:
        """The least that launching an iteration's kernels takes [s]: 0 where the device issues them, in their times."""
        part = self.machine.cluster.accelerator
        own = dispatch_seconds(part) is not None
        return 0.0 if own else kernels * self.policy.eager_kernel_host_s * host_slowness(part)

    def rule(self, tables: StepTables, *, prefix_tokens: int = 0, stride: int = 0) -> Records:
        """One record of `state.RULE`; `stride` devices lie between pools that send caches to each other."""
        policy, deployment = self.policy, self.deployment
        layers = len(self.model.graph.layers)
        drafting = deployment.draft_share if deployment.draft_share is not None else 1.0 / layers
        rule = np.zeros((), dtype=RULE)
        values = {
            **self._scheduling(prefix_tokens),
            **self._moving(stride),
            "eager_s": self._launched_s(tables.kernels),
            "step_host_s": policy.step_host_s + (policy.group_host_s if deployment.instance_devices > 1 else 0.0),
            "seq_host_s": policy.seq_host_s,
            "overlapped": policy.overlapped_host,
            "ahead": policy.overlapped_host and not deployment.split,
            "prefill_graphs": self._prefill_graph_tokens,
            "balance": max(1.0, deployment.pp * tables.stage_share),
            "hops": float(deployment.pp - 1),
            "follows": float(policy.chunks_follow and deployment.pp > 1),
            "send_start_s": tables.send_start_s,
            "send_s": tables.send_s,
            "drafted": float(deployment.draft_tokens),
            "gained": deployment.gained,
            "draft_share": deployment.draft_tokens * drafting,
            "nano_tokens": deployment.nano_tokens or 0,
            "exposed_s": policy.exposed_host_s,
            "split_share": deployment.split_share or 0.0,
            "split_slack": deployment.split_slack or 0.0,
            "split_fill": deployment.split_fill,
            "micro_batches": deployment.micro_batches if deployment.expert_devices else 0,
            "expert_layers": float(sum(count for count, _ in expert_layers(self.steps.served))),
            "slots": deployment.adapter_slots or 0,
            "load_s": self._load_s,
            **self.kept,
            **(self._borrowing(stride) if deployment.borrows else {}),
            **(self._merging(stride) if deployment.elastic_tokens else {}),
        }
        if deployment.nano_tokens or deployment.split:
            values["memory_sms"], values["link_sms"] = shares()
        for name, value in values.items():
            rule[name] = value
        return rule

    def _merging(self, stride: int) -> dict[str, float]:
        """What a prompt costs that instances `stride` devices apart compute together, as `state.RULE` says it."""
        if self.policy.scheduler not in ("mixed", "prefill-first"):
            raise PlanError(
                f"deployment: elastic_tokens, but {self.policy.name} is {self.policy.scheduler}; instances merge where"
                " iterations are formed one by one"
            )
        start = float(send_seconds(1.0, stride, self.machine)) if stride else 0.0
        return {
            "elastic": float(self.deployment.elastic_tokens or 0),
            "ring_start_s": start * len(self.model.graph.layers),
        }

    def _borrowing(self, stride: int) -> dict[str, float]:
        """What room costs at an instance `stride` devices away, as `state.RULE` says it."""
        return loan_numbers(
            self.steps, self.policy, blocks=self.capacity.cache_tokens // self.policy.block_tokens, stride=stride,
            move_token_s=self._moving(stride)["move_token_s"],
        )  # fmt: skip

    @cached_property
    def kept(self) -> dict[str, float]:
        """What is left of caches on the device, and what comes from host memory, as `state.RULE` says it."""
        host = self.machine.cluster.host
        rate = host_rate(self.deployment, host)
        return kept_numbers(self.steps.served, self.deployment, self.formats, host, rate)

    @property
    def _load_s(self) -> float:
        """Time to load one adapter from host memory, every device its part [s]."""
        each = adapter_bytes(self.steps.served, self.deployment) / self.deployment.pp
        return each / self.machine.cluster.host.device_bytes_per_s

    @property
    def graphs(self) -> tuple[int, ...]:
        """Decode batches that replay a captured graph [sequence].

        Where the deployment says up to which, sizes beyond the policy's last go on in its last step, and end there.
        """
        policy, most = self.policy, self.deployment.graph_max
        if self.deployment.graphs is False:
            return ()
        sizes = policy.graph_sizes
        if most is None:
            return tuple(size for size in sizes if not policy.graph_max or size <= policy.graph_max)
        if not sizes:
            return ()
        step = sizes[-1] - sizes[-2] if len(sizes) > 1 else sizes[-1]
        return tuple(sorted({size for size in (*sizes, *range(sizes[-1], most, step)) if size < most} | {most}))

    @property
    def _prefill_graph_tokens(self) -> float:
        """Tokens up to which an iteration with prompts replays captured pieces [token]."""
        if self.deployment.prefill_graphs is not None:
            return float(self.policy.token_budget) if self.deployment.prefill_graphs else 0.0
        return float(self.graphs[-1]) if self.graphs and self.policy.graph_prefill else 0.0

    def _scheduling(self, prefix_tokens: int) -> dict[str, float]:
        """How iterations are filled and what admission asks for."""
        policy, deployment = self.policy, self.deployment
        tokens = policy.block_tokens
        period, growth = growth_of(tokens, deployment.gained)
        blocks = self.capacity.cache_tokens // tokens
        keeps = policy.prefix_cache if deployment.prefix_cache is None else deployment.prefix_cache
        elsewhere = deployment.borrows or deployment.elastic_tokens is not None  # or parts of them are
        keeps = keeps and not (deployment.adapters or deployment.cuts_cache or elsewhere)  # not alike, or cut
        preemption = preemption_of(deployment, policy)
        return {
            "scheduler": PREFILL_FIRST if deployment.split else _SCHEDULERS[policy.scheduler],
            "split": deployment.split,
            "chunked": policy.chunked,
            "receive_steps": deployment.receive_interval,
            "holds": _HOLDS[deployment.hold],
            "enough": deployment.hold_share * policy.token_budget,
            "token_budget": policy.token_budget,
            "max_seqs": policy.max_seqs,
            "block_tokens": tokens,
            "period": period,
            "growth_blocks": growth,
            "capacity": blocks,
            "kept_free": int(policy.watermark * blocks),
            "reserve": {"whole": 1.0, "estimate": policy.output_estimate_floor}.get(policy.admits, 0.0),
            "swaps": preemption == Preemption.SWAP.value,
            "beside": deployment.swap_beside,
            "displaces": deployment.displaces,
            "redraws": deployment.priority_period or 0,
            "levels": deployment.priority_levels,
            "fair": deployment.queue is Queue.FAIR,
            "shortest": deployment.queue is Queue.SHORTEST,
            "patience": deployment.queue_patience,
            "ranks": deployment.dp * deployment.pp,
            "prefix_tokens": prefix_tokens // tokens * tokens if keeps and prefix_tokens >= tokens else 0,
        }

    def _moving(self, stride: int) -> dict[str, float]:
        """What it takes to move a token's cache to the host, and to an instance `stride` devices away [s].

        To the host: its bytes over the link, or issuing the copies where that takes longer, one for each layer's keys
        and one for its values in every run of neighbouring blocks (fastswitch, section 2.2).
        """
        each = self.capacity.token_bytes
        link_s, copies_s = each / self.machine.cluster.host.device_bytes_per_s, 0.0
        pieces = self.deployment.swap_blocks
        if pieces:
            tensors = (1 if latent(self.model) else 2) * len(self.model.graph.layers) / self.deployment.pp
            copies_s = tensors * constant("launch.host.compiled") / (pieces * self.policy.block_tokens)
        found = {"swap_token_s": max(link_s, copies_s)}
        if stride:
            start = float(send_seconds(1.0, stride, self.machine))
            found["move_start_s"] = start
            found["move_token_s"] = (float(send_seconds(each * 1e4, stride, self.machine)) - start) / 1e4
        return found


def growth_of(block_tokens: int, gained: float) -> tuple[int, int]:
    """Steps of a period and the whole blocks that a sequence takes in it, never fewer than it fills [step, block].

    One block every `block_tokens` steps where a step gains one token; else the period with the least excess.
    """
    if gained == 1.0:
        return block_tokens, 1

    def excess(period: int) -> float:
        return math.ceil(period * gained / block_tokens) * block_tokens / (period * gained)

    period = min(range(1, _LONGEST_PERIOD + 1), key=excess)
    return period, math.ceil(period * gained / block_tokens)


def engine(
    model: Model,
    machine: Machine,
    deployment: Deployment,
    *,
    offline: bool = False,
    policies: Policies = engine_policy,
    shelf: Shelf | None = None,
) -> Engine:
    """The engine of a deployment; its choices win over the policy file's. Raises for degrees that cannot be.

    Engines on the same machine may share the prices on a `shelf`.
    """
    machine = of_kind(machine, deployment.kind)
    check_devices(deployment, machine.cluster)
    part = machine.cluster.accelerator
    context = model.max_positions or 0
    policy = policies(
        deployment.engine, deployment.version, memory_bytes=part.memory_bytes, offline=offline,
        context_tokens=context, ranks=deployment.instance_devices, device=part.name,
        architecture=f"{part.vendor} {part.architecture}", model=_traits(model),
    )  # fmt: skip
    if policy.budget_covers_context and deployment.token_budget is None:
        policy = replace(policy, token_budget=max(policy.token_budget, min(context, 131_072)))
    if policy.scheduler == "single":
        policy = replace(policy, max_seqs=1)
    if offline:  # requests are handed over in the engine's own process
        policy = replace(policy, request_host_s=0.0, prompt_token_host_s=0.0)
    stated = {
        "token_budget": deployment.token_budget, "max_seqs": deployment.max_seqs, "chunked": deployment.chunked,
        "memory_fraction": deployment.memory_fraction, "block_tokens": deployment.block_tokens,
    }  # fmt: skip
    policy = replace(policy, **{name: value for name, value in stated.items() if value is not None})  # type: ignore[arg-type]
    policy = replace(policy, block_tokens=policy.block_tokens * deployment.kv_ranks)  # a block on each of them
    _check_swaps(deployment, policy)
    if deployment.chunked and policy.scheduler == "prefill-first" and policy.name == "vLLM":
        policy = replace(policy, scheduler="mixed")  # vLLM's chunked prefill mixes
    formats = replace(formats_of(deployment), static=policy.static_scales)
    if not deployment.kv and policy.narrow_kv and formats.feed in _QUANTIZED and not latent(model):
        formats = replace(formats, cache=policy.narrow_kv)
    alone = dispatch_seconds(machine.cluster.accelerator) is not None and not policy.fused_norm
    fusions = Fusions(
        norm=policy.fused_norm, reduced_norm=policy.fused_all_reduce_norm, latents=policy.merged_latents, chains=alone,
        layer_kernels=policy.layer_kernels,
    )  # fmt: skip
    own = OwnKernels(
        unmeasured=policy.own_kernels, vector_rows=policy.vector_rows, wide=policy.wide_products,
        score_bytes=policy.score_bytes, groups=policy.decode_groups, splits=policy.decode_splits,
        per_query=policy.keys_per_query, tuned_share=policy.tuned_share,
        tuned_range=(policy.tuned_share_least, policy.tuned_share_most),
    )  # fmt: skip
    steps = StepModel(model, machine, deployment, formats, own=own, shelf=shelf, fusions=fusions)
    return Engine(model=model, machine=machine, deployment=deployment, policy=policy, formats=formats, steps=steps)


def check_devices(one: Deployment, cluster: Cluster) -> None:
    """Raises `PlanError` where an instance takes more devices of a kind than there are, or a kind that is not there."""
    if one.kind not in ("", cluster.accelerator.name):
        raise PlanError(f"deployment: an instance on {one.kind}, of which {cluster.name} has none, nor beside it")
    if one.own_devices > cluster.count:
        raise PlanError(
            f"deployment: one instance takes tp {one.tp} * pp {one.pp} * dp {one.dp} ="
            f" {one.own_devices} devices, the cluster has {cluster.count}"
        )
    there = None if cluster.beside is None else cluster.beside.cluster
    if one.expert_kind and (there is None or there.accelerator.name != one.expert_kind):
        raise PlanError(f"deployment: experts on {one.expert_kind}, of which {cluster.name} has none beside it")
    if there is not None and one.other_devices > there.count:
        raise PlanError(
            f"deployment: experts on {one.other_devices} {one.expert_kind}, there are {there.count} beside"
            f" {cluster.name}; take fewer expert_devices"
        )


def _traits(model: Model) -> ModelTraits:
    dims = model.dims
    return ModelTraits(name=model.name, experts=bool(dims.get("experts")), hidden=int(dims.get("hidden") or 0))


def _check_swaps(deployment: Deployment, policy: EnginePolicy) -> None:
    """Raises where what is said of preemption has no meaning."""
    way = preemption_of(deployment, policy)
    beside = deployment.swap_beside and not deployment.adapter_slots
    if (deployment.swap_blocks or beside) and way != Preemption.SWAP.value:
        raise PlanError(
            f"deployment: swap_blocks and swap_beside are about caches that go to the host, preemption is {way};"
            " say preemption swap as well, or leave them out"
        )
    if deployment.cuts_cache and way == Preemption.SWAP.value:
        raise PlanError(
            f"deployment: kv_kept and kv_fetched, but {policy.name} swaps, which is not modelled with them;"
            " say preemption recompute"
        )
    if deployment.kv_early and not policy.chunked:
        raise PlanError(f"deployment: kv_early, but {policy.name} does not cut prompts in chunks; say chunked as well")
    if deployment.split and (way == Preemption.SWAP.value or policy.scheduler in ("static", "single")):
        raise PlanError(
            f"deployment: split, but {policy.name} is {policy.scheduler} and its preemption is {way}; a device is"
            " divided where engines batch continuously and recompute: take such an engine, or say preemption recompute"
        )
    if deployment.displaces and policy.scheduler in ("static", "single"):
        raise PlanError(
            f"deployment: displaces, but {policy.name}'s batches start and end together; take an engine that batches"
            " continuously"
        )


def latent(model: Model) -> bool:
    """Whether attention keeps one latent vector a token for all heads."""
    return any(op.name == "kv_up" for block in model.graph.blocks.values() for op in block.ops)


def formats_of(deployment: Deployment) -> Formats:
    """The number formats of a deployment's weights and cache."""
    feed = form(deployment.weights or "bf16").name
    other = deployment.other_weights or ("bf16" if feed in _EXPERTS_ONLY else feed)
    plain = feed if form(feed).whole else "bf16"
    return Formats(feed=feed, attention=form(other).name, cache=form(deployment.kv or "bf16").name, plain=plain)


def pool_role(deployment: Deployment) -> tuple[int, int]:
    """Whether an instance gives requests on, and which it takes: 1 those that arrive, 2 those sent on."""
    return {Role.WHOLE: (0, 1), Role.PREFILL: (1, 1), Role.DECODE: (0, 2)}[deployment.role]
