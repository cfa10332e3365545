"""What moves between the roles of post-training: weights to the engine, states to host memory and back."""

from __future__ import annotations

import numpy as np

from ridgeline.cost.host import pageable_bytes_per_s
from ridgeline.cost.machine import Machine
from ridgeline.cost.network import collective_seconds
from ridgeline.facts.mechanisms import constant
from ridgeline.graph.model import Model
from ridgeline.lower.work import Collective, CollectiveKind, Phase
from ridgeline.plan.post_training import Roles
from ridgeline.predict.operator_mechanisms import host_cost
from ridgeline.predict.post_training_memory import BF16_BYTES, weight_shards
from ridgeline.report.report import StageMemory


def transfer_s(machine: Machine, roles: Roles, model: Model, device_bytes: float) -> float:
    """Time in which new weights reach each device of the engine, which holds `device_bytes` of them [s].

    Trainers export their weights tensor by tensor under the checkpoint's names: each is gathered whole over the ranks
    that hold its shards, and the engine finds and copies its part, which takes `rollout.tensor_s` a tensor. Where the
    engine has devices of its own, each device's part is then sent there over its own link. The three follow each other.
    """
    ranks = min(weight_shards(roles.train), roles.train.devices)
    seconds = constant("rollout.tensor_s") * model.graph.tensors
    if ranks > 1:
        seconds += _collective(machine, CollectiveKind.ALL_GATHER, BF16_BYTES * model.graph.params, ranks, 1)
    if not roles.colocated:
        away = max(roles.train.devices, 1)
        seconds += _collective(machine, CollectiveKind.SEND, device_bytes, 2, away)
    return seconds


def _collective(machine: Machine, kind: CollectiveKind, size: float, ranks: int, stride: int) -> float:
    work = Collective(name="weights", phase=Phase.FORWARD, kind=kind, bytes=size, ranks=ranks, stride=stride)
    return float(np.asarray(collective_seconds(work, machine)))


def offload_s(machine: Machine, memory: StageMemory) -> float:
    """Time in which a device's weights and optimizer states go to host memory and come back [s].

    Gradients are dropped. Weights lie in pinned buffers; optimizer states go to memory that is just allocated, not
    pinned, and come back from it. All devices of a host copy at once, each over its own link.
    """
    weights, states = (memory.categories.get(name, 0.0) for name in ("weights", "optimizer"))
    link = 1.0 / float(host_cost("host_copy", 1.0, machine).seconds)
    ways = (pageable_bytes_per_s(link, new_pages=True), pageable_bytes_per_s(link))
    return 2.0 * weights / link + sum(states / rate for rate in ways)


def swap_s(machine: Machine, memory: StageMemory) -> float:
    """Time in which a frozen copy of a device's weights takes their place, and they come back [s].

    The weights go to memory that is just allocated; the copy comes from host memory, and then they do; none is pinned.
    """
    weights = memory.categories.get("weights", 0.0)
    link = 1.0 / float(host_cost("host_copy", 1.0, machine).seconds)
    return weights * (1.0 / pageable_bytes_per_s(link, new_pages=True) + 2.0 / pageable_bytes_per_s(link))


def loaded_s(machine: Machine, size: float) -> float:
    """Time in which a frozen copy of `size` bytes a device comes from host memory, to be dropped after [s]."""
    return size / pageable_bytes_per_s(1.0 / float(host_cost("host_copy", 1.0, machine).seconds))
