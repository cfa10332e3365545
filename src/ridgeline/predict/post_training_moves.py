"""What moves between the roles of post-training: weights to the engine, states to host memory and back."""

from __future__ import annotations

import numpy as np

from ridgeline.cost.machine import Machine
from ridgeline.cost.network import collective_seconds
from ridgeline.lower.work import Collective, CollectiveKind, Phase
from ridgeline.memory.stage import STATES
from ridgeline.plan.plan import Plan
from ridgeline.plan.post_training import Roles
from ridgeline.predict.operator_mechanisms import host_cost
from ridgeline.report.report import StageMemory


def weight_shards(plan: Plan) -> int:
    """Parts in which the trainer's ranks hold the weights [1]."""
    whole = plan.dp * plan.cp if plan.zero == 3 else 1
    return plan.pp * max(plan.tp * (plan.zero_group or whole if plan.zero == 3 else 1), plan.ep * plan.etp)


def transfer_s(machine: Machine, roles: Roles, device_bytes: float) -> float:
    """Time in which new weights reach each device of the engine, which holds `device_bytes` of them [s].

    The trainer's shards of a device's part are gathered over its ranks; where the engine has devices of its own they
    are then sent there, each device's part over its own link. The two follow each other.
    """
    engine = roles.rollout.tp * roles.rollout.pp
    ranks = min(-(-weight_shards(roles.train) // engine), roles.train.devices)
    stride = max(1, min(engine, roles.train.devices // ranks))
    seconds = 0.0
    if ranks > 1:
        seconds += _collective(machine, CollectiveKind.ALL_GATHER, device_bytes, ranks, stride)
    if not roles.colocated:
        away = max(roles.train.devices, 1)
        seconds += _collective(machine, CollectiveKind.SEND, device_bytes, 2, away)
    return seconds


def _collective(machine: Machine, kind: CollectiveKind, size: float, ranks: int, stride: int) -> float:
    work = Collective(name="weights", phase=Phase.FORWARD, kind=kind, bytes=size, ranks=ranks, stride=stride)
    return float(np.asarray(collective_seconds(work, machine)))


def offload_s(machine: Machine, memory: StageMemory) -> float:
    """Time in which a device's weights and optimizer states go to host memory and come back [s].

    Gradients are dropped. All devices of a host copy at once, each over its own link.
    """
    moved = memory.categories.get("weights", 0.0) + memory.categories.get("optimizer", 0.0)
    return 2.0 * float(host_cost("host_copy", moved, machine).seconds)


def resident_bytes(memory: StageMemory) -> float:
    """What a trainer that stays on its device holds between steps [byte]: states and the program's own memory."""
    return sum(size for name, size in memory.categories.items() if name in (*STATES, "context"))
