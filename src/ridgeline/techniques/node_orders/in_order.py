"""Ranks fill nodes as the cluster lists them, as launchers do that are told nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ridgeline.seams.node_order import NodeOrder


@dataclass(frozen=True, kw_only=True)
class InOrder(NodeOrder):
    """Ranks fill nodes in the order in which the cluster lists them."""

    key: ClassVar[str] = "in-order"
    source: ClassVar[tuple[str, ...]] = ("megatron-lm",)
