"""What a workload makes of a layer's weights and of what it keeps: trainable numbers, adapters, casts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast

import numpy as np

from ridgeline.errors import PlanError
from ridgeline.graph.ops import ElementwiseOp, EmbeddingOp, GemmOp, LinearOp, Op, OpRole, Region, ScanOp, SparseTableOp
from ridgeline.graph.workload import PRECISIONS, Precision, Task, Workload
from ridgeline.lower.work import Layout, Number
from ridgeline.seams.registry import technique
from ridgeline.seams.states import OptimizerStates, Tensor


def trains(op: Op, workload: Workload) -> bool:
    """Whether this op's own weight is trained: every one, or where weights are frozen an adapter's alone.

    Raises `PlanError` for adapters beside weights that are trained too, or that are held in 4 bits.
    """
    adapter = isinstance(op, LinearOp) and op.adapter
    if adapter and workload.task is not Task.LORA:
        raise PlanError(f"model: '{op.name}' is an adapter, not of task {workload.task.value}; say lora")
    return adapter or workload.task in (Task.PRETRAIN, Task.FULL)


def step_forwards(workload: Workload) -> float:
    """Forwards that the FLOP of a step come to [1]: three where all weights are trained, two where adapters are.

    A backward is two products of each that it is of; a step that has none says its own number of forwards.
    """
    full = workload.task in (Task.PRETRAIN, Task.FULL)
    return float(optimizer_states(workload).forwards()) or (3.0 if full else 2.0)


def adapted(op: Op, workload: Workload) -> bool:
    """Whether a low-rank adapter is attached to this op's weight by the workload."""
    if workload.task not in (Task.LORA, Task.QLORA) or not isinstance(op, LinearOp) or not op.lora:
        return False
    if workload.lora_targets == "all":
        return True
    if workload.lora_targets == "qkv":
        return is_qkv(op)
    return isinstance(op, GemmOp) and not op.role.feeds


def is_qkv(op: Op) -> bool:
    """Whether a product makes queries, keys and values at once."""
    return isinstance(op, GemmOp) and op.role is OpRole.QKV


def adapters(op: LinearOp, workload: Workload) -> int:
    """Adapters of an op that carries any [1]: one for each linear layer merged into it, or one where the framework's
    merged layer is one module."""
    merged = workload.policy.merged_adapters
    return 1 if merged == "all" or (merged == "qkv" and is_qkv(op)) else op.parts


def quantized_base(op: Op, workload: Workload) -> bool:
    """Whether this op's frozen weight is held in few bits: in 4 under QLoRA, in 8 under a recipe of 8-bit products."""
    if not isinstance(op, LinearOp) or not op.lora:
        return False
    return workload.task is Task.QLORA or (workload.task is Task.LORA and PRECISIONS[workload.precision].quantize)


@dataclass(frozen=True, kw_only=True)
class RankParams:
    """Numbers on one rank [1]: `dense` belong to the data-parallel group, `expert` to the experts' own.

    `trained` ones have gradients and optimizer states; the rest are frozen base weights. `moved` ones are the traffic
    of the optimizer's states in an update [byte], `update_flop` its work on matrix units [FLOP], of the whole tensors.
    `tensors` are the trained weights and biases [1].
    """

    dense: Number
    expert: Number
    trained_dense: Number
    trained_expert: Number
    update_flop: Number
    tensors: Number
    moved_dense: Number = 0.0
    moved_expert: Number = 0.0
    quantized_dense: Number = 0.0  # of `dense`, held and gathered in few bits
    quantized_expert: Number = 0.0


