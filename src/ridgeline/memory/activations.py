"""Bytes kept from forward to backward, and what is alive only around one operator or one layer."""

from __future__ import annotations

import numpy as np

from ridgeline.memory.profile import FP32_BYTES, FULL, NONE, SELECTIVE, Part
from ridgeline.memory.query import Stage
from ridgeline.memory.shares import Array, as_array

LOSS_CHUNKS = 8.0  # default of torchtune's CEWithChunkedOutputLoss


def kept_bytes(stage: Stage) -> Array:
    """Bytes of all micro-batches in flight that wait for backward, logits apart [byte]."""
    layers = _layers_kept(stage) + _end_kept(stage, stage.profile.embedding, stage.first)
    return layers * stage.in_flight + _end_kept(stage, stage.profile.head, stage.last) * stage.head_in_flight


def _layers_kept(stage: Stage) -> Array:
    """Bytes that the layers keep of one micro-batch; full recompute may cover a part of them."""
    count = stage.layer_count
    limit = count if stage.recompute_layers is None else np.minimum(stage.recompute_layers, count)
    covered = np.where(stage.recompute == FULL, limit / np.maximum(count, 1.0), 0.0)
    total = as_array(0.0)
    for name, number in stage.layers.items():
        part = stage.profile.blocks[name]
        none = stage.shares.kept(part.kept[NONE], part)
        full = stage.shares.kept(part.kept[FULL], part)
        selective = stage.shares.kept(part.kept[SELECTIVE], part)
        kept = np.where(stage.recompute == SELECTIVE, selective, none + covered * (full - none))
        total = total + kept * number
    return total


def earlier_input_bytes(stage: Stage) -> Array:
    """Inputs of 4-bit products that the graphs of earlier micro-batches hold until the next loss is there [byte]."""
    held = as_array(0.0)
    for name, count in stage.layers.items():
        part = stage.profile.blocks[name]
        held = held + stage.shares.kept(part.inputs, part) * count
    held = held + stage.last * stage.shares.kept(stage.profile.head.inputs, stage.profile.head)
    again = np.maximum(stage.runtime.held_inputs - 1.0, 0.0)
    return np.where(stage.recompute == NONE, held * again, 0.0)


def _end_kept(stage: Stage, part: Part, present: Array) -> Array:
    return present * stage.shares.kept(part.kept[NONE], part)


def logit_bytes(stage: Stage) -> Array:
    """Tensors of tokens x vocabulary alive at the worst moment of the loss, last stage only [byte].

    Whole, one fp32 tensor per micro-batch in flight waits for backward; the others exist once. In chunks, logits are
    there in the activation format, their gradients taking their place, and the rest for one of `LOSS_CHUNKS` chunks
    (torchtune, CEWithChunkedOutputLoss); compiled, a chunk is widened in registers. Fused with the head, a chunk
    is of ceil(T / ceil(V / D)) tokens, up to the next power of two, its logits' gradient takes the logits' place, and
    the hidden states' gradient is there from the loss on (Liger 0.8.2, ops/fused_linear_cross_entropy.py).
    """
    runtime, profile = stage.runtime, stage.profile
    tokens, width = stage.last * stage.shares.tokens, profile.precision.activation_bytes
    entries = tokens * profile.vocab * stage.shares.tensor
    spike = runtime.logit_copies * width + runtime.logit_fp32_copies * FP32_BYTES
    waiting = stage.head_in_flight - 1.0
    whole = entries * (spike + waiting * min(1.0, runtime.logit_fp32_copies) * FP32_BYTES)
    chunk = spike if profile.eager else width
    chunked = entries * ((1.0 + waiting) * width + chunk / LOSS_CHUNKS)
    rows = np.ceil(tokens / max(1.0, np.ceil(profile.vocab / max(1, profile.hidden))))
    rows = np.minimum(2.0 ** np.ceil(np.log2(np.maximum(rows, 1.0))), tokens)
    fused = width * (rows * profile.vocab + tokens * profile.hidden * (1.0 + waiting))
    made = np.where(stage.loss == "chunked", chunked, np.where(stage.loss == "fused", fused, whole))
    return np.minimum(made, whole)


def logit_gradient_bytes(stage: Stage) -> Array:
    """The logits' gradient, as the head's backward reads it, on the last stage [byte]."""
    entries = stage.last * stage.shares.tokens * stage.profile.vocab * stage.shares.tensor
    return np.where(stage.loss == "fused", 0.0, entries * stage.profile.precision.activation_bytes)


def working_set_bytes(stage: Stage) -> Array:
    """Bytes alive inside one layer's backward: what it recomputed and its widest gradients [byte]."""
    largest = as_array(0.0)
    for name, number in stage.layers.items():
        part = stage.profile.blocks[name]
        none = stage.shares.kept(part.kept[NONE], part)
        full = stage.shares.kept(part.kept[FULL], part)
        selective = stage.shares.kept(part.kept[SELECTIVE], part)
        left = np.where(stage.recompute == FULL, full, np.where(stage.recompute == SELECTIVE, selective, none))
        again = np.maximum(none - left, 0.0)
        inside = again + stage.shares.kept(part.backward, part)
        largest = np.maximum(largest, np.where(number > 0, inside, 0.0))
    return largest
