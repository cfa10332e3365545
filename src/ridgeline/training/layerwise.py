"""Stages whose layers are run in different ways: one set of prices, and the times that all of them add up to.

Shape letters: P stages, v chunks per stage, L layers. A layer's own plan has the ranks and the sequences of a pipeline
slot that the whole plan has, and other tensor parallelism, sharding or recompute.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ridgeline.cost.phases import BlockCost
from ridgeline.lower.params import RankParams
from ridgeline.lower.work import CollectiveKind, Layout
from ridgeline.plan.plan import Plan
from ridgeline.seams.schedule import PipelineSchedule
from ridgeline.training.exchanges import Sharding, exchanged_s
from ridgeline.training.stage_times import StageLayers, StageTimes
from ridgeline.training.stages import WEIGHTS, StageModel

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class LayerGroup:
    """Layers that are run alike: the plan as they see it, its prices and sharding, and what chunks hold of them."""

    plan: Plan
    sharding: Sharding
    held: StageLayers


def relayout_s(stages: StageModel, before: Layout, after: Layout) -> tuple[float, float]:
    """Seconds to lay a micro-batch's activations out for layers of another layout, forward and backward [s].

    Ranks of k times the tensor parallelism see k times the sequences. Where both layouts divide tokens among their
    tensor-parallel ranks, each rank sends the others what they need (all-to-all over k ranks). Where tokens are
    repeated on tensor-parallel ranks, the side with more sequences gathers those of the other, one way; the other way
    each takes its part of what it has. Gathered or not changes alike, over all tensor-parallel ranks.
    Bandwidth and latency are those of the collective's tier. Source: Hetu-Galvatron, core/runtime/redistribute.py.
    """
    if (before.tp, before.sequence_parallel) == (after.tp, after.sequence_parallel):
        return 0.0, 0.0
    narrow, wide = sorted((before, after), key=lambda one: float(np.asarray(one.tp)))
    stride = float(np.asarray(narrow.tp))
    ranks = float(np.asarray(wide.tp)) / stride
    element, width = stages.precision.activation_bytes, stages.model.graph.hidden
    sizes = [
        float(np.asarray(one.sequence_tokens(stages.workload.seq_len))) * width * element for one in (before, after)
    ]
    if sizes[0] == sizes[1]:  # the same tokens on each rank, of other sequences
        both = exchanged_s(CollectiveKind.ALL_TO_ALL, sizes[0], ranks, stride, machine=stages.machine)
        return float(both), float(both)
    grown = max(sizes) / min(sizes)
    if ranks < grown or narrow.sequence_parallel != wide.sequence_parallel:
        ranks, stride = max(ranks, grown), 1.0
    gathered = float(exchanged_s(CollectiveKind.ALL_GATHER, max(sizes), ranks, stride, machine=stages.machine))
    return (gathered, 0.0) if sizes[1] > sizes[0] else (0.0, gathered)


def chain_relayouts(
    stages: StageModel, plan: Layout, layers: Sequence[Layout], places: NDArray[np.int64], length: int
) -> Floats:
    """Seconds of all changes of layout in each place of a chain of so many, forward and backward, (2, length) [s].

    `places` (L,) is the place of each layer. A place begins and ends in the layout of the plan.
    """
    total = np.zeros((2, length))
    for place in np.unique(places):
        inside = [layers[one] for one in np.flatnonzero(places == place).tolist()]
        for before, after in zip((plan, *inside), (*inside, plan), strict=True):
            total[:, place] += relayout_s(stages, before, after)
    return total


def merged(groups: Sequence[LayerGroup], relayouts: Floats) -> StageLayers:
    """All layers of the stages with their prices, recompute among them; `relayouts` (2, P, v) [s]."""
    first = groups[0].held
    blocks: dict[str, BlockCost] = {}
    params: dict[str, RankParams] = {}
    counts: list[NDArray[np.int64]] = []
    for number, group in enumerate(groups):
        for index, name in enumerate(group.held.names):
            if not group.held.counts[..., index].any():
                continue
            block = group.held.cost.blocks[name]
            if group.plan.recompute in block.again:
                again = block.again[group.plan.recompute]
                block = replace(block, backward_input=block.backward_input + again, again={})
            blocks[f"{name} {number}"] = block
            params[f"{name} {number}"] = group.held.cost.block_params[name]
            counts.append(group.held.counts[..., index])
    return StageLayers(
        cost=replace(first.cost, blocks=blocks, block_params=params, exchanges={}),
        names=tuple(blocks),
        counts=np.stack(counts, axis=-1),
        first=first.first,
        last=first.last,
        relayouts=relayouts,
    )


def layered_times(
    stages: StageModel, groups: Sequence[LayerGroup], relayouts: Floats, schedule: PipelineSchedule
) -> StageTimes:
    """Times of stages whose layers are of several groups, the first with the ends; `relayouts` (2, P, v) [s]."""
    each = [
        stages.times(group.held, sharding=group.sharding, schedule=schedule, recompute=group.plan.recompute)
        for group in groups
    ]
    pairs = [(group.held, group.sharding) for group in groups]
    turns, back_turns = stages.turns(*pairs)
    message = each[0].message_s

    def total(name: str, *less: str) -> Floats:
        values = (getattr(one, name) - sum((getattr(one, part) for part in less), start=0.0) for one in each)
        return np.asarray(sum(values))

    def where(name: str, chosen: Sequence[bool]) -> Floats:
        found = sum((getattr(one, name) for one, yes in zip(each, chosen, strict=True) if yes), start=0.0)
        return np.zeros(each[0].forward_s.shape) + found

    zero = [int(np.asarray(group.sharding.zero)) for group in groups]
    exchanged = total("exchanged_s")
    return replace(
        each[0],
        forward_s=total("forward_s", "message_s", "turn_s") + message + turns + relayouts[0],
        backward_input_s=total("backward_input_s", "message_s", "back_turn_s") + message + back_turns + relayouts[1],
        backward_weight_s=total("backward_weight_s"),
        gather_s=where("gather_s", [one >= WEIGHTS for one in zero]),
        gather_once_s=where("gather_s", [1 <= one < WEIGHTS for one in zero]),
        reduce_s=where("reduce_s", [one >= 2 for one in zero]),
        reduce_once_s=where("reduce_s", [one < 2 for one in zero]),
        pieces=np.maximum(1, sum(group.held.counts.sum(axis=-1) for group in groups)),
        optimizer_s=stages.update_s(*pairs) + exchanged,
        gather_copy_s=total("gather_copy_s"),
        reduce_copy_s=total("reduce_copy_s"),
        exchanged_s=exchanged,
        turn_s=turns,
        back_turn_s=back_turns,
    )