def rank_params(ops: Iterable[Op], layout: Layout, workload: Workload, *, experts: int = 0) -> RankParams:
    """Numbers of these ops on one rank: tensor-split ones over tp (etp), experts over ep [1].

    Low-rank adapters add r (parts k + n) to each weight that admits one, and only they are trained; parts are its
    `adapters`.
    """
    dense: Number = 0.0
    expert: Number = 0.0
    trained_dense: Number = 0.0
    trained_expert: Number = 0.0
    flop: Number = 0.0
    tensors: Number = 0.0
    moved = {False: np.zeros(()), True: np.zeros(())}
    optimizer = optimizer_states(workload)
    quantized = {False: np.zeros(()), True: np.zeros(())}
    for op in ops:
        is_expert = op.region is Region.EXPERT
        copies = np.maximum(1, experts / np.asarray(layout.ep)) if is_expert else 1
        degree = (layout.etp if is_expert else layout.tp) if op.params_split else 1
        own = 0.0 if op.tied else op.params * copies / degree
        trained = own
        sparse = isinstance(op, SparseTableOp)
        if sparse:
            trained = 0.0
        elif not trains(op, workload):
            quantized[is_expert] = quantized[is_expert] + (own if quantized_base(op, workload) else 0.0)
            parts = 0
            trained = 0.0
            if isinstance(op, LinearOp) and adapted(op, workload):
                parts = adapters(op, workload)
                trained = workload.lora_rank * (parts * op.k + op.n) * copies / degree
            own = own + trained
            tensors = tensors + 2.0 * parts * copies
        elif op.params and not op.tied:
            tensors = tensors + tensor_count(op) * copies
        ours = () if sparse or op.tied else trained_tensors(op, workload)
        flop = flop + sum(map(optimizer.update_flop, ours)) * copies
        moved[is_expert] = moved[is_expert] + sum(map(optimizer.moved_bytes, ours)) * copies / degree
        if isinstance(op, LinearOp) and op.formats.update_bytes:
            moved[is_expert] = moved[is_expert] + op.formats.update_bytes * trained
        if is_expert:
            expert, trained_expert = expert + own, trained_expert + trained
        else:
            dense, trained_dense = dense + own, trained_dense + trained
    return RankParams(
        dense=dense,
        expert=expert,
        trained_dense=trained_dense,
        trained_expert=trained_expert,
        update_flop=flop,
        tensors=tensors,
        moved_dense=moved[False],
        moved_expert=moved[True],
        quantized_dense=quantized[False],
        quantized_expert=quantized[True],
    )


def optimizer_states(workload: Workload) -> OptimizerStates:
    """What the workload's optimizer keeps and moves; raises `UnknownNameError` for a name of none."""
    return cast(OptimizerStates, technique("optimizers", workload.optimizer))


def trained_tensors(op: Op, workload: Workload) -> tuple[Tensor, ...]:
    """The trained tensors of one copy of an op: its weight with what is beside it, or the two of each adapter."""
    if not trains(op, workload):
        if not isinstance(op, LinearOp) or not adapted(op, workload):
            return ()
        rank = workload.lora_rank
        down = Tensor(count=rank * op.k, rows=rank, columns=op.k, hidden=True)
        up = Tensor(count=rank * op.n, rows=op.n, columns=rank, hidden=True)
        return (*[down] * adapters(op, workload), up)
    if not op.params:
        return ()
    hidden = isinstance(op, LinearOp) and op.region is not Region.VOCAB
    rows, columns = (op.k, op.n) if isinstance(op, LinearOp | EmbeddingOp) else (0, 0)
    parts = op.parts if isinstance(op, LinearOp) else 1
    return (Tensor(count=op.params, rows=rows, columns=columns, hidden=hidden, parts=parts),)


def tensor_count(op: Op) -> int:
    """Trained tensors of one copy of an op [1]: a weight and perhaps a bias of each linear layer merged into it, a
    table, or what scales and shifts the elements of a norm.
    """
    if isinstance(op, LinearOp):
        return op.parts * (2 if op.params > op.k * op.n else 1)
    if not isinstance(op, ElementwiseOp | ScanOp) or not op.write:
        return 1
    return max(1, round(op.params / op.write))


def cast_to_keep(op: Op, workload: Workload, precision: Precision) -> float:
    """Bytes of a token to cast what an activation function keeps to its own width, or back; 0 if it keeps its input.

    F (b + b'), F numbers kept, b bytes of an activation and b' of what is kept (`mlp_input_bytes`). Source: NVIDIA's
    Megatron-LM, activation_func_fp8_input_store (megatron/core/fusions/fused_bias_swiglu.py).
    """
    kept = workload.policy.mlp_input_bytes
    if kept is None or not op.saved or op.saved[0].role != "mlp":
        return 0.0
    return op.saved[0].elements * (precision.activation_bytes + kept)
