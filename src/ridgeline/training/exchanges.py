"""What ranks exchange: when weights are gathered and gradients reduced, how long that takes, its copies and the sends.

Shape letters: P stages, v chunks per stage; dots stand for axes of plans.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ridgeline.cost.machine import Machine
from ridgeline.cost.network import between, collective_seconds
from ridgeline.facts.mechanisms import constant
from ridgeline.graph.model import Graph
from ridgeline.graph.workload import PRECISIONS, Task, Workload
from ridgeline.lower.params import RankParams
from ridgeline.lower.work import Collective, CollectiveKind, Layout, Number, Phase
from ridgeline.memory.profile import EIGHT_BIT_BYTES, NF4_BYTES
from ridgeline.plan.plan import Plan
from ridgeline.seams.data_exchange import EXCHANGES, DataExchange, Hops
from ridgeline.seams.offload import OPTIMIZER
from ridgeline.seams.registry import STRATEGIES, of_family
from ridgeline.training.stage_times import StageLayers, StageTimes

SLOWDOWN = partial(constant, "overlap.compute_slowdown")  # share of the shorter of the two by which compute grows


@dataclass(frozen=True, kw_only=True)
class ShardExchange:
    """When weights are gathered and gradients reduced; each a number or an array over plans (0 or 1)."""

    gather_once: Number  # before the first forward of each chunk (ZeRO 1 and 2)
    gather_always: Number  # before every forward and backward (ZeRO 3)
    reduce_always: Number  # after every backward (ZeRO 2 and 3), else after the last one
    overlap_gather: Number
    overlap_reduce: Number


def exchange_rules(plan: Plan) -> ShardExchange:
    """The exchanges that a plan's sharding asks for."""
    mixed = of_family(STRATEGIES, plan.technique) is not None  # each layer's exchange is told apart by its times
    return ShardExchange(
        gather_once=int(plan.zero in (1, 2) and not mixed),
        gather_always=int(plan.zero == 3 or mixed),
        reduce_always=int(plan.zero >= 2 or mixed),
        overlap_gather=int(plan.overlap_weights),
        overlap_reduce=int(plan.overlap_gradients),
    )


@dataclass(frozen=True, kw_only=True)
class Sharding:
    """Choices about model states; each a number or an array over plans."""

    dp: Number = 1
    pp: Number = 1
    zero: Number = 0
    zero_group: Number = 0  # 0: the whole data-parallel group
    offload_optimizer: Number = 0
    offload_weights: Number = 0


def exchange_seconds(
    layout: Layout, params: RankParams, sharding: Sharding, *, workload: Workload, machine: Machine,
    exchange: DataExchange,
) -> Mapping[str, Number]:  # fmt: skip
    """Seconds of each exchange of one layer that `exchange` has, by names of `LayerExchange` [s].

    Where weights are in host memory, each rank's shard crosses its host link before it is gathered, and the
    gradient's shard after it is reduced (FSDP's CPU offload). A quantized base is gathered as it is held.
    Dense weights belong to dp * cp ranks, tp apart; experts to tp * cp * dp / (ep * etp) ranks, ep * etp apart.
    """
    precision = PRECISIONS[workload.precision]
    dense_ranks = np.asarray(layout.cp) * sharding.dp
    experts_stride = np.asarray(layout.ep) * layout.etp
    expert_ranks = np.maximum(1, np.asarray(layout.tp) * layout.cp * sharding.dp / experts_stride)
    few = NF4_BYTES if workload.task is Task.QLORA else EIGHT_BIT_BYTES
    rate, away = machine.host_link_bytes_per_s, np.asarray(sharding.offload_weights)
    dense = (params.dense, params.trained_dense, params.quantized_dense, dense_ranks, layout.tp)
    expert = (params.expert, params.trained_expert, params.quantized_expert, expert_ranks, experts_stride)
    total: dict[str, Number] = {}
    for held, trained, quantized, ranks, stride in (dense, expert):
        limit = np.where(np.asarray(sharding.zero_group) > 0, np.minimum(sharding.zero_group, ranks), ranks)
        whole, all_ = np.asarray(sharding.zero) >= 3, (held - quantized) * precision.weight_bytes + quantized * few
        weight_bytes = np.where(whole, all_, trained * precision.weight_bytes)
        gradient_bytes = trained * precision.grad_bytes
        gathered = (np.where(whole, held, trained), weight_bytes)
        sizes = dict.fromkeys(("gather", "back_gather"), gathered) | {
            "reduce": (trained, gradient_bytes), "reduce_once": (trained, gradient_bytes),
            "gather_once": (trained, trained * precision.weight_bytes),
            "delayed": (trained, trained * precision.weight_bytes),
        }  # fmt: skip
        said = exchange.layer(sharding.zero, ranks, limit)
        for name in EXCHANGES:
            hops: Hops | None = getattr(said, name)
            if hops:
                total[name] = total.get(name, 0.0) + _hops_s(hops, sizes[name], stride, machine)
        total["gather"] = total.get("gather", 0.0) + away * weight_bytes / limit / rate
        total["reduce"] = total.get("reduce", 0.0) + away * gradient_bytes / limit / rate
    return total


