"""The seam of node orders: on which node each rank stands, where links between nodes are not alike.

Shape letters: N nodes, B orders looked at together. Ranks fill places in turn, tensor ranks first, then context, data
and pipeline; an order names the node at each place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ridgeline.seams.registry import technique
from ridgeline.seams.setting import Setting
from ridgeline.seams.technique import Technique

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False)
class NodeOrderProblem:
    """What a node order is chosen by: the links, and what a step takes at least under some orders.

    `bytes_per_s` [byte/s] and `latency_s` [s] (N, N) of senders and receivers, `groups` (N,) of alike interfaces,
    `places` the nodes that each stage fills [1]. `seconds` takes orders (B, N) and gives steps (B,) [s].
    """

    bytes_per_s: Floats
    latency_s: Floats
    groups: Integers
    places: float
    seconds: Callable[[Integers], Floats]

    @property
    def nodes(self) -> int:
        """Nodes N [1]."""
        return len(self.groups)


@dataclass(frozen=True, kw_only=True)
class NodeOrder(Technique):
    """Which node stands at each place of a job's ranks."""

    family: ClassVar[str] = "node_orders"

    def applies(self, setting: Setting) -> str:
        """Why it does not apply, in a phrase; '' where it does: to clusters whose links differ."""
        alike = setting.cluster.links is None
        return super().applies(setting) or ("all nodes are linked alike" if alike else "")

    def order(self, problem: NodeOrderProblem) -> Integers:
        """The node at each place (N,) [1]."""
        raise NotImplementedError


def node_order(text: str) -> NodeOrder:
    """The order that a plan names."""
    found = technique("node_orders", text)
    assert isinstance(found, NodeOrder)
    return found
