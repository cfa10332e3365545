"""DeepSpeed: the JSON of `deepspeed --deepspeed_config FILE`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ridgeline.export.forms import put
from ridgeline.export.target import Target, Words


@dataclass(frozen=True, kw_only=True)
class DeepSpeed(Target):
    """DeepSpeed's JSON config. Its parser lets unknown keys pass, so this table alone says what is one.

    Batches are told three ways, of which two suffice: sequences of a micro-batch, micro-batches, and of a step. Tensor
    and pipeline degrees are the training script's own arguments, not the config's.
    """

    key: ClassVar[str] = "deepspeed"
    source: ClassVar[tuple[str, ...]] = ("deepspeed",)
    title: ClassVar[str] = "DeepSpeed"
    program: ClassVar[str] = "deepspeed"
    task: ClassVar[str] = "training"
    form: ClassVar[str] = "json"
    file: ClassVar[str] = "ds_config.json"
    start: ClassVar[str] = "deepspeed --num_gpus {devices} train.py --deepspeed_config {file}"

    def finished(
        self, document: dict[str, Any], words: Mapping[str, Any], release: str
    ) -> tuple[dict[str, Any], set[str]]:
        """Offload to the host, the format and the batch, which several words say together."""
        states = {"optimizer": "plan.offload_optimizer", "param": "plan.offload_weights"}
        for name, word in states.items():
            if words.get(word):
                put(document, f"zero_optimization.offload_{name}.device", "cpu")
        if words.get("plan.offload_weights"):
            put(document, "zero_optimization.offload_optimizer.device", "cpu")
        form = str(words.get("workload.precision", ""))
        if form in ("bf16", "fp16"):
            put(document, f"{form}.enabled", True)
        return document, {*states.values(), "workload.precision"}

    def understood(self, words: Words, fields: Mapping[str, Any]) -> tuple[Words, set[str]]:
        """Offloads, the format, and the micro-batches' number as the global batch."""
        optimizer = fields.get("zero_optimization.offload_optimizer.device") in ("cpu", "nvme")
        weights = fields.get("zero_optimization.offload_param.device") in ("cpu", "nvme")
        words["plan.offload_weights"] = weights
        words["plan.offload_optimizer"] = optimizer and not weights
        for form in ("bf16", "fp16"):
            if fields.get(f"{form}.enabled") is True:
                words["workload.precision"] = form
        words.pop("plan.micro_batches", None)
        used = {f"zero_optimization.offload_{name}.device" for name in ("optimizer", "param")}
        return words, {*used, "bf16.enabled", "fp16.enabled", "gradient_accumulation_steps"}
