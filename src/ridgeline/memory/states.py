"""Bytes of states on one rank under ZeRO and offload, and what communication and format changes need beside them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ridgeline.memory.profile import CONSTANT_BYTES, FP32_BYTES, Divided, PartMemory
from ridgeline.memory.query import Array, Bools, MemoryStage, as_array, summed, widest
from ridgeline.seams.offload import GRADIENTS, OPTIMIZER, WEIGHTS


def held_numbers(stage: MemoryStage, kind: str, state: str) -> Array:
    """Numbers of `kind` ('trained', 'frozen', ...) on one rank, a shard of them where ranks share `state` [1].

    Layers, ends, and the embedding table once more where tied embeddings meet on two stages.
    """
    parts: list[tuple[PartMemory, Array]] = [
        (stage.profile.blocks[name], count) for name, count in stage.layers.items()
    ]
    parts += [(stage.profile.embedding, stage.first), (stage.profile.head, stage.last)]
    parts.append((stage.profile.table, stage.last * (1.0 - stage.first)))
    dense = experts = as_array(0.0)
    for part, count in parts:
        sums: Divided = getattr(part, kind)
        if sums.dense or sums.repeated:
            dense = dense + stage.shares.dense(sums) * count
        if sums.expert or sums.expert_repeated:
            experts = experts + stage.shares.experts(sums) * count
    return stage.shares.sharded(dense, experts, state)


@summed
def weight_bytes(stage: MemoryStage) -> Array:
    """Weights of one rank, on the device or the host: ZeRO-3 keeps a shard, frozen bases their own format [byte]."""
    profile = stage.profile
    total = held_numbers(stage, "trained", WEIGHTS) * profile.precision.weight_bytes
    total = total + held_numbers(stage, "formats", WEIGHTS)
    if np.any(stage.beside):
        total = total + held_numbers(stage, "trained", "") * stage.beside
    if profile.adapters:
        precision = profile.precision
        width = precision.weight_bytes if stage.runtime.frozen_as_trained else precision.activation_bytes
        total = total + held_numbers(stage, "frozen", WEIGHTS) * width
        apart = CONSTANT_BYTES if stage.runtime.whole_constants and profile.dequantizes else 0.0
        total = total + held_numbers(stage, "quantized", WEIGHTS) * (profile.quantized_bytes - apart)
        total = total + constant_bytes(stage)
    return total


@summed
def constant_bytes(stage: MemoryStage) -> Array:
    """Block constants of a 4-bit base that each rank holds whole on its device, where a program shards none [byte]."""
    if not (stage.runtime.whole_constants and stage.profile.dequantizes):
        return as_array(0.0)
    return held_numbers(stage, "quantized", "") * CONSTANT_BYTES


@summed
def gradient_bytes(stage: MemoryStage) -> Array:
    """Gradients of one rank: ZeRO-2 and 3 keep a shard [byte].

    Where the optimizer works in backward, a gradient goes as its weight is updated (torch.Tensor's
    register_post_accumulate_grad_hook, as torchtune bd2a0fc uses it in training/memory.py,
    register_optim_in_bwd_hooks): the largest one is held, beside that of a tied table, to which both ends of the model
    add.
    """
    if stage.forwards:
        return as_array(0.0)
    kept = held_numbers(stage, "trained", GRADIENTS)
    if np.any(stage.optimizer_in_backward):
        kept = np.where(stage.optimizer_in_backward, _one_gradient(stage), kept)
    return kept * stage.profile.precision.grad_bytes


@summed
def update_copy_bytes(stage: MemoryStage) -> Array:
    """What an update on the device makes and frees [byte]: fp32 copies of 16-bit gradients, of all where no ranks
    share it, of the shard flattened first under ZeRO-1 and 2, of a group of it under ZeRO-3; and the square root of
    each second moment where an update goes operation by operation (torch.optim.AdamW without `fused`)."""
    precision, runtime = stage.profile.precision, stage.runtime
    numbers = np.where(stage.away(OPTIMIZER) == 0.0, held_numbers(stage, "trained", OPTIMIZER), 0.0)
    made = as_array(0.0)
    if stage.profile.square_roots and not np.any(stage.optimizer_in_backward):
        made = numbers * (FP32_BYTES if precision.master_bytes else precision.weight_bytes)
    if not precision.master_bytes or not runtime.update_fp32_copies:
        return made
    whole = runtime.update_fp32_copies * FP32_BYTES * numbers if precision.compute == "fp16" else as_array(0.0)
    flat = (FP32_BYTES + precision.grad_bytes) * numbers if precision.grad_bytes < FP32_BYTES else as_array(0.0)
    group = FP32_BYTES * np.minimum(numbers, runtime.update_numbers)
    return made + np.select([stage.zero == 0, stage.zero < 3], [whole, flat], group)


def perturbed_copy_bytes(stage: MemoryStage) -> Array:
    """Copies of the largest weight of a stage that perturbing it holds, in the format of weights [byte]."""
    ends = np.maximum(stage.first * stage.shares.dense(stage.profile.embedding.trained), head_gradient(stage))
    largest = np.maximum(ends, _largest_weight(stage))
    return largest * stage.profile.optimizer.perturbed_copies() * stage.profile.precision.weight_bytes


def _one_gradient(stage: MemoryStage) -> Array:
    """Numbers of the largest gradient of a stage, and of a table that the head shares [1]."""
    profile, shares = stage.profile, stage.shares
    largest = np.maximum(stage.first * shares.dense(profile.embedding.trained), head_gradient(stage))
    shared = np.minimum(stage.first, stage.last) * shares.dense(profile.table.trained)
    largest = largest - shared
    for name, count in stage.layers.items():
        part = profile.blocks[name]
        trained = shares.dense(part.trained) + shares.experts(part.trained)
        weight = shares.dense(part.largest) + shares.experts(part.largest)  # adapters are narrower
        largest = np.maximum(largest, np.where(count > 0, np.minimum(weight, trained), 0.0))
    largest = largest + shared
    return largest * shares.shards[GRADIENTS][0]


def head_gradient(stage: MemoryStage) -> Array:
    """Numbers of the gradient of the head's weight on the last stage, be it the embedding's [1]."""
    own = stage.shares.dense(stage.profile.head.trained)
    return stage.last * np.maximum(own, stage.shares.dense(stage.profile.table.trained))


def optimizer_bytes(stage: MemoryStage) -> Array:
    """Optimizer states and the fp32 master copy of one rank: ZeRO-1 to 3 keep a shard [byte]."""
    return master_bytes(stage) + moment_bytes(stage)


@summed
def master_bytes(stage: MemoryStage) -> Array:
    """The fp32 master copy of one rank's share [byte]."""
    return held_numbers(stage, "trained", OPTIMIZER) * stage.profile.precision.master_bytes


