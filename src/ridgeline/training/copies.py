"""Bytes that a training program copies beside the arithmetic, where it gathers weights and reduces gradients."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ridgeline.graph.workload import PRECISIONS, Precision, Workload
from ridgeline.lower.work import Number

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class ExchangeCopies:
    """Device-memory traffic of copies for each number of a weight [byte].

    `gathered` each time its shards are collected, `reduced` each time its gradient is reduced: with every micro-batch
    where gradients are `sharded`, else once a step.
    """

    gathered: float = 0.0
    reduced: float = 0.0
    sharded: bool = False


def exchange_copies(workload: Workload) -> ExchangeCopies:
    """Traffic of the copies around exchanges, by training program [byte per number].

    With a the width of activations and g that of gradients when reduced:

    - 'fsdp' (PyTorch fully_shard): gathered weights are copied out to parameters, 2 a; gradients are copied into
      the reduction's buffer and widened, a + g (`_fsdp_collectives.py`: all_gather_copy_out, chunk_cat).
    - 'fsdp1' and 'transformers' (PyTorch FullyShardedDataParallel): parameters are views, so nothing is copied out;
      their gradients are joined into a flat one, 2 a, widened, a + g, and divided in place, 2 g (`_runtime_utils.py`:
      _reduce_grad).
    - 'deepspeed' (ZeRO): gradients are copied into a bucket, joined by partition and divided, 6 a
      (`stage3.py`, `coalesced_collectives.py`).
    - 'ddp': gradients are copied into a bucket, divided on the way, and back, 4 g (`reducer.cpp`).
    - 'megatron': gradients already lie in their buffer and are divided in place, 2 g
      (`param_and_grad_buffer.py`: gradient_scaling_factor).

    Programs compiled as one graph (XLA) and single devices copy nothing. Evidence: derived from the sources named.
    """
    if workload.execution == "graph":
        return ExchangeCopies()
    precision = PRECISIONS[workload.precision]
    wide, grad = precision.activation_bytes, precision.grad_bytes
    table = {
        "fsdp": ExchangeCopies(gathered=2 * wide, reduced=wide + grad, sharded=True),
        "fsdp1": ExchangeCopies(reduced=2 * wide + _widened(precision) + 2 * grad, sharded=True),
        "transformers": ExchangeCopies(reduced=2 * wide + _widened(precision) + 2 * grad, sharded=True),
        "deepspeed": ExchangeCopies(reduced=6 * wide, sharded=True),
        "ddp": ExchangeCopies(reduced=4 * grad),
        "megatron": ExchangeCopies(reduced=2 * grad),
    }
    return table.get(workload.framework, ExchangeCopies())


def _widened(precision: Precision) -> float:
    """Traffic of making a gradient as wide as it is reduced [byte]."""
    wide, grad = precision.activation_bytes, precision.grad_bytes
    return wide + grad if grad != wide else 0.0


@dataclass(frozen=True, kw_only=True)
class CopySeconds:
    """Seconds of copies: at a forward and a backward each, after a backward (..., P, v), and once a step (..., P)."""

    gathered_s: Floats
    reduced_s: Floats
    once_s: Floats


def copy_seconds(habit: ExchangeCopies, numbers: tuple[Floats, Floats], zero: Number, rate: float) -> CopySeconds:
    """Copies at `rate` [byte/s] of the numbers that a chunk gathers and reduces, (..., P, v) each [s].

    With every micro-batch where `zero` shards weights or gradients, else once a step.
    """
    gathered, reduced = numbers[0] * (habit.gathered / rate), numbers[1] * (habit.reduced / rate)
    often = np.asarray(zero) >= 2 if habit.sharded else np.asarray(0.0)
    return CopySeconds(
        gathered_s=gathered * (np.asarray(zero) >= 3) if habit.gathered else gathered,
        reduced_s=reduced * often,
        once_s=(reduced * (1.0 - np.asarray(often, dtype=float))).sum(axis=-1),
    )
