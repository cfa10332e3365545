"""A layer's forward of one micro-batch beside its backward of another: exchanges of one under compute of the other.

Two streams, one of compute and one of exchanges, each in the order in which it is issued: the gradient of combine under
attention's forward; dispatch, then its gradient, under the experts' backward and forward; combine under attention's
backward. Source: megatron-lm, megatron/core/models/common/model_chunk_schedule_plan.py
(TransformerLayerSchedulePlan.run) at d98e8a6; the same order is figure 4 of arXiv:2412.19437.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ridgeline.cost.mechanism import multiprocessors
from ridgeline.cost.network import collective_seconds
from ridgeline.cost.routed import KernelPrices
from ridgeline.facts.mechanisms import constant, constants
from ridgeline.lower.work import Attention, Collective, Number, Phase, Work
from ridgeline.seams.experts import COMPUTE, LINK, Piece, finished_s


@dataclass(frozen=True, kw_only=True)
class Legs:
    """One phase of a layer in the order in which rows pass it [s].

    `near_s` is all that is done where the tokens are, `there_s` and `back_s` are exchanges before and after the
    experts, whose own products take `experts_s`.
    """

    near_s: Number
    there_s: Number
    experts_s: Number
    back_s: Number


@dataclass(frozen=True, kw_only=True)
class PairedLayer:
    """What layers in a row save where both micro-batches run at once: `each_s` a layer, less `ends_s` once [s]."""

    each_s: Number
    ends_s: Number


def paired_layer(
    pricer: KernelPrices, work: Mapping[Phase, Sequence[Work]], priced: Mapping[Phase, tuple[Number, Number]]
) -> PairedLayer:
    """What a layer saves beside another micro-batch's, from its work and each phase's seconds and its exchange's [s].

    While an exchange and compute run together, compute lacks the multiprocessors that the exchange holds.
    """
    forward, backward, weight = (
        _legs(pricer, work[phase], *priced[phase])
        for phase in (Phase.FORWARD, Phase.BACKWARD_INPUT, Phase.BACKWARD_WEIGHT)
    )
    two, three = (finished_s(_pieces(forward, backward, weight, layers)) for layers in (2, 3))
    all_legs = (forward, backward, weight)
    whole = sum((seconds for legs in all_legs for seconds in vars(legs).values()), start=np.zeros(()))
    kept = 1.0 - exchange_share(pricer)
    each = np.maximum(whole - (three - two), 0.0)
    ends = np.maximum(2.0 * each - (2.0 * whole - two), 0.0)
    return PairedLayer(each_s=kept * each, ends_s=kept * ends)


def exchange_share(pricer: KernelPrices) -> float:
    """Share of a device's multiprocessors that an exchange holds while it runs [1].

    By the number that a dispatcher's kernels are launched on; else products that take 1 + x times as long beside a
    collective have lost x / (1 + x) of them.
    """
    held = constants().get(f"overlap.multiprocessors.{pricer.workload.expert_dispatch}")
    if held is not None:
        return min(1.0, float(held.value) / multiprocessors(pricer.machine.device.accelerator))
    slowdown = constant("overlap.compute_slowdown")
    return slowdown / (1.0 + slowdown)


def _legs(pricer: KernelPrices, work: Sequence[Work], seconds: Number, exposed_s: Number) -> Legs:
    """One phase's legs; both ways share what is exposed of its exchanges as they take it alone."""
    there, back, experts = np.zeros(()), np.zeros(()), np.zeros(())
    for piece in work:
        if isinstance(piece, Collective):
            way = piece.name.rsplit(".", 1)[-1]
            if piece.name.startswith("moe.") and way.endswith(("dispatch", "gather")):
                there = there + collective_seconds(piece, pricer.machine)
            elif piece.name.startswith("moe.") and way.endswith(("combine", "scatter")):
                back = back + collective_seconds(piece, pricer.machine)
        elif not isinstance(piece, Attention) and piece.routed:
            experts = experts + pricer.kernel(piece).seconds
    share = np.asarray(exposed_s) / np.maximum(there + back, 1e-30)
    near = np.maximum(np.asarray(seconds) - exposed_s - experts, 0.0)
    return Legs(near_s=near, there_s=there * share, experts_s=experts, back_s=back * share)


def _pieces(forward: Legs, backward: Legs, weight: Legs, layers: int) -> Iterator[Piece]:
    """The pieces of so many layers of either micro-batch, ten a layer; backward passes a layer's legs the other way."""
    for layer in range(layers):
        at = 10 * layer
        before, ended = ((at - 2,), (at - 3,)) if layer else ((), ())
        yield LINK, backward.back_s, before
        yield COMPUTE, forward.near_s, ended
        yield COMPUTE, backward.experts_s, (at,)
        yield LINK, forward.there_s, (at + 1,)
        yield COMPUTE, weight.experts_s, (at + 2,)
        yield LINK, backward.there_s, (at + 2,)
        yield COMPUTE, forward.experts_s, (at + 3,)
        yield LINK, forward.back_s, (at + 6,)
        yield COMPUTE, backward.near_s, (at + 5,)
        yield COMPUTE, weight.near_s, (at + 8,)
