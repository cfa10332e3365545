"""What each pipeline stage does for one micro-batch, and what it must exchange once a step.

Shape letters: K plans (any leading axes), P stages, v chunks per stage, L layers. Layouts may hold arrays over
plans; the number of stages and chunks is the same for all plans of one call.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ridgeline.cost.machine import Machine
from ridgeline.cost.network import between, send_seconds
from ridgeline.cost.price import BlockCost, Pricer
from ridgeline.graph.ops import Model
from ridgeline.graph.workload import PRECISIONS, Workload
from ridgeline.lower.chains import Chains
from ridgeline.lower.params import RankParams, rank_params
from ridgeline.lower.shard import Sharder
from ridgeline.lower.work import CollectiveKind, Layout, Number
from ridgeline.seams.recompute import RecomputeRule, each_name, recompute_rule
from ridgeline.seams.schedule import Integers, PipelineSchedule
from ridgeline.training.exchanges import (
    CopySeconds,
    Sharding,
    copy_seconds,
    exchange_copies,
    exchange_seconds,
    exchanged_s,
    send_tables,
)
from ridgeline.training.optimizer import optimizer_seconds

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
WEIGHTS = 3  # stage of ZeRO that shards them


@dataclass(frozen=True, kw_only=True)
class LayoutCost:
    """Prices and parameters of every block kind and of the two ends for one layout (or many).

    `gather_s` and `reduce_s` are seconds to collect the weights and to reduce the gradients of a layer of each block
    kind, of the embedding and of the head, once `StageModel.exchanged` has priced them; empty before.
    """

    layout: Layout
    blocks: Mapping[str, BlockCost]
    block_params: Mapping[str, RankParams]
    embedding: BlockCost
    head: BlockCost
    embedding_params: RankParams
    head_params: RankParams
    gather_s: tuple[Number, ...] = ()
    reduce_s: tuple[Number, ...] = ()

    def with_logits(self, again: Number) -> LayoutCost:
        """The same where backward multiplies hidden states and head `again` times more [1]."""
        return replace(self, head=self.head.multiplied_again(again)) if np.any(again) else self


@dataclass(frozen=True, kw_only=True)
class StageTimes:
    """Seconds per micro-batch and chunk (..., P, v), and once-a-step seconds (..., P).

    `gather_s` collects a chunk's weights, `reduce_s` reduces its gradients; `pieces` is the number of layers that a
    chunk's exchange is cut into. `optimizer_s` is the update of one stage, `final_gather_s` the collection of the
    updated weights when it is not hidden. `gather_copy_s` of each forward and backward, and `reduce_copy_s` of each
    backward, are copies around exchanges; `message_s` of each forward and backward is the host's time for its messages,
    `turn_s` of each forward, and `back_turn_s` of each backward, that of the program around its layers where the device
    does not work that long.
    `host_copy_s` is the time in which the host link takes what a chunk's forward keeps, and again gives it back;
    `host_wait_s` of each forward and `host_back_wait_s` of each backward is what that takes longer than the compute.
    `exchanged_s` is the part of `optimizer_s` that is no update: copies around exchanges once a step, and the sum of a
    tied embedding's gradients over the first and the last stage.
    """

    forward_s: Floats
    backward_input_s: Floats
    backward_weight_s: Floats
    send_forward_s: Floats
    send_backward_s: Floats
    gather_s: Floats
    reduce_s: Floats
    pieces: NDArray[np.int64]
    optimizer_s: Floats
    gather_copy_s: Floats | float = 0.0
    reduce_copy_s: Floats | float = 0.0
    exchanged_s: Floats | float = 0.0
    message_s: Floats | float = 0.0
    turn_s: Floats | float = 0.0
    back_turn_s: Floats | float = 0.0
    host_copy_s: Floats | float = 0.0
    host_wait_s: Floats | float = 0.0
    host_back_wait_s: Floats | float = 0.0


class StageModel:
    """Prices the stages of one model on one machine for one workload."""

    def __init__(self, model: Model, machine: Machine, workload: Workload) -> None:
        self.model, self.machine, self.workload = model, machine, workload
        self.precision = PRECISIONS[workload.precision]
        self.pricer = Pricer(machine, workload)
        self.copies = exchange_copies(workload)
        self.block_names = tuple(model.graph.blocks)

    def price(self, layout: Layout, recompute: Iterable[str] = ()) -> LayoutCost:
        """Price every block kind and both ends for a layout, and of layers what rules of `recompute` repeat."""
        repeated = [name for name in recompute if self.rule(name).repeats()]
        sharder, graph = Sharder(self.workload, layout), self.model.graph
        params = {
            name: rank_params(block.ops, layout, self.workload, experts=block.experts)
            for name, block in graph.blocks.items()
        }
        embedded, headed = (rank_params(ops, layout, self.workload) for ops in (graph.embedding, graph.head))
        return LayoutCost(
            layout=layout,
            blocks={
                name: self.pricer.block(
                    sharder.block(block),
                    layout,
                    tensors=params[name].tensors,
                    python=Chains(self.workload, layout).python(block),
                    recompute=repeated,
                )
                for name, block in graph.blocks.items()
            },
            block_params=params,
            embedding=self.pricer.block(
                sharder.end(graph.embedding), layout, tensors=embedded.tensors, python={"embedding": 1.0}
            ),
            head=self.pricer.block(sharder.head(graph.head), layout, tensors=headed.tensors, python={"loss": 1.0}),
            embedding_params=embedded,
            head_params=headed,
        )

    def rule(self, recompute: str) -> RecomputeRule:
        """The rule of recompute that a plan names, as the workload's framework understands it."""
        return recompute_rule(recompute, self.workload.policy.selective)

    def counts(self, split: tuple[int, ...], places: Integers) -> NDArray[np.int64]:
        """Layers of each block kind on each stage and chunk, (P, v, kinds) [1]; `places` (P, v) of one chain."""
        kinds = np.array([self.block_names.index(name) for name in self.model.graph.layers])
        ends = np.cumsum(split)
        place_of_layer = np.searchsorted(ends, np.arange(len(kinds)), side="right")
        table = np.zeros((len(split), len(self.block_names)), dtype=np.int64)
        np.add.at(table, (place_of_layer, kinds), 1)
        return table[places]

    def ends(self, places: Integers) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Where the embedding and the head run: two (P, v) arrays of 0 and 1."""
        return (places == 0).astype(float), (places == places.max()).astype(float)

    def times(
        self,
        cost: LayoutCost,
        counts: NDArray[np.int64],
        first: NDArray[np.float64],
        last: NDArray[np.float64],
        *,
        recompute: ArrayLike,
        sharding: Sharding,
        recompute_layers: Number | None = None,
        schedule: PipelineSchedule,
    ) -> StageTimes:
        """All times of the stages for these plans; counts (P, v, kinds), first and last (P, v)."""
        forward, inputs, weights = (self._sum(cost, counts, first, last, part) for part in _PARTS)
        share: Number = 1.0
        if recompute_layers is not None:
            share = np.minimum(
                1.0, np.asarray(recompute_layers)[..., None, None] / np.maximum(counts.sum(axis=(1, 2)), 1)[:, None]
            )
        for name, chosen in each_name(recompute):
            if self.rule(name).repeats():
                again_s = self._repeated(cost, counts, name) * (share if self.rule(name).by_layer else 1.0)
                inputs = inputs + np.where(chosen[..., None, None], again_s, 0.0)
        gather, reduce = self._exchanges(cost, counts, first, last, sharding)
        onward, homeward = self._sends(cost.layout, sharding, schedule.places(*first.shape), schedule.copies)
        copies = self._copies(cost, counts, first, last, sharding)
        exchanged = copies.once_s + self._tied(cost.layout, first, last, sharding)
        if schedule.copies > 1:
            exchanged = exchanged + self._mirrored(cost, counts, first, last, sharding)
        neighbours = np.where(np.asarray(sharding.pp)[..., None, None] > 1, 2.0 - first - last, 0.0)
        messages = neighbours * self.pricer.message_seconds()
        turns, back_turns = self._turns(cost, counts, first, last, sharding)
        return StageTimes(
            forward_s=forward + copies.gathered_s + messages + turns,
            backward_input_s=inputs + copies.gathered_s + messages + back_turns,
            backward_weight_s=weights + copies.reduced_s,
            send_forward_s=onward,
            send_backward_s=homeward,
            gather_s=gather,
            reduce_s=reduce,
            pieces=np.maximum(1, counts.sum(axis=-1)),
            optimizer_s=self._update(cost, counts, first, last, sharding) + exchanged,
            gather_copy_s=copies.gathered_s,
            reduce_copy_s=copies.reduced_s,
            exchanged_s=exchanged,
            message_s=messages,
            turn_s=turns,
            back_turn_s=back_turns,
        )

    def _turns(
        self, cost: LayoutCost, counts: NDArray[np.int64], first: Floats, last: Floats, sharding: Sharding
    ) -> tuple[Floats, Floats]:
        """Host time of a micro-batch at one chunk beside its layers, forward and backward, less the device's work [s].

        Where weights are sharded, what collects and lets go of them around each layer comes on top.
        """
        python = self.pricer.python_seconds
        whole = np.asarray(sharding.zero)[..., None, None] >= WEIGHTS
        forward = python("turn") + _where(whole, python("sharded.turn") + self._collected(cost, counts, "forward"))
        ahead, *behind = (
            self._sum(cost, counts, first, last, part, "ahead")
            for part in ("forward", "backward_input", "backward_weight")
        )
        backward = _where(whole, self._collected(cost, counts, "backward"))
        return np.maximum(forward - ahead, 0.0), np.maximum(backward - sum(behind), 0.0)

    def _collected(self, cost: LayoutCost, counts: NDArray[np.int64], when: str) -> Floats:
        """Host time around a chunk's layers whose weights are sharded, by layer and by trained tensor [s]."""
        each_s, tensor_s = (self.pricer.python_seconds(f"sharded.{when}{part}") for part in ("", ".tensor"))
        total = np.zeros(counts.shape[:-1])
        for index, name in enumerate(self.block_names):
            tensors = np.asarray(cost.block_params[name].tensors)[..., None, None]
            total = total + counts[..., index] * (each_s + tensors * tensor_s)
        return total

    def _copies(
        self, cost: LayoutCost, counts: NDArray[np.int64], first: Floats, last: Floats, sharding: Sharding
    ) -> CopySeconds:
        """Copies around exchanges of each chunk [s]."""
        layout = cost.layout
        whole = np.asarray(layout.tp) * layout.cp * sharding.dp
        experts_stride = np.asarray(layout.ep) * layout.etp
        spread = (
            np.asarray(layout.cp) * sharding.dp > 1,
            whole / experts_stride > 1,
        )  # who has anyone to exchange with

        def held(names: tuple[str, str]) -> Floats:
            """Numbers of a chunk that are exchanged, (..., P, v)."""
            total: Number = 0.0
            parts = [(cost.block_params[name], counts[..., i]) for i, name in enumerate(self.block_names)]
            for params, count in [*parts, (cost.embedding_params, first), (cost.head_params, last)]:
                one = sum(np.asarray(getattr(params, name)) * on for name, on in zip(names, spread, strict=True))
                total = total + np.asarray(one)[..., None, None] * count
            return np.asarray(total)

        device = self.machine.device
        rate = device.memory_bytes_per_s * device.stream_share
        numbers = (held(("dense", "expert")), held(("trained_dense", "trained_expert")))
        return copy_seconds(self.copies, numbers, np.asarray(sharding.zero)[..., None, None], rate)

    def _sum(
        self,
        cost: LayoutCost,
        counts: NDArray[np.int64],
        first: Floats,
        last: Floats,
        part: str,
        what: str = "seconds",
    ) -> Floats:
        def grid(block: BlockCost) -> Floats:
            return np.asarray(getattr(getattr(block, part), what), dtype=np.float64)[..., None, None]

        total = np.zeros(()) * first
        for index, name in enumerate(self.block_names):
            total = total + grid(cost.blocks[name]) * counts[..., index]
        return total + grid(cost.embedding) * first + grid(cost.head) * last

    def _repeated(self, cost: LayoutCost, counts: NDArray[np.int64], recompute: str) -> Floats:
        """What a rule of recompute repeats of each chunk's layers where it covers all of them, (..., P, v) [s]."""
        total = np.zeros(counts.shape[:-1])
        for index, name in enumerate(self.block_names):
            seconds = np.asarray(cost.blocks[name].again[recompute].seconds, dtype=np.float64)
            total = total + seconds[..., None, None] * counts[..., index]
        return total

    def sent_bytes(self, layout: Layout) -> Number:
        """What one rank hands to the next stage of one micro-batch [byte]."""
        tokens = layout.sequence_tokens(self.workload.seq_len)
        return tokens * self.model.graph.hidden * self.precision.activation_bytes

    def send_seconds(self, layout: Layout, stride: float) -> Number:
        """Time to hand one micro-batch's activations to a rank `stride` devices away [s]."""
        return send_seconds(self.sent_bytes(layout), stride, self.machine)

    def _sends(self, layout: Layout, sharding: Sharding, places: Integers, chains: int) -> tuple[Floats, Floats]:
        ranks = np.asarray(layout.tp) * layout.cp * sharding.dp
        return send_tables(places, ranks, self.machine, partial(self.send_seconds, layout), chains=chains)

    def _tied(self, layout: Layout, first: Floats, last: Floats, sharding: Sharding) -> Floats:
        """Seconds in which the first and the last stage add up the gradients of the embedding they share, (..., P)."""
        graph, stages = self.model.graph, np.asarray(sharding.pp)
        ends = (first + last).sum(axis=-1)
        if not graph.tied_embeddings:
            return np.zeros(ends.shape)
        size = graph.vocab * graph.hidden * self.precision.grad_bytes / np.asarray(layout.tp)
        each = np.asarray(layout.tp) * layout.cp * sharding.dp
        stride = between(np.zeros_like(each), each * stages - 1, self.machine)
        both = exchanged_s(CollectiveKind.ALL_REDUCE, size, np.where(stages > 1, 2, 1), stride, machine=self.machine)
        found: Floats = np.asarray(both)[..., None] * (ends > 0)
        return found

    def exchanged(self, cost: LayoutCost, sharding: Sharding) -> LayoutCost:
        """The prices with seconds of exchange under these shardings, for `times` of any chunks and schedule."""
        held = (*(cost.block_params[name] for name in self.block_names), cost.embedding_params, cost.head_params)
        axes = np.broadcast(
            cost.layout.tp, sharding.dp, sharding.zero, sharding.zero_group, sharding.offload_weights
        ).ndim
        names = ("dense", "trained_dense", "quantized_dense", "expert", "trained_expert", "quantized_expert")

        def stacked(name: str) -> Floats:
            """A field of all of them on a leading axis, so that each collective is priced once."""
            values = np.stack(np.broadcast_arrays(*(np.asarray(getattr(params, name), dtype=float) for params in held)))
            return values.reshape(len(held), *[1] * (axes + 1 - values.ndim), *values.shape[1:])

        together = replace(held[0], **{name: stacked(name) for name in names})
        gather, reduce = exchange_seconds(cost.layout, together, sharding, workload=self.workload, machine=self.machine)
        return replace(cost, gather_s=tuple(np.asarray(gather)), reduce_s=tuple(np.asarray(reduce)))

    def _mirrored(
        self, cost: LayoutCost, counts: NDArray[np.int64], first: Floats, last: Floats, sharding: Sharding
    ) -> Floats:
        """Seconds in which stages s and P - 1 - s, which hold copies of the same weights, add up gradients (..., P).

        What ZeRO shards is summed by the shard's owners.
        """
        layout, stages = cost.layout, counts.shape[-3]
        each = np.asarray(layout.tp) * layout.cp * sharding.dp
        size = sum(self._per_stage(cost, counts, first, last, f"trained_{kind}") for kind in ("dense", "expert"))
        shard = np.where(np.asarray(sharding.zero) >= 1, np.asarray(layout.cp) * sharding.dp, 1)
        apart = np.abs(stages - 1 - 2 * np.arange(stages))
        strides = [between(np.zeros_like(each), each * far, self.machine) for far in apart]
        gradient = np.asarray(size) * self.precision.grad_bytes / shard[..., None]
        summed = [
            exchanged_s(CollectiveKind.ALL_REDUCE, gradient[..., s], 2 if far else 1, stride, machine=self.machine)
            for s, (far, stride) in enumerate(zip(apart, strides, strict=True))
        ]
        return np.stack(np.broadcast_arrays(*summed), axis=-1)

    def _exchanges(
        self, cost: LayoutCost, counts: NDArray[np.int64], first: Floats, last: Floats, sharding: Sharding
    ) -> tuple[Floats, Floats]:
        """Seconds to collect each chunk's weights and to reduce its gradients, (..., P, v)."""
        priced = cost if cost.gather_s else self.exchanged(cost, sharding)
        many = [*(counts[..., i] for i in range(len(self.block_names))), first, last]
        gather, reduce = (
            sum(np.asarray(each)[..., None, None] * count for each, count in zip(found, many, strict=True))
            for found in (priced.gather_s, priced.reduce_s)
        )
        return np.asarray(gather), np.asarray(reduce)

    def _per_stage(
        self, cost: LayoutCost, counts: NDArray[np.int64], first: Floats, last: Floats, field: str
    ) -> Floats:
        """Sum of a field of `RankParams` over what each stage holds (..., P), in the field's unit."""
        total: Number = 0.0
        for index, name in enumerate(self.block_names):
            layers = counts[..., index].sum(axis=-1)
            total = total + np.asarray(getattr(cost.block_params[name], field))[..., None] * layers
        for params, place in ((cost.embedding_params, first), (cost.head_params, last)):
            total = total + np.asarray(getattr(params, field))[..., None] * place.sum(axis=-1)
        return np.asarray(total)

    def _update(
        self, cost: LayoutCost, counts: NDArray[np.int64], first: Floats, last: Floats, sharding: Sharding
    ) -> Floats:
        """Seconds of the optimizer update of each stage, (..., P)."""
        layout = cost.layout
        ranks = np.asarray(layout.cp) * sharding.dp
        group = np.where(np.asarray(sharding.zero_group) > 0, np.minimum(sharding.zero_group, ranks), ranks)
        expert_ranks = np.maximum(1, ranks * layout.tp / (np.asarray(layout.ep) * layout.etp))
        expert_group = np.where(np.asarray(sharding.zero_group) > 0, np.minimum(group, expert_ranks), expert_ranks)
        sharded = np.asarray(sharding.zero) >= 1
        per_stage = partial(self._per_stage, cost, counts, first, last)
        trained = per_stage("trained_dense") / np.where(sharded, group, 1)[..., None]
        trained = trained + per_stage("trained_expert") / np.where(sharded, expert_group, 1)[..., None]
        moved = per_stage("moved_dense") / np.where(sharded, group, 1)[..., None]
        moved = moved + per_stage("moved_expert") / np.where(sharded, expert_group, 1)[..., None]
        flop = per_stage("update_flop") / (np.where(sharded, group, 1) * np.asarray(layout.tp))[..., None]
        looped_s = self._collected(cost, counts, "step").sum(axis=-1)
        whole = np.asarray(sharding.zero)[..., None] >= WEIGHTS
        updated_s = optimizer_seconds(
            trained,
            workload=self.workload,
            machine=self.machine,
            offload=np.asarray(sharding.offload_optimizer)[..., None],
            resident=np.asarray(sharding.offload_weights)[..., None],
            states_moved_bytes=moved,
            update_flop=flop,
            tensors=per_stage("tensors"),
            shards=np.where(sharded, group, 1)[..., None],
        )
        return np.asarray(updated_s + _where(whole, looped_s))


def _where(sharded: Bools, seconds: Floats) -> Floats | float:
    """Seconds where weights are sharded [s]; a plain 0 where there are none, so that no axis of shardings is added."""
    return sharded * seconds if np.any(seconds) else 0.0


_PARTS = ("forward", "backward_input", "backward_weight")
