"""Seconds of collectives and transfers, by topology. Every formula broadcasts over plans."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from ridgeline.cost.families.registry import mechanism
from ridgeline.cost.machine import Machine
from ridgeline.cost.mechanism import device_vector
from ridgeline.facts.fits import Fit
from ridgeline.facts.mechanisms import constant
from ridgeline.lower.work import Collective, CollectiveKind, Number, Phase
from ridgeline.seams.context import Leaving, NodeExit

# The order in which the fitted mechanism numbers collectives.
OPERATIONS = tuple(kind.value for kind in CollectiveKind)
_Answer = TypeVar("_Answer")
_MOST = 10_000  # answers that a machine keeps
_FEW = 64  # numbers of a group's description, up to which it is kept


@dataclass(frozen=True, kw_only=True)
class Path:
    """How a group of ranks lies on the network: what limits a large message, what a small one waits for."""

    bytes_per_s: NDArray[np.float64]  # per rank, ring algorithms
    in_network_bytes_per_s: NDArray[np.float64]  # 0 where no switch reduces
    hop_s: NDArray[np.float64]  # latency of the slowest hop
    tree_s: NDArray[np.float64]  # latency of the hops of a tree over the group, one way, each tier's its own
    inner_ranks: NDArray[np.float64]  # ranks that share the innermost tier
    inner_bytes_per_s: NDArray[np.float64]  # per rank, within the innermost tier; inf if it has no peer there
    outer_bytes_per_s: NDArray[np.float64]  # per rank, the slowest tier beyond it that it crosses; inf if none


def groups_spanned(size: int, ranks: Number, stride: Number, count: int) -> NDArray[np.float64]:
    """How many groups of a tier, of `size` devices each, ranks `stride` apart lie on [1]: where that differs, the most.

    Groups of ranks are placed inside those of a tier where they fit, as schedulers of jobs do (64 of the 72 devices of
    a rack). Where `count` devices are whole groups of the tier and hold more groups of ranks than fit inside, some
    straddle an edge: of four groups of three on three nodes of four, one at least.
    """
    ranks_a, stride_a = np.broadcast_arrays(np.asarray(ranks, dtype=float), np.asarray(stride, dtype=float))
    spanned: NDArray[np.float64] = np.ceil(ranks_a / np.clip(np.floor(size / stride_a), 1, ranks_a))
    if count % size:
        return spanned
    block = np.maximum(ranks_a * stride_a, 1.0)
    straddle = (ranks_a > 1) & (block < size) & (np.floor(size / block) * (count / size) < np.floor(count / block))
    return np.asarray(np.maximum(spanned, 1.0 + straddle))


def path(
    machine: Machine, ranks: Number, stride: Number, kind: CollectiveKind = CollectiveKind.ALL_REDUCE,
    leaving: Leaving | None = None,
) -> Path:  # fmt: skip
    """Where a group of `ranks`, `stride` devices apart, runs: [byte/s] and [s] per rank.

    Within the innermost tier a rank has its own link. A group that leaves a tier of n_t members leaves it over the n_t
    network interfaces of these members at once (rails), so its ring runs at the lower of the inner link and n_t times
    one interface; or at what `leaving` says. A tree that joins the groups of each tier before it goes on to the next
    waits for each tier's latency as often as it doubles there. What goes over a tier of the network goes over those
    between it and the node as well.
    """
    ranks_a, stride_a = np.broadcast_arrays(np.asarray(ranks, dtype=float), np.asarray(stride, dtype=float))
    bandwidth = np.full(ranks_a.shape, np.inf)
    reduced, hop, tree = (np.zeros(ranks_a.shape) for _ in range(3))
    outer = np.full(ranks_a.shape, np.inf)
    inside = np.ones(ranks_a.shape)  # members gathered by the tiers so far
    inner = np.ones(ranks_a.shape)
    inner_rate = np.full(ranks_a.shape, np.inf)
    spanned, wait = np.ones(ranks_a.shape), 0.0
    for index, tier in enumerate(machine.tiers):
        members = _members(tier.size, ranks_a, stride_a, machine.cluster.count)
        beyond = _beyond_node(machine, index)
        used = spanned > 1 if beyond else members > inside
        wait = max(wait, tier.latency_s) if beyond else tier.latency_s
        rate = np.asarray(link_rate(machine, index, kind, ranks_a, stride_a))
        if tier.topology == "mesh":
            rate = rate * np.clip(np.maximum(members - 1, 1) / max(tier.size - 1, 1), 0, 1)
        elif tier.topology == "bus":  # staged through host memory: every byte crosses the bridge twice
            rate = rate / 2
        away = rate * inside if index == 0 else _leaving_rate(machine, index, leaving, rate, inside)
        bandwidth = np.where(used, np.minimum(bandwidth, away), bandwidth)
        outer = np.where(used & (index > 0), np.minimum(outer, rate), outer)
        if tier.in_network_reduction and index == 0:
            whole = members >= ranks_a
            reduced = np.where(used & whole, tier.bytes_per_s * machine.in_network_efficiency[index], reduced)
        hop = np.where(used, np.maximum(hop, wait), hop)
        tree = tree + np.where(used, np.ceil(np.log2(np.maximum(members / inside, 1))) * wait, 0)
        if index == 0:
            inner, inner_rate = members, np.where(used, rate, np.inf)
        inside = np.maximum(inside, members)
        spanned = groups_spanned(tier.size, ranks_a, stride_a, machine.cluster.count)
    return Path(
        bytes_per_s=bandwidth,
        in_network_bytes_per_s=reduced,
        hop_s=hop,
        tree_s=tree,
        inner_ranks=inner,
        inner_bytes_per_s=inner_rate,
        outer_bytes_per_s=outer,
    )


def link_rate(machine: Machine, index: int, kind: CollectiveKind, ranks: Number, stride: Number) -> Number:
    """What a device's link of a tier carries in practice of what a group sends over it [byte/s].

    Of the outermost tier, where its switches are told, what their fullest link leaves; else its oversubscription's.
    """
    tier = machine.tiers[index]
    rate = tier.bytes_per_s * machine.efficiency[index]
    if machine.routes is not None and index == len(machine.tiers) - 1:
        from ridgeline.cost.fabric import congestion

        return rate / congestion(machine, kind, ranks, stride)
    return rate / (tier.oversubscription if index else 1.0)


def _leaving_rate(
    machine: Machine, index: int, leaving: Leaving | None, rate: Number, members: NDArray[np.float64]
) -> Number:
    """What of a ring goes from one group of the tier inside to the next, which holds so many of its ranks [byte/s].

    Each of them has the `rate` of this tier: all at once, or as `leaving` says.
    """
    if leaving is None:
        return rate * members
    tier, inner = machine.tiers[index], machine.tiers[0]
    card = np.asarray(rate) * (max(tier.card_bytes_per_s, tier.bytes_per_s) / tier.bytes_per_s)
    link = inner.bytes_per_s * machine.efficiency[0]
    return leaving(NodeExit(members=members, device_bytes_per_s=rate, card_bytes_per_s=card, link_bytes_per_s=link))


def _beyond_node(machine: Machine, index: int) -> bool:
    """Whether a tier is of the network that joins nodes, so that what goes over the next one goes over it as well."""
    return index > 0 and machine.tiers[index].size > machine.cluster.node_devices


def _members(size: int, ranks: NDArray[np.float64], stride: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    """Ranks of a group that share one group of a tier [1]; the fewer where its edge cuts a group that could fit."""
    whole = np.clip(np.floor(size / stride), 1, ranks)
    spanned = groups_spanned(size, ranks, stride, count)
    fewer = np.maximum(1.0, np.floor(ranks / spanned))
    return np.asarray(np.where((whole >= ranks) & (spanned > 1), fewer, whole))


def collective_seconds(work: Collective, machine: Machine) -> Number:
    """Time of one collective over its group [s]; 0 for one rank.

    Where a switch joins the devices and collectives were measured on such links, the fitted mechanism of
    `families.collective`; beyond the node it takes the network's datasheet rate, its efficiency and latency. Else
    with N ranks, B bytes of buffer, bandwidth W and hop latency a:
    all-reduce      min(tree 2 (N-1)/N B/W + 2 t, in-network (1 + 1/N) B/W' + 2 a)
    all-gather, reduce-scatter   (N-1)/N B/W + t
    all-to-all      the longer of the part that stays inside and the part that leaves the inner tier, + t
    send            B/W + a
    with t = sum over tiers of log2(groups that it joins) times its latency: halving and doubling, the nearest first
    (a ring's hops are never fewer); and the start of a collective (`collective.start`) in each but the send.
    Lower bound: no contention. Source: patarasuk2009 (10.1016/j.jpdc.2008.09.002); Sanders et al.
    2009 for trees. Evidence: derived, on the links' evidence.
    """
    if work.kind is CollectiveKind.SEND:
        return send_seconds(np.asarray(work.bytes, dtype=float), work.stride, machine) * work.repeats
    if work.copies and work.kind is CollectiveKind.ALL_TO_ALL:
        work = replace(work, bytes=work.bytes * _once_a_node(work, machine), copies=0.0)
    sizes = [np.asarray(one, dtype=float) for one in (work.bytes, work.ranks, work.stride)]
    if max(one.size for one in sizes) > _FEW:
        return _once_seconds(work, machine) * work.repeats
    key = ("seconds", work.kind, *(part for one in sizes for part in (one.shape, one.tobytes())))
    found = machine.groups.get(key)
    if found is None:
        found = _once_seconds(work, machine)
        if len(machine.groups) < _MOST:
            machine.groups[key] = found
    return cast(Number, found) * work.repeats


def _once_a_node(work: Collective, machine: Machine) -> Number:
    """Rows that leave a rank for other nodes over those of an exchange that sends each copy apart [1].

    Of N nodes the copies of a row may go to M = N nodes_chosen; k copies at random reach M (1 - (1 - 1 / M)^k) of
    them. On a node they are passed on over its own links while the next ones come (DeepEP, csrc/kernels/internode.cu).
    A group inside a node sends each copy. Domain: balanced routing; groups of experts as many as nodes or more.
    """
    ranks = np.asarray(work.ranks, dtype=float)
    nodes = ranks / np.asarray(_known(path, machine, work).inner_ranks)
    chosen = np.maximum(1.0, nodes * work.nodes_chosen)
    reached = chosen * (1.0 - (1.0 - 1.0 / chosen) ** work.copies)
    return np.where(nodes > 1, np.minimum(1.0, reached / work.copies), 1.0)


def _once_seconds(work: Collective, machine: Machine) -> Number:
    """As `collective_seconds`, without repeats."""
    ranks, size = np.asarray(work.ranks, dtype=float), np.asarray(work.bytes, dtype=float)
    if machine.collectives is not None:
        return _fitted_seconds(work, machine, machine.collectives)
    where = _known(path, machine, work)
    share = (ranks - 1) / ranks
    if work.kind is CollectiveKind.ALL_REDUCE:
        seconds = 2 * share * size / where.bytes_per_s + 2 * where.tree_s
        with np.errstate(divide="ignore", invalid="ignore"):
            switch = np.where(
                where.in_network_bytes_per_s > 0,
                (1 + 1 / ranks) * size / where.in_network_bytes_per_s + 2 * where.hop_s,
                np.inf,
            )
        seconds = np.minimum(seconds, switch)
    elif work.kind is CollectiveKind.ALL_TO_ALL:
        inside = (where.inner_ranks - 1) / ranks * size / where.inner_bytes_per_s
        leaving = (ranks - where.inner_ranks) / ranks * size / where.outer_bytes_per_s
        seconds = np.maximum(inside, leaving) + where.tree_s
    else:
        seconds = share * size / where.bytes_per_s + where.tree_s
    return np.where(ranks > 1, seconds + constant("collective.start"), 0.0)


def _fitted_seconds(work: Collective, machine: Machine, fit: Fit) -> Number:
    """Time by the fitted mechanism [s]; all-reduces are done in place, as frameworks do gradients and activations."""
    model = mechanism("collective")
    sizes: dict[str, Number] = {
        "operation": float(OPERATIONS.index(work.kind.value)),
        "bytes": work.bytes,
        "ranks": work.ranks,
        "in_place": float(work.kind is CollectiveKind.ALL_REDUCE),
        **_known(group_sizes, machine, work),
    }
    device = device_vector(machine.cluster.accelerator, "bf16")
    found: Number = model.seconds(sizes, device, model.vector(fit.values))
    return found


def _known(
    asked: Callable[[Machine, Number, Number, CollectiveKind, Leaving | None], _Answer],
    machine: Machine,
    work: Collective,
) -> _Answer:
    """What is asked of a collective's group, which a machine keeps where groups are few."""
    ranks, stride = np.asarray(work.ranks, dtype=float), np.asarray(work.stride, dtype=float)
    if ranks.size * stride.size > _FEW:
        return asked(machine, ranks, stride, work.kind, work.leaving)
    key = (asked, work.kind, work.leaving, ranks.shape, ranks.tobytes(), stride.shape, stride.tobytes())
    if key not in machine.groups:
        machine.groups[key] = asked(machine, ranks, stride, work.kind, work.leaving)
    return cast(_Answer, machine.groups[key])


def between(first: Number, last: Number, machine: Machine) -> Number:
    """Distance of two devices, or of the farthest pair of several, as the stride of `send_seconds` [1].

    `first` is the lowest and `last` the highest number of the devices that messages leave or reach. What counts is the
    innermost tier with both in one group: the stride of neighbours in different groups of the tier inside it.
    """
    stride: Number = np.ones(np.broadcast(first, last).shape)
    for tier in machine.tiers[:-1]:
        apart = np.asarray(first) // tier.size != np.asarray(last) // tier.size
        stride = np.where(apart, float(tier.size), stride)
    return stride


def send_seconds(size_bytes: Number, stride: Number, machine: Machine) -> Number:
    """Time of one point-to-point message between devices `stride` apart [s].

    It goes over every tier of the network up to the innermost that holds both, at the pace of the slowest. Where
    collectives were measured on such links, the fitted mechanism: a send starts as they do, and moves its bytes
    at the link's share or the network's rate. Else B / W + a, a lower bound that knows no start.
    """
    if machine.collectives is not None:
        kind, phase = CollectiveKind.SEND, Phase.FORWARD
        apart = np.where(np.asarray(stride) < machine.tiers[0].size, 1.0, stride)  # of one node, however far apart
        work = Collective(name="send", phase=phase, kind=kind, bytes=size_bytes, ranks=2.0, stride=apart)
        return _fitted_seconds(work, machine, machine.collectives)
    stride_a = np.asarray(stride, dtype=float)
    rate, wait = np.full(stride_a.shape, np.inf), np.zeros(stride_a.shape)
    reached = 1.0
    for index, tier in enumerate(machine.tiers):
        peers = max(tier.size - 1, 1) if tier.topology == "mesh" else 1
        share = (2 if tier.topology == "bus" else 1) * peers
        own = link_rate(machine, index, CollectiveKind.SEND, 2.0, stride_a) / share
        crossed = (stride_a >= reached) | (index == 0)
        through = index > 1 and _beyond_node(machine, index - 1)
        rate = np.where(crossed, np.minimum(rate, own) if through else own, rate)
        wait = np.where(crossed, np.maximum(wait, tier.latency_s) if through else tier.latency_s, wait)
        reached = float(tier.size)
    return np.asarray(np.asarray(size_bytes) / rate + wait)


def group_sizes(
    machine: Machine, ranks: Number, stride: Number, kind: CollectiveKind = CollectiveKind.ALL_REDUCE,
    leaves: Leaving | None = None,
) -> dict[str, Number]:  # fmt: skip
    """How a group of `ranks` devices, `stride` apart, lies on the network, in the sizes of the collective mechanism.

    `nodes` it spans [1]; rate of the inner link, what the network beyond it sustains per device, and what it sustains
    of the part of a ring that a node holds [byte/s]; latencies on the network [s]: of the slowest hop that is crossed,
    of a ring's and of a tree's hops there; whether a switch joins peers (else a host bridge), whether it reduces, and
    the devices under one root of the bridge [1].

    A ring visits the groups of each tier one after the other. Of the n_t groups of tier t that it spans, as many hops
    leave one, and those that leave a group of the next tier as well take that tier's link instead. In N - 1 steps a
    piece goes over every hop but the quickest. A step waits for the piece before it and for its own link alone, so
    hops add up along a piece's way, and no step waits for a hop that it does not take: 1,024 ranks on two sites pay
    the link between these twice. An all-reduce goes round two times (where nodes hold one rank each and are two to a
    site, it takes one slow hop less than counted). Beside the two of a send there is no other group.
    Source: patarasuk2009 (10.1016/j.jpdc.2008.09.002), the ring's schedule. Evidence: derived.
    """
    ranks_a, stride_a = np.broadcast_arrays(np.asarray(ranks, dtype=float), np.asarray(stride, dtype=float))
    inner, count = machine.tiers[0], 0 if kind is CollectiveKind.SEND else machine.cluster.count
    link = np.full(ranks_a.shape, inner.bytes_per_s)
    if inner.topology == "mesh":  # a link to each peer
        members = _members(inner.size, ranks_a, stride_a, count)
        link = link * np.clip((members - 1) / max(inner.size - 1, 1), 0, 1)
    one = np.ones(ranks_a.shape)
    spanned = [groups_spanned(tier.size, ranks_a, stride_a, count) for tier in machine.tiers[:-1]] + [one]
    network, leaving = (np.full(ranks_a.shape, inner.bytes_per_s) for _ in range(2))
    slowest, around, climb = (np.zeros(ranks_a.shape) for _ in range(3))
    quickest, wait = np.full(ranks_a.shape, np.inf), 0.0
    for index, tier in enumerate(machine.tiers[1:], start=1):
        joined, above = spanned[index - 1], spanned[index]
        crossed = joined > 1
        rate = link_rate(machine, index, kind, ranks_a, stride_a)
        held = ranks_a / joined  # ranks in one group of the tier inside, which leave it together
        network = np.where(crossed, np.minimum(network, rate) if index > 1 else rate, network)
        away = _leaving_rate(machine, index, leaves, rate, held)
        leaving = np.where(crossed, np.minimum(leaving, away) if index > 1 else away, leaving)
        wait = max(wait, tier.latency_s)
        slowest = np.where(crossed, wait, slowest)
        hops = joined - np.where(above > 1, above, 0.0)
        around = around + np.where(crossed, hops * wait, 0.0)
        quickest = np.where(crossed & (hops > 0), np.minimum(quickest, wait), quickest)
        climb = climb + np.where(crossed, np.ceil(np.log2(joined / above)) * wait, 0.0)
    nodes = spanned[0]
    apart = (nodes >= ranks_a) & (nodes > 1)  # every hop is one of the network, so the one left out is too
    root = constant("bus.root_devices")
    return {
        "nodes": nodes,
        "link_bytes_per_s": np.maximum(link, 1.0),
        "switched": 0.0 if inner.topology == "bus" else 1.0,
        "in_network": float(inner.in_network_reduction),
        "root_ranks": max(root, machine.cluster.node_devices / 2) if inner.topology == "bus" else float(inner.size),
        "nic_bytes_per_s": network,
        "leaving_bytes_per_s": leaving,
        "net_hop_s": slowest,
        "ring_net_s": around - np.where(apart, quickest, 0.0),
        "tree_net_s": climb,
    }


def datasheet_links(machine: Machine) -> Machine:
    """A machine whose links carry all that their datasheets say, without latency or anything measured of them."""
    whole = (1.0,) * len(machine.tiers)
    tiers = tuple(replace(tier, latency_s=0.0) for tier in machine.tiers)
    return replace(machine, tiers=tiers, efficiency=whole, in_network_efficiency=whole, collectives=None, routes=None)


def link_limit_s(machine: Machine, size_bytes: Number, ranks: Number, stride: Number = 1) -> NDArray[np.float64]:
    """What any collective takes whose ranks each need the others' parts of a buffer [s]: (N - 1) / N B / W.

    `machine` has `datasheet_links`.
    """
    count = np.asarray(ranks, dtype=float)
    rate = path(machine, ranks, stride).bytes_per_s
    return np.asarray(np.where(count > 1, (count - 1) / count * size_bytes / rate, 0.0), dtype=float)
