"""Bytes that communication and format changes need: gathered layers, gradients in passing, copies."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ridgeline.memory.profile import Divided, Part
from ridgeline.memory.query import Stage
from ridgeline.memory.shares import Array, as_array

Measure = Callable[[Stage, Part], Array]  # numbers or bytes of one layer or end


def _divided(stage: Stage, sums: Divided) -> Array:
    return stage.shares.dense(sums) + stage.shares.experts(sums)


def _widest(stage: Stage, measure: Measure) -> Array:
    """What the largest layer of a stage has."""
    largest = as_array(0.0)
    for name, count in stage.layers.items():
        size = measure(stage, stage.profile.blocks[name])
        largest = np.maximum(largest, np.where(count > 0, size, 0.0))
    return largest


def _ends(stage: Stage, measure: Measure) -> Array:
    embedding = stage.first * measure(stage, stage.profile.embedding)
    return embedding + stage.last * measure(stage, stage.profile.head)


def _all(stage: Stage, measure: Measure) -> Array:
    total = _ends(stage, measure)
    for name, count in stage.layers.items():
        total = total + count * measure(stage, stage.profile.blocks[name])
    return total


def gathered_bytes(stage: Stage) -> Array:
    """Whole layers that ZeRO-3 has gathered at once [byte].

    The layer at work and those prefetched; the embedding and the head stay gathered where the
    program keeps them so, else they count as a layer. A program that counts live numbers instead
    fills its allowance. A rank that holds all shards gathers nothing, unless they are on the host.
    """
    if not np.any(stage.zero >= 3):
        return as_array(0.0)
    runtime = stage.runtime
    layers = np.minimum(runtime.gathered_layers, stage.layer_count) * _widest(stage, _gathered)
    ends = _ends(stage, _gathered)
    held = layers + ends if runtime.gathered_ends else np.maximum(layers, ends)
    allowed = runtime.live_numbers * stage.profile.precision.activation_bytes
    held = np.maximum(held, np.minimum(allowed, _all(stage, _gathered)))
    return np.where((stage.zero >= 3) & ((stage.shares.shard < 1.0) | stage.offload_weights), held, 0.0)


def _gathered(stage: Stage, part: Part) -> Array:
    """Bytes of one layer or end as its shards are gathered: a quantized base stays as it is held [byte]."""
    profile = stage.profile
    wide = _divided(stage, part.trained) + _divided(stage, part.frozen)
    return wide * profile.precision.activation_bytes + _divided(stage, part.quantized) * profile.quantized_bytes


def _trained(stage: Stage, part: Part) -> Array:
    """Trained numbers of one layer or end on one rank, unsharded [1]."""
    return _divided(stage, part.trained)


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
    layers = np.minimum(runtime.unreduced_layers, stage.layer_count) * _widest(stage, _trained)
    bucket = np.minimum(runtime.bucket_numbers, _all(stage, _trained)) * precision.grad_bytes
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
    (under ZeRO-3 the gathered layers are that copy). A 4-bit base is dequantized a weight at a time, the head apart.
    """
    precision, copies = stage.profile.precision, as_array(0.0)
    if precision.weight_bytes > precision.activation_bytes:
        copies = np.where(stage.zero >= 3, 0.0, _all(stage, _trained) * precision.activation_bytes)
    if stage.profile.dequantizes:
        wide = stage.runtime.dequantized_copies * precision.activation_bytes
        copies = np.maximum(copies, _largest_weight(stage) * wide)
    return copies


def head_copy_bytes(stage: Stage) -> Array:
    """16-bit copies of a head in 4 bits while it is at work [byte]."""
    wide = stage.runtime.dequantized_copies * stage.profile.precision.activation_bytes
    return stage.last * stage.shares.dense(stage.profile.head.quantized) * wide


def gathered_input_bytes(stage: Stage) -> Array:
    """One sequence-parallel input gathered to all tokens of the micro-batch [byte].

    Megatron-LM keeps it as a buffer of its own (megatron/core/utils.py, GlobalMemoryBuffer).
    """
    split = stage.shares.sequence < 1.0
    return np.where(split, stage.shares.tokens * stage.profile.hidden * stage.profile.precision.activation_bytes, 0.0)
