"""Accelerate: the YAML of `accelerate launch --config_file FILE`, with FSDP of version 2."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any, ClassVar

from ridgeline.export.forms import put
from ridgeline.export.target import Document, Target, Told, Words


@dataclass(frozen=True, kw_only=True)
class Accelerate(Target):
    """Accelerate's config file: how processes start, shard and divide, with FSDP of version 2.

    Batches, sequence length, optimizer and adapters are the training script's own. ZeRO stage 1 has no FSDP form.
    """

    key: ClassVar[str] = "accelerate"

    def program_of(self, zero: int) -> str:
        """FSDP of version 2 where gradients are sharded, PyTorch's DDP otherwise."""
        return self.program if zero >= 2 else "ddp"

    def unsaid(self, words: Mapping[str, Any]) -> Set[str]:
        """What FSDP does is said only where weights or gradients are sharded, as the mesh's other degrees are."""
        return frozenset() if words.get("plan.zero", 0) >= 2 else _OF_FSDP

    def finished(self, document: Document, words: Mapping[str, Any], release: str) -> Told:
        """Processes and machines, FSDP's own switches, and the mesh where more than data is divided."""
        devices, per_node = words.get("devices", 1), words.get("devices_per_node", 1)
        zero = words.get("plan.zero", 0)
        kind = "FSDP" if zero >= 2 else "MULTI_GPU" if devices > 1 else "NO"
        document = {
            "compute_environment": "LOCAL_MACHINE", "distributed_type": kind, "machine_rank": 0, "use_cpu": False,
            "num_machines": -(-devices // max(1, per_node)), "main_training_function": "main", "rdzv_backend": "static",
            "same_network": True, **document,
        }  # fmt: skip
        if zero >= 2:
            for name, value in _FSDP.items():
                put(document, f"fsdp_config.fsdp_{name}", value)
        own = {"plan.zero"} if zero != 1 else set()
        group, ranks = words.get("plan.zero_group"), words.get("plan.dp", 1)
        if zero >= 2 and (group or any(words.get(f"plan.{name}", 1) > 1 for name in ("tp", "cp"))):
            shard = group or ranks
            put(document, f"{_MESH}dp_shard_size", shard)
            put(document, f"{_MESH}dp_replicate_size", ranks // shard)
            return document, {*own, "plan.zero_group"}
        document.pop("parallelism_config", None)
        return document, own

    def understood(self, words: Words, fields: Mapping[str, Any]) -> Told:
        """The stage from the kind of process group, and the group that shards."""
        if fields.get("distributed_type") in ("MULTI_GPU", "NO"):
            words |= {"plan.zero": 0, "workload.framework": "ddp"}
        elif fields.get("distributed_type") == "FSDP":
            words.setdefault("plan.zero", 3)
        if fields.get(f"{_MESH}dp_replicate_size", 1) > 1 and fields.get(f"{_MESH}dp_shard_size", 1) > 1:
            words["plan.zero_group"] = fields[f"{_MESH}dp_shard_size"]
        return words, set()


_MESH = "parallelism_config.parallelism_config_"
_OF_FSDP = frozenset({"plan.zero", "plan.offload_weights", "plan.recompute", "plan.tp", "plan.cp"})
_FSDP = {
    "version": 2, "auto_wrap_policy": "TRANSFORMER_BASED_WRAP", "cpu_ram_efficient_loading": True,
    "state_dict_type": "SHARDED_STATE_DICT",
}  # fmt: skip
