"""How a training framework holds what the arithmetic needs: the keys of its policy file that show in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ridgeline.facts.policy_schema import flag as _flag
from ridgeline.facts.policy_schema import key as _key
from ridgeline.facts.policy_schema import word as _word


def _number(default: float | None, about: str, unit: str = "1", high: float = 1e3) -> Any:
    return _key(default, about, unit=unit, kind=float, low=0.0, high=high)


@dataclass(frozen=True, kw_only=True)
class MemoryKeys:
    """Memory behaviour of a training framework. The metadata of each key is its schema: unit, limits, meaning."""

    logit_copies: float = _number(0.0, "tensors of tokens x vocabulary alive in the loss, in the activation format")
    logit_fp32_copies: float = _number(3.0, "and in fp32")
    persistent_gradients: bool = _flag(
        True, "gradients have a buffer of their own from the first step on; else they appear as activations go"
    )
    weight_bytes: float | None = _number(None, "width of held weights where it is not the precision recipe's", "byte")
    gradient_bytes: float | None = _number(None, "and of gradients", "byte")
    gradient_copies: float = _number(0.0, "gradient-sized communication buckets beside the gradients")
    fused_gradients: bool = _flag(True, "weight gradients accumulate in place; else one exists apart")
    gathered_layers: float = _number(2.0, "whole layers of weights held at once under ZeRO-3", "layer")
    unreduced_layers: float = _number(1.0, "whole layers of gradients held at once under ZeRO-3", "layer")
    live_numbers: float = _number(0.0, "the least that is gathered at once under ZeRO-3", "1", 1e12)
    bucket_numbers: float = _number(0.0, "the least that is reduced at once under ZeRO-3", "1", 1e12)
    gathered_ends: bool = _flag(False, "the embedding and the head stay gathered through the step under ZeRO-3")
    selective: str = _word(
        "core-attention",
        "what selective recompute keeps: all but attention scores, or every other product, attention's output and each "
        "layer's input",
        *("core-attention", "every-second-matmul"),
    )
    transformer_engine: bool = _flag(False, "Transformer Engine's scratch for matrix products is held")
    deterministic: bool = _flag(False, "algorithms must be deterministic: more scratch, new tensors filled")
    gradient_passes: float = _number(3.0, "passes over gradients at an update: their norm, the update, clearing")
    update_fp32_copies: float = _number(0.0, "fp32 copies of fp16 gradients at an update that no ranks share")
    mlp_input_bytes: float | None = _number(
        None, "width of what activation functions keep of their inputs where it is not that of activations", "byte"
    )
    quantized_bytes: float | None = _number(
        None, "a weight of a 4-bit base; not said: NF4 with doubly quantized constants", "byte"
    )
    quantized_head: bool = _flag(False, "the head of a 4-bit base is in 4 bits too")
    dequantized_copies: float = _number(1.0, "16-bit copies made of a 4-bit weight at work")
    held_inputs: float = _number(
        0.0, "micro-batches of which inputs of 4-bit products are held; 2: also those of the one before"
    )
    whole_constants: bool = _flag(False, "ranks hold all constants of 4-bit blocks where ZeRO-3 shards weights")
    ties_embeddings: bool = _flag(True, "a tied table is shared")
    context_bytes: float = _number(
        2.0**30, "CUDA context and channels of a few communicators, outside the allocator", "byte", 1e11
    )
