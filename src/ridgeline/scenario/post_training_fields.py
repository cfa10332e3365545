"""Words of a scenario of post-training: what an iteration asks for, and how its roles share the devices."""

from __future__ import annotations

from ridgeline.graph.workload import POST_TASKS
from ridgeline.scenario.fields import (
    PLAN_FIELDS,
    WORKLOAD_FIELDS,
    Field,
    filled,
    number,
    pick,
    text,
    whole,
    yes,
)

_LONGEST, _MOST = 10**8, 200_000  # tokens of a response; sequences of an iteration, beyond any published run
_OF_TRAINER = (
    "precision", "optimizer", "attention_kernel", "execution", "framework", "fused_optimizer", "looped_optimizer",
)  # fmt: skip

OWN_FIELDS: tuple[Field, ...] = (
    whole("prompts", "prompts of an iteration (RL step)", most=_MOST),
    whole("samples", "responses to each prompt (the group of GRPO)", most=_MOST),
    whole("prompt", "mean tokens of a prompt", most=_LONGEST),
    whole("response", "mean tokens of a response", most=_LONGEST),
    whole("response_max", "longest response, at which it is cut", most=_LONGEST),
    Field(
        name="response_cv",
        read=number("1", 0.0, 10.0, ends=True),
        help="spread of responses: coefficient of variation of their lognormal law",
    ),
    text("responses", "response lengths: a file of tokens, or lognormal(median=2000,sigma=1)"),
    whole("mini_batch", "sequences of one optimizer step; all of an iteration when absent", most=_MOST),
    whole("epochs", "passes of updates over an iteration's sequences", most=1000),
    yes("reference", "score sequences with a frozen copy of the policy, for the KL term"),
    yes("old_logprobs", "compute the policy's own log-probabilities before the first update"),
    text("reward_model", "model that scores responses; a rule when absent"),
    Field(
        name="reward_s",
        read=number("s", 0.0, 1e4),
        help="time of a rule that rewards, for a response, over its workers: 20ms",
    ),
    text("critic", "PPO's value model; one as large as the policy when absent"),
)
"""Words of [workload] that no other task has, `prompt` aside."""

POST_TRAINING_FIELDS: tuple[Field, ...] = (
    pick("task", POST_TASKS, "what is post-trained, and how"),
    *OWN_FIELDS,
    *(one for one in WORKLOAD_FIELDS if one.name in _OF_TRAINER),
)

ROLE_FIELDS: tuple[Field, ...] = (
    whole("rollout_devices", "devices that generate alone; when absent, all devices generate and train in turn"),
    whole("rollout_tp", "tensor-parallel degree of an engine instance"),
    whole("rollout_pp", "pipeline-parallel degree of an engine instance"),
    whole("rollout_ep", "expert-parallel degree of an engine instance"),
    text("rollout_engine", "engine that generates: vllm, sglang, trtllm ..., and perhaps a version"),
    text("rollout_weights", "number format of the engine's weights: fp8 ..."),
    Field(
        name="rollout_memory",
        read=number("1", 0.01, 1.0, ends=True),
        help="share of device memory that the engine fills",
    ),
    yes("offload_trainer", "move the trainer's states to host memory while the engine generates on its devices"),
    whole("critic_devices", "devices that train PPO's critic beside the policy"),
    filled("rollout_mode", "rollout_schedules", "when generation and training may overlap"),
    filled("rollout_collection", "rollout_collections", "which responses an iteration waits for"),
    filled("sequence_packing", "sequence_packing", "how sequences fill rows of a training batch"),
)
"""Words of [plan] that no other task has."""

POST_PLAN_FIELDS: tuple[Field, ...] = (*PLAN_FIELDS, *ROLE_FIELDS)
POST_FLAGS = tuple(one for one in (*OWN_FIELDS, *ROLE_FIELDS) if one.name != "prompt")
"""Those words that no other kind of scenario has."""
