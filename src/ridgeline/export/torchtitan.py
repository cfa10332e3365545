"""torchtitan: a Python module whose `config()` returns a Trainer.Config."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any, ClassVar

from ridgeline.errors import InputError
from ridgeline.export.modules import CALL, module_text
from ridgeline.export.target import Document, Target, Told, Words


@dataclass(frozen=True, kw_only=True)
class Torchtitan(Target):
    """torchtitan's config from 0.3 on: a Python module, put beside a model's `config_registry` or named by `--module`.

    An import reads the module's syntax tree and runs nothing. Weights shard over `data_parallel_shard_degree`; ZeRO
    stage 1 has no field.
    """

    key: ClassVar[str] = "torchtitan"

    def unsaid(self, words: Mapping[str, Any]) -> Set[str]:
        """A schedule is said where there is a pipeline, resharding where weights are sharded."""
        out = {"plan.schedule"} if words.get("plan.pp", 1) == 1 else set()
        return out | ({"plan.zero"} if words.get("plan.zero", 0) < 2 else set())

    def finished(self, document: Document, words: Mapping[str, Any], release: str) -> Told:
        """The model, the mesh's data ranks, micro-batches, recompute and formats, as calls."""
        module, size = _model(str(words.get("model.name")))
        training, parallel = document["training"], document["parallelism"]
        zero, ranks = words.get("plan.zero", 0), words.get("plan.dp", 1)
        shard = (words.get("plan.zero_group") or ranks) if zero >= 2 else 1
        parallel |= {"data_parallel_shard_degree": shard, "data_parallel_replicate_degree": ranks // shard}
        micro = words.get("plan.micro_batch", 1)
        if words.get("plan.pp", 1) > 1:
            parallel["pipeline_parallel_microbatch_size"] = micro
            training["local_batch_size"] = micro * words.get("plan.micro_batches", 1)
        training["disable_cuda_graphs"] = words.get("workload.execution") != "graph"
        precision = words.get("workload.precision")
        training |= dict(zip(_DTYPES, _FORMATS.get(str(precision), ()), strict=False))
        own = {"plan.zero_group", "workload.task"} - ({"workload.task"} if "lora" in words["workload.task"] else set())
        own |= {"plan.zero"} if zero != 1 else set()
        own |= {"workload.precision"} if precision in _FORMATS else set()
        own |= {"plan.schedule"} if words.get("plan.pp", 1) == 1 else set()
        own |= {"plan.chunks"} if words.get("plan.schedule") == "zb-v" else set()
        tables = {name: {CALL: call, **document.pop(name)} for name, call in _TABLES.items() if name in document}
        made: dict[str, Any] = {CALL: "Trainer.Config", "model_spec": {CALL: "model_registry", "0": size}}
        made |= {**document, **tables, "module": module}
        if words.get("plan.recompute") in _RECOMPUTE:
            call = _RECOMPUTE[words["plan.recompute"]]
            made["activation_checkpoint"] = call and {CALL: call}
            own.add("plan.recompute")
        if words.get("workload.optimizer") == "adamw":
            made["optimizer"] = {CALL: "default_adamw", "lr": 1e-5}
            own.add("workload.optimizer")
        return made, own

    def written(self, document: dict[str, Any], words: Mapping[str, Any]) -> dict[str, str]:
        """The module, with what it imports."""
        said = {name: value for name, value in document.items() if name != "module"}
        lines = (f"from torchtitan.models.{document['module']} import model_registry", *_IMPORTS)
        return {self.file: module_text(said, lines)}

    def understood(self, words: Words, fields: Mapping[str, Any]) -> Told:
        """The model, the stage and group of sharding, micro-batches, recompute and formats."""
        used = {"activation_checkpoint", "parallelism.data_parallel_shard_degree", "optimizer.call"}
        module = str(fields.get("model_spec.module", "")).rpartition(".")[2]
        named = [name for name, one in _known_models().items() if one == (module, fields.get("model_spec.0"))]
        words |= {"model.id": named[0]} if named else {}
        shard = fields.get("parallelism.data_parallel_shard_degree", -1)
        copies = fields.get("parallelism.data_parallel_replicate_degree", 1)
        if shard == 1:
            words["plan.zero"] = 0
        elif "plan.zero" not in words:
            words["plan.zero"] = 2 if words.get("plan.pp", 1) > 1 else 3
        if copies > 1 and shard > 1:
            words["plan.zero_group"] = shard
        if words.get("plan.schedule") == "zb-v":
            words["plan.chunks"] = 2
        if words.get("plan.pp", 1) > 1:
            words["plan.micro_batch"] = fields.get("parallelism.pipeline_parallel_microbatch_size", 1)
        call = str(fields.get("activation_checkpoint.call", "")) or None
        if call is not None or "activation_checkpoint" in fields:
            words["plan.recompute"] = next((ours for ours, theirs in _RECOMPUTE.items() if theirs == call), "full")
        told = tuple(fields.get(f"training.{name}", usual) for name, usual in _DTYPES.items())
        words["workload.precision"] = next((ours for ours, theirs in _FORMATS.items() if theirs == told), "bf16")
        if fields.get("training.disable_cuda_graphs") is False:
            words["workload.execution"] = "graph"
        if fields.get("optimizer.call") == "default_adamw":
            words["workload.optimizer"] = "adamw"
        if words.get("workload.global_batch", 1) < 1:
            del words["workload.global_batch"]
        return words, used


_TABLES = {"training": "TrainingConfig", "parallelism": "ParallelismConfig", "compile": "CompileConfig"}
_RECOMPUTE = {"none": None, "full": "FullAC.Config", "every-second-matmul": "SelectiveAC.Config"}
_DTYPES = {"dtype": "float32", "mixed_precision_param": "bfloat16"}
_FORMATS = {"bf16": ("float32", "bfloat16"), "bf16-pure": ("bfloat16", "bfloat16"), "fp32": ("float32", "float32")}
_IMPORTS = (
    "from torchtitan.components.optimizer import default_adamw",
    "from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig",
    "from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC",
    "from torchtitan.trainer import Trainer",
)
_SIZES = {
    "llama3": {"llama-3.1-8b": "8B", "llama-3.1-70b": "70B", "llama-3.1-405b": "405B", "llama-3.2-1b": "1B",
               "llama-3.2-3b": "3B"},
    "qwen3": {"qwen3-4b": "4B", "qwen3-8b": "8B", "qwen3-14b": "14B", "qwen3-32b": "32B", "qwen3-30b-a3b": "30B-A3B",
              "qwen3-235b-a22b": "235B-A22B"},
    "deepseek_v3": {"deepseek-v2-lite": "16B", "deepseek-v2": "236B", "deepseek-v3": "671B"},
}  # fmt: skip
"""Names of models, in torchtitan's modules: those of torchtitan/models of 0.3.0 whose dimensions are the same."""


def _known_models() -> dict[str, tuple[str, str]]:
    return {name: (module, size) for module, sizes in _SIZES.items() for name, size in sizes.items()}


def _model(name: str) -> tuple[str, str]:
    """The module and size of a model; raises `InputError` with those there are."""
    known = _known_models()
    if name not in known:
        raise InputError(f"torchtitan has no {name}; it has {', '.join(known)}", field="model", value=name)
    return known[name]