def _hops_s(hops: Hops, size: tuple[Number, Number], stride: Number, machine: Machine) -> Number:
    """Seconds of hops one after another, of so many numbers in so many bytes, with copies around them [s]."""
    (numbers, whole_bytes), total = size, None
    rate = machine.device.memory_bytes_per_s * machine.device.stream_share
    for hop in hops:
        kind = CollectiveKind(hop.kind)
        moved_bytes = np.asarray(whole_bytes if hop.bytes_each is None else numbers * hop.bytes_each) / hop.over
        seconds = exchanged_s(kind, moved_bytes, hop.ranks, np.asarray(stride) * hop.apart, machine=machine)
        if hop.copied_bytes:
            copied_s = np.asarray(numbers) / hop.over * hop.copied_bytes / rate
            seconds = seconds + np.where(np.asarray(hop.ranks) > 1, copied_s, 0.0)
        seconds = seconds if hop.every == 1.0 else seconds / hop.every
        total = seconds if total is None else total + seconds
    return 0.0 if total is None else total


def beside_delayed(times: StageTimes, micro_batches: Number) -> StageTimes:
    """Times with what an exchange beside the whole step takes from its compute, shared out evenly."""
    if not np.any(times.delayed_s):
        return times
    names = ("forward_s", "backward_input_s", "backward_weight_s")
    work_s = sum(getattr(times, name) for name in names).sum(axis=-1) * np.asarray(micro_batches)[..., None]
    longer = 1.0 + SLOWDOWN() * np.minimum(1.0, times.delayed_s / np.maximum(work_s, 1e-30))[..., None]
    return replace(times, **{name: getattr(times, name) * longer for name in names})


def exchanged_s(kind: CollectiveKind, size_bytes: Number, ranks: Number, stride: Number, *, machine: Machine) -> Number:
    """Seconds of one collective over ranks so far apart [s]; none where nothing moves."""
    work = Collective(name=kind.value, phase=Phase.FORWARD, kind=kind, bytes=size_bytes, ranks=ranks, stride=stride)
    return np.where(np.asarray(size_bytes) > 0, collective_seconds(work, machine), 0.0)


Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class ExchangeCopies:
    """Device-memory traffic of copies for each number of a weight [byte].

    `gathered` each time its shards are collected, `reduced` each time its gradient is reduced: with every micro-batch
    where gradients are `sharded`, else once a step.
    """

    gathered: float = 0.0
    reduced: float = 0.0
    sharded: bool = False


def exchange_copies(workload: Workload) -> ExchangeCopies:
    """Traffic of the copies around exchanges, by training framework [byte per number].

    With a the width of activations and g that of gradients when reduced, a framework's policy says how many of a and
    of g it copies, and whether gradients are widened on the way, a + g where these differ. Programs compiled as one
    graph (XLA) and single devices copy nothing. Evidence: derived from the sources that the policy names.
    """
    if workload.execution == "graph":
        return ExchangeCopies()
    precision, policy = PRECISIONS[workload.precision], workload.policy
    wide, grad = precision.activation_bytes, precision.grad_bytes
    widened = wide + grad if policy.copies_widened and grad != wide else 0.0
    return ExchangeCopies(
        gathered=policy.gathered_activation_copies * wide,
        reduced=policy.reduced_activation_copies * wide + policy.reduced_gradient_copies * grad + widened,
        sharded=policy.copies_each_micro_batch,
    )


@dataclass(frozen=True, kw_only=True)
class CopySeconds:
    """Seconds of copies: at a forward and a backward each, after a backward (..., P, v), and once a step (..., P)."""

    gathered_s: Floats
    reduced_s: Floats
    once_s: Floats


def copy_seconds(habit: ExchangeCopies, numbers: tuple[Floats, Floats], zero: Number, rate: float) -> CopySeconds:
    """Copies at `rate` [byte/s] of the numbers that a chunk gathers and reduces, (..., P, v) each [s].

    With every micro-batch where `zero` shards weights or gradients, else once a step.
    """
    gathered, reduced = numbers[0] * (habit.gathered / rate), numbers[1] * (habit.reduced / rate)
    often = np.asarray(zero) >= 2 if habit.sharded else np.asarray(0.0)
    return CopySeconds(
        gathered_s=gathered * (np.asarray(zero) >= 3) if habit.gathered else gathered,
        reduced_s=reduced * often,
        once_s=(reduced * (1.0 - np.asarray(often, dtype=float))).sum(axis=-1),
    )


