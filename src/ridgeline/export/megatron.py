"""Megatron-LM: the flags of `pretrain_gpt.py`."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any, ClassVar

from ridgeline.export.forms import flags_text
from ridgeline.export.target import Document, Target, Told, Words


@dataclass(frozen=True, kw_only=True)
class Megatron(Target):
    """Megatron-LM's flags, as a launch script of `pretrain_gpt.py` on made-up tokens.

    There is no zero-bubble flag, nor one for gradients sharded alone without Megatron-FSDP. Pipelines are 1F1B or, with
    `--num-virtual-stages-per-pipeline-rank`, interleaved. Adapters and the model's own name have no flag; its
    dimensions do.
    """

    key: ClassVar[str] = "megatron"

    def unsaid(self, words: Mapping[str, Any]) -> Set[str]:
        """Experts' flags are said where there are experts, how context is exchanged where it is divided."""
        out = set() if words.get("model.experts") else _OF_EXPERTS
        return out | ({"plan.context_style"} if words.get("plan.cp", 1) == 1 else set())

    def finished(self, document: Document, words: Mapping[str, Any], release: str) -> Told:
        """Sharding, chunks, recompute and the format, each of several flags, and what a run without data needs."""
        own = {"plan.schedule", "plan.chunks"} if words.get("plan.schedule") in ("1f1b", "interleaved") else set()
        if words.get("plan.schedule") == "interleaved" and words["plan.chunks"] > 1:
            document["num-virtual-stages-per-pipeline-rank"] = words["plan.chunks"]
        own |= self._sharded(document, words) | self._recomputed(document, words)
        precision = words.get("workload.precision")
        if precision in _LOW:
            document |= {"bf16": True, **_LOW[precision]}
        if precision in ("fp32", *_LOW):
            own.add("workload.precision")
        if words.get("model.type") in _LLAMA:
            document |= {"swiglu": True, "normalization": "RMSNorm", "position-embedding-type": "rope",
                         "disable-bias-linear": True}  # fmt: skip
            document["group-query-attention"] = words.get("model.kv_heads") != words.get("model.heads")
        document["untie-embeddings-and-output-weights"] = not words.get("model.tied", True)
        document |= {
            "max-position-embeddings": words.get("workload.seq_len", 1), "vocab-size": words.get("model.vocab", 1),
            "tokenizer-type": "NullTokenizer", "mock-data": True, "train-iters": 20, "lr": 1e-5,
        }  # fmt: skip
        task = {"workload.task"} if words.get("workload.task") == "full" else set()
        return document, own | task | {"workload.seq_len"}

    def _sharded(self, document: dict[str, Any], words: Mapping[str, Any]) -> set[str]:
        """Sharded states as flags, and the words that they say."""
        zero, group = words.get("plan.zero", 0), words.get("plan.zero_group")
        if zero >= 1:
            document["use-distributed-optimizer"] = True
            document["overlap-param-gather"] = bool(
                words.get("plan.overlap_weights") and document["overlap-grad-reduce"]
            )
        if zero >= 2:
            sharding = "optim_grads" if zero == 2 else "optim_grads_params"
            document |= {"use-megatron-fsdp": True, "data-parallel-sharding-strategy": sharding,
                         "ckpt-format": "fsdp_dtensor", "no-gradient-accumulation-fusion": True}  # fmt: skip
        if group and zero >= 1:
            ranks = words.get("plan.dp", 1) * words.get("plan.cp", 1)
            document["num-distributed-optimizer-instances"] = ranks // group
        return {"plan.zero", "plan.overlap_weights", *(("plan.zero_group",) if zero else ())}

    def _recomputed(self, document: dict[str, Any], words: Mapping[str, Any]) -> set[str]:
        """How much of full recompute there is, as flags, and the words that they say."""
        if words.get("plan.recompute") != "full":
            return {"plan.recompute"} if words.get("plan.recompute") == "none" else set()
        layers = words.get("plan.recompute_layers")
        document |= {"recompute-method": "block" if layers else "uniform", "recompute-num-layers": layers or 1}
        return {"plan.recompute_layers"}

    def command(self, words: Mapping[str, Any]) -> str:
        """The command that starts the script on every node."""
        return f"sh {self.file}"

    def written(self, document: dict[str, Any], words: Mapping[str, Any]) -> dict[str, str]:
        """The launch script."""
        devices, per_node = words.get("devices", 1), max(1, words.get("devices_per_node", 1))
        start = self.start.format(per_node=min(devices, per_node), nodes=-(-devices // per_node))
        return {self.file: "#!/bin/sh\n" + flags_text(start, document)}

    def understood(self, words: Words, fields: Mapping[str, Any]) -> Told:
        """The stage of sharding, chunks, and the format."""
        strategy = fields.get("data-parallel-sharding-strategy", "")
        words["plan.zero"] = _STAGES.get(str(strategy), 1 if fields.get("use-distributed-optimizer") else 0)
        words["plan.overlap_gradients"] = bool(fields.get("overlap-grad-reduce"))
        words["plan.overlap_weights"] = bool(fields.get("overlap-param-gather")) or not words["plan.zero"]
        chunks = fields.get("num-virtual-stages-per-pipeline-rank", 1)
        per_chunk = fields.get("num-layers-per-virtual-pipeline-stage")
        if per_chunk and "num-layers" in fields:
            chunks = fields["num-layers"] // (words.get("plan.pp", 1) * per_chunk)
        words |= {"plan.chunks": chunks, "plan.schedule": "interleaved"} if chunks > 1 else {}
        if fields.get("recompute-method") == "block":
            words["plan.recompute_layers"] = fields.get("recompute-num-layers")
        words["workload.precision"] = words.get("workload.precision", "fp32")
        for name, flags in _LOW.items():
            if flags.items() <= fields.items():
                words["workload.precision"] = name
        return words, {"overlap-param-gather", "use-distributed-optimizer"}


_STAGES = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
_LOW: dict[str, dict[str, Any]] = {
    "fp8": {"fp8-format": "hybrid"}, "mxfp8": {"fp8-format": "e4m3", "fp8-recipe": "mxfp8"},
    "nvfp4": {"fp4-format": "e2m1"},
}  # fmt: skip
_LLAMA = frozenset({"llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen2_moe", "qwen3_moe"})
_OF_EXPERTS = {"plan.ep", "plan.etp", "workload.expert_dispatch", "workload.expert_modules"}
