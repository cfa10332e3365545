"""The answer about an iteration of post-training: its time by phase, memory by role, and what the tail costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ridgeline.report.report import Estimate

if TYPE_CHECKING:
    from ridgeline.facts.records import Cluster
    from ridgeline.graph.model import Model
    from ridgeline.plan.post_training import PostTraining, Roles


@dataclass(frozen=True, kw_only=True)
class IterationPhase:
    """A phase of an iteration with its 80 % interval [s]; `side` is 'generation', 'training' or 'transfer'.

    `beside` says that it runs on devices of its own while another phase takes longer, and adds nothing.
    """

    name: str
    side: str
    seconds: float
    low_s: float
    high_s: float
    note: str = ""
    beside: bool = False


@dataclass(frozen=True, kw_only=True)
class RoleMemory:
    """What a device of one role holds at its peak [byte]."""

    role: str
    bytes: float
    capacity_bytes: float
    parts: Mapping[str, float]

    @property
    def fits(self) -> bool:
        """Whether the device holds it."""
        return self.bytes <= self.capacity_bytes


@dataclass(frozen=True, kw_only=True)
class LongTail:
    """What unlike responses cost an iteration.

    `half_s` [s] until half of the responses are there, `alike_s` [s] the rollouts if all had the mean length, `cost_s`
    [s] the difference to the rollouts; `idle_share` [1] of the generating devices' time with nothing left to do;
    `mean`, `p99` and `most` are lengths [token], `mean_batch` [sequence] of an instance's decode steps, `again_tokens`
    [token] read again of responses that were cut off, `old_share` [1] of trained tokens from earlier versions.
    """

    half_s: float
    alike_s: float
    cost_s: float
    idle_share: float
    mean: float
    p99: float
    most: float
    mean_batch: float
    again_tokens: int
    old_share: float


@dataclass(frozen=True, kw_only=True)
class PostTrainingReport:
    """One iteration of post-training, explained."""

    model: Model
    cluster: Cluster
    asked: PostTraining
    roles: Roles
    step: Estimate
    phases: tuple[IterationPhase, ...]
    memory: tuple[RoleMemory, ...]
    tail: LongTail | None
    tokens: int  # trained tokens of an iteration, prompts among them
    updates: int
    limit: str
    idle_share: float  # of all device seconds, in which a device waits for another role or for the tail
    energy_j: float | None
    usd: float | None
    carbon_kg: float | None
    engine: str
    assumptions: tuple[str, ...]

    @property
    def fits(self) -> bool:
        """Whether every role's devices hold what they must."""
        return all(one.fits for one in self.memory)

    @property
    def tokens_per_s(self) -> float:
        """Trained tokens, prompts among them [token/s]."""
        return self.tokens / self.step.value

    def seconds_of(self, side: str) -> float:
        """Time of the phases of a side that are not hidden beside others [s]."""
        return sum(one.seconds for one in self.phases if one.side == side and not one.beside)

    def as_dict(self) -> dict[str, Any]:
        """The report under stable keys, SI numbers."""
        asked = dict(vars(self.asked))
        roles = self.roles
        return {
            "task": self.asked.task, "model": self.model.name, "cluster": self.cluster.name,
            "devices": self.cluster.count, "workload": asked,
            "step_s": self.step.value, "low_s": self.step.low, "high_s": self.step.high,
            "evidence": self.step.evidence.label,
            "phases": [vars(one) for one in self.phases],
            "generation_s": self.seconds_of("generation"), "training_s": self.seconds_of("training"),
            "transfer_s": self.seconds_of("transfer"),
            "tokens": self.tokens, "tokens_per_s": self.tokens_per_s, "updates": self.updates,
            "long_tail": None if self.tail is None else vars(self.tail),
            "plan": {
                "mode": roles.mode, "collection": roles.collection, "packing": roles.packing,
                "colocated": roles.colocated, "offload": roles.offload, "devices": roles.devices,
                "train": {name: getattr(roles.train, name) for name in TRAIN_DEGREES},
                "train_devices": roles.train.devices, "critic_devices": roles.critic_devices,
                "rollout": {
                    "tp": roles.rollout.tp, "pp": roles.rollout.pp, "ep": roles.rollout.ep,
                    "instances": roles.rollout.instances, "devices": roles.rollout_devices, "engine": self.engine,
                } if self.asked.online else None,
            },
            "memory": [vars(one) | {"fits": one.fits} for one in self.memory], "fits": self.fits,
            "limit": self.limit, "idle_share": self.idle_share, "energy_j": self.energy_j, "usd": self.usd,
            "carbon_kg": self.carbon_kg, "assumptions": list(self.assumptions),
        }  # fmt: skip


TRAIN_DEGREES = ("tp", "pp", "cp", "dp", "ep", "etp", "zero", "micro_batch", "recompute", "sequence_parallel",
                 "offload_optimizer")  # fmt: skip
"""Fields of the trainer's plan that a report tells."""
