"""Muon: the momentum of a hidden matrix, made orthogonal by Newton-Schulz iterations.

Shape letters: k the shorter and n the longer side of a weight.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ridgeline.seams.states import FP32_BYTES, OptimizerStates, Tensor
from ridgeline.seams.technique import param

_ADAM_BYTES = 2 * FP32_BYTES


@dataclass(frozen=True, kw_only=True)
class Muon(OptimizerStates):
    """Muon: a momentum of hidden matrices, made orthogonal before each step; Adam for all other weights.

    An iteration makes X X^T, its square and the product with X: 4 k^2 n + 2 k^3 FLOP.
    """

    key: ClassVar[str] = "muon"
    source: ClassVar[tuple[str, ...]] = ("muon-2024",)
    iterations: int = param(5, "iterations", "Newton-Schulz iterations of each update", low=1, high=100)

    def state_bytes(self, tensor: Tensor) -> float:
        """State of one tensor [byte]: 4 of every number of a hidden matrix, 8 of every other."""
        matrix = float(tensor.rows * tensor.columns) if tensor.hidden else 0.0
        return matrix * FP32_BYTES + (tensor.count - matrix) * _ADAM_BYTES

    def update_flop(self, tensor: Tensor) -> float:
        """Newton-Schulz iterations over a hidden matrix [FLOP]."""
        if not tensor.hidden:
            return 0.0
        short, long = sorted((tensor.rows, tensor.columns))
        return self.iterations * (4.0 * short**2 * long + 2.0 * short**3)
