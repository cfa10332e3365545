"""A budget of tokens that each layer keeps of a prompt's cache; the others are forgotten."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from ridgeline.facts.records import Fact
from ridgeline.seams.serving import Instance, KVEviction
from ridgeline.seams.setting import Setting
from ridgeline.seams.technique import accuracy, param


@dataclass(frozen=True, kw_only=True)
class KVBudget(KVEviction):
    """Of a prompt's cache so many tokens stay for each sequence and layer, and all new ones.

    The prompt itself has attended to all of it (SnapKV), or with `early` each of its chunks to those kept of the chunks
    before (Locret). Which tokens are kept, and how good answers are then, is not asked.
    """

    key: ClassVar[str] = "kv-budget"
    word: ClassVar[str] = "kv_kept"
    source: ClassVar[tuple[str, ...]] = ("li2024snapkv", "huang2024locret")
    quality: ClassVar[Fact | None] = accuracy(
        "comparable to the whole cache's on 16 data sets of long sequences, abstract", "li2024snapkv"
    )
    tokens: int = param(
        1024, "tokens", "tokens of a prompt's cache that each layer keeps; when absent, all", low=1, high=10_000_000,
        word="kv_kept",
    )  # fmt: skip
    early: bool = param(
        False, "", "what is not kept goes after each chunk of a prompt, not when it is done", word="kv_early"
    )

    def applies(self, setting: Setting) -> str:
        """As of every eviction; prompts that are no longer than the budget are kept whole."""
        said, traffic = super().applies(setting), setting.traffic
        if said or traffic is None or traffic.prompt.most > self.tokens:
            return said
        return f"the longest prompt has {traffic.prompt.most:,} tokens, the budget {self.tokens:,}"

    def unfit(self, instance: Instance) -> str:
        """As of every eviction; early ones need prompts in chunks."""
        if self.early and not instance.policy.chunked:
            return f"goes early, but {instance.policy.name} does not cut prompts in chunks; say chunked as well"
        return super().unfit(instance)

    def numbers(self, instance: Instance, stride: int) -> Mapping[str, float]:
        """Tokens that stay, and whether they do after each chunk."""
        return {"kept": self.tokens, "early": self.early}

    def held_tokens(self, instance: Instance, prompt: float) -> float:
        """min(P, k)."""
        return min(prompt, float(self.tokens))

    def told(self) -> str:
        """Tokens kept."""
        return f"{self.tokens:,} tokens of cache kept{' early' if self.early else ''}"
