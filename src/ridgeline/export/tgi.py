"""TGI: flags of `text-generation-launcher`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ridgeline.export.target import Document, Target, Told, Words


@dataclass(frozen=True, kw_only=True)
class TGI(Target):
    """A shell script of `text-generation-launcher`, whose flags these are.

    Instances are divided by heads alone; there are no pipeline, data or expert ranks and no two pools. Its memory
    fraction limits what its warm-up takes of what is free, and is left to it. Drafts come from heads in the checkpoint,
    or from n-grams: a model that drafts cannot be named. Prefix caching and chunked prompts are variables of the
    environment, and left to it.
    """

    key: ClassVar[str] = "tgi"

    def finished(self, document: Document, words: Mapping[str, Any], release: str) -> Told:
        """Graphs, of which no sizes mean none, and the longest prompt."""
        if words.get("plan.graphs") is False:
            document["cuda-graphs"] = 0
        if "max-total-tokens" in document:
            document["max-input-tokens"] = document["max-total-tokens"] - 1
        return document, {"plan.graphs"}

    def understood(self, words: Words, fields: Mapping[str, Any]) -> Told:
        """Graphs of some sizes, or of none."""
        words["plan.graphs"] = fields.get("cuda-graphs") != 0
        return words, {"cuda-graphs", "max-input-tokens"}
