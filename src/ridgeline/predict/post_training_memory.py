"""What the devices of each role of post-training hold at once."""

from __future__ import annotations

from collections.abc import Mapping

from ridgeline.graph.model import Model
from ridgeline.memory.stage import STATES
from ridgeline.plan.plan import Plan
from ridgeline.plan.post_training import PostTraining, Roles
from ridgeline.report.post_training import RoleMemory
from ridgeline.report.report import StageMemory
from ridgeline.serving.engine import Engine

BF16_BYTES = 2.0


def weight_shards(plan: Plan) -> int:
    """Parts in which the trainer's ranks hold the weights [1]."""
    whole = plan.dp * plan.cp if plan.zero == 3 else 1
    return plan.pp * max(plan.tp * (plan.zero_group or whole if plan.zero == 3 else 1), plan.ep * plan.etp)


def resident_bytes(memory: StageMemory) -> float:
    """What a trainer that stays on its device holds between steps [byte]: states and the program's own memory."""
    return sum(size for name, size in memory.categories.items() if name in (*STATES, "context"))


def frozen_bytes(policy: Model, reward: Model | None, asked: PostTraining, train: Plan) -> dict[str, float]:
    """Frozen copies by role, on each of the trainer's devices while they are there [byte], divided as its weights."""
    each, found = BF16_BYTES / weight_shards(train), dict[str, float]()
    if asked.reference and asked.task in ("grpo", "ppo", "dpo"):
        found["reference"] = each * policy.graph.params
    if reward is not None and asked.online:
        found["reward model"] = each * reward.graph.params
    return found


def role_memory(
    roles: Roles, capacity: float, trainer: StageMemory, frozen: Mapping[str, float], *, critic: StageMemory | None,
    made: Engine | None,
) -> list[RoleMemory]:  # fmt: skip
    """Peaks of a device in each role; what takes turns with the trainer waits in host memory where `offload`."""
    parts, found = dict(trainer.categories), list[RoleMemory]()
    if not roles.offload:
        parts |= frozen
        if critic is not None and not roles.critic_devices:
            parts["critic"] = resident_bytes(critic)
    found.append(_held("trainer", parts, capacity))
    if critic is not None and roles.critic_devices:
        found.append(_held("critic", critic.categories, capacity))
    if made is not None:
        it = made.capacity
        held = {"weights": it.weights_bytes, "KV cache": it.cache_bytes, "workspace": it.workspace_bytes,
                "context": it.context_bytes + it.state_bytes}  # fmt: skip
        if roles.colocated and not roles.offload:
            held["trainer's states"] = resident_bytes(trainer)
        found.append(_held("engine", held, capacity))
    return found


def _held(role: str, parts: Mapping[str, float], capacity: float) -> RoleMemory:
    return RoleMemory(role=role, bytes=sum(parts.values()), capacity_bytes=capacity, parts=parts)
