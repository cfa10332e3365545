"""The seam of speculation: tokens that are drafted for a step and verified in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ridgeline.seams.serving_technique import Instance, ServingTechnique
from ridgeline.seams.technique import EXACT, param

if TYPE_CHECKING:
    from ridgeline.facts.records import Fact
    from ridgeline.seams.setting import Setting


@dataclass(frozen=True, kw_only=True)
class Speculation(ServingTechnique):
    """Tokens that are drafted for a step and verified in it; neutral: none."""

    family: ClassVar[str] = "speculation"
    owns: ClassVar[frozenset[str]] = frozenset({"iterations", "drafts"})
    quality: ClassVar[Fact | None] = EXACT
    acceptance: float = param(0.0, "1", "probability that a draft is accepted", high=1.0, word="acceptance")
    share: float | None = param(
        None, "1", "time to draft one token, as a share of a step; one layer's when absent", high=1e3,
        word="draft_share",
    )  # fmt: skip
    prompt_share: float | None = param(
        None, "1", "time of a draft's pass over prompts, as a share of the model's; when absent, draft_share",
        high=1e3, word="draft_prompt_share",
    )  # fmt: skip
    held_bytes: float = param(
        0.0, "byte", "weights of a model that drafts, on each device of the last stage", high=1e15, word="draft_bytes"
    )
    token_bytes: float = param(0.0, "byte", "its cache of a token there", high=1e12, word="draft_token_bytes")

    def axes(self, setting: Setting) -> tuple[str, ...]:
        """None by itself: what share of drafts is accepted hangs on prompts, and an assumed one is no advice."""
        return ()

    @property
    def drafted(self) -> int:
        """Tokens of a sequence that a step verifies besides its own [token]."""
        return 0

    @property
    def depth(self) -> int:
        """Tokens drafted one after another for a step [token]."""
        return 0

    @property
    def gained(self) -> float:
        """Tokens that a sequence gains in one step on average [token]."""
        return 1.0

    def shares(self, instance: Instance) -> tuple[float, float]:
        """A draft's passes for a step's sequences and over prompts, as shares of the model's own [1].

        One layer's where nothing is said, as that of a checkpoint's own head of drafts (MTP, EAGLE). Engines run a
        draft over every prompt, whose cache it needs. Source: sglang, python/sglang/srt/speculative/eagle_worker.py:
        forward_draft_extend; vllm, vllm/v1/spec_decode/eagle.py: propose, over all tokens of the iteration.
        """
        if self.drafted == 0:
            return 0.0, 0.0
        share = 1.0 / len(instance.model.graph.layers) if self.share is None else self.share
        return self.depth * share, share if self.prompt_share is None else self.prompt_share

    def held(self, layers: int, weights: float, cache: float) -> tuple[float, float]:
        """Weights of what drafts on a device of the last stage, and its cache of a token there [byte].

        Those of a named model, or one of the model's `layers`, which take `weights` and `cache` [byte] on a stage of
        all. Engines put all of a draft on the last stage, and send its cache with the model's from pool to pool.
        Source: vllm, vllm/v1/worker/gpu_model_runner.py: "we put the entire draft model on the last PP rank"; sglang,
        python/sglang/srt/disaggregation/prefill.py: "We should also transfer draft model kv cache".
        """
        if self.drafted == 0 or self.share is not None:
            return self.held_bytes, self.token_bytes
        return weights / layers, cache / layers

    def numbers(self, instance: Instance, stride: int) -> Mapping[str, float]:
        """What drafting adds to a step, and to what prompts add to an iteration."""
        step, prompts = self.shares(instance)
        return {"draft_share": step, "draft_prompt": prompts}
