"""GaLore: Adam's moments of a matrix in the space of its gradient's first singular vectors.

Shape letters: m the shorter and n the longer side of a weight, r the rank, D hidden.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ridgeline.facts.records import Fact
from ridgeline.graph.workload import Task
from ridgeline.seams.setting import Setting
from ridgeline.seams.states import OptimizerStates, Tensor
from ridgeline.seams.technique import accuracy, param

_BYTES = {"fp32": (4.0, 4.0), "bf16": (2.0, 2.0), "int8": (1.0, 2.0)}  # of a moment, of a number of the projection


@dataclass(frozen=True, kw_only=True)
class GaLore(OptimizerStates):
    """GaLore: Adam's moments of hidden matrices' gradients in a space of low rank, Adam's own of all else.

    Fills the seam of optimizer states. A gradient of m x n is projected to r x n, where moments are kept, and the step
    is projected back; every `gap` steps a singular value decomposition of the gradient finds the projection anew. That
    is kept in the format of moments, or in bf16 beside moments of 8 bits, as the authors' program does. Weights that
    are merged here (queries, keys and values) are projected one by one, each as wide as the others. Updates as soon as
    a gradient is there are `--optimizer-in-backward`.

    Checked: states of Llama 7B against the paper's 65.5 % and, with 8 bits, 82.5 %; memory against 63.3 % and against
    the 22.72 GB of the authors' program. Left out: the decomposition runs at the matrix units' rate, which it does not
    reach; its scratch; blocks' scales of 8-bit moments.
    """

    key: ClassVar[str] = "galore"
    quality: ClassVar[Fact | None] = accuracy(
        "that of Adam at full rank, Llama 1B and 7B on C4, abstract", "galore-2024"
    )
    source: ClassVar[tuple[str, ...]] = ("galore-2024",)
    export: ClassVar[dict[str, str]] = {"Transformers": "optim = 'galore_adamw'"}
    rank: int = param(128, "1", "rank of the projected gradient", low=1, high=65_536)
    gap: int = param(200, "steps", "steps between two decompositions", low=1, high=1_000_000)
    moments: str = param("fp32", "", "format of moments", choices=("fp32", "bf16", "int8"))

    def applies(self, setting: Setting) -> str:
        """Why it does not apply, in a phrase; '' where it does: to matrices that are wider than the rank."""
        said, job = super().applies(setting), setting.job
        if not said and job is not None and job.task not in (Task.PRETRAIN, Task.FULL):
            return f"matrices of adapters (rank {job.lora_rank}) are of low rank already"
        return said

    def axes(self, setting: Setting) -> tuple[str, ...]:
        """A quarter of the hidden width, the authors' share, with moments of 32 and of 8 bits."""
        rank = max(1, setting.model.graph.hidden // 4)
        return GaLore(rank=rank).text, GaLore(rank=rank, moments="int8").text

    def _projected(self, tensor: Tensor) -> tuple[int, int] | None:
        short, long = sorted(tensor.each)
        return (short, long) if tensor.hidden and short > self.rank else None

    def state_bytes(self, tensor: Tensor) -> float:
        """State of one tensor [byte]: of each part the projection p m r and two moments 2 b r n, else 2 b a number."""
        moment, projection = _BYTES[self.moments]
        sides = self._projected(tensor)
        if sides is None:
            return 2 * moment * tensor.count
        (m, n), r = sides, self.rank
        own = tensor.parts * (projection * m * r + 2 * moment * r * n)
        return own + 2 * moment * (tensor.count - tensor.parts * m * n)

    def update_flop(self, tensor: Tensor) -> float:
        """Projections down and back, 4 m n r, and a decomposition (6 m^2 n + 20 m^3) every `gap` steps [FLOP].

        Source: Golub and Van Loan 2013 (golub-van-loan-2013), 8.6.4, R-SVD with both thin factors.
        """
        sides = self._projected(tensor)
        if sides is None:
            return 0.0
        m, n = sides
        return tensor.parts * (4.0 * m * n * self.rank + (6.0 * m**2 * n + 20.0 * m**3) / self.gap)
