"""Collectives as NCCL tunes them: rings and trees in three protocols, reduction in the switch, the fastest allowed. And
the all-reduce kernels that serving engines bring along: one-shot, two-shot, and through symmetric memory.

Shape letters: B bytes of the whole buffer of one rank, N ranks on n nodes, g = N / n ranks of a node, s = B / N.
"""

from __future__ import annotations

import math

from ridgeline.compiled import kernel
from ridgeline.cost.families.gemm import power_norm
from ridgeline.cost.mechanism import Array, formula

# The size `operation` counts: 0 all-reduce, 1 all-gather, 2 reduce-scatter, 3 all-to-all, 4 send.


@kernel
def _ring_time(row: Array, rate: float, memory: float, v: Array) -> float:
    """All-reduce, all-gather or reduce-scatter: k = N - 1 steps of s bytes (twice as many to reduce and gather) [s].

    LL: hop latency a step, at the slow rate of flagged words; LL128: a later start, most of the link's rate; Simple: a
    late start and slow hand-overs, partly hidden behind the stream, at the full rate. From `simple_from_bytes_` a rank
    only Simple and the switch are left, as the library's tuner has it. Unless it is done in place, a rank's own piece
    is copied through memory. Beyond the node a ring also waits for the network's hops that a piece crosses on its way
    around, `ring_net` seconds of them each time, and a tree for those of its climb, `tree_net` seconds up or down.
    """
    operation, size, ranks, nodes, link, in_network = row[0], row[1], row[2], row[3], row[4], row[6]
    in_place, out, ring_net, tree_net = row[9], row[12], row[13], row[14]
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
    best = simple + power_norm(simple_latency, wire / rate, overlap) + own
    if piece < simple_from:
        best = min(best, latency + wire / min(ll_rate, rate))
        best = min(best, mid + latency + wire / (rate * ll128) + own)
    if operation == 0.0 and nodes > 1.0:
        depth = 2.0 * math.ceil(math.log2(nodes))
        climb = 2.0 * (group - 1.0) * hop + depth * hop + 2.0 * tree_net
        simple_climb = 2.0 * (group - 1.0) * simple_hop + depth * simple_hop + 2.0 * tree_net
        best = min(best, simple + power_norm(simple_climb, 2.0 * size / rate, overlap))
        if piece < simple_from:
            best = min(best, climb + 2.0 * size / min(ll_rate, rate))
            best = min(best, mid + climb + 2.0 * size / (rate * ll128))
        if in_network > 0.0 and group > 2.0:
            moved = max((1.0 + 1.0 / group) * size / (link * switch_share), 2.0 * size / out)
            reached = (group - 1.0) * simple_hop + depth * simple_hop + 2.0 * tree_net
            best = min(best, simple + reached + moved)
    elif operation == 0.0 and in_network > 0.0 and ranks > 2.0:
        moved = (ranks + 1.0) * piece / (link * switch_share)
        best = min(best, simple + power_norm((ranks - 1.0) * simple_hop, moved, overlap))
    return best


@kernel
def _peer_time(row: Array, rate: float, memory: float, v: Array) -> float:
    """All-to-all, or one message: a start for each peer, then every message at once over link and network [s]."""
    operation, size, ranks, nodes, nic, net_hop = row[0], row[1], row[2], row[3], row[8], row[11]
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
    streamed: float = wait + mid + power_norm(0.5 * simple_hop, wire, overlap) + own
    return min(quick, streamed)


@kernel
def _collective(sizes: Array, device: Array, values: Array, out: Array) -> None:
    memory = device[2]
    for i in range(sizes.shape[0]):
        operation, ranks, nodes = sizes[i, 0], sizes[i, 2], sizes[i, 3]
        link, switched, root = sizes[i, 4], sizes[i, 5], sizes[i, 7]
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
            waited = _ring_time(sizes[i], rate, memory, values)
        else:
            waited = _peer_time(sizes[i], rate, memory, values)
        out[i, 0], out[i, 1], out[i, 2] = values[0] + waited, 0.0, waited


@kernel
def _one_shot(size: float, peers: float, link: float, v: Array) -> float:
    """Every rank reads the whole buffer of every other, all at once, and adds them up [s]."""
    stream = max(peers * size / (link * v[3]), size / v[4])
    return power_norm(v[2], stream, v[7])


@kernel
def _two_shot(size: float, peers: float, link: float, v: Array) -> float:
    """A rank adds up its piece of every buffer; after one more synchronisation all read the pieces of all [s].

    Threads stay with one piece of N packs in the second half, so that they go through the whole buffer and a piece.
    """
    ranks = peers + 1.0
    stream = max(2.0 * peers / ranks * size / (link * v[3]), (1.0 + 1.0 / ranks) * size / v[4])
    return power_norm(v[2] + v[5] + peers * v[6], stream, v[7])


@kernel
def _symmetric(size: float, peers: float, link: float, v: Array) -> float:
    """The switch adds up and spreads pieces, (N + 1) / N of the buffer; of few ranks two shots move less [s]."""
    ranks = peers + 1.0
    found: float = v[8] + min((ranks + 1.0) / ranks, 2.0 * peers / ranks) * size / (link * v[9])
    return found


@kernel
def _custom_all_reduce(sizes: Array, device: Array, values: Array, out: Array) -> None:
    v = values
    for i in range(sizes.shape[0]):
        size, peers, link = sizes[i, 0], sizes[i, 1] - 1.0, sizes[i, 2]
        two_from, symmetric_from, issue_s = sizes[i, 3], sizes[i, 4], sizes[i, 5]
        if peers < 1.0:
            out[i, 0], out[i, 1], out[i, 2] = 0.0, 0.0, 0.0
            continue
        if size >= symmetric_from:
            waited = _symmetric(size, peers, link, v)
        else:
            waited = _one_shot(min(size, two_from), peers, link, v)
            if size >= two_from:  # switched too early or too late, a larger buffer never gains time
                waited = max(waited, _two_shot(size, peers, link, v))
        waited += v[0] + peers * v[1]
        if issue_s > 0.0:  # the host issues each call, and the buffer is copied to where peers may read
            waited = max(issue_s * v[12], waited + v[10] + 2.0 * size / (device[2] * v[11]))
        out[i, 0], out[i, 1], out[i, 2] = waited, 0.0, waited


COLLECTIVE = formula("collective", _collective)
CUSTOM_ALL_REDUCE = formula("custom_all_reduce", _custom_all_reduce)