def send_tables(
    place: NDArray[np.int64], ranks: Number, machine: Machine, seconds: Callable[[float], Number], *, chains: int = 1
) -> tuple[Floats, Floats]:
    """Time to hand activations from each chunk to the next, and gradients to the one before, (..., P, v) [s].

    Each stage fills `ranks` devices in a row, tp * cp * dp. A message from one to another goes over the innermost tier
    that holds the farthest pair of ranks that talk; from the last stage back to the first, as interleaved chunks do,
    that is the tier over all of them. Chunks that follow each other on one stage send nothing.

    Parameters
    ----------
    place : (P, v)
        Place of each chunk in the model's chain, or in `chains` of them end to end, of `PipelineSchedule.places`.
    ranks : number or (...)
        Devices of a stage.
    seconds : stride -> number or (...)
        Time of one message between devices so far apart [s].
    """
    here = np.arange(place.shape[0])
    there = (here + 1) % here.size
    each = np.asarray(ranks)[..., None]
    low, high = np.minimum(here, there) * each, np.maximum(here, there) * each + each - 1
    strides = between(low, high, machine)
    hop = np.zeros(here.size)  # from each stage to the one after it, the first after the last
    for stride in np.unique(strides) if here.size > 1 else ():
        hop = np.where(strides == stride, np.asarray(seconds(float(stride)))[..., None], hop)
    onward, homeward = (neighbour_stages(place, step, chains=chains) for step in (1, -1))

    def toward(target: NDArray[np.int64]) -> Floats:
        boundary = np.where(target == there[:, None], here[:, None], target)
        return np.asarray(np.where(target != here[:, None], hop[..., boundary], 0.0))

    return toward(onward), toward(homeward)


def neighbour_stages(place: NDArray[np.int64], step: int, *, chains: int = 1) -> NDArray[np.int64]:
    """The stage of the chunk after each (`step` 1) or before it (-1), (P, v) [1]; its own at a chain's end."""
    stage_at = np.empty(place.size, dtype=np.int64)
    stage_at[place] = np.arange(place.shape[0])[:, None]
    neighbour, length = place + step, place.size // chains
    inside = (neighbour >= 0) & (neighbour < place.size) & (neighbour // length == place // length)
    return stage_at[np.where(inside, neighbour, place)]


@dataclass(frozen=True, kw_only=True)
class OnceAStep:
    """The stages of some plans, and what they exchange once a step beside their layers' own exchanges."""

    held: StageLayers
    sharding: Sharding
    graph: Graph
    workload: Workload
    machine: Machine

    def tied_s(self) -> Floats:
        """Seconds in which the first and the last stage add up the gradients of the embedding they share, (..., P)."""
        graph, held, sharding = self.graph, self.held, self.sharding
        stages, layout = np.asarray(sharding.pp), held.cost.layout
        ends = (held.first + held.last).sum(axis=-1)
        if not graph.tied_embeddings:
            return np.zeros(ends.shape)
        size = graph.vocab * graph.hidden * PRECISIONS[self.workload.precision].grad_bytes / np.asarray(layout.tp)
        each = np.asarray(layout.tp) * layout.cp * sharding.dp
        stride = between(np.zeros_like(each), each * stages - 1, self.machine)
        both = exchanged_s(CollectiveKind.ALL_REDUCE, size, np.where(stages > 1, 2, 1), stride, machine=self.machine)
        found: Floats = np.asarray(both)[..., None] * (ends > 0)
        return found

    def mirrored_s(self, exchange: DataExchange) -> Floats:
        """Seconds in which stages s and P - 1 - s, which hold copies of the same weights, add up gradients (..., P).

        What ZeRO shards is summed by the shard's owners.
        """
        held, sharding = self.held, self.sharding
        layout, stages = held.cost.layout, held.counts.shape[-3]
        each = np.asarray(layout.tp) * layout.cp * sharding.dp
        size = sum(held.per_stage(f"trained_{kind}") for kind in ("dense", "expert"))
        shard = np.where(exchange.sharded(OPTIMIZER, sharding.zero), np.asarray(layout.cp) * sharding.dp, 1)
        apart = np.abs(stages - 1 - 2 * np.arange(stages))
        strides = [between(np.zeros_like(each), each * far, self.machine) for far in apart]
        gradient = np.asarray(size) * PRECISIONS[self.workload.precision].grad_bytes / shard[..., None]
        summed = [
            exchanged_s(CollectiveKind.ALL_REDUCE, gradient[..., s], 2 if far else 1, stride, machine=self.machine)
            for s, (far, stride) in enumerate(zip(apart, strides, strict=True))
        ]
        return np.stack(np.broadcast_arrays(*summed), axis=-1)

    def kept_up_s(self, exchange: DataExchange, numbers: Number) -> Floats | float:
        """Seconds of what the exchange itself reads and writes at an update of so many numbers of a rank, (..., P)."""
        each = exchange.updated_bytes(PRECISIONS[self.workload.precision].weight_bytes)
        device = self.machine.device
        return np.asarray(numbers) * (each / (device.memory_bytes_per_s * device.stream_share)) if each else 0.0
