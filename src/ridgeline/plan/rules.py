"""Which plans are legal: the rules of model, machine, batch and schedule, each with its nearest legal choice.

Every rule broadcasts over arrays of plans; `check` applies them to one plan and raises for the first one broken.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import gcd, isqrt
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ridgeline.errors import PlanError
from ridgeline.graph.model import Graph
from ridgeline.graph.ops import AttentionOp, GemmOp, OpRole, Region, Split
from ridgeline.graph.workload import Workload
from ridgeline.plan.plan import Plan

Columns = Mapping[str, NDArray[Any]]
MOST_TASKS = 2_000_000  # of a step's timeline: some seconds and 0.5 GB; steps that anyone runs have under half of it
_TASKS = 3  # of a micro-batch on a stage: a forward, the two parts of a backward


@dataclass(frozen=True, kw_only=True)
class ModelLimits:
    """The numbers of a model that degrees must divide."""

    layers: int
    heads: int  # greatest common divisor over the attention layers; 0 without attention
    kv_heads: int
    tensor_width: int  # greatest common divisor of all widths that tensor parallelism divides
    experts: int  # greatest common divisor over the expert layers; 0 without experts


def model_limits(graph: Graph) -> ModelLimits:
    """Collect the divisibility limits of a model's graph."""
    heads = kv_heads = width = experts = 0
    for block in graph.blocks.values():
        experts = gcd(experts, block.experts)
        for op in block.ops:
            if isinstance(op, AttentionOp):
                heads, kv_heads = gcd(heads, op.heads), gcd(kv_heads, op.kv_heads)
            elif (
                isinstance(op, GemmOp)
                and op.region is Region.TENSOR
                and op.split is not Split.NONE
                and op.role is not OpRole.QKV
            ):
                width = gcd(width, op.n if op.split is Split.COLUMN else op.k)
    return ModelLimits(layers=len(graph.layers), heads=heads, kv_heads=kv_heads, tensor_width=width, experts=experts)


def _divides(number: int, degree: NDArray[Any]) -> NDArray[np.bool_]:
    return np.asarray(number % np.maximum(degree, 1) == 0) if number else np.ones(np.shape(degree), dtype=bool)


