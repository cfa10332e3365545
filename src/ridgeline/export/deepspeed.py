"""DeepSpeed: the JSON of `deepspeed --deepspeed_config FILE`."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any, ClassVar

from ridgeline.export.forms import put
from ridgeline.export.target import Document, Target, Told, Words


@dataclass(frozen=True, kw_only=True)
class DeepSpeed(Target):
    """DeepSpeed's JSON config. Its parser lets unknown keys pass, so this table alone says what is one.

    Batches are told three ways, of which two suffice: sequences of a micro-batch, micro-batches, and of a step.
    Pipeline and context degrees are the training script's own arguments, not the config's. Smaller sharding groups are
    MiCS.
    """

    key: ClassVar[str] = "deepspeed"

    def unsaid(self, words: Mapping[str, Any]) -> Set[str]:
        """A tensor degree is said where there is one, groups where weights are sharded."""
        out = {"plan.tp"} if words.get("plan.tp", 1) == 1 else set()
        return out | ({"plan.zero_group"} if words.get("plan.zero", 0) < 3 else set())

    def finished(self, document: Document, words: Mapping[str, Any], release: str) -> Told:
        """Offload to the host, the format and the batch, which several words say together."""
        states = {"optimizer": "plan.offload_optimizer", "param": "plan.offload_weights"}
        for name, word in states.items():
            if words.get(word):
                put(document, f"zero_optimization.offload_{name}.device", "cpu")
        if words.get("plan.offload_weights"):
            put(document, "zero_optimization.offload_optimizer.device", "cpu")
        optimizer = words.get("workload.optimizer")
        if document.get("optimizer"):
            put(document, "optimizer.params.lr", 1e-5)
        elif optimizer:
            document["zero_allow_untested_optimizer"] = True  # made by the training script
        plain = {"workload.precision"} if words.get("workload.precision") == "fp32" else set()
        return document, plain | set(states.values())

    def understood(self, words: Words, fields: Mapping[str, Any]) -> Told:
        """Offloads, the format, and the micro-batches' number as the global batch."""
        optimizer = fields.get("zero_optimization.offload_optimizer.device") in ("cpu", "nvme")
        weights = fields.get("zero_optimization.offload_param.device") in ("cpu", "nvme")
        words["plan.offload_weights"] = weights
        words["plan.offload_optimizer"] = optimizer and not weights
        if "workload.global_batch" in words:
            words.pop("plan.micro_batches", None)
        if words.get("plan.zero_group", 1) < 1:
            del words["plan.zero_group"]
        used = {f"zero_optimization.offload_{name}.device" for name in ("optimizer", "param")}
        return words, {*used, "gradient_accumulation_steps"}
