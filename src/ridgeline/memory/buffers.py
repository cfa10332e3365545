"""Bytes that communication and format changes need: gathered layers, gradients in passing, copies."""

from __future__ import annotations

import numpy as np

from ridgeline.memory.profile import Divided, Part
from ridgeline.memory.query import Stage
from ridgeline.memory.shares import Array, as_array

GATHERED = ("trained", "frozen", "quantized")
TRAINED = ("trained",)


def _numbers(stage: Stage, part: Part, kinds: tuple[str, ...]) -> Array:
    """Numbers of one layer or end on one rank, unsharded [1]."""
    total = as_array(0.0)
    for kind in kinds:
        total = total + _divided(stage, getattr(part, kind))
    return total


def _divided(stage: Stage, sums: Divided) -> Array:
    return stage.shares.dense(sums) + stage.shares.experts(sums)


def _widest(stage: Stage, kinds: tuple[str, ...]) -> Array:
    """Numbers of the largest layer of a stage [1]."""
    largest = as_array(0.0)
    for name, count in stage.layers.items():
        size = _numbers(stage, stage.profile.blocks[name], kinds)
        largest = np.maximum(largest, np.where(count > 0, size, 0.0))
    return largest


def _ends(stage: Stage, kinds: tuple[str, ...]) -> Array:
    embedding = stage.first * _numbers(stage, stage.profile.embedding, kinds)
    return embedding + stage.last * _numbers(stage, stage.profile.head, kinds)


def _all(stage: Stage, kinds: tuple[str, ...]) -> Array:
    total = _ends(stage, kinds)
    for name, count in stage.layers.items():
        total = total + count * _numbers(stage, stage.profile.blocks[name], kinds)
    return total


def gathered_bytes(stage: Stage) -> Array:
    """Whole layers that ZeRO-3 has gathered at once, in the format of computation [byte].

    The layer at work and those prefetched; the embedding and the head stay gathered where the
    program keeps them so, else they count as a layer. A program that counts live numbers instead
    fills its allowance.
    """
    if not np.any(stage.zero >= 3):
        return as_array(0.0)
    runtime = stage.runtime
    layers = np.minimum(runtime.gathered_layers, stage.layer_count) * _widest(stage, GATHERED)
    ends = _ends(stage, GATHERED)
    numbers = layers + ends if runtime.gathered_ends else np.maximum(layers, ends)
    numbers = np.maximum(numbers, np.minimum(runtime.live_numbers, _all(stage, GATHERED)))
    return np.where(stage.zero >= 3, numbers * stage.profile.precision.activation_bytes, 0.0)


def passing_gradient_bytes(stage: Stage) -> Array:
    """Unsharded gradients on their way to a shard, or of one weight to its buffer [byte].

    ZeRO-2 and 3 make a layer's gradients in the activation format and reduce them in the gradient
    format, at least one bucket at a time. Without them only an unfused accumulation holds one
    weight's gradient apart.
    """
    runtime, precision = stage.runtime, stage.profile.precision
    alone = as_array(0.0) if runtime.fused_gradients else _largest_weight(stage) * precision.activation_bytes
    if not np.any(stage.zero >= 2):
        return alone
    layers = np.minimum(runtime.unreduced_layers, stage.layer_count) * _widest(stage, TRAINED)
    bucket = np.minimum(runtime.bucket_numbers, _all(stage, TRAINED)) * precision.grad_bytes
    sharded = np.maximum(layers * (precision.activation_bytes + precision.grad_bytes), bucket)
    return np.where(stage.zero >= 2, sharded, alone)


def _largest_weight(stage: Stage) -> Array:
    """Numbers of the largest linear weight of a stage's layers on one rank [1]."""
    largest = as_array(0.0)
    for name, count in stage.layers.items():
        size = _divided(stage, stage.profile.blocks[name].largest)
        largest = np.maximum(largest, np.where(count > 0, size, 0.0))
    return largest


def weight_copy_bytes(stage: Stage) -> Array:
    """Copies of weights in the format of computation [byte].

    Mixed precision over fp32 weights casts each weight on use and keeps the copy until backward
    (under ZeRO-3 the gathered layers are that copy). A 4-bit base is dequantized a weight at a time.
    """
    precision, copies = stage.profile.precision, as_array(0.0)
    if precision.weight_bytes > precision.activation_bytes:
        copies = np.where(stage.zero >= 3, 0.0, _all(stage, TRAINED) * precision.activation_bytes)
    if stage.profile.dequantizes:
        copies = np.maximum(copies, _largest_weight(stage) * precision.activation_bytes)
    return copies


def gathered_input_bytes(stage: Stage) -> Array:
    """One sequence-parallel input gathered to all tokens of the micro-batch [byte].

    Megatron-LM keeps it as a buffer of its own (megatron/core/utils.py, GlobalMemoryBuffer).
    """
    split = stage.shares.sequence < 1.0
    return np.where(split, stage.shares.tokens * stage.profile.hidden * stage.profile.precision.activation_bytes, 0.0)
