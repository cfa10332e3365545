"""TRL: the YAML of `trl sft --config FILE`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ridgeline.export.target import Document, Target, Told, Words


@dataclass(frozen=True, kw_only=True)
class TRL(Target):
    """TRL's YAML of `trl sft --config`: its trainer's, model's and script's arguments in one file.

    Sharding is FSDP of version 2 through the trainer's own arguments; tensor, context and pipeline degrees have no
    field. `GRPOConfig`'s fields are read too.
    """

    key: ClassVar[str] = "trl"

    def finished(self, document: Document, words: Mapping[str, Any], release: str) -> Told:
        """The task, and FSDP as the trainer's arguments say it."""
        own = {"plan.zero"} if words.get("plan.zero", 0) != 1 else set()
        if words.get("plan.zero", 0) >= 2:
            document["fsdp"] = "full_shard" if words["plan.zero"] == 3 else "shard_grad_op"
            if words.get("plan.offload_weights"):
                document["fsdp"] += " offload"
                own.add("plan.offload_weights")
            document["fsdp_config"] = {"version": 2, "reshard_after_forward": words["plan.zero"] == 3}
        return document, own | {"workload.task"}

    def understood(self, words: Words, fields: Mapping[str, Any]) -> Told:
        """The task of adapters and the stage of FSDP."""
        adapter = bool(fields.get("use_peft"))
        words["workload.task"] = ("qlora" if fields.get("load_in_4bit") else "lora") if adapter else "full"
        told = str(fields.get("fsdp") or "")
        words["plan.zero"] = 3 if "full_shard" in told else 2 if "shard_grad_op" in told else 0
        words["plan.offload_weights"] = "offload" in told
        return words, {"fsdp", "fsdp_config", "load_in_4bit", "use_peft"}