@summed
def moment_bytes(stage: MemoryStage) -> Array:
    """What the optimizer keeps of one rank's share [byte]."""
    return held_numbers(stage, "states", OPTIMIZER)


def device_optimizer_bytes(stage: MemoryStage) -> Array:
    """Optimizer states and master copy that stay on the device; the rest of them are on the host [byte].

    Paged states are memory that the driver moves to the host where the device is full (bitsandbytes 0.42,
    functional.py, get_paged, and csrc/pythonInterface.c: cudaMallocManaged); PyTorch's allocator counts none of them.
    """
    kept = master_bytes(stage) + (0.0 if stage.profile.optimizer.paged else moment_bytes(stage))
    return kept * (1.0 - stage.away(OPTIMIZER))


def moved_weight_bytes(stage: MemoryStage) -> Array:
    """Weights of one rank that may be in another tier: all but constants that each device holds [byte]."""
    return weight_bytes(stage) - constant_bytes(stage)


def device_weight_bytes(stage: MemoryStage) -> Array:
    """Weights of one rank that stay on its device, those of layers in use apart [byte]."""
    away = stage.away(WEIGHTS)
    part = constant_bytes(stage) + moved_weight_bytes(stage) * (1.0 - away)
    return np.where(away == 0.0, weight_bytes(stage), part)


Measure = Callable[[MemoryStage, PartMemory], Array]  # numbers or bytes of one layer or end


def _divided(stage: MemoryStage, sums: Divided) -> Array:
    return stage.shares.dense(sums) + stage.shares.experts(sums)


def _widest(stage: MemoryStage, measure: Measure) -> Array:
    """What the largest layer of a stage has."""
    largest = as_array(0.0)
    for name, count in stage.layers.items():
        size = measure(stage, stage.profile.blocks[name])
        largest = np.maximum(largest, np.where(count > 0, size, 0.0))
    return largest


def _ends(stage: MemoryStage, measure: Measure) -> Array:
    embedding = stage.first * measure(stage, stage.profile.embedding)
    return embedding + stage.last * measure(stage, stage.profile.head)


def _all(stage: MemoryStage, measure: Measure) -> Array:
    total = _ends(stage, measure)
    for name, count in stage.layers.items():
        total = total + count * measure(stage, stage.profile.blocks[name])
    return total


def gathered_bytes(stage: MemoryStage) -> Array:
    """Whole layers that ZeRO-3 has gathered at once [byte].

    The layer at work and those prefetched; the embedding and the head stay gathered where the
    program keeps them so, else they count as a layer. A program that counts live numbers instead
    fills its allowance. A rank that holds all shards gathers nothing, unless they are in another tier; what moves on
    lanes holds as many layers as are fetched ahead.
    """
    fetched = _fetched_layers(stage)
    if not any(np.any(part.zero >= 3) for part in stage.parts) and not fetched:
        return as_array(0.0)
    runtime = stage.runtime
    layers = _gathered_layers(stage)
    ends = np.where(_gathers(stage), _ends(stage, _gathered), 0.0)
    stay = runtime.gathered_ends or any(one.keeps_ends for one, _ in stage.offloads)
    held = layers + ends if stay else np.maximum(layers, ends)
    if not fetched:
        allowed = runtime.live_numbers * stage.profile.precision.activation_bytes
        return np.maximum(held, np.minimum(allowed, _all_gathered(stage)))
    sharded = (stage.zero >= 3) & (stage.shares.shards[WEIGHTS][0] < 1.0)
    return np.where(sharded, held, held * stage.away(WEIGHTS))


