"""Collectives as NCCL tunes them: rings and trees in three protocols, reduction in the switch, the fastest allowed.

Shape letters: B bytes of the whole buffer of one rank, N ranks on n nodes, g = N / n ranks of a node, s = B / N.
"""

from __future__ import annotations

import math

from ridgeline.compiled import kernel
from ridgeline.cost.families.gemm import START
from ridgeline.cost.mechanism import Array, Mechanism, Parameter, like, parameter

# The size `operation` counts: 0 all-reduce, 1 all-gather, 2 reduce-scatter, 3 all-to-all, 4 send.


@kernel
def _together(a: float, b: float, power: float) -> float:
    """(a^p + b^p)^(1/p): chunks are handed on while others stream [s]."""
    longer = max(a, b)
    if longer <= 0.0:
        return 0.0
    found: float = longer * ((a / longer) ** power + (b / longer) ** power) ** (1.0 / power)
    return found


@kernel
def _ring_time(
    operation: float,
    size: float,
    ranks: float,
    nodes: float,
    rate: float,
    out: float,
    link: float,
    in_network: float,
    memory: float,
    in_place: float,
    ring_net: float,
    tree_net: float,
    v: Array,
) -> float:
    """All-reduce, all-gather or reduce-scatter: k = N - 1 steps of s bytes (twice as many to reduce and gather) [s].

    LL: hop latency a step, at the slow rate of flagged words; LL128: a later start, most of the link's rate; Simple: a
    late start and slow hand-overs, partly hidden behind the stream, at the full rate. From `simple_from_bytes_` a rank
    only Simple and the switch are left, as the library's tuner has it. Unless it is done in place, a rank's own piece
    is copied through memory. Beyond the node a ring also waits for the network's hops that a piece crosses on its way
    around, `ring_net` seconds of them each time, and a tree for those of its climb, `tree_net` seconds up or down.
    """
    hop, ll_rate, mid, ll128, simple, simple_hop = v[1], v[2], v[3], v[4], v[5], v[6]
    own_share, simple_from, overlap, switch_share = v[8], v[9], v[10], v[11]
    group = ranks / nodes
    piece = size / ranks
    best: float
    passes = 2.0 if operation == 0.0 else 1.0
    steps = passes * (ranks - 1.0)
    waits = passes * ring_net
    wire = steps * piece
    own = 0.0 if in_place > 0.0 else piece / (memory * own_share)
    latency, simple_latency = steps * hop + waits, steps * simple_hop + waits
    best = simple + _together(simple_latency, wire / rate, overlap) + own
    if piece < simple_from:
        best = min(best, latency + wire / min(ll_rate, rate))
        best = min(best, mid + latency + wire / (rate * ll128) + own)
    if operation == 0.0 and nodes > 1.0:
        depth = 2.0 * math.ceil(math.log2(nodes))
        climb = 2.0 * (group - 1.0) * hop + depth * hop + 2.0 * tree_net
        simple_climb = 2.0 * (group - 1.0) * simple_hop + depth * simple_hop + 2.0 * tree_net
        best = min(best, simple + _together(simple_climb, 2.0 * size / rate, overlap))
        if piece < simple_from:
            best = min(best, climb + 2.0 * size / min(ll_rate, rate))
            best = min(best, mid + climb + 2.0 * size / (rate * ll128))
        if in_network > 0.0 and group > 2.0:
            moved = max((1.0 + 1.0 / group) * size / (link * switch_share), 2.0 * size / out)
            reached = (group - 1.0) * simple_hop + depth * simple_hop + 2.0 * tree_net
            best = min(best, simple + reached + moved)
    elif operation == 0.0 and in_network > 0.0 and ranks > 2.0:
        moved = (ranks + 1.0) * piece / (link * switch_share)
        best = min(best, simple + _together((ranks - 1.0) * simple_hop, moved, overlap))
    return best


@kernel
def _peer_time(
    operation: float,
    size: float,
    ranks: float,
    nodes: float,
    rate: float,
    nic: float,
    memory: float,
    net_hop: float,
    v: Array,
) -> float:
    """All-to-all, or one message: a start for each peer, then every message at once over link and network [s]."""
    hop, ll_rate, mid, simple_hop, own_share, overlap = v[1], v[2], v[3], v[6], v[8], v[10]
    peer, peer_share = v[12], v[14]
    group = ranks / nodes
    sending = operation == 4.0
    piece = size if sending else size / ranks
    inside, outside = group - 1.0, ranks - group
    if sending:
        inside = 1.0 if nodes < 2.0 else 0.0
        outside = 1.0 - inside
    wire = inside * piece / (rate if sending else rate * peer_share)
    wait = hop + (inside + outside) * peer
    if outside > 0.0:
        wire = max(wire, outside * piece / (nic * peer_share))
        wait += net_hop
    own = 0.0 if sending else piece / (memory * own_share)
    quick: float = wait + max(piece / min(ll_rate, rate), wire)
    streamed: float = wait + mid + _together(0.5 * simple_hop, wire, overlap) + own
    return min(quick, streamed)