def divisors(number: int, limit: int | None = None) -> list[int]:
    """Divisors of `number` up to `limit`, ascending [1]."""
    small = [d for d in range(1, isqrt(number) + 1) if number % d == 0]
    found = sorted({*small, *(number // d for d in small)})
    return found if limit is None else [d for d in found if d <= limit]


def nearest_divisor(number: int, wanted: int) -> int:
    """The divisor of `number` closest to `wanted` [1]; the smaller one on a tie."""
    return min(divisors(number), key=lambda d: (abs(d - wanted), d))


def most_places(layers: int) -> int:
    """Pipeline places that so many layers can fill [1]: one each, and two with the embedding and the head alone."""
    return layers + 2


def rules(
    limits: ModelLimits, workload: Workload, devices: int, plans: Columns
) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    """Each rule's name and which plans keep it; `plans` holds columns named as Plan's fields, codes for schedules."""
    tp, pp, cp, dp = plans["tp"], plans["pp"], plans["cp"], plans["dp"]
    ep, etp, chunks = plans["ep"], plans["etp"], plans["chunks"]
    yield "devices", tp * pp * cp * dp <= devices
    yield "heads", _divides(limits.heads, tp)
    if limits.kv_heads:
        yield "kv_heads", (limits.kv_heads % tp == 0) | (tp % limits.kv_heads == 0)
    yield "width", _divides(limits.tensor_width, tp)
    places = pp * chunks
    yield "layers", places <= np.where(places > 1, most_places(limits.layers), limits.layers)
    halves, by_heads = plans["halves"].astype(bool), plans["by_heads"].astype(bool)
    yield "context", (workload.seq_len % (cp * np.where(halves & (cp > 1), 2, 1)) == 0)
    if limits.heads:
        yield "context_heads", ~by_heads | (limits.heads % (tp * cp) == 0)
    yield "sequence", ~plans["sequence_parallel"].astype(bool) | ((workload.seq_len // cp) % tp == 0)
    yield "batch", workload.global_batch % (dp * plans["micro_batch"]) == 0
    yield "timeline", _TASKS * pp * chunks * (workload.global_batch // (dp * plans["micro_batch"])) <= MOST_TASKS
    yield "experts", (ep == 1) & (etp == 1) if not limits.experts else limits.experts % ep == 0
    yield "folding", (tp * cp * dp) % (ep * etp) == 0
    group = plans["zero_group"]
    yield "zero_group", (group == 0) | ((dp * cp) % np.maximum(group, 1) == 0)
    yield "offload_weights", can_offload_weights(plans["zero"]) | ~plans["offload_weights"].astype(bool)
    alone = can_update_in_backward(pp, workload.global_batch // np.maximum(dp * plans["micro_batch"], 1))
    yield "optimizer_in_backward", alone | ~plans["optimizer_in_backward"].astype(bool)


def can_offload_weights(zero: ArrayLike) -> NDArray[np.bool_]:
    """Whether weights may be in host memory: layers are gathered as they are needed only under ZeRO-3."""
    return np.asarray(np.asarray(zero) == 3)


def can_update_in_backward(pp: ArrayLike, micro_batches: ArrayLike) -> NDArray[np.bool_]:
    """Whether a gradient is whole as soon as backward makes it: one micro-batch a step, and no pipeline."""
    return np.asarray((np.asarray(pp) == 1) & (np.asarray(micro_batches) == 1))


class ContextSplit(Protocol):
    """What a style of context parallelism divides: sequences in two pieces a rank, or heads."""

    @property
    def halves(self) -> bool:
        """Whether each rank has an early and a late piece of a sequence."""

    @property
    def by_heads(self) -> bool:
        """Whether each rank attends with its share of the heads."""


def columns(plan: Plan, style: ContextSplit) -> dict[str, NDArray[Any]]:
    """One plan, of that style of context parallelism, as columns of length one, for the rules."""
    fields = ("tp", "pp", "cp", "dp", "ep", "etp", "chunks", "micro_batch", "sequence_parallel")
    table = {name: np.array([int(getattr(plan, name))]) for name in fields}
    table |= {name: np.array([int(getattr(style, name))]) for name in ("halves", "by_heads")}
    for name in ("zero", "offload_weights", "optimizer_in_backward"):
        table[name] = np.array([int(getattr(plan, name))])
    table["zero_group"] = np.array([plan.zero_group or 0])
    return table


def check(plan: Plan, style: ContextSplit, limits: ModelLimits, workload: Workload, devices: int) -> None:
    """Raise PlanError for the first rule that a plan breaks, naming the nearest legal choice."""
    for name, kept in rules(limits, workload, devices, columns(plan, style)):
        if name == "layers" and plan.layer_split is not None:
            continue  # a stated split may leave places to the embedding or the head alone
        if not bool(kept[0]):
            raise PlanError(explain(name, plan, style, limits, workload, devices))
    if plan.layer_split is not None:
        places = plan.pp * plan.chunks
        if len(plan.layer_split) != places or sum(plan.layer_split) != limits.layers or min(plan.layer_split) < 0:
            raise PlanError(
                f"plan: layer_split {list(plan.layer_split)} has {len(plan.layer_split)} parts that sum to"
                f" {sum(plan.layer_split)};"
                f" needs {places} parts (pp {plan.pp} x chunks {plan.chunks}) that sum to {limits.layers} layers"
            )


def explain(rule: str, plan: Plan, style: ContextSplit, limits: ModelLimits, workload: Workload, devices: int) -> str:
    """A broken rule in people's words: the value, the limit and the nearest legal choice of a word that is at fault."""
    group, total = plan.dp * plan.cp, plan.tp * plan.cp * plan.dp
    halves = plan.cp * (2 if style.halves else 1)
    texts = {
        "devices": f"tp {plan.tp} x pp {plan.pp} x cp {plan.cp} x dp {plan.dp} = {plan.devices} devices,"
        f" the cluster has {devices};"
        f" nearest: {_fewer(plan, devices)}",
        "heads": f"tp {plan.tp} does not divide {limits.heads} heads;"
        f" nearest: tp {nearest_divisor(max(limits.heads, 1), plan.tp)}",
        "kv_heads": f"tp {plan.tp} neither divides nor is a multiple of {limits.kv_heads} kv heads;"
        f" nearest: tp {nearest_divisor(max(limits.kv_heads, 1), plan.tp)}",
        "width": f"tp {plan.tp} does not divide the widths' common divisor {limits.tensor_width};"
        f" nearest: tp {nearest_divisor(max(limits.tensor_width, 1), plan.tp)}",
        "layers": f"pp {plan.pp} x chunks {plan.chunks} = {plan.pp * plan.chunks} pipeline places for"
        f" {limits.layers} layers;"
        f" nearest: pp {max(1, most_places(limits.layers) // plan.chunks)}",
        "context": f"sequence {workload.seq_len} is not a multiple of {halves} (cp {plan.cp}"
        f"{', two halves per rank for causal attention' if halves > plan.cp else ''});"
        f" nearest: cp {_context_ranks(workload.seq_len, plan, style)}",
        "context_heads": f"tp {plan.tp} x cp {plan.cp} does not divide {limits.heads} heads, as all-to-all"
        " context parallelism must; use a ring",
        "sequence": f"sequence parallelism needs sequence {workload.seq_len} / cp {plan.cp} to be a"
        f" multiple of tp {plan.tp};"
        f" nearest: tp {nearest_divisor(max(1, workload.seq_len // plan.cp), plan.tp)}",
        "batch": f"global batch {workload.global_batch} is not a multiple of dp {plan.dp} x micro-batch"
        f" {plan.micro_batch};"
        f" nearest: {_dividing_batch(plan, workload.global_batch)}",
        "timeline": f"a step of {workload.global_batch // (plan.dp * plan.micro_batch):,} micro-batches on"
        f" {plan.pp * plan.chunks} pipeline places is beyond the {MOST_TASKS:,} tasks that a timeline holds;"
        f" nearest: {_fewer_micro_batches(plan, workload.global_batch)}",
        "experts": f"ep {plan.ep}, etp {plan.etp} for {limits.experts} experts;"
        f" nearest: ep {nearest_divisor(max(limits.experts, 1), plan.ep)}{'' if limits.experts else ', etp 1'}",
        "folding": f"ep {plan.ep} x etp {plan.etp} does not divide tp x cp x dp = {total};"
        f" nearest: {_folding(plan, total, limits.experts)}",
        "offload_weights": f"offload_weights needs zero 3, which gathers each layer as it is needed; zero is"
        f" {plan.zero}; nearest: zero 3",
        "optimizer_in_backward": "optimizer_in_backward needs one micro-batch a step and pp 1, so that a gradient is"
        f" whole when it is made; there are {max(1, workload.global_batch // (plan.dp * plan.micro_batch))}"
        f" micro-batches and pp {plan.pp};"
        f" nearest: global batch {plan.dp * plan.micro_batch} with pp 1",
        "zero_group": f"zero_group {plan.zero_group} does not divide dp x cp = {group};"
        f" nearest: zero_group {nearest_divisor(group, plan.zero_group or 1)}",
    }
    return f"plan: {texts[rule]}"


def _fewer(plan: Plan, devices: int) -> str:
    """The largest dp that leaves enough devices; where the other degrees take too many, the largest of the highest."""
    others = plan.tp * plan.pp * plan.cp
    if others <= devices:
        return f"dp {devices // others}"
    degrees = {"tp": plan.tp, "pp": plan.pp, "cp": plan.cp}
    highest = max(degrees, key=lambda name: degrees[name])
    left = devices // (plan.devices // degrees[highest])
    return f"{highest} {left}" if left else f"{plan.devices} devices"


def _context_ranks(seq_len: int, plan: Plan, style: ContextSplit) -> int:
    halves = 2 if style.halves and plan.cp > 1 else 1
    return nearest_divisor(seq_len // halves, plan.cp) if seq_len % halves == 0 else 1


def _dividing_batch(plan: Plan, batch: int) -> str:
    """The nearest micro-batch where dp divides the batch, the nearest dp where the micro-batch does; else the batch."""
    whole = plan.dp * plan.micro_batch
    least = f"global batch {max(1, round(batch / whole)) * whole}"
    if batch % plan.dp == 0:
        return f"micro-batch {nearest_divisor(batch // plan.dp, plan.micro_batch)}, or {least}"
    if batch % plan.micro_batch == 0:
        return f"dp {nearest_divisor(batch // plan.micro_batch, plan.dp)}, or {least}"
    return least


def _fewer_micro_batches(plan: Plan, batch: int) -> str:
    """The smallest micro-batch whose step a timeline holds; where no batch of a rank is so large, the global batch."""
    most = MOST_TASKS // (_TASKS * plan.pp * plan.chunks)
    fits = [size for size in divisors(batch // plan.dp) if batch // plan.dp // size <= most]
    return f"micro-batch {fits[0]}" if fits else f"global batch {plan.dp * plan.micro_batch * max(1, most)}"


def _folding(plan: Plan, total: int, experts: int) -> str:
    etp = nearest_divisor(total, plan.etp)
    ep = nearest_divisor(gcd(total // etp, experts or 1), plan.ep)
    return f"ep {ep}" if etp == plan.etp else f"ep {ep}, etp {etp}"
