"""An engine that serves one model on given devices: its policy, formats, memory, and the tables of its iterations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ridgeline.cost.formats import BLOCK, EXPERTS_ONLY, Formats, form
from ridgeline.cost.machine import Machine, of_kind
from ridgeline.errors import PlanError
from ridgeline.facts.engines import EnginePolicy, EngineUse, ModelTraits, engine_named, engine_policy
from ridgeline.facts.records import Cluster
from ridgeline.graph.model import Model
from ridgeline.lower.pieces import Experts
from ridgeline.plan.checkpoint_formats import with_formats
from ridgeline.plan.deployment import Deployment
from ridgeline.seams.deployment_slots import check_techniques, label
from ridgeline.seams.resolve import rewritten
from ridgeline.seams.serving import (
    Adapters,
    Disaggregation,
    ElasticParallel,
    Placement,
    applied,
    graph_texts,
    instance_devices,
    of,
    other_devices,
    own_devices,
    preemption_of,
    step_tokens,
)
from ridgeline.serving.attention_ffn import attention_side, check_experts_fit, evenly_placed
from ridgeline.serving.capacity import Capacity, capacity, expert_capacity
from ridgeline.serving.host_experts import check_hosted, cores
from ridgeline.serving.number_formats import computed_formats, format_notes
from ridgeline.serving.policy_in_force import expert_backend, fusions_of, own_kernels, policy_in_force
from ridgeline.serving.rule import rule_of
from ridgeline.serving.state import Records
from ridgeline.serving.step import StepModel, StepTables
from ridgeline.serving.step_pieces import Shelf

_QUANTIZED = frozenset({"fp8", "nvfp4"})  # formats of checkpoints that also say how the cache is kept

Policies = Callable[[str, str, EngineUse], EnginePolicy]


@dataclass(frozen=True, kw_only=True)
class Engine:
    """One instance of a deployment on a machine, ready to be priced; raises `NoPlanError` if it will not start."""

    model: Model
    machine: Machine
    deployment: Deployment
    policy: EnginePolicy
    formats: Formats
    steps: StepModel
    batch: int | None = None  # sequences of a static batch, where it is known

    @property
    def format_notes(self) -> list[str]:
        """What a person should know of formats that the devices do not multiply."""
        part = self.machine.cluster.accelerator
        return format_notes(formats_of(self.deployment), self.formats, self.policy, part)

    @property
    def lanes(self) -> int:
        """Batches under way in a pipeline at once [1]: one a stage, or one alone that stages do not divide evenly."""
        stages = self.deployment.pp
        whole = self.policy.even_parts and self.batch is not None and self.batch % stages > 0
        return 1 if whole else stages

    @cached_property
    def capacity(self) -> Capacity:
        """How the fullest device's memory is divided."""
        part = self.machine.cluster.accelerator
        if not of(self.deployment, Disaggregation).applied:
            host = self.machine.cluster.host.dram_bytes
            found = capacity(
                self.model, self.steps.served, self.deployment, self.policy, self.formats, part, dram_bytes=host
            )
            if of(self.deployment, Placement).stay:  # every rank holds the caches of all
                found = replace(found, cache_tokens=found.cache_tokens // self.deployment.dp)
            return found
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
        both_ways = any(not core.causal for _, core in cores(self.steps.served))
        if both_ways and (longest > longest_prompt + 1 or longest_prompt > self.policy.token_budget):
            raise PlanError(
                f"deployment: {self.model.name} is an encoder, which takes whole prompts and makes no tokens;"
                f" say output 1 (asked: {longest - longest_prompt:,}) and token_budget {longest_prompt:,} or more"
                f" (here: {self.policy.token_budget:,})"
            )
        whole = not self.policy.chunked or of(self.deployment, ElasticParallel).applied
        verified = int(self.policy.max_seqs * (step_tokens(self.deployment) - 1))  # beside one token of each sequence
        most = max(budget, longest_prompt if whole else 0, self.policy.max_seqs) + verified
        captured = self.graphs[-1] if self.graphs else 0
        fixed = self.policy.compiled_tokens
        return self.steps.tables(
            most_tokens=max(most, fixed), most_sequences=self.policy.max_seqs, most_context=max(longest, fixed),
            beside_tokens=min(self.policy.shared_beside_tokens, captured), captured=bool(self.graphs),
            whole_cache=self.policy.whole_cache or fixed > 0, whole_batch=fixed > 0,
        )  # fmt: skip

    @cached_property
    def _numbers(self) -> dict[int, dict[str, float]]:
        return {}

    def numbers(self, stride: int) -> Mapping[str, float]:
        """What its techniques state of `state.RULE`: asked once, since they may price iterations to know it."""
        if stride not in self._numbers:
            stated = (technique.numbers(self, stride) for technique in applied(self.deployment))
            self._numbers[stride] = {name: value for each in stated for name, value in each.items()}
        return self._numbers[stride]

    def rule(
        self, tables: StepTables, *, prefix_tokens: int = 0, stride: int = 0, takers: Sequence[Engine] = ()
    ) -> Records:
        """One record of `state.RULE`; `stride` devices lie between pools that send caches, to those of `takers`."""
        return rule_of(self, tables, prefix_tokens=prefix_tokens, stride=stride, takers=takers)

    @property
    def graphs(self) -> tuple[int, ...]:
        """Decode batches that replay a captured graph [sequence].

        Where the deployment says up to which, sizes beyond the policy's last go on in its last step, and end there; or
        they double, and end at the largest batch.
        """
        policy, most = self.policy, self.deployment.options.graph_max
        if self.deployment.options.graphs is False:
            return ()
        if policy.compiled_tokens:
            return (policy.max_seqs,)
        sizes = policy.graph_sizes
        if most is None:
            return tuple(size for size in sizes if not policy.graph_max or size <= policy.graph_max)
        if not sizes:
            return ()
        if policy.graph_doubling:
            most = min(most, policy.max_seqs)
            doubled = (sizes[-1] * 2**power for power in range(1, max(most, 1).bit_length()))
            return tuple(sorted({size for size in (*sizes, *doubled) if size < most} | {most}))
        step = sizes[-1] - sizes[-2] if len(sizes) > 1 else sizes[-1]
        return tuple(sorted({size for size in (*sizes, *range(sizes[-1], most, step)) if size < most} | {most}))

    @property
    def prefill_graph_tokens(self) -> float:
        """Tokens up to which an iteration with prompts replays captured pieces [token]."""
        if self.deployment.options.prefill_graphs is not None:
            return float(self.policy.token_budget) if self.deployment.options.prefill_graphs else 0.0
        return float(self.graphs[-1]) if self.graphs and self.policy.graph_prefill else 0.0


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
    check_techniques(deployment)
    model = rewritten(model, graph_texts(deployment), "serving")
    deployment, _ = with_formats(evenly_placed(deployment, model), model, machine.cluster)
    machine = of_kind(machine, deployment.kind)
    check_devices(deployment, machine.cluster)
    deployment = replace(deployment, engine=engine_named(deployment.engine))  # whose kernels are asked for by name
    part = machine.cluster.accelerator
    context = model.max_positions or 0
    use = EngineUse(
        memory_bytes=part.memory_bytes, offline=offline, context_tokens=context, ranks=instance_devices(deployment),
        device=part.name, architecture=f"{part.vendor} {part.architecture}", model=_traits(model),
    )  # fmt: skip
    policy = policies(deployment.engine, deployment.version, use)
    backend = expert_backend(deployment, policy)
    deployment = replace(deployment, options=replace(deployment.options, expert_backend=backend))
    policy = policy_in_force(policy, deployment, part, context=context, offline=offline)
    _check_swaps(deployment, policy)
    formats = replace(formats_of(deployment), static=policy.static_scales)
    if policy.narrow_inputs and form(formats.feed).name == "w4a16_mxfp4":
        formats = replace(formats, feed=policy.narrow_inputs)
    if not deployment.kv and policy.narrow_kv and formats.feed in _QUANTIZED and not model.graph.latent_attention:
        formats = replace(formats, cache=policy.narrow_kv)
    if not deployment.expert_kind:
        formats = computed_formats(formats, policy, part)
    own, fusions = own_kernels(policy, deployment, context), fusions_of(policy, part)
    steps = StepModel(model, machine, deployment, formats, own=own, shelf=shelf, fusions=fusions)
    found = Engine(model=model, machine=machine, deployment=deployment, policy=policy, formats=formats, steps=steps)
    for technique in applied(deployment):
        if unfit := technique.unfit(found):
            raise PlanError(f"deployment: {label(technique)} {unfit}")
    check_hosted(steps.served, deployment, formats, machine)
    return found


def check_devices(one: Deployment, cluster: Cluster) -> None:
    """Raises `PlanError` where an instance takes more devices of a kind than there are, or a kind that is not there."""
    if one.kind not in ("", cluster.accelerator.name):
        raise PlanError(f"deployment: an instance on {one.kind}, of which {cluster.name} has none, nor beside it")
    if own_devices(one) > cluster.count:
        raise PlanError(
            f"deployment: one instance takes tp {one.tp} * pp {one.pp} * dp {one.dp} ="
            f" {own_devices(one)} devices, the cluster has {cluster.count}"
        )
    there = None if cluster.secondary is None else cluster.secondary.cluster
    if one.expert_kind and (there is None or there.accelerator.name != one.expert_kind):
        raise PlanError(f"deployment: experts on {one.expert_kind}, of which {cluster.name} has none beside it")
    if there is not None and other_devices(one) > there.count:
        raise PlanError(
            f"deployment: experts on {other_devices(one)} {one.expert_kind}, there are {there.count} beside"
            f" {cluster.name}; take fewer expert_devices"
        )


def _traits(model: Model) -> ModelTraits:
    dims = model.dims
    return ModelTraits(name=model.name, experts=bool(dims.get("experts")), hidden=int(dims.get("hidden") or 0))


def _check_swaps(deployment: Deployment, policy: EnginePolicy) -> None:
    """Raises where caches and adapters that never leave a device are to move beside iterations."""
    way = preemption_of(deployment, policy)
    if deployment.swap_beside and way != "swap" and not of(deployment, Adapters).on_device:
        raise PlanError(
            f"deployment: swap_beside is about caches that go to the host, preemption is {way}; say preemption swap as"
            " well, or leave it out"
        )


def formats_of(deployment: Deployment) -> Formats:
    """The number formats of a deployment's weights and cache."""
    feed = form(deployment.weights or "bf16").name
    other = deployment.other_weights or ("bf16" if feed in EXPERTS_ONLY else feed)
    plain = next((name for name in (feed, form(other).name) if form(name).whole), "bf16")  # of embedding and head
    out = form(deployment.out_weights).name if deployment.out_weights else ""
    return Formats(
        feed=feed, attention=form(other).name, cache=form(deployment.kv or "bf16").name, plain=plain, out=out,
        wide="tf32" if deployment.options.tf32 else "fp32",
    )  # fmt: skip


def cut_blocks(one: Engine) -> str:
    """Why an engine would not load a deployment's experts: ranks that cut blocks of weights; '' where it does.

    A block is `formats.BLOCK` weights wide and high and has one scale. Ranks that hold a part of every expert hold
    inner / cut of its width, which must be a multiple of it; those that hold whole experts cut nothing.

    >>> from ridgeline.cost.machine import machine
    >>> from ridgeline.facts.clusters import cluster
    >>> from ridgeline.graph.load import load
    >>> from ridgeline.plan.deployment import Deployment
    >>> from ridgeline.serving.engine import engine
    >>> model, where = load("qwen3-235b-a22b"), machine(cluster("8xH200-SXM"))
    >>> shapes = [Deployment(tp=tp, ep=ep, weights="fp8_block") for tp, ep in ((4, 1), (8, 1), (8, 8))]
    >>> [bool(cut_blocks(engine(model, where, one))) for one in shapes]  # experts of 1536: 384, 192, whole
    [False, True, False]
    """
    if not one.policy.whole_blocks or form(one.formats.feed).name != "fp8_block":
        return ""
    held = [piece for kind in one.steps.served.kinds for piece in kind.pieces if isinstance(piece, Experts)]
    ranks = one.deployment.tp * one.deployment.dp
    if not any(piece.ranks < ranks and piece.inner % BLOCK for piece in held):
        return ""
    return (
        f"{one.policy.name} refuses ranks that cut blocks of {BLOCK} weights of each expert: hold experts whole"
        " (ep), or divide them over fewer ranks (tp)"
    )
