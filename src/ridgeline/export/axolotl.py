"""Axolotl: the YAML of `axolotl train FILE`."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any, ClassVar

from ridgeline.export.forms import put
from ridgeline.export.target import Document, Target, Told, Words


@dataclass(frozen=True, kw_only=True)
class Axolotl(Target):
    """Axolotl's YAML. Sharding is FSDP of version 2 with `dp_shard_size` and `dp_replicate_size`.

    A pipeline has no field. The dataset is a placeholder to be replaced.
    """

    key: ClassVar[str] = "axolotl"

    def unsaid(self, words: Mapping[str, Any]) -> Set[str]:
        """FSDP's fields are said where it shards, degrees above one."""
        out = set() if words.get("plan.zero", 0) >= 2 else {"plan.zero", "plan.offload_weights"}
        return out | {f"plan.{name}" for name in ("tp", "cp") if words.get(f"plan.{name}", 1) == 1}

    def finished(self, document: Document, words: Mapping[str, Any], release: str) -> Told:
        """What Axolotl asks of every config, four-bit weights, and how data-parallel ranks shard."""
        document = {"datasets": [{"path": "DATASET", "type": "alpaca"}], "num_epochs": 1, "output_dir": "out",
                    "learning_rate": 1e-5, **document}  # fmt: skip
        if words.get("workload.task") == "qlora":
            document["load_in_4bit"] = True
        zero, ranks, group = (words.get(f"plan.{name}") or 0 for name in ("zero", "dp", "zero_group"))
        own = {"workload.task", *(() if zero == 1 else ("plan.zero",))}
        if zero >= 2:
            document["fsdp_version"] = 2
            if document.get("optimizer") == "adamw_bnb_8bit":
                document["optimizer"] = "adamw_torch_8bit"  # FSDP of version 2 takes PyTorch's alone
            put(document, "fsdp_config.auto_wrap_policy", "TRANSFORMER_BASED_WRAP")
            put(document, "fsdp_config.state_dict_type", "FULL_STATE_DICT")
            document |= {"dp_shard_size": group or ranks, "dp_replicate_size": ranks // (group or ranks)}
            own.add("plan.zero_group")
        return document, own

    def understood(self, words: Words, fields: Mapping[str, Any]) -> Told:
        """The task of adapters, and the stage and group of sharding."""
        adapter = fields.get("adapter")
        words["workload.task"] = adapter if adapter in ("lora", "qlora") else "full"
        if "fsdp_version" not in fields and not any(name.startswith("fsdp_config.") for name in fields):
            words["plan.zero"] = 0
        elif "plan.zero" not in words:
            words["plan.zero"] = 3
        if fields.get("dp_replicate_size", 1) > 1 and fields.get("dp_shard_size", 1) > 1:
            words["plan.zero_group"] = fields["dp_shard_size"]
        return words, {"load_in_4bit"}