def _fetched_layers(stage: MemoryStage) -> float:
    """Layers whose weights are there at once where they move on lanes [1]: that at work, those fetched ahead and those
    that are on their way out."""
    return max(
        ((one.ahead() + 1.0 + one.leaving()) / one.pieces() for one, _ in stage.offloads if one.on_lanes), default=0.0
    )


def _gathers(stage: MemoryStage) -> Bools:
    """Whether weights are sharded over other ranks, or in another tier."""
    return ((stage.zero >= 3) & (stage.shares.shards[WEIGHTS][0] < 1.0)) | (stage.away(WEIGHTS) > 0.0)


@widest
def _gathered_layers(stage: MemoryStage) -> Array:
    most = _fetched_layers(stage) or stage.runtime.gathered_layers
    layers = np.minimum(most, stage.layer_count) * _widest(stage, _gathered)
    return np.where(_gathers(stage), layers, 0.0)


@summed
def _all_gathered(stage: MemoryStage) -> Array:
    return np.where(_gathers(stage), _all(stage, _gathered), 0.0)


def _gathered(stage: MemoryStage, part: PartMemory) -> Array:
    """Bytes of one layer or end as its shards are gathered: a quantized base stays as it is held [byte]."""
    profile = stage.profile
    wide = _divided(stage, part.trained) + _divided(stage, part.frozen)
    return wide * profile.precision.activation_bytes + _divided(stage, part.quantized) * profile.quantized_bytes


def _trained(stage: MemoryStage, part: PartMemory) -> Array:
    """Trained numbers of one layer or end on one rank, unsharded [1]."""
    return _divided(stage, part.trained)


@widest
def passing_gradient_bytes(stage: MemoryStage) -> Array:
    """Unsharded gradients on their way to a shard, or of one weight to its buffer [byte].

    ZeRO-2 and 3 make a layer's gradients in the activation format and reduce them in the gradient
    format, at least one bucket at a time. Without them only an unfused accumulation holds one
    weight's gradient apart.
    """
    runtime, precision = stage.runtime, stage.profile.precision
    alone = as_array(0.0) if runtime.fused_gradients else _largest_weight(stage) * precision.activation_bytes
    if _fetched_layers(stage):  # gradients of a piece of a layer wait for their link while another is at work
        pieces = max(one.pieces() for one, _ in stage.offloads)
        leaving = _widest(stage, _trained) * (precision.activation_bytes + precision.grad_bytes) / pieces
        return np.where(stage.away(GRADIENTS) > 0.0, np.maximum(alone, leaving), alone)
    if not np.any(stage.zero >= 2):
        return alone
    layers = np.minimum(runtime.unreduced_layers, stage.layer_count) * _widest(stage, _trained)
    bucket = np.minimum(runtime.bucket_numbers, _all(stage, _trained)) * precision.grad_bytes
    sharded = np.maximum(layers * (precision.activation_bytes + precision.grad_bytes), bucket)
    return np.where(stage.zero >= 2, sharded, alone)


def _largest_weight(stage: MemoryStage) -> Array:
    """Numbers of the largest linear weight of a stage's layers on one rank [1]."""
    largest = as_array(0.0)
    for name, count in stage.layers.items():
        size = _divided(stage, stage.profile.blocks[name].largest)
        largest = np.maximum(largest, np.where(count > 0, size, 0.0))
    return largest


@summed
def weight_copy_bytes(stage: MemoryStage) -> Array:
    """Copies of weights in the format of computation [byte].

    Mixed precision over fp32 weights casts each weight on use and keeps the copy until backward
    (under ZeRO-3 the gathered layers are that copy). A 4-bit base is dequantized a weight at a time, the head apart.
    What a technique makes of weights is beside them.
    """
    precision, copies = stage.profile.precision, as_array(0.0)
    if precision.weight_bytes > precision.activation_bytes:
        copies = np.where(stage.zero >= 3, 0.0, _all(stage, _trained) * precision.activation_bytes)
    if stage.profile.dequantizes:
        wide = stage.runtime.dequantized_copies * precision.activation_bytes
        copies = np.maximum(copies, _largest_weight(stage) * wide)
    return copies + _all(stage, lambda of, part: _divided(of, part.made))


def head_copy_bytes(stage: MemoryStage) -> Array:
    """16-bit copies of a head in 4 bits while it is at work [byte]."""
    wide = stage.runtime.dequantized_copies * stage.profile.precision.activation_bytes
    return stage.last * stage.shares.dense(stage.profile.head.quantized) * wide


@widest
def gathered_input_bytes(stage: MemoryStage) -> Array:
    """One sequence-parallel input gathered to all tokens of the micro-batch [byte].

    Megatron-LM keeps it as a buffer of its own (megatron/core/utils.py, GlobalMemoryBuffer).
    """
    split = stage.shares.sequence < 1.0
    return np.where(split, stage.shares.tokens * stage.profile.hidden * stage.profile.precision.activation_bytes, 0.0)
