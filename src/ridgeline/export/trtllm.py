"""TensorRT-LLM: `trtllm-serve MODEL --config FILE`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ridgeline.export.forms import put, table_in
from ridgeline.export.target import Document, Target, Told, Words


@dataclass(frozen=True, kw_only=True)
class TensorRTLLM(Target):
    """A YAML file of `trtllm-serve --config`, the fields of its PyTorch backend's `TorchLlmArgs`.

    Attention is divided by heads or by requests: data-parallel ranks are all devices of an instance or none. Its memory
    fraction is of what is free after weights and a dry run: one of another engine is converted with the memory that is
    predicted. The model is the command's argument, formats of weights the checkpoint's. Two pools are two files.
    """

    key: ClassVar[str] = "trtllm"

    def finished(self, document: Document, words: Mapping[str, Any], release: str) -> Told:
        """Attention's ranks, graphs, drafts and the role in a pool."""
        tp, dp = words.get("plan.tp", 1), words.get("plan.dp", 1)
        said: set[str] = set()
        if dp > 1 and tp == 1:
            document |= {"tensor_parallel_size": dp, "enable_attention_dp": True}
            said.add("plan.dp")
        if words.get("plan.graphs") is False:
            document["cuda_graph_config"] = None
        elif "plan.graphs" in words:
            put(document, "cuda_graph_config.enable_padding", True)
        if words.get("plan.draft_model") and words.get("plan.draft_tokens"):
            document["speculative_config"] = {
                "decoding_type": "DraftTarget", "max_draft_len": words["plan.draft_tokens"],
                "speculative_model": words["plan.draft_model"],
            }  # fmt: skip
            said |= {"plan.draft_model", "plan.draft_tokens"}
        if words.get("pool.role"):
            put(document, "cache_transceiver_config.backend", "DEFAULT")
        return document, said | {"plan.graphs"}

    def understood(self, words: Words, fields: Mapping[str, Any]) -> Told:
        """The same backwards."""
        if fields.get("enable_attention_dp"):
            words["plan.dp"], words["plan.tp"] = words.get("plan.tp", 1), 1
        graphs = "cuda_graph_config"
        if graphs in fields or any(name.startswith(f"{graphs}.") for name in fields):
            words["plan.graphs"] = fields.get(graphs, {}) is not None
        used = {"enable_attention_dp", graphs, f"{graphs}.enable_padding", "cache_transceiver_config.backend"}
        drafted = table_in(fields, "speculative_config")
        if drafted.get("decoding_type") == "DraftTarget":
            tokens, model = drafted.get("max_draft_len"), drafted.get("speculative_model")
            if isinstance(tokens, int) and isinstance(model, str):
                words |= {"plan.draft_tokens": tokens, "plan.draft_model": model}
                used.add("speculative_config")
        if "cache_transceiver_config.backend" in fields:
            words["pool.role"] = "either"
        return words, used
