"""Adafactor: second moments of a matrix by its rows and columns.

Shape letters: m rows, n columns of a weight.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ridgeline.facts.records import Fact
from ridgeline.seams.states import FP32_BYTES, OptimizerStates, Tensor
from ridgeline.seams.technique import accuracy


@dataclass(frozen=True, kw_only=True)
class Adafactor(OptimizerStates):
    """Adafactor: a row and a column of fp32 second moments of every matrix, one of every number outside matrices."""

    key: ClassVar[str] = "adafactor"
    quality: ClassVar[Fact | None] = accuracy(
        "comparable to Adam's, Transformer on WMT 2014 En-De, abstract", "adafactor-2018"
    )
    source: ClassVar[tuple[str, ...]] = ("adafactor-2018",)
    export: ClassVar[dict[str, str]] = {"Transformers": "optim = 'adafactor'"}

    def state_bytes(self, tensor: Tensor) -> float:
        """State of one tensor [byte]: 4 (m + n), or 4 of every number where there is no matrix."""
        matrix = tensor.rows and tensor.columns
        return FP32_BYTES * float(tensor.rows + tensor.columns if matrix else tensor.count)
