"""The least that a machine's own limits leave of a training step: datasheet peaks, whatever the kernels.

No interval reaches below it. Letters: F FLOP of a step, P peak FLOP/s, Q bytes, W bytes a second.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ridgeline.cost.formats import form
from ridgeline.cost.network import datasheet_links
from ridgeline.facts.records import Accelerator
from ridgeline.graph.flop import op_flop_per_token
from ridgeline.graph.ops import LinearOp
from ridgeline.plan.plan import Plan
from ridgeline.predict.predictor import Evaluation, Predictor
from ridgeline.seams.loss import cross_entropy
from ridgeline.seams.recompute import ATTENTION, FUSED_ATTENTION, PRODUCT
from ridgeline.seams.registry import STRATEGIES, of_family
from ridgeline.training.parts import LINK_PARTS, StageParts


def stage_parts(predictor: Predictor, evaluation: Evaluation) -> StageParts:
    """What the stage times of an evaluation are made of."""
    plan = evaluation.plan
    return StageParts(
        held=evaluation.held,
        times=evaluation.times,
        recompute=plan.recompute
        if of_family(STRATEGIES, plan.technique) is None
        else Plan.recompute,  # else it is in the prices
        recompute_layers=plan.recompute_layers if predictor.stages.rule(plan.recompute).by_layer else None,
    )


def recomputed_flop(predictor: Predictor, evaluation: Evaluation, *, attention: str = "full") -> float:
    """Forward FLOP per token that backward repeats [FLOP/token]: what recompute drops, and logits."""
    plan = evaluation.plan
    again = cross_entropy(plan.loss).logits_again()
    logits = sum(float(op_flop_per_token(op, predictor.workload.seq_len)) for op in predictor.model.graph.head)
    if of_family(STRATEGIES, plan.technique) is None:
        return _dropped_flop(predictor, evaluation, plan, attention) + logits * again
    shares = ((one, float(chosen.mean())) for one, chosen in predictor.groups(plan))
    return sum(_dropped_flop(predictor, evaluation, one, attention) * share for one, share in shares) + logits * again


def _dropped_flop(predictor: Predictor, evaluation: Evaluation, plan: Plan, attention: str) -> float:
    share = 1.0
    rule = predictor.stages.rule(plan.recompute)
    if rule.by_layer and plan.recompute_layers is not None:
        per_stage = evaluation.held.counts.sum(axis=(1, 2))
        share = float(np.minimum(per_stage, plan.recompute_layers).sum() / per_stage.sum())
    products = rule.again(PRODUCT)
    cores = rule.again(ATTENTION if predictor.workload.attention_kernel == "unfused" else FUSED_ATTENTION) - products
    flop = products * predictor.layers_flop_per_token(attention)
    return (flop + cores * predictor.attention_flop_per_token(attention)) * share


def peak_flop_per_s(predictor: Predictor, dtype: str) -> float:
    """The datasheet's matrix rate of a format on one device, or the rate that stands for it where it has none."""
    part: Accelerator = predictor.cluster.accelerator
    return part.peak_flop_per_s.get(dtype) or predictor.machine.device.matrix_rate(dtype)


def product_rates(predictor: Predictor, *, attention: bool = True) -> frozenset[str]:
    """Matrix rates, by format, that some product of a step may run at; with that of `attention` cores."""
    precision, graph = predictor.stages.precision, predictor.model.graph
    listed = (*graph.embedding, *graph.head, *(op for block in graph.blocks.values() for op in block.ops))
    found = {op.formats for op in listed if isinstance(op, LinearOp)}
    own = {name for one in found for name in (one.forward, one.inputs, one.weights) if name}
    named = (precision.compute + name if name.startswith("-") else name for name in own)
    cores = {precision.attention} if attention else set[str]()
    return frozenset({precision.compute, *cores, *(form(name).matrix for name in named)})


def step_floor_s(predictor: Predictor, evaluation: Evaluation, *, trained: float, low_s: float = 0.0) -> float:
    """The least time of a step on this machine [s]: the longest of what each of its limits asks for, or `low_s`.

    max(F / (devices P), Q / W of the memory, exchanges at the rate of their links), with FLOP over attended pairs, each
    format at its own peak, and bytes of the busiest stage. Lower bound: nothing waits for anything else.
    """
    least_s = max(_compute_s(predictor, evaluation, trained), _memory_s(predictor, evaluation), low_s)
    return max(least_s, _links_s(predictor, evaluation, least_s))


def _compute_s(predictor: Predictor, evaluation: Evaluation, trained: float) -> float:
    precision, plan = predictor.stages.precision, evaluation.plan
    again = recomputed_flop(predictor, evaluation, attention="causal")
    whole = trained * predictor.model_flop_per_token("causal") + again
    cores = trained * predictor.attention_flop_per_token("causal")
    each = cores / peak_flop_per_s(predictor, precision.attention)
    each += (whole - cores) / max(peak_flop_per_s(predictor, name) for name in product_rates(predictor))
    return each * predictor.workload.step_tokens / plan.devices


def model_floor_s(predictor: Predictor, *, trained: float) -> float:
    """The least time of a step of this model in these formats on all devices, whatever the plan [s].

    F / (devices R): the model's own FLOP over attended pairs, `trained` times a forward's, products and attention each
    at the best rate that the devices sustain in their format. Nothing is recomputed, exchanged or waited for.
    """
    precision, device = predictor.stages.precision, predictor.machine.device
    cores = trained * predictor.attention_flop_per_token("causal")
    products = trained * predictor.model_flop_per_token("causal") - cores
    each = cores / device.matrix_rate(precision.attention)
    each += products / max(device.matrix_rate(name) for name in product_rates(predictor, attention=False))
    return each * predictor.workload.step_tokens / predictor.cluster.count


def _memory_s(predictor: Predictor, evaluation: Evaluation) -> float:
    moved = stage_parts(predictor, evaluation).bytes().sum(axis=1).max() * evaluation.passes
    return float(moved) / predictor.cluster.accelerator.memory_bytes_per_s


def _links_s(predictor: Predictor, evaluation: Evaluation, least_s: float) -> float:
    """Exchanges at the rate of their links; 0 where even at their price they take no longer than `least_s`."""
    if evaluation.plan.devices == 1 or _linked_s(predictor, evaluation) <= least_s:
        return 0.0
    bare = datasheet_links(predictor.machine)
    other = Predictor(predictor.model, predictor.cluster, predictor.workload, resolved=bare)
    held, times = other.prepare(evaluation.plan)
    return _linked_s(other, replace(evaluation, held=held, times=times))


def _linked_s(predictor: Predictor, evaluation: Evaluation) -> float:
    """Seconds in which the links of the busiest stage carry what it exchanges, inside its layers or with its copies."""
    tables, times = stage_parts(predictor, evaluation).tables(), evaluation.times
    inside = sum(tables[name].total_s.sum(axis=1) for name in LINK_PARTS) * evaluation.passes
    exchanged = np.broadcast_to((times.gather_s + times.reduce_s).sum(axis=-1), np.shape(inside))
    return float(np.max(np.maximum(inside, exchanged)))
