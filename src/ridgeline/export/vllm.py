"""vLLM: `vllm serve --config FILE`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ridgeline.export.target import Target, Words


@dataclass(frozen=True, kw_only=True)
class VLLM(Target):
    """A YAML file of `vllm serve --config`, whose keys are flags without dashes.

    Expert parallelism is a switch: experts are divided over all tensor and data ranks or over none. Its memory
    fraction is of the device's whole memory. Two pools are two files, which name each other by a KV connector.
    """

    key: ClassVar[str] = "vllm"
    source: ClassVar[tuple[str, ...]] = ("vllm",)
    title: ClassVar[str] = "vLLM"
    program: ClassVar[str] = "vllm"
    file: ClassVar[str] = "vllm.yaml"
    start: ClassVar[str] = "vllm serve {model} --config {file}"

    def finished(
        self, document: dict[str, Any], words: Mapping[str, Any], release: str
    ) -> tuple[dict[str, Any], set[str]]:
        """Expert parallelism as its switch."""
        ranks = words.get("plan.tp", 1) * words.get("plan.dp", 1)
        ep = words.get("plan.ep", 1)
        if ep > 1 and ep == ranks:
            document["enable-expert-parallel"] = True
            return document, {"plan.ep"}
        return document, {"plan.ep"} if ep == 1 else set()

    def understood(self, words: Words, fields: Mapping[str, Any]) -> tuple[Words, set[str]]:
        """Expert ranks from the switch."""
        if fields.get("enable-expert-parallel"):
            words["plan.ep"] = words.get("plan.tp", 1) * words.get("plan.dp", 1)
        return words, {"enable-expert-parallel"}
