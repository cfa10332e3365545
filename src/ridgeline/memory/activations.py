"""Bytes kept from forward to backward, and what is alive only around one operator or one layer."""

from __future__ import annotations

from functools import partial

import numpy as np

from ridgeline.memory.profile import Kept, PartMemory
from ridgeline.memory.query import Array, MemoryStage, as_array, summed, widest
from ridgeline.seams.loss import Logits
from ridgeline.seams.recompute import RecomputeRule


@summed
def kept_bytes(stage: MemoryStage) -> Array:
    """Bytes of all micro-batches in flight that wait for backward, logits apart [byte]."""
    if stage.forwards:
        return as_array(0.0)
    layers = _layers_kept(stage) + _end_kept(stage, stage.profile.embedding, stage.first)
    return layers * stage.in_flight + _end_kept(stage, stage.profile.head, stage.last) * stage.head_in_flight


def _layers_kept(stage: MemoryStage) -> Array:
    """Bytes that the layers keep of one micro-batch; a rule of recompute may cover a part of them."""
    count = stage.layer_count
    limit = count if stage.recompute_layers is None else np.minimum(stage.recompute_layers, count)
    covered = limit / np.maximum(count, 1.0)
    total = as_array(0.0)
    for name, number in stage.layers.items():
        part = stage.profile.blocks[name]
        whole = _kept_under(stage, part)

        def left(rule: RecomputeRule, part: PartMemory = part, whole: Array = whole) -> Array:
            kept = _kept_under(stage, part, rule)
            return whole + covered * (kept - whole) if rule.by_layer else kept

        total = total + stage.by_rule(left) * number
    return total


@summed
def earlier_input_bytes(stage: MemoryStage) -> Array:
    """Inputs of 4-bit products that the graphs of earlier micro-batches hold until the next loss is there [byte]."""
    held = as_array(0.0)
    for name, count in stage.layers.items():
        part = stage.profile.blocks[name]
        held = held + stage.shares.kept(part.inputs, part) * count
    held = held + stage.last * stage.shares.kept(stage.profile.head.inputs, stage.profile.head)
    again = np.maximum(stage.runtime.held_inputs - 1.0, 0.0)
    return stage.by_rule(lambda rule: as_array(0.0) if rule.repeats() else held * again)


def _kept_under(stage: MemoryStage, part: PartMemory, rule: RecomputeRule | None = None) -> Array:
    """Bytes that one layer keeps of one micro-batch under a rule of recompute [byte]."""
    return stage.shares.kept(part.kept(rule), part)


def _end_kept(stage: MemoryStage, part: PartMemory, present: Array) -> Array:
    return present * _kept_under(stage, part)


def logit_bytes(stage: MemoryStage) -> Array:
    """Tensors of tokens x vocabulary alive at the worst moment of the loss, last stage only [byte]."""
    logits = _logits(stage)
    return stage.by_loss(lambda loss: loss.held_bytes(logits))


def logit_gradient_bytes(stage: MemoryStage) -> Array:
    """The logits' gradient, as the head's backward reads it, on the last stage [byte]."""
    logits = _logits(stage)
    return stage.by_loss(lambda loss: loss.backward_bytes(logits))


def _logits(stage: MemoryStage) -> Logits:
    runtime, profile = stage.runtime, stage.profile
    return Logits(
        tokens=stage.last * stage.shares.tokens,
        vocab=profile.vocab,
        share=stage.shares.tensor,
        hidden=profile.hidden,
        element_bytes=profile.precision.activation_bytes,
        waiting=stage.head_in_flight - 1.0,
        copies=runtime.logit_copies,
        fp32_copies=runtime.logit_fp32_copies,
        eager=profile.eager,
        trains_head=profile.head.trained.total > 0.0 or profile.table.trained.total > 0.0,
    )


@widest
def passing_bytes(stage: MemoryStage) -> Array:
    """Bytes alive around a layer's widest operator in a step of forwards alone [byte]: hidden states of all that go
    side by side, and what one of them has there."""
    hidden = stage.profile.hidden * stage.profile.precision.activation_bytes * stage.shares.tokens
    largest = as_array(0.0)
    for name, number in stage.layers.items():
        part = stage.profile.blocks[name]
        largest = np.maximum(largest, np.where(number > 0, stage.shares.kept(part.backward, part), 0.0))
    return stage.side_by_side * hidden * stage.shares.sequence + largest


def _of_feed_forward(part: PartMemory) -> Kept:
    """Bytes per token that a dense feed-forward saves for its own backward [byte/token]."""
    found = Kept()
    for one in part.tensors:
        if one.role == "mlp":
            found = found.plus(one.region, one.bytes)
    return found


@widest
def working_set_bytes(stage: MemoryStage) -> Array:
    """Bytes alive inside one layer's backward: what it recomputed and its widest gradients [byte]."""
    largest = as_array(0.0)
    for name, number in stage.layers.items():
        part = stage.profile.blocks[name]
        whole = _kept_under(stage, part)
        left = stage.by_rule(partial(_kept_under, stage, part))
        tiles = stage.by_rule(lambda rule: as_array(rule.tiles(stage.shares.tokens, stage.profile.hidden)))
        passing = stage.shares.kept(part.backward, part)
        if np.any(tiles > 1.0):  # one tile of the feed-forward is there at a time
            mlp, beside = (stage.shares.kept(kept, part) for kept in (_of_feed_forward(part), part.beside_mlp))
            whole, passing = whole - mlp * (1.0 - 1.0 / tiles), np.maximum(beside, passing / tiles)
        inside = np.maximum(whole - left, 0.0) + passing
        largest = np.maximum(largest, np.where(number > 0, inside, 0.0))
    return largest
