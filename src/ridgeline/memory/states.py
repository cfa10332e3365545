"""Bytes of weights, gradients and optimizer states on one rank, under ZeRO and offload."""

from __future__ import annotations

from ridgeline.memory.profile import FP32_BYTES, Divided, Part
from ridgeline.memory.query import Bools, Stage
from ridgeline.memory.shares import Array, as_array

ADAM_BYTES = 8.0  # two fp32 moments; Muon keeps them for all that is not a hidden matrix


def held_numbers(stage: Stage, kind: str, sharded: Bools) -> Array:
    """Numbers of `kind` ('trained', 'frozen', ...) on one rank, a shard of them where `sharded` [1].

    Layers, ends, and the embedding table once more where tied embeddings meet on two stages.
    """
    parts: list[tuple[Part, Array]] = [(stage.profile.blocks[name], count) for name, count in stage.layers.items()]
    parts += [(stage.profile.embedding, stage.first), (stage.profile.head, stage.last)]
    parts.append((stage.profile.table, stage.last * (1.0 - stage.first)))
    dense = experts = as_array(0.0)
    for part, count in parts:
        sums: Divided = getattr(part, kind)
        if sums.dense or sums.repeated:
            dense = dense + stage.shares.dense(sums) * count
        if sums.expert or sums.expert_repeated:
            experts = experts + stage.shares.experts(sums) * count
    return stage.shares.sharded(dense, experts, sharded)


def weight_bytes(stage: Stage) -> Array:
    """Weights resident on one rank: ZeRO-3 keeps a shard, frozen bases their own format [byte]."""
    on, profile = stage.zero >= 3, stage.profile
    total = held_numbers(stage, "trained", on) * profile.precision.weight_bytes
    if profile.adapters:
        total = total + held_numbers(stage, "frozen", on) * profile.precision.activation_bytes
        total = total + held_numbers(stage, "quantized", on) * profile.quantized_bytes
    return total


def gradient_bytes(stage: Stage) -> Array:
    """Gradients of one rank: ZeRO-2 and 3 keep a shard [byte]."""
    return held_numbers(stage, "trained", stage.zero >= 2) * stage.profile.precision.grad_bytes


def optimizer_bytes(stage: Stage) -> Array:
    """Optimizer states and the fp32 master copy of one rank: ZeRO-1 to 3 keep a shard [byte].

    Adafactor keeps a row and a column of fp32 per matrix (arXiv:1804.04235). Muon keeps one moment
    for hidden matrices and Adam's two for the rest.
    """
    on, optimizer = stage.zero >= 1, stage.profile.optimizer
    trained = held_numbers(stage, "trained", on)
    master = trained * stage.profile.precision.master_bytes
    if optimizer.factored:
        return master + held_numbers(stage, "factored", on) * FP32_BYTES
    if optimizer.matrix_iterations:
        matrix = held_numbers(stage, "matrix", on)
        return master + matrix * optimizer.state_bytes + (trained - matrix) * ADAM_BYTES
    return master + trained * optimizer.state_bytes


def gradients_leave(stage: Stage) -> Bools:
    """Whether reduced gradients go to the host with the optimizer: ZeRO-2 and 3 (arXiv:2101.06840)."""
    return stage.offload_optimizer & (stage.zero >= 2)


def optimizer_leaves(stage: Stage) -> Bools:
    """Whether optimizer states live on the host: offloaded, or paged by the optimizer itself."""
    return stage.offload_optimizer | stage.profile.optimizer.paged
