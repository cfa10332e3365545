"""torchtune: the YAML of `tune run RECIPE --config FILE`."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any, ClassVar

from ridgeline.errors import InputError
from ridgeline.export.forms import put
from ridgeline.export.target import Document, Target, Told, Words


@dataclass(frozen=True, kw_only=True)
class Torchtune(Target):
    """torchtune's YAML of its full and LoRA fine-tuning recipes, on one device or several.

    Parts are named by what builds them (`_component_`). Pipelines and experts have no field. Checkpoint and tokenizer
    paths are placeholders under `MODEL`.
    """

    key: ClassVar[str] = "torchtune"

    def unsaid(self, words: Mapping[str, Any]) -> Set[str]:
        """Sharding is said where weights are sharded, a tensor degree where there is one."""
        out = set() if words.get("plan.zero", 0) >= 2 else {"plan.zero", "plan.offload_weights"}
        return out | ({"plan.tp"} if words.get("plan.tp", 1) == 1 else set())

    def finished(self, document: Document, words: Mapping[str, Any], release: str) -> Told:
        """The parts that build model, data and tokenizer, and how ranks shard."""
        task = str(words.get("workload.task"))
        document.pop("model", None)
        model: dict[str, Any] = {"_component_": _builder(str(words.get("model.name")), task)}
        if task in ("lora", "qlora"):
            model |= {"lora_attn_modules": ["q_proj", "k_proj", "v_proj", "output_proj"], "apply_lora_to_mlp": True,
                      "lora_rank": words.get("workload.lora_rank", 16)}  # fmt: skip
        document = {
            "output_dir": "out", "device": "cuda", "epochs": 1, "seed": None, "shuffle": True,
            "resume_from_checkpoint": False, "model": model, **document,
            "dataset": {"_component_": "torchtune.datasets.alpaca_dataset", "packed": True},
            "checkpointer": {"_component_": "torchtune.training.FullModelHFCheckpointer", "checkpoint_dir": "MODEL",
                             "checkpoint_files": ["model.safetensors"], "output_dir": "out", "model_type": "LLAMA3"},
        }  # fmt: skip
        put(document, "tokenizer._component_", "torchtune.models.llama3.llama3_tokenizer")
        put(document, "tokenizer.path", "MODEL/original/tokenizer.model")
        if "optimizer" in document:
            put(document, "optimizer.lr", 1e-5)
        if document.get("enable_activation_offloading"):
            document["enable_activation_checkpointing"] = True  # which torchtune asks for beside it
        document["dtype"] = document.pop("dtype", "bf16")  # the nearest that it has, of formats that it has not
        zero, ranks = words.get("plan.zero", 0), words.get("plan.dp", 1)
        own = {"workload.task"} | ({"plan.zero"} if zero >= 2 or ranks == 1 else set())
        if zero >= 2:
            group = words.get("plan.zero_group") or ranks
            document |= {"data_parallel_shard_dim": group, "data_parallel_replicate_dim": ranks // group}
            own.add("plan.zero_group")
        return document, own

    def command(self, words: Mapping[str, Any]) -> str:
        """The recipe for the task and the devices."""
        several = words.get("devices", 1) > 1
        kind = "lora" if "lora" in str(words.get("workload.task")) else "full"
        recipe = f"{kind}_finetune_{'distributed' if several else 'single_device'}"
        launch = f"--nproc_per_node {words.get('devices', 1)} " if several else ""
        return self.start.format(launch=launch, recipe=recipe, file=self.file)

    def understood(self, words: Words, fields: Mapping[str, Any]) -> Told:
        """The catalog's model of a builder, the task, and the stage and group of sharding."""
        from ridgeline.graph.load import catalog

        built = str(fields.get("model._component_", ""))
        found = [(name, task) for task in ("full", "lora", "qlora") for name in catalog() if _name(name, task) == built]
        if found:
            words |= {"model.id": found[0][0], "workload.task": found[0][1]}
        if "plan.zero" not in words:
            words["plan.zero"] = 3 if fields.get("data_parallel_shard_dim", 1) != 1 else 0
        if fields.get("data_parallel_replicate_dim", 1) > 1 and fields.get("data_parallel_shard_dim", 1) > 1:
            words["plan.zero_group"] = fields["data_parallel_shard_dim"]
        return words, {"model._component_"}


def _name(name: str, task: str) -> str:
    """What builds a model of the catalog, for a task: 'torchtune.models.llama3_1.lora_llama3_1_8b'."""
    series, _, size = name.replace("llama-", "llama").replace("qwen2.5-", "qwen2.5-").partition("-")
    family = series.replace(".", "_")
    before = f"{task}_" if task in ("lora", "qlora") else ""
    return f"torchtune.models.{family}.{before}{family}_{size.replace('.', '_').replace('-', '_')}"


def _builder(name: str, task: str) -> str:
    """What builds a model; raises `InputError` for one that torchtune does not have."""
    series = name.replace("llama-", "llama").partition("-")[0]
    if series not in _SERIES:
        raise InputError(f"torchtune has no {name}; it has {', '.join(_SERIES)}", field="model", value=name)
    return _name(name, task)


_SERIES = ("llama2", "llama3", "llama3.1", "llama3.2", "llama3.3", "qwen2", "qwen2.5")
