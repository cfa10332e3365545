"""What each pipeline stage does for one micro-batch, and what it must exchange once a step.

Shape letters: K plans (any leading axes), P stages, v chunks per stage, L layers. Layouts may hold arrays over
plans; the number of stages and chunks is the same for all plans of one call.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from dataclasses import replace
from functools import partial
from typing import TypedDict

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ridgeline.cost.machine import Machine
from ridgeline.cost.network import send_seconds
from ridgeline.cost.phases import BlockCost
from ridgeline.cost.price import Pricer
from ridgeline.graph.model import Model
from ridgeline.graph.workload import PRECISIONS, Workload
from ridgeline.lower.params import RankParams, optimizer_states
from ridgeline.lower.work import CollectiveKind, Layout, Number
from ridgeline.seams.data_exchange import data_exchange
from ridgeline.seams.offload import OPTIMIZER
from ridgeline.seams.recompute import RecomputeRule, recompute_rule
from ridgeline.seams.registry import each_name
from ridgeline.seams.schedule import PipelineSchedule, SharedPasses
from ridgeline.training.exchanges import (
    CopySeconds,
    Sharding,
    copy_seconds,
    exchange_copies,
    exchange_seconds,
    exchanged_s,
    send_tables,
)
from ridgeline.training.optimizer import RankUpdate, added, optimizer_seconds
from ridgeline.training.paired import saved_s
from ridgeline.training.sharded_work import ShardedWork, ShardedWorks
from ridgeline.training.stage_times import LayoutCost, StageLayers, StageTimes, on_chunks

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
WEIGHTS = 3  # stage of ZeRO that shards them


class StageModel:
    """Prices the stages of one model on one machine for one workload."""

    def __init__(self, model: Model, machine: Machine, workload: Workload) -> None:
        self.model, self.machine, self.workload = model, machine, workload
        self.precision = PRECISIONS[workload.precision]
        self.forwards = optimizer_states(workload).forwards()
        exchange = None
        if model.techniques:
            from ridgeline.seams.experts import expert_exchange

            exchange = expert_exchange(model.techniques, model.graph)
        self.pricer = Pricer(machine, workload, exchange=exchange)
        self.copies = exchange_copies(workload)
        self.exchange = data_exchange(model.techniques)
        self.block_names = tuple(model.graph.blocks)
        self.sharded = ShardedWorks(model.graph, workload)

    def on(self, machine: Machine) -> StageModel:
        """The same prices of layers, with exchanges and sends between stages on a machine of the same devices."""
        other = copy(self)
        other.machine = machine
        return other

    def repriced(self, machine: Machine) -> StageModel:
        """The same work on a machine whose rates alone differ; what each layer does is not looked up again."""
        other = self.on(machine)
        other.pricer = self.pricer.on(machine)
        return other

    def price(self, layout: Layout, recompute: Iterable[str] = ()) -> LayoutCost:
        """Price every block kind and both ends for a layout, and of layers what rules of `recompute` repeat."""
        repeated = [name for name in recompute if self.rule(name).repeats()]
        found = self.sharded.layers(layout)
        return LayoutCost(
            layout=layout,
            blocks={name: self._priced(layout, one, repeated) for name, one in found.items()},
            block_params={name: one.params for name, one in found.items()},
            **self._ends(layout),
        )

    def _ends(self, layout: Layout) -> _Ends:
        """Prices and parameters of embedding and head."""
        embedded, headed = self.sharded.ends(layout).values()
        return _Ends(
            embedding=self._priced(layout, embedded), head=self._priced(layout, headed),
            embedding_params=embedded.params, head_params=headed.params,
        )  # fmt: skip

    def _priced(self, layout: Layout, one: ShardedWork, recompute: Iterable[str] = ()) -> BlockCost:
        tensors = one.params.tensors
        return self.pricer.block(one.work, layout, tensors=tensors, python=one.python, recompute=recompute)

    def shared(self, cost: LayoutCost, schedule: PipelineSchedule, stages: int) -> LayoutCost:
        """The prices where each of so many stages has a share of the ends, if the schedule says so; no exchanges yet.

        What an end does besides its tables and logits, as a norm, is done by every stage.
        """
        if not schedule.barriers():
            return cost
        divided = replace(cost.layout, tp=np.asarray(cost.layout.tp) * stages, sequence_parallel=0)
        return replace(cost, **self._ends(divided), exchanges={})

    def rule(self, recompute: str) -> RecomputeRule:
        """The rule of recompute that a plan names, as the workload's framework understands it."""
        return recompute_rule(recompute, self.workload.policy.selective)

    def spread(
        self, split: tuple[int, ...], schedule: PipelineSchedule, chunks: int, *, chosen: Bools | None = None
    ) -> tuple[NDArray[np.int64], Floats, Floats]:
        """Layers of each block kind (P, v, kinds), embeddings and heads (P, v) of every stage and chunk [1].

        `split` are the layers of each place in one chain; `chosen` (L,) are those that count (None: all). Shares of the
        ends are with the first chunk of each stage.
        """
        places = schedule.layer_places(len(split) * schedule.copies // chunks, chunks)
        kinds = np.array([self.block_names.index(name) for name in self.model.graph.layers])
        place_of_layer = np.searchsorted(np.cumsum(split), np.arange(len(kinds)), side="right")
        table = np.zeros((len(split), len(self.block_names)), dtype=np.int64)
        np.add.at(table, (place_of_layer, kinds), 1 if chosen is None else chosen.astype(np.int64))
        ending = 0 if schedule.routed else places.max()
        first, last = (places == 0).astype(float), (places == ending).astype(float)
        if schedule.barriers():
            first = last = np.broadcast_to(np.arange(chunks) == 0, places.shape).astype(float)
        return table[places], first, last

    def held(
        self,
        cost: LayoutCost,
        split: tuple[int, ...],
        schedule: PipelineSchedule,
        chunks: int,
        *,
        chosen: Bools | None = None,
    ) -> StageLayers:
        """What `spread` says, with its prices."""
        counts, first, last = self.spread(split, schedule, chunks, chosen=chosen)
        cost = cost.forwards_alone(self.forwards)
        return StageLayers(cost=cost, names=self.block_names, counts=counts, first=first, last=last)

    def times(
        self,
        held: StageLayers,
        *,
        sharding: Sharding,
        schedule: PipelineSchedule,
        recompute: ArrayLike = "none",
        recompute_layers: Number | None = None,
    ) -> StageTimes:
        """All times of the stages for these plans; `recompute` names rules, `recompute_layers` limit those by layer."""
        alone = replace(held, last=held.last * 0.0) if schedule.barriers() else held
        forward, inputs, weights = (alone.chunks(partial(_phase, part)) for part in _PARTS)
        for name, chosen in each_name(recompute):
            if self.rule(name).repeats():
                again_s = held.layers(partial(_again, name))
                again_s = again_s * (_covered(held, recompute_layers) if self.rule(name).by_layer else 1.0)
                inputs = inputs + np.where(chosen[..., None, None], again_s, 0.0)
        found = self._exchanges(held, sharding)
        layout = held.cost.layout
        ranks = np.asarray(layout.tp) * layout.cp * sharding.dp
        onward, homeward = send_tables(
            schedule.places(*held.first.shape), ranks, self.machine, partial(self.send_seconds, layout),
            chains=schedule.copies,
        )  # fmt: skip
        copies = self._copies(held, sharding)
        exchanged = copies.once_s + self._once(held, sharding, schedule)
        at = schedule.layer_places(*held.first.shape)
        apart = 2.0 - (at == 0) - (at == at.max())
        neighbours = np.where(np.asarray(sharding.pp)[..., None, None] > 1, apart, 0.0)
        messages = neighbours * self.pricer.message_seconds()
        turns, back_turns = self.turns((held, sharding))
        made = StageTimes(
            forward_s=forward + copies.gathered_s + messages + turns,
            backward_input_s=inputs + copies.gathered_s + messages + back_turns,
            backward_weight_s=weights + copies.reduced_s,
            send_forward_s=onward,
            send_backward_s=homeward,
            gather_s=found["gather"],
            reduce_s=found["reduce"],
            pieces=np.maximum(1, held.counts.sum(axis=-1)),
            optimizer_s=self.update_s((held, sharding)) + exchanged,
            gather_copy_s=copies.gathered_s,
            reduce_copy_s=copies.reduced_s,
            exchanged_s=exchanged,
            message_s=messages,
            back_gather_s=found.get("back_gather"),
            gather_once_s=found.get("gather_once", 0.0),
            reduce_once_s=found.get("reduce_once", 0.0),
            delayed_s=found["delayed"].sum(axis=-1) if "delayed" in found else 0.0,
            turn_s=turns,
            back_turn_s=back_turns,
            shared=self._shared(held, sharding, schedule.barriers()) if schedule.barriers() else None,
            paired_s=saved_s(held) if schedule.paired else None,
        )
        return made.without_backward() if self.forwards else made

    def _once(self, held: StageLayers, sharding: Sharding, schedule: PipelineSchedule) -> Floats | float:
        """Seconds of what stages exchange and copy once a step beside their layers' exchanges, (..., P)."""
        tied = self.model.graph.tied_embeddings and not schedule.barriers()
        kept_up = self.exchange.updated_bytes(self.precision.weight_bytes) > 0
        if not (tied or schedule.copies > 1 or kept_up):
            return 0.0
        from ridgeline.training.exchanges import OnceAStep

        once = OnceAStep(
            held=held, sharding=sharding, graph=self.model.graph, workload=self.workload, machine=self.machine
        )
        found = once.tied_s() if tied else 0.0
        if schedule.copies > 1:
            found = found + once.mirrored_s(self.exchange)
        return found + once.kept_up_s(self.exchange, self._update(held, sharding).numbers) if kept_up else found

    def _shared(self, held: StageLayers, sharding: Sharding, barriers: int) -> SharedPasses:
        """Times of the vocabulary's passes and of what stages exchange around them [s].

        The last place's result, and the gradient that comes back to it, cross a ring of the stages once: as long as to
        gather as much. Statistics are three fp32 numbers of a token.
        """
        head, layout, stages = held.cost.head, held.cost.layout, held.counts.shape[-3]
        forward, inputs, weights = (np.asarray(getattr(head, part).seconds)[..., None] for part in _PARTS)
        early, late = (forward + inputs, weights) if barriers == 1 else (forward, inputs + weights)
        each = np.asarray(layout.tp) * layout.cp * sharding.dp
        moved = partial(exchanged_s, ranks=stages, stride=each, machine=self.machine)
        whole = moved(CollectiveKind.ALL_GATHER, self.sent_bytes(layout))
        told = moved(CollectiveKind.ALL_REDUCE, layout.tokens(self.workload.seq_len) * _STATISTICS_BYTES)
        ends = (told + whole,) if barriers == 1 else (told, whole)
        one = np.ones(stages)
        return SharedPasses(
            forward_s=early * one, backward_s=late * one, spread_s=np.asarray(whole),
            barriers_s=tuple(map(np.asarray, ends)),
        )  # fmt: skip

    def turns(self, *parts: tuple[StageLayers, Sharding]) -> tuple[Floats, Floats]:
        """Host time of a micro-batch at one chunk beside its layers, forward and backward, less the device's work [s].

        Where weights are sharded, what collects and lets go of them around each layer comes on top. Layers of a chunk
        that are sharded in different ways are `parts`.
        """
        python = self.pricer.python_seconds
        forward: Floats | float = python("turn") * max(1, self.forwards)
        backward: Floats | float = 0.0
        ahead, behind = [], []
        for held, sharding in parts:
            whole = np.asarray(sharding.zero)[..., None, None] >= WEIGHTS
            forward = forward + _where(whole, python("sharded.turn") + self._collected(held, "forward"))
            backward = backward + _where(whole, self._collected(held, "backward"))
            before, *after = (held.chunks(partial(_phase, part, what="ahead")) for part in _PARTS)
            ahead.append(before)
            behind.append(sum(after))
        return np.maximum(forward - sum(ahead), 0.0), np.maximum(backward - sum(behind), 0.0)

    def _collected(self, held: StageLayers, when: str) -> Floats:
        """Host time around a chunk's layers whose weights are sharded, by layer and by trained tensor [s]."""
        each_s, tensor_s = (self.pricer.python_seconds(f"sharded.{when}{part}") for part in ("", ".tensor"))
        total = np.zeros(held.counts.shape[:-1])
        for params, count in held.held()[:-2]:
            total = total + count * (each_s + on_chunks(params.tensors) * tensor_s)
        return total

    def _copies(self, held: StageLayers, sharding: Sharding) -> CopySeconds:
        """Copies around exchanges of each chunk [s]."""
        layout = held.cost.layout
        whole = np.asarray(layout.tp) * layout.cp * sharding.dp
        # who has anyone to exchange with
        spread = (np.asarray(layout.cp) * sharding.dp > 1, whole / (np.asarray(layout.ep) * layout.etp) > 1)

        def numbers(names: tuple[str, str]) -> Floats:
            """Numbers of a chunk that are exchanged, (..., P, v)."""
            total: Number = 0.0
            for params, count in held.held():
                one = sum(np.asarray(getattr(params, name)) * on for name, on in zip(names, spread, strict=True))
                total = total + on_chunks(one) * count
            return np.asarray(total)

        device = self.machine.device
        rate = device.memory_bytes_per_s * device.stream_share
        moved = (numbers(("dense", "expert")), numbers(("trained_dense", "trained_expert")))
        return copy_seconds(self.copies, moved, np.asarray(sharding.zero)[..., None, None], rate)

    def sent_bytes(self, layout: Layout) -> Number:
        """What one rank hands to the next stage of one micro-batch [byte]."""
        tokens = layout.sequence_tokens(self.workload.seq_len)
        return tokens * self.model.graph.hidden * self.precision.activation_bytes

    def send_seconds(self, layout: Layout, stride: float) -> Number:
        """Time to hand one micro-batch's activations to a rank `stride` devices away [s]."""
        return send_seconds(self.sent_bytes(layout), stride, self.machine)

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
        found = exchange_seconds(
            cost.layout, together, sharding, workload=self.workload, machine=self.machine, exchange=self.exchange
        )
        return replace(cost, exchanges={name: tuple(np.asarray(each)) for name, each in found.items()})

    def _exchanges(self, held: StageLayers, sharding: Sharding) -> dict[str, Floats]:
        """Seconds of each exchange of each chunk, (..., P, v)."""
        priced = held.cost if held.cost.exchanges else self.exchanged(held.cost, sharding)
        return {
            name: np.asarray(sum(on_chunks(each) * count for each, count in zip(found, held.many(), strict=True)))
            for name, found in priced.exchanges.items()
        }

    def update_s(self, *parts: tuple[StageLayers, Sharding]) -> Floats:
        """Seconds of the optimizer update of each stage, (..., P); layers sharded in different ways are `parts`."""
        work = [self._update(held, sharding) for held, sharding in parts]
        updated_s = optimizer_seconds(
            work[0] if len(work) == 1 else added(work), workload=self.workload, machine=self.machine
        )
        for held, sharding in parts:
            whole = np.asarray(sharding.zero)[..., None] >= WEIGHTS
            updated_s = updated_s + _where(whole, self._collected(held, "step").sum(axis=-1))
        return np.asarray(updated_s)

    def _update(self, held: StageLayers, sharding: Sharding) -> RankUpdate:
        """What one rank of each stage updates, (..., P)."""
        layout = held.cost.layout
        ranks = np.asarray(layout.cp) * sharding.dp
        expert_ranks = np.maximum(1, ranks * layout.tp / (np.asarray(layout.ep) * layout.etp))
        sharded, limited = self.exchange.sharded(OPTIMIZER, sharding.zero), np.asarray(sharding.zero_group) > 0
        shards, expert_shards = (
            np.where(sharded, self.exchange.group(OPTIMIZER, each, np.where(limited, sharding.zero_group, each)), 1)
            for each in (ranks, expert_ranks)
        )
        shards, expert_shards = shards[..., None], expert_shards[..., None]
        return RankUpdate(
            numbers=held.per_stage("trained_dense") / shards + held.per_stage("trained_expert") / expert_shards,
            moved_bytes=held.per_stage("moved_dense") / shards + held.per_stage("moved_expert") / expert_shards,
            flop=held.per_stage("update_flop") / (shards[..., 0] * np.asarray(layout.tp))[..., None],
            tensors=held.per_stage("tensors"),
            shards=shards,
            offload=np.asarray(sharding.offload_optimizer)[..., None],
            resident=np.asarray(sharding.offload_weights)[..., None],
        )


def _covered(held: StageLayers, recompute_layers: Number | None) -> Number:
    """Share of each stage's layers that a rule by layer covers, (..., P, 1) [1]."""
    if recompute_layers is None:
        return 1.0
    share: Floats = np.minimum(1.0, on_chunks(recompute_layers) / np.maximum(held.counts.sum(axis=(1, 2)), 1)[:, None])
    return share


def _again(name: str, block: BlockCost) -> Number:
    return block.again[name].seconds


def _phase(part: str, block: BlockCost, *, what: str = "seconds") -> Number:
    found: Number = getattr(getattr(block, part), what)
    return found


def _where(sharded: Bools, seconds: Floats) -> Floats | float:
    """Seconds where weights are sharded [s]; a plain 0 where there are none, so that no axis of shardings is added."""
    return sharded * seconds if np.any(seconds) else 0.0


class _Ends(TypedDict):
    embedding: BlockCost
    head: BlockCost
    embedding_params: RankParams
    head_params: RankParams


_STATISTICS_BYTES = 12.0  # of a token: the largest logit, the sum of exponents and the right one, in fp32
_PARTS = ("forward", "backward_input", "backward_weight")
