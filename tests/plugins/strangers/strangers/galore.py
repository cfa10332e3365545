"""GaLore: Adam's moments of a matrix in the space of its gradient's first singular vectors.

Shape letters: m the shorter and n the longer side of a weight, r the rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ridgeline.seams.states import FP32_BYTES, OptimizerStates, Tensor
from ridgeline.seams.technique import param


@dataclass(frozen=True, kw_only=True)
class GaLore(OptimizerStates):
    """GaLore: moments of projected gradients of hidden matrices, Adam's of all else.

    Every `gap` steps a singular value decomposition finds the projection. Its cost is taken as that of a full one by
    bidiagonalization (Golub and Van Loan, 4 m^2 n + 8 m n^2 + 9 m^3 with the shorter side last).
    """

    key: ClassVar[str] = "galore-stranger"
    source: ClassVar[tuple[str, ...]] = ("https://arxiv.org/abs/2403.03507, table 1 and algorithm 2",)
    rank: int = param(128, "1", "rank of the projected gradient", low=1, high=65_536)
    gap: int = param(200, "steps", "steps between two decompositions", low=1, high=1_000_000)

    def _projected(self, tensor: Tensor) -> tuple[int, int] | None:
        short, long = sorted((tensor.rows, tensor.columns))
        return (short, long) if tensor.hidden and short > self.rank else None

    def state_bytes(self, tensor: Tensor) -> float:
        """State of one tensor [byte]: projection m r and two moments r n, in fp32; Adam's 8 of every other number."""
        sides = self._projected(tensor)
        if sides is None:
            return 2 * FP32_BYTES * tensor.count
        (m, n), r = sides, self.rank
        return FP32_BYTES * (m * r + 2.0 * n * r) + 2 * FP32_BYTES * (tensor.count - m * n)

    def update_flop(self, tensor: Tensor) -> float:
        """Two projections of 2 m n r, down and back, and a decomposition every `gap` steps [FLOP]."""
        sides = self._projected(tensor)
        if sides is None:
            return 0.0
        m, n = sides
        return 4.0 * m * n * self.rank + (4.0 * n**2 * m + 8.0 * n * m**2 + 9.0 * m**3) / self.gap
