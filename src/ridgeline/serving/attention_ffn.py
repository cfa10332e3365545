"""Attention-FFN disaggregation: micro-batches go back and forth between attention's devices and the experts'.

While one micro-batch is with the experts, another is at attention, and others are on their way. Sources:
MegaScale-Infer (Zhu and others, 2025, arXiv:2504.02263), Janus (Zhang and others, 2025, arXiv:2512.13525).

Letters: L layers with experts, M micro-batches; a, e, s times of one micro-batch in all layers: at attention's devices,
at the experts', and on the links one way; A attention ranks, E expert devices, K experts of a token.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from heapq import heappop, heappush

import numpy as np

from ridgeline.cost.seconds import Seconds
from ridgeline.cost.served import ServedPrices
from ridgeline.errors import NoPlanError, PlanError
from ridgeline.graph.model import Model
from ridgeline.lower.pieces import ExpertAllToAll, Experts, Piece, Served
from ridgeline.plan.deployment import Deployment
from ridgeline.plan.deployment_rules import check_divides
from ridgeline.scenario.serving_words import replaced
from ridgeline.seams.serving import (
    Disaggregation,
    Placement,
    SentActivations,
    expert_devices,
    expert_ranks,
    instance_devices,
    of,
)
from ridgeline.serving.clock import Lines, Times, at_tokens, group_s, head_s, padded, read, token_s
from ridgeline.serving.compiling import clocked
from ridgeline.serving.state import Array, Record
from ridgeline.units import bytes_text

_ACTIVATION_BYTES = 2.0  # of a number that goes to an expert, or comes back


@dataclass(frozen=True, kw_only=True)
class AttentionFFNTables:
    """`send` (T,): one micro-batch of an iteration of T tokens a rank, one way between both kinds of devices [s]."""

    send: Seconds


def disaggregated(served: Served, one: Deployment) -> Served:
    """The model with whole experts on devices of their own, and no trade among attention's ranks.

    Raises `PlanError` where there are no experts, or their devices do not divide them.
    """
    devices = expert_devices(one)
    if not any(isinstance(piece, Experts) for kind in served.kinds for piece in kind.pieces):
        raise PlanError(f"deployment: expert_devices = {devices}, but the model has no experts; leave it out")

    def moved(piece: Piece) -> Piece:
        if not isinstance(piece, Experts):
            return piece
        check_divides(
            devices, piece.count, of(one, Placement).redundant + of(one, Disaggregation).replicas, "expert_devices"
        )
        return replace(piece, inner=piece.inner * (one.tp * one.dp // one.ep), ranks=devices)

    kinds = [
        replace(kind, pieces=tuple(moved(piece) for piece in kind.pieces if not isinstance(piece, ExpertAllToAll)))
        for kind in served.kinds
    ]
    return replace(served, kinds=tuple(kinds))


def attention_side(served: Served) -> Served:
    """What attention's devices hold and do."""
    kinds = [
        replace(kind, pieces=tuple(piece for piece in kind.pieces if not isinstance(piece, Experts)))
        for kind in served.kinds
    ]
    return replace(served, kinds=tuple(kinds))


def expert_layers(served: Served) -> list[tuple[int, Experts]]:
    """The experts of each kind of layer, and how many layers have them."""
    return [(kind.count, piece) for kind in served.kinds for piece in kind.pieces if isinstance(piece, Experts)]


def check_experts_fit(served: Served, held_bytes: tuple[float, float], name: str) -> None:
    """Raises `NoPlanError` where the weights of one device's experts are more than the room for them."""
    weights, room = held_bytes
    if weights > room:
        devices = expert_layers(served)[0][1].ranks
        raise NoPlanError(
            f"{name} will not start: its experts take {bytes_text(weights)} of each of {devices} devices, which have"
            f" {bytes_text(max(room, 0.0))} for them; take more expert_devices, or narrower weights"
        )


def reached_devices(devices: float, top_k: float) -> float:
    """Different devices that a token's experts lie on, on average [1]: E (1 - (1 - 1 / E)^K)."""
    return float(devices * (1.0 - (1.0 - 1.0 / devices) ** top_k))


def send_seconds(
    served: Served, one: Deployment, prices: ServedPrices, tokens: Array, *, far: ServedPrices | None = None
) -> Seconds:
    """One way of one micro-batch through all layers, of T tokens a rank in an iteration [s].

    In each layer the busier end: of T / M tokens, an attention device sends its 1 / tp to each device that they reach;
    an expert device takes in its share of what all A ranks send. Where the experts' devices are of another kind, those
    of `far`, each end carries its part at the rate of its own nodes' network.
    """
    applied = of(one, Disaggregation)
    devices = float(applied.devices)
    rows = np.maximum(tokens / applied.micro_batches, 1.0)
    total: Seconds | None = None
    for count, piece in expert_layers(served):
        reached = reached_devices(devices, piece.top_k)
        if far is None:
            found = applied.one_way(SentActivations(
                rows=rows, row_bytes=piece.hidden * _ACTIVATION_BYTES, reached=reached, tp=one.tp, dp=one.dp,
                node=int(prices.machine.tiers[0].size), over=partial(prices.send, stride=instance_devices(one) - 1),
                gathered=prices.gathered,
            ))  # fmt: skip
        else:
            copies = rows * reached
            sent, taken = (
                part * piece.hidden * _ACTIVATION_BYTES for part in (copies / one.tp, copies * one.dp / devices)
            )
            found = _later(prices.outward(sent), far.outward(taken))
        part = found.times(count)
        total = part if total is None else total + part
    assert total is not None
    return total


