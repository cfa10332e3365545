"""Time to collect sharded weights and to reduce gradients, and the sharding that asks for it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from ridgeline.cost.machine import Machine
from ridgeline.cost.network import collective_seconds
from ridgeline.graph.workload import PRECISIONS, Task, Workload
from ridgeline.lower.params import RankParams
from ridgeline.lower.work import Collective, CollectiveKind, Layout, Number, Phase
from ridgeline.memory.profile import EIGHT_BIT_BYTES, NF4_BYTES


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
    layout: Layout, params: RankParams, sharding: Sharding, *, workload: Workload, machine: Machine
) -> tuple[Number, Number]:
    """Seconds to collect one layer's weights over the shards, and to reduce its gradients [s].

    Where weights are in host memory, each rank's shard crosses its host link before it is gathered, and the
    gradient's shard after it is reduced (FSDP's CPU offload). A quantized base is gathered as it is held.
    Dense weights belong to dp * cp ranks, tp apart; experts to tp * cp * dp / (ep * etp) ranks, ep * etp apart.
    """
    precision, moved = PRECISIONS[workload.precision], partial(exchanged_s, machine=machine)
    whole = np.asarray(layout.tp) * layout.cp * sharding.dp
    experts_stride = np.asarray(layout.ep) * layout.etp
    few = NF4_BYTES if workload.task is Task.QLORA else EIGHT_BIT_BYTES
    host, away = machine.cluster.host, np.asarray(sharding.offload_weights)
    dense = (
        params.dense,
        params.trained_dense,
        params.quantized_dense,
        np.asarray(layout.cp) * sharding.dp,
        layout.tp,
    )
    others = np.maximum(1, whole / experts_stride)
    expert = (params.expert, params.trained_expert, params.quantized_expert, others, experts_stride)
    gather: Number = 0.0
    reduce: Number = 0.0
    for held, trained, quantized, ranks, stride in (dense, expert):
        group = np.where(np.asarray(sharding.zero_group) > 0, np.minimum(sharding.zero_group, ranks), ranks)
        sharded = np.asarray(sharding.zero) >= 1
        whole_bytes = (held - quantized) * precision.weight_bytes + quantized * few
        updated_bytes = trained * precision.weight_bytes
        weight_bytes = np.where(np.asarray(sharding.zero) >= 3, whole_bytes, updated_bytes)
        gradient_bytes = trained * precision.grad_bytes
        gather = gather + moved(CollectiveKind.ALL_GATHER, weight_bytes, np.where(sharded, group, 1), stride)
        gather = gather + away * weight_bytes / group / host.device_bytes_per_s
        reduce = reduce + away * gradient_bytes / group / host.device_bytes_per_s
        scatter = moved(CollectiveKind.REDUCE_SCATTER, gradient_bytes, group, stride)
        across = moved(CollectiveKind.ALL_REDUCE, gradient_bytes / group, ranks / group, stride * group)
        reduce = reduce + np.where(
            sharded, scatter + across, moved(CollectiveKind.ALL_REDUCE, gradient_bytes, ranks, stride)
        )
    return gather, reduce


def exchanged_s(kind: CollectiveKind, size_bytes: Number, ranks: Number, stride: Number, *, machine: Machine) -> Number:
    """Seconds of one collective over ranks so far apart [s]; none where nothing moves."""
    work = Collective(name=kind.value, phase=Phase.FORWARD, kind=kind, bytes=size_bytes, ranks=ranks, stride=stride)
    return np.where(np.asarray(size_bytes) > 0, collective_seconds(work, machine), 0.0)
