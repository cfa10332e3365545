"""What drafting adds to an engine: a draft's passes over steps and over prompts, its weights and its cache."""

from __future__ import annotations

from ridgeline.plan.deployment import Deployment


def draft_shares(one: Deployment, layers: int) -> tuple[float, float]:
    """A draft's pass over a step's sequences and over prompts, as shares of the model's own [1].

    One layer's where nothing is said, as that of a checkpoint's own head of drafts (MTP, EAGLE). Engines run a draft
    over every prompt, whose cache it needs. Source: sglang, python/sglang/srt/speculative/eagle_worker.py:
    forward_draft_extend; vllm, vllm/v1/spec_decode/eagle.py: propose, over all tokens of the iteration.
    """
    if one.draft_tokens == 0:
        return 0.0, 0.0
    share = 1.0 / layers if one.draft_share is None else one.draft_share
    return share, share if one.draft_prompt_share is None else one.draft_prompt_share


def draft_bytes(one: Deployment, layers: int, weights: float, cache: float) -> tuple[float, float]:
    """Weights of what drafts on a device of the last stage, and its cache of a token there [byte].

    Those of a named model, or one of the model's `layers`, which take `weights` and `cache` [byte] on a stage of all.
    Engines put all of a draft on the last stage, and send its cache with the model's from pool to pool. Source: vllm,
    vllm/v1/worker/gpu_model_runner.py: "we put the entire draft model on the last PP rank"; sglang,
    python/sglang/srt/disaggregation/prefill.py: "We should also transfer draft model kv cache".
    """
    if one.draft_tokens == 0 or one.draft_share is not None:
        return one.draft_bytes, one.draft_token_bytes
    return weights / layers, cache / layers
