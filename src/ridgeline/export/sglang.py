"""SGLang: `sglang serve --config FILE`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ridgeline.export.target import Document, Target, Told, Words

_PER_RANK = {"max-running-requests": "plan.max_seqs", "chunked-prefill-size": "plan.token_budget"}
"""Fields that count over all attention ranks, where our word counts on each."""


@dataclass(frozen=True, kw_only=True)
class SGLang(Target):
    """A YAML file of `sglang serve --config`, whose keys are flags without dashes.

    Its tensor-parallel size counts all devices of an instance, also those of attention's data-parallel ranks. Its
    memory fraction is of weights and cache, without workspace: one of another engine is converted with the memory that
    is predicted. Fields that take lists, and switches that are off, cannot be in the file. Two pools are two files.
    """

    key: ClassVar[str] = "sglang"

    def finished(self, document: Document, words: Mapping[str, Any], release: str) -> Told:
        """Degrees, limits over all ranks, whole prompts, drafts and the role in a pool."""
        dp = words.get("plan.dp", 1)
        document["tp-size"] = words.get("plan.tp", 1) * dp
        document.pop("dp-size", None)
        if dp > 1:
            document["attn-dp-size"] = dp
        for name in _PER_RANK:
            if name in document:
                document[name] *= dp
        said = {"plan.chunked", "plan.dp"}
        if words.get("plan.chunked") is False:
            document["max-prefill-tokens"] = document.pop("chunked-prefill-size", 16384)
            document["chunked-prefill-size"] = -1
        if words.get("plan.draft_model") and words.get("plan.draft_tokens"):
            tokens = words["plan.draft_tokens"]
            document |= {
                "speculative-algorithm": "STANDALONE", "speculative-num-steps": tokens, "speculative-eagle-topk": 1,
                "speculative-num-draft-tokens": tokens + 1,
            }  # fmt: skip
            said |= {"plan.draft_tokens"}
        else:
            document.pop("speculative-draft-model-path", None)
        if words.get("pool.role"):
            document["disaggregation-mode"] = words["pool.role"]
        # a switch that is off cannot be said: the key alone would be left out, as is its default
        return {name: value for name, value in document.items() if value is not False}, said

    def understood(self, words: Words, fields: Mapping[str, Any]) -> Told:
        """The same backwards; switches that are not there are off."""
        older = fields.get("dp-size", 1) if fields.get("enable-dp-attention") else 1
        dp = fields.get("attn-dp-size") or older
        words["plan.dp"] = dp
        words["plan.tp"] = max(words.get("plan.tp", 1) // dp, 1)
        if fields.get("chunked-prefill-size") == -1:
            words["plan.chunked"] = False
            words["plan.token_budget"] = fields.get("max-prefill-tokens", 16384)
        elif "chunked-prefill-size" in fields:
            words["plan.chunked"] = True
        for word in _PER_RANK.values():
            if word in words:
                words[word] = max(words[word] // dp, 1)
        words.setdefault("plan.prefix_cache", True)
        words.setdefault("plan.graphs", True)
        if fields.get("speculative-algorithm") == "STANDALONE" and "speculative-num-steps" in fields:
            words["plan.draft_tokens"] = fields["speculative-num-steps"]
        else:
            words.pop("plan.draft_model", None)
        if fields.get("disaggregation-mode") in ("prefill", "decode"):
            words["pool.role"] = fields["disaggregation-mode"]
        used = {"enable-dp-attention", "attn-dp-size", "dp-size", "max-prefill-tokens", "disaggregation-mode"}
        return words, used | {name for name in fields if name.startswith("speculative-")}
