"""Bytes that a training program copies beside the arithmetic, where it gathers weights and reduces gradients."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ridgeline.graph.workload import PRECISIONS, Workload
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
    """Traffic of the copies around exchanges, by training framework [byte per number].

    With a the width of activations and g that of gradients when reduced, a framework's policy says how many of a and
    of g it copies, and whether gradients are widened on the way, a + g where these differ. Programs compiled as one
    graph (XLA) and single devices copy nothing. Evidence: derived from the sources that the policy names.
    """
    if workload.execution == "graph":
        return ExchangeCopies()
    precision, policy = PRECISIONS[workload.precision], workload.policy
    wide, grad = precision.activation_bytes, precision.grad_bytes
    widened = wide + grad if policy.copies_widened and grad != wide else 0.0
    return ExchangeCopies(
        gathered=policy.gathered_activation_copies * wide,
        reduced=policy.reduced_activation_copies * wide + policy.reduced_gradient_copies * grad + widened,
        sharded=policy.copies_each_micro_batch,
    )


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