@kernel
def _collective(sizes: Array, device: Array, values: Array, out: Array) -> None:
    memory = device[2]
    for i in range(sizes.shape[0]):
        operation, size, ranks, nodes = sizes[i, 0], sizes[i, 1], sizes[i, 2], sizes[i, 3]
        link, switched, in_network, root, nic = sizes[i, 4], sizes[i, 5], sizes[i, 6], sizes[i, 7], sizes[i, 8]
        if ranks < 2.0:
            out[i, 0], out[i, 1], out[i, 2] = 0.0, 0.0, 0.0
            continue
        group = ranks / nodes
        rate = link * values[7]
        if switched == 0.0 and group > 2.0:
            bridge = values[15] * link * root / min(group, root)
            rate = min(rate, bridge * values[13] if group > root else bridge)
        leaving = sizes[i, 12]
        if nodes > 1.0 and operation < 3.0:
            rate = leaving if group == 1.0 else min(rate, leaving)
        if operation < 3.0:
            waited = _ring_time(
                operation,
                size,
                ranks,
                nodes,
                rate,
                leaving,
                link,
                in_network,
                memory,
                sizes[i, 9],
                sizes[i, 13],
                sizes[i, 14],
                values,
            )
        else:
            waited = _peer_time(operation, size, ranks, nodes, rate, nic, memory, sizes[i, 11], values)
        out[i, 0], out[i, 1], out[i, 2] = values[0] + waited, 0.0, waited


def _seconds(name: str, low: float, high: float, start: float, meaning: str) -> Parameter:
    return parameter(name, "s", low, high, start, meaning)


def _share(name: str, low: float, start: float, meaning: str) -> Parameter:
    return parameter(name, "1", low, 1.0, start, meaning)


COLLECTIVE = Mechanism(
    family="collective",
    sizes=(
        "operation",
        "bytes",
        "ranks",
        "nodes",
        "link_bytes_per_s",
        "switched",
        "in_network",
        "root_ranks",
        "nic_bytes_per_s",
        "in_place",
        "element_bytes",  # of measured tables: reduction of narrow elements is slower; the formula leaves it out
        "net_hop_s",  # of the slowest hop that a message takes beyond the node
        "leaving_bytes_per_s",  # what the network sustains of a node's part of a ring
        "ring_net_s",
        "tree_net_s",
    ),
    defaults={
        "in_place": 0.0,
        "element_bytes": 2.0,
        "net_hop_s": 0.0,
        "leaving_bytes_per_s": 0.0,
        "ring_net_s": 0.0,
        "tree_net_s": 0.0,
        "nodes": 1.0,
        "nic_bytes_per_s": 0.0,
        "in_network": 0.0,
        "switched": 1.0,
        "root_ranks": 8.0,
    },
    kernel=_collective,
    parameters=(
        like(START, low=1e-6, high=3e-5, start=6e-6, meaning="launch of the collective"),
        _seconds("hop_s_", 1e-7, 1e-5, 9e-7, "one step of a ring in LL and LL128"),
        Parameter(
            name="ll_bytes_per_s_", unit="byte/s", low=2e8, high=2e11, start=6e9, meaning="rate of flagged words (LL)"
        ),
        _seconds("mid_start_s_", 1e-7, 3e-5, 2e-6, "what LL128 takes to start beyond LL"),
        _share("ll128_share_", 0.05, 0.55, "share of the ring's rate in LL128"),
        _seconds("simple_start_s_", 1e-7, 1e-4, 5e-6, "what Simple takes to start beyond LL"),
        _seconds("hop_simple_s_", 2e-7, 5e-5, 6e-6, "one hand-over in Simple"),
        _share("link_share_", 0.1, 0.8, "share of the link that a ring sustains"),
        _share("own_copy_memory_share_", 0.01, 0.2, "share of memory bandwidth at which a rank's own piece is copied"),
        Parameter(
            name="simple_from_bytes_",
            unit="byte",
            low=1e4,
            high=2e8,
            start=7e5,
            grid=(2.5e5, 4.5e5, 1e6, 1.5e6, 3e6, 1e8),
            meaning="piece of a rank from which only Simple is used",
        ),
        Parameter(
            name="overlap_", unit="1", low=1, high=4, start=1.5, meaning="norm in which hand-overs and stream overlap"
        ),
        _share("in_network_share_", 0.05, 0.6, "share of the link that reduction in the switch sustains"),
        _seconds("peer_s_", 1e-8, 3e-6, 4e-7, "start of one more peer of an all-to-all"),
        _share("cross_share_", 0.1, 0.6, "share of the bridge that is left between two roots"),
        _share("peer_share_", 0.5, 0.95, "share of the ring's rate in an all-to-all"),
        _share("bridge_share_", 0.05, 0.6, "share of a host bridge that a ring of more than two sustains"),
    ),
)
