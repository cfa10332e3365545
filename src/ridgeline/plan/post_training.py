"""Post-training: what an iteration asks for, and how its roles share the devices. Pure data."""

from __future__ import annotations

from dataclasses import dataclass, field

from ridgeline.errors import WorkloadError
from ridgeline.facts.mechanisms import constant
from ridgeline.graph.workload import POST_TASKS
from ridgeline.plan.deployment import Deployment
from ridgeline.plan.plan import Plan

ONLINE = ("grpo", "ppo")  # the policy generates what it is trained on
PAIRED = ("dpo", "reward")  # two answers to each prompt, a chosen and a rejected one
TASKS = POST_TASKS
MOST_SEQUENCES = 200_000  # of one iteration, beyond any published run


@dataclass(frozen=True, kw_only=True)
class PostTraining:
    """One iteration: `prompts` prompts with `samples` responses each, then `epochs` passes of updates over them.

    `prompt` [token] is the mean prompt; `response` [token] the mean response, at most `response_max` [token], lognormal
    with the coefficient of variation `response_cv` [1] before it is cut, unless `responses` names a law or a file of
    lengths. `mini_batch` [sequence] is what one optimizer step sees (None: all). `reference` says whether a frozen
    copy of the policy scores the sequences (the KL term), `old_logprobs` whether the trainer computes the policy's
    own log-probabilities before the first update; `reward_model` names the model that scores, '' a rule, which takes
    `reward_s` [s] a response on the host, one after another over all workers.
    `critic` names PPO's value model, '' one as large as the policy.
    """

    task: str = "grpo"
    prompts: int = 128
    samples: int = 8
    prompt: float = 512.0
    response: float = 1024.0
    response_max: int = 4096
    response_cv: float = field(default_factory=lambda: constant("rollout.response_cv"))
    responses: str = ""
    mini_batch: int | None = None
    epochs: int = 1
    reference: bool = True
    old_logprobs: bool = True
    reward_s: float = 0.0
    reward_model: str = ""
    critic: str = ""

    def __post_init__(self) -> None:
        if self.task not in TASKS:
            raise WorkloadError(f"workload: task = '{self.task}', needs one of {', '.join(TASKS)}")
        for name in ("prompts", "samples", "prompt", "response", "response_max", "epochs"):
            if getattr(self, name) < 1:
                raise WorkloadError(f"workload: {name} = {getattr(self, name)}, needs >= 1")
        if self.response > self.response_max:
            told = f"workload: response = {self.response:g} tokens on average, more than response_max ="
            raise WorkloadError(f"{told} {self.response_max}; raise response_max")
        if not 0.0 <= self.response_cv <= 10.0:
            raise WorkloadError(f"workload: response_cv = {self.response_cv}, needs 0 (all alike) to 10")
        if self.sequences > MOST_SEQUENCES:
            told = f"prompts * samples = {self.sequences:,} sequences an iteration"
            raise WorkloadError(f"workload: {told}, at most {MOST_SEQUENCES:,}; lower one of them")
        if not 0.0 <= self.reward_s <= 1e4:
            raise WorkloadError(f"workload: reward_s = {self.reward_s} s a response, needs 0 to 10000")
        if self.mini_batch is not None and not 1 <= self.mini_batch <= self.sequences:
            told = f"workload: mini_batch = {self.mini_batch} sequences, needs 1 to prompts * samples"
            raise WorkloadError(f"{told} = {self.sequences}")

    @property
    def online(self) -> bool:
        """Whether the policy generates its own sequences."""
        return self.task in ONLINE

    @property
    def sequences(self) -> int:
        """Sequences of an iteration [1]."""
        return self.prompts * self.samples

    @property
    def updates(self) -> int:
        """Optimizer steps of an iteration [1]."""
        return self.epochs * -(-self.sequences // (self.mini_batch or self.sequences))


@dataclass(frozen=True, kw_only=True)
class Roles:
    """How the devices are shared: the trainer's plan, the deployment that generates, and how they follow each other.

    With `colocated` both use the same devices in turn, and `offload` moves the trainer's states to host memory while
    the engine generates. `critic` is the plan of PPO's critic on devices beside the policy's (None: in turn, on the
    trainer's own and as it is divided).
    `mode`, `collection` and `packing` are techniques by name: when generation and training may overlap, which responses
    an iteration waits for, and how sequences fill micro-batches.
    """

    train: Plan = field(default_factory=Plan)
    rollout: Deployment = field(default_factory=Deployment)
    colocated: bool = True
    offload: bool = True
    critic: Plan | None = None
    mode: str = "synchronous"
    collection: str = "every-response"
    packing: str = "packed-sequences"

    @property
    def critic_devices(self) -> int:
        """Devices that train the critic alone [1]."""
        return 0 if self.critic is None else self.critic.devices

    @property
    def rollout_devices(self) -> int:
        """Devices that generate [1]."""
        one = self.rollout
        return one.tp * one.pp * one.dp * one.instances

    @property
    def devices(self) -> int:
        """Devices of all roles [1]."""
        both = max if self.colocated else sum
        return both((self.train.devices, self.rollout_devices)) + self.critic_devices
