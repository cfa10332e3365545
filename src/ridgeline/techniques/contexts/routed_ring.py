"""Zeppelin's routing layer: what a ring hands to the next node goes over the network cards of all its ranks there."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from ridgeline.seams.context import Attended, Exchange, Layouts, NodeExit, Number, own_card
from ridgeline.techniques.contexts.exchanges import Ring


def relayed(node: NodeExit) -> Number:
    """What a ring of n ranks in a node sends to the next node by way of all n of them [byte/s].

    Of each byte (n - 1) / n goes over the sender's link to the others, 1 / n over each one's card, and (n - 1) / n over
    the receiver's link from the others of its node, one after another. Where links are too slow for that, the ring's
    own card is quicker and is used.
    """
    members, link = np.asarray(node.members), np.asarray(node.link_bytes_per_s)
    spread_s = 1.0 / (members * np.asarray(node.device_bytes_per_s)) + 2.0 * (members - 1.0) / members / link
    return np.asarray(np.maximum(1.0 / spread_s, own_card(node)))


@dataclass(frozen=True, kw_only=True)
class RoutedRing(Ring):
    """Ring attention whose hops between nodes are dispatched to the ranks of a node, sent by all, and combined.

    Fills the seam of context parallelism. A ring leaves a node at one rank, so that the other ranks' network cards lie
    idle; relays over the node's own links bring their part of its shard to these. With one rank of a ring in each node
    there is nobody to relay. Left out: relays under way while the node's ring hops take the same links, and relays that
    run piece by piece beside the transfer, which would hide them.
    """

    key: ClassVar[str] = "routed-ring"
    source: ClassVar[tuple[str, ...]] = ("zeppelin-2025",)
    export: ClassVar[dict[str, str]] = {}

    def exchanges(self, attended: Attended, *, backward: bool) -> Iterable[Exchange | Layouts]:
        """Those of the ring, relayed between nodes."""
        for one in super().exchanges(attended, backward=backward):
            yield replace(one, leaving=relayed) if isinstance(one, Exchange) else one
