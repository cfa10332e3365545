"""Ranks fill nodes as the cluster lists them, as launchers do that are told nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ridgeline.seams.node_order import Integers, NodeOrder, NodeOrderProblem


@dataclass(frozen=True, kw_only=True)
class InOrder(NodeOrder):
    """Ranks fill nodes in the order in which the cluster lists them."""

    key: ClassVar[str] = "in-order"
    source: ClassVar[tuple[str, ...]] = ("megatron-lm",)

    def order(self, problem: NodeOrderProblem) -> Integers:
        """The nodes as they are listed (N,) [1]."""
        return np.arange(problem.nodes)
