"""vLLM: `vllm serve --config FILE`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ridgeline.export.forms import table_in
from ridgeline.export.target import Document, Target, Told, Words

_ROLES = {"prefill": "kv_producer", "decode": "kv_consumer"}


@dataclass(frozen=True, kw_only=True)
class VLLM(Target):
    """A YAML file of `vllm serve --config`, whose keys are flags without dashes.

    Expert parallelism is a switch: experts are divided over all tensor and data ranks or over none. Its memory
    fraction is of the device's whole memory; one of another engine is converted with the memory that is predicted.
    Drafts are `speculative-config`, which has no probability of acceptance. Two pools are two files, which name each
    other by a KV connector.
    """

    key: ClassVar[str] = "vllm"

    def finished(self, document: Document, words: Mapping[str, Any], release: str) -> Told:
        """Expert parallelism as its switch, drafts, replicas of experts and the role in a pool."""
        said = set()
        ranks = words.get("plan.tp", 1) * words.get("plan.dp", 1)
        ep = words.get("plan.ep", 1)
        if ep > 1 and ep == ranks:
            document["enable-expert-parallel"] = True
        if ep in (1, ranks):
            said.add("plan.ep")
        if words.get("plan.draft_model") and words.get("plan.draft_tokens"):
            document["speculative-config"] = {
                "method": "draft_model", "model": words["plan.draft_model"],
                "num_speculative_tokens": words["plan.draft_tokens"],
            }  # fmt: skip
            said |= {"plan.draft_model", "plan.draft_tokens"}
        if words.get("plan.expert_redundant"):
            document |= {"enable-eplb": True, "eplb-config": {"num_redundant_experts": words["plan.expert_redundant"]}}
            said.add("plan.expert_redundant")
        if words.get("pool.role"):
            document["kv-transfer-config"] = {"kv_connector": "NixlConnector", "kv_role": _ROLES[words["pool.role"]]}
        return document, said

    def understood(self, words: Words, fields: Mapping[str, Any]) -> Told:
        """Expert ranks from the switch, drafts, replicas and the role in a pool."""
        used = {"enable-expert-parallel"}
        if fields.get("enable-expert-parallel"):
            words["plan.ep"] = words.get("plan.tp", 1) * words.get("plan.dp", 1)
        drafted = table_in(fields, "speculative-config")
        tokens, model = drafted.get("num_speculative_tokens"), drafted.get("model")
        if isinstance(tokens, int) and isinstance(model, str) and drafted.get("method", "draft_model") == "draft_model":
            words |= {"plan.draft_tokens": tokens, "plan.draft_model": model}
            used.add("speculative-config")
        redundant = table_in(fields, "eplb-config").get("num_redundant_experts")
        if isinstance(redundant, int) and redundant:
            words["plan.expert_redundant"] = redundant
            used |= {"eplb-config", "enable-eplb"}
        role = table_in(fields, "kv-transfer-config").get("kv_role")
        for ours, theirs in _ROLES.items():
            if role == theirs:
                words["pool.role"] = ours
                used.add("kv-transfer-config")
        return words, used