def _later(one: Seconds, other: Seconds) -> Seconds:
    """The longer of two sends that are under way together [s]."""
    return Seconds(**{name: np.maximum(value, getattr(other, name)) for name, value in vars(one).items()})


def micro_batches_s(
    attention_s: Array | float, experts_s: Array | float, send_s: Array | float, layers: float, micro: float
) -> Array:
    """An iteration of M micro-batches through L layers, two pools and the links between them, both ways [s].

    t = (L - 1) max(r, M b) + r + (M - 1) b,  r = (a + e + 2 s) / L,  b = max(a, e, s) / L

    A round of a layer takes a micro-batch r, and the busiest of attention, experts and each way of the links b; it
    begins its next layer when it is back, and when the others have been served. The last round fills and drains.

    Parameters
    ----------
    attention_s, experts_s, send_s : array or float [s]
        a, e and s of one micro-batch in all layers.
    layers, micro : float [1]
        L and M.

    Returns
    -------
    array [s]
        Exact for layers and micro-batches that are alike, each resource serving first come, first served.

    >>> round(float(micro_batches_s(4.0, 4.0, 1.0, layers=2.0, micro=3.0)), 3)  # 6 + 5 + 2 x 2
    15.0
    """
    busiest = np.maximum(np.maximum(attention_s, experts_s), send_s) / layers
    turn = (attention_s + experts_s + 2.0 * send_s) / layers
    return (layers - 1.0) * np.maximum(turn, micro * busiest) + turn + (micro - 1.0) * busiest


@clocked
def _micro(rule: Record, tokens: float) -> float:
    """Micro-batches of an iteration: no more than it has tokens [1]."""
    return float(min(float(rule.micro_batches), max(tokens, 1.0)))


@clocked
def _send_s(times: Times, rule: Record, tokens: float) -> float:
    return read(times, rule.send, at_tokens(times, rule, tokens))


@clocked
def micro_batched_s(times: Times, rule: Record, attention: float, mean: float, most: float) -> float:
    """Micro-batches of `attention` [s] on the slowest of ranks that have `mean` and at most `most` tokens [s]."""
    experts, send = group_s(times, rule, mean, True), _send_s(times, rule, most)
    layers, micro = float(rule.expert_layers), _micro(rule, most)
    busiest = max(attention, experts, send) / layers
    turn = (attention + experts + 2.0 * send) / layers
    return (layers - 1.0) * max(turn, micro * busiest) + turn + (micro - 1.0) * busiest


@clocked
def micro_batched_lines(times: Times, rule: Record, busiest: float, mean: float, least: float) -> Lines:
    """The lines of a decode step over a micro-batch's attention, as `clock.decode_lines`.

    Whether a round or the busiest resource sets the pace, and whether that is attention.
    """
    captured = padded(times, rule, busiest)
    batch = captured if captured > 0.0 else busiest
    shared = max(mean, 1.0) * (batch / max(busiest, 1.0))
    own = token_s(times, rule, batch) - rule.exposed_s
    experts, send = group_s(times, rule, shared, False), _send_s(times, rule, batch)
    micro, layers = _micro(rule, batch), rule.expert_layers
    extra = rule.exposed_s + head_s(times, rule, batch)
    turn, other = own + experts + 2.0 * send, max(experts, send)
    drained, paced = (micro - 1.0) / layers, micro - 1.0 / layers
    return (
        max(least, 0.0 if captured > 0.0 else float(rule.eager_s)),
        extra + turn + drained * own, 1.0 + drained,
        extra + turn + drained * other, 1.0,
        extra + turn / layers + paced * own, 1.0 / layers + paced,
        extra + turn / layers + paced * other, 1.0 / layers,
    )  # fmt: skip


def replicated(served: Served, one: Deployment) -> Served:
    """The model with the replicas of its placement: as many experts on a rank as it has slots."""
    redundant = of(one, Placement).redundant + of(one, Disaggregation).replicas
    if not redundant:
        return served

    def more(piece: Piece) -> Piece:
        if not isinstance(piece, Experts):
            return piece
        return replace(piece, count=-(-(piece.count + redundant) // piece.ranks) * piece.ranks)

    kinds = [replace(kind, pieces=tuple(map(more, kind.pieces))) for kind in served.kinds]
    return replace(served, kinds=tuple(kinds))


def even_imbalance(experts: int, redundant: int, ranks: int) -> float:
    """Load of the fullest of R ranks over the mean where E experts are asked for alike [1].

    Replicas are spread over experts, and the copies of each, those with fewest first, go to the least loaded ranks with
    a free slot, one to a rank.
    """
    slots = -(-(experts + redundant) // ranks)
    each, more = divmod(experts + redundant, experts)
    open_ranks, full = [(0.0, 0)] * ranks, 0.0
    for copies in [each] * (experts - more) + [each + 1] * more:
        for load, held in [heappop(open_ranks) for _ in range(min(copies, len(open_ranks)))]:
            full = max(full, load + 1.0 / copies)
            if held + 1 < slots:
                heappush(open_ranks, (load + 1.0 / copies, held + 1))
    return full * ranks / experts


def evenly_placed(one: Deployment, model: Model) -> Deployment:
    """The deployment with the imbalance of its replicas for even loads, where it says none.

    Raises `PlanError` for replicas of a model without experts.
    """
    placement, ranks = of(one, Placement), expert_ranks(one)
    if not placement.redundant or placement.imbalance is not None or ranks == 1:
        return one
    experts = max((block.experts for block in model.graph.blocks.values()), default=0)
    if not experts:
        raise PlanError(f"deployment: expert_redundant = {placement.redundant}, but {model.name} has no experts")
    return replaced(one, expert_imbalance=even_imbalance(experts, placement.redundant, ranks))
