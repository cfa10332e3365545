"""Decoding of masked-diffusion language models: every step computes a block, and settles some of its tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ridgeline.facts.records import Fact
from ridgeline.seams.registry import listed
from ridgeline.seams.serving import Instance, Speculation
from ridgeline.seams.technique import param


@dataclass(frozen=True, kw_only=True)
class MaskedDiffusion(Speculation):
    """Masked-diffusion language models decode by unmasking: each step computes a block and settles a few of its tokens.

    Fills the seam of speculation: a step computes `block` tokens of each sequence against its cache, and a sequence
    gains `settled` of them. LLaDA settles one a step; Learn2PD's filter those that it holds for final, where `settled`
    is what a run tells. Keys and values of other positions change as tokens settle: with `refreshed` all of the
    sequence, `context` tokens, is computed anew once a block, as Fast-dLLM's cache does. Without a cache the block is
    the whole sequence, prompt and masked answer, in every step. Where an answer ends (Learn2PD's end-of-text
    prediction) is the length of the output that is asked for.

    Checked: tokens, steps and refreshes by hand. Left out: the filter itself (two layers of 2,000 weights), attention
    in both directions within a block, which computes twice the scores of a causal one.
    """

    key: ClassVar[str] = "masked-diffusion"
    source: ClassVar[tuple[str, ...]] = ("learn2pd",)
    in_words: ClassVar[bool] = False
    quality: ClassVar[Fact | None] = None
    block: int = param(32, "tokens", "tokens that a step computes", low=1, high=65_536)
    settled: float = param(1.0, "tokens", "tokens of a block that a step settles, on average", low=1.0, high=65_536.0)
    refreshed: bool = param(True, "", "all of a sequence is computed anew once a block")
    context: int = param(1024, "tokens", "tokens of a sequence that is computed anew", low=1, high=10_000_000)

    @property
    def drafted(self) -> int:
        """Tokens of a step besides the one that every step has [token]."""
        return self.block - 1

    @property
    def depth(self) -> int:
        """One: nothing is drafted one after another."""
        return 1

    @property
    def gained(self) -> float:
        """Tokens that a step settles, of a block at most [token]."""
        return min(self.settled, float(self.block))

    def shares(self, instance: Instance) -> tuple[float, float]:
        """What computing a sequence anew adds to each step of a block, as a share of one; of prompts nothing [1]."""
        if not self.refreshed or self.block == 1:
            return 0.0, 0.0
        return self._refresh(instance) * self.gained / self.block, 0.0

    def _refresh(self, instance: Any) -> float:
        """A pass over `context` tokens over a step of a block of one sequence after them [1]."""
        from ridgeline.serving.metrics import decode_parts, prefill_parts

        one = instance.deployment
        others = tuple(text for text in one.technique if listed(text).family != self.family)
        plain = instance.placed(replace(one, technique=(*others, replace(self, refreshed=False).text)))
        tables = plain.tables(longest_prompt=self.context, longest=self.context + self.block)
        whole, step = (
            sum(seconds for name, seconds in parts.items() if name != "host")
            for parts in (
                prefill_parts(plain, tables, float(self.context)),
                decode_parts(plain, tables, 1.0, float(self.context)),
            )
        )
        return float(whole / step)

    def held(self, layers: int, weights: float, cache: float) -> tuple[float, float]:
        """Nothing: the model drafts for itself [byte]."""
        return 0.0, 0.0

    def told(self) -> str:
        """Tokens of a step, and those that it settles."""
        return f"{self.block:,} tokens a step, {self.gained:g} settled"
