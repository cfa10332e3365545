"""Words of a scenario of post-training: what an iteration asks for, and how its roles share the devices."""

from __future__ import annotations

from ridgeline.graph.workload import POST_TASKS
from ridgeline.scenario.fields import PLAN_FIELDS, WORKLOAD_FIELDS, fields_of, pick

_OF_TRAINER = (
    "precision", "optimizer", "attention_kernel", "execution", "framework", "fused_optimizer", "looped_optimizer",
)  # fmt: skip

OWN_FIELDS = fields_of("post-training")
"""Words of [workload] that no other task has, `prompt` aside."""

POST_TRAINING_FIELDS = (
    pick("task", POST_TASKS, "what is post-trained, and how"),
    *OWN_FIELDS,
    *(one for one in WORKLOAD_FIELDS if one.name in _OF_TRAINER),
)

ROLE_FIELDS = fields_of("roles")
"""Words of [plan] that no other task has."""

POST_PLAN_FIELDS = (*PLAN_FIELDS, *ROLE_FIELDS)
POST_FLAGS = tuple(one for one in (*OWN_FIELDS, *ROLE_FIELDS) if one.name != "prompt")
"""Those words that no other kind of scenario has."""
