"""MaxText: a YAML file over `base.yml`."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ridgeline.export.target import Document, Target, Told, Words


@dataclass(frozen=True, kw_only=True)
class MaxText(Target):
    """A YAML file of MaxText that is laid over `base.yml`.

    Data-parallel ranks are divided into those inside a node (`ici_`) and across nodes (`dcn_`). Batches are told per
    device. Pipelines are MaxText's own loop, GPipe here.
    """

    key: ClassVar[str] = "maxtext"

    def finished(self, document: Document, words: Mapping[str, Any], release: str) -> Told:
        """The model's name there, data ranks inside nodes and across them, and sequences per device."""
        devices, per_node = words.get("devices", 1), max(1, words.get("devices_per_node", 1))
        ranks, zero = words.get("plan.dp", 1), words.get("plan.zero", 0)
        nodes = max(1, devices // per_node)
        ep = words.get("plan.ep", 1)
        shards = ranks // ep if ranks % ep == 0 else ranks  # experts' axis is one of the data's here
        across = nodes if shards % nodes == 0 else 1
        axis = "fsdp" if zero == 3 else "data"
        document = {"base_config": "base.yml", "hardware": "gpu" if nodes == 1 else "gpu_multiprocess", **document}
        for name in ("data", "fsdp"):
            document[f"dcn_{name}_parallelism"] = across if name == axis else 1
            document[f"ici_{name}_parallelism"] = shards // across if name == axis else 1
        own = {"plan.zero"} if zero in (0, 1, 3) else set()
        if zero == 1:
            document["shard_optimizer_over_data"] = True
        rounds = words.get("plan.micro_batches", 1)
        if words.get("plan.pp", 1) > 1:
            document |= {"gradient_accumulation_steps": 1, "num_pipeline_microbatches": rounds}
            own |= {"plan.schedule"} if words.get("plan.schedule") == "gpipe" else set()
        steps = document.get("gradient_accumulation_steps", 1)
        document["per_device_batch_size"] = words.get("workload.global_batch", 1) / steps / devices
        document |= {"dataset_type": "synthetic", "steps": 20}
        if words.get("workload.precision") in ("bf16", "fp8", "int8", "fp32", "bf16-pure"):
            dtype = "float32" if words["workload.precision"] == "fp32" else "bfloat16"
            weights = "bfloat16" if words["workload.precision"] == "bf16-pure" else "float32"
            document |= {"dtype": dtype, "weight_dtype": weights}
            own.add("workload.precision")
        task = {"workload.task"} if words.get("workload.task") == "full" else set()
        return document, own | task | {"plan.micro_batch"}

    def understood(self, words: Words, fields: Mapping[str, Any]) -> Told:
        """The catalog's name of the model, ranks and stage, and the batch of a step."""
        ranks = math.prod(
            fields.get(f"{of}_{axis}_parallelism", 1) for of in ("ici", "dcn") for axis in ("data", "fsdp")
        )
        sharded = any(fields.get(f"{of}_fsdp_parallelism", 1) != 1 for of in ("ici", "dcn"))
        words["plan.zero"] = 3 if sharded else 1 if fields.get("shard_optimizer_over_data") else 0
        parts = [words.get(f"plan.{name}", 1) for name in ("tp", "pp", "cp", "ep")]
        devices = ranks * math.prod(parts)
        steps = fields.get("gradient_accumulation_steps", 1)
        each = fields.get("per_device_batch_size")
        if each is not None and min(ranks, *parts) > 0:
            words["workload.global_batch"] = round(each * devices * steps)
            ranks *= parts[-1]
            rounds = fields.get("num_pipeline_microbatches", steps) if words.get("plan.pp", 1) > 1 else steps
            words["plan.micro_batch"] = max(1, round(each * devices * steps / ranks / rounds))
            words["plan.dp"] = ranks
        words.pop("plan.micro_batches", None)
        words |= {"plan.schedule": "gpipe"} if words.get("plan.pp", 1) > 1 else {}
        if fields.get("dtype") in ("bfloat16", "float32") and "workload.precision" not in words:
            full = fields["dtype"] == "float32"
            words["workload.precision"] = (
                "fp32" if full else "bf16-pure" if fields.get("weight_dtype") == "bfloat16" else "bf16"
            )
        name = str(words.pop("model.name", ""))
        if name and name != "default":
            words["model.id"] = re.sub(r"^llama(?=[23])", "llama-", name)
        return words, {"gradient_accumulation_steps", "dtype", "weight_dtype", "num_pipeline_microbatches"}

    def filled(self, words: Mapping[str, Any], release: str = "") -> tuple[dict[str, Any], tuple[str, ...]]:
        """The fields of words, with the model's name as MaxText spells it."""
        name = str(words.get("model.name", "default"))
        return super().filled({**words, "model.name": re.sub(r"^llama-(?=[23])", "llama", name)}, release)
