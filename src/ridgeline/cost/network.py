"""Seconds of collectives and transfers, by topology. Every formula broadcasts over plans."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ridgeline.cost.families.registry import mechanism
from ridgeline.cost.machine import Machine
from ridgeline.cost.mechanism import device_vector
from ridgeline.facts.fits import Fit
from ridgeline.facts.mechanisms import constant
from ridgeline.lower.work import Collective, CollectiveKind, Number, Phase

# The order in which the fitted mechanism numbers collectives.
OPERATIONS = tuple(kind.value for kind in CollectiveKind)


@dataclass(frozen=True, kw_only=True)
class Path:
    """How a group of ranks lies on the network: what limits a large message, what a small one waits for."""

    bytes_per_s: NDArray[np.float64]  # per rank, ring algorithms
    in_network_bytes_per_s: NDArray[np.float64]  # 0 where no switch reduces
    hop_s: NDArray[np.float64]  # latency of the slowest hop
    hops: NDArray[np.float64]  # sequential hops of a tree over the group, one way
    inner_ranks: NDArray[np.float64]  # ranks that share the innermost tier
    inner_bytes_per_s: NDArray[np.float64]  # per rank, within the innermost tier; inf if it has no peer there
    outer_bytes_per_s: NDArray[np.float64]  # per rank, the share of the outermost tier it crosses; inf if none


def path(machine: Machine, ranks: Number, stride: Number) -> Path:
    """Where a group of `ranks`, `stride` devices apart, runs: [byte/s] and [s] per rank.

    Within the innermost tier a rank has its own link. A group that leaves a tier of n_t members
    leaves it over the n_t network interfaces of these members at once (rails), so its ring runs at
    the lower of the inner link and n_t times one interface.
    """
    ranks_a, stride_a = np.broadcast_arrays(np.asarray(ranks, dtype=float), np.asarray(stride, dtype=float))
    bandwidth = np.full(ranks_a.shape, np.inf)
    reduced = np.zeros(ranks_a.shape)
    outer = np.full(ranks_a.shape, np.inf)
    hop = np.zeros(ranks_a.shape)
    hops = np.zeros(ranks_a.shape)
    inside = np.ones(ranks_a.shape)  # members gathered by the tiers so far
    inner = np.ones(ranks_a.shape)
    inner_rate = np.full(ranks_a.shape, np.inf)
    for index, tier in enumerate(machine.tiers):
        members = np.clip(np.floor(tier.size / stride_a), 1, ranks_a)
        used = members > inside
        rate = np.asarray(tier.bytes_per_s * machine.efficiency[index] / (tier.oversubscription if index else 1.0))
        if tier.topology == "mesh":
            rate = rate * np.clip((members - 1) / max(tier.size - 1, 1), 0, 1)
        elif tier.topology == "bus":  # staged through host memory: every byte crosses the bridge twice
            rate = rate / 2
        bandwidth = np.where(used, np.minimum(bandwidth, rate * inside), bandwidth)
        outer = np.where(used & (index > 0), np.minimum(outer, rate), outer)
        if tier.in_network_reduction and index == 0:
            whole = members >= ranks_a
            reduced = np.where(used & whole, tier.bytes_per_s * machine.in_network_efficiency[index], reduced)
        hop = np.where(used, np.maximum(hop, tier.latency_s), hop)
        hops = hops + np.where(used, np.ceil(np.log2(np.maximum(members / inside, 1))), 0)
        if index == 0:
            inner, inner_rate = members, np.where(used, rate, np.inf)
        inside = np.maximum(inside, members)
    return Path(
        bytes_per_s=bandwidth,
        in_network_bytes_per_s=reduced,
        hop_s=hop,
        hops=hops,
        inner_ranks=inner,
        inner_bytes_per_s=inner_rate,
        outer_bytes_per_s=outer,
    )


def collective_seconds(work: Collective, machine: Machine) -> Number:
    """Time of one collective over its group [s]; 0 for one rank.

    Where a switch joins the devices and collectives were measured on such links, the fitted mechanism of
    `families.collective`; beyond the node it takes the network's datasheet rate, its efficiency and latency. Else
    with N ranks, B bytes of buffer, bandwidth W and hop latency a:
    all-reduce      min(ring 2 (N-1)/N B/W + 2 (N-1) a, tree 2 (N-1)/N B/W + 2 log2(N) a,
                        in-network (1 + 1/N) B/W' + 2 a)
    all-gather, reduce-scatter   (N-1)/N B/W + log2(N) a
    all-to-all      the longer of the part that stays inside and the part that leaves the inner tier
    send            B/W + a
    and the start of a collective (`collective.start`) in each but the send.
    Lower bound: no contention. Source: patarasuk2009 (10.1016/j.jpdc.2008.09.002); Sanders et al.
    2009 for trees. Evidence: derived, on the links' evidence.
    """
    ranks = np.asarray(work.ranks, dtype=float)
    size = np.asarray(work.bytes, dtype=float)
    if work.kind is CollectiveKind.SEND:
        return send_seconds(size, work.stride, machine) * work.repeats
    if machine.collectives is not None:
        return _fitted_seconds(work, machine, machine.collectives)
    where = path(machine, ranks, work.stride)
    share = (ranks - 1) / ranks
    if work.kind is CollectiveKind.ALL_REDUCE:
        seconds = 2 * share * size / where.bytes_per_s + 2 * where.hops * where.hop_s
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
        seconds = np.maximum(inside, leaving) + where.hops * where.hop_s
    else:
        seconds = share * size / where.bytes_per_s + where.hops * where.hop_s
    return np.where(ranks > 1, seconds + constant("collective.start"), 0.0) * work.repeats


def _fitted_seconds(work: Collective, machine: Machine, fit: Fit) -> Number:
    """Time by the fitted mechanism [s]; all-reduces are done in place, as frameworks do gradients and activations."""
    model = mechanism("collective")
    sizes: dict[str, Number] = {
        "operation": float(OPERATIONS.index(work.kind.value)),
        "bytes": work.bytes,
        "ranks": work.ranks,
        "in_place": float(work.kind is CollectiveKind.ALL_REDUCE),
        **group_sizes(machine, work.ranks, work.stride),
    }
    device = device_vector(machine.cluster.accelerator, "bf16")
    found: Number = model.seconds(sizes, device, model.vector(fit.values)) * work.repeats
    return found


def send_seconds(size_bytes: Number, stride: Number, machine: Machine) -> Number:
    """Time of one point-to-point message between devices `stride` apart [s].

    Where collectives were measured on such links, the fitted mechanism: a send starts as they do, and moves its bytes
    at the link's share or the network's rate. Else B / W + a, a lower bound that knows no start.
    """
    if machine.collectives is not None:
        kind, phase = CollectiveKind.SEND, Phase.FORWARD
        apart = np.where(np.asarray(stride) < machine.tiers[0].size, 1.0, stride)  # of one node, however far apart
        work = Collective(name="send", phase=phase, kind=kind, bytes=size_bytes, ranks=2.0, stride=apart)
        return _fitted_seconds(work, machine, machine.collectives)
    stride_a = np.asarray(stride, dtype=float)
    rate = np.zeros(np.broadcast(stride_a, np.asarray(size_bytes)).shape)
    wait = np.zeros_like(rate)
    for index, tier in reversed(list(enumerate(machine.tiers))):
        inside = (stride_a < tier.size) | (index == len(machine.tiers) - 1)
        peers = max(tier.size - 1, 1) if tier.topology == "mesh" else 1
        share = (2 if tier.topology == "bus" else 1) * (tier.oversubscription if index else 1.0) * peers
        rate = np.where(inside, tier.bytes_per_s * machine.efficiency[index] / share, rate)
        wait = np.where(inside, tier.latency_s, wait)
    return np.asarray(size_bytes) / rate + wait


_ROOT = 4.0  # devices under one root of a small box; larger ones have two roots (assumed)


def group_sizes(machine: Machine, ranks: Number, stride: Number) -> dict[str, Number]:
    """How a group of `ranks` devices, `stride` apart, lies on the network, in the sizes of the collective mechanism.

    `nodes` it spans [1], rate of the inner link and what the network beyond it sustains per device [byte/s], the
    latency of one of its hops [s], whether a switch joins peers (else a host bridge), whether it reduces, and the
    devices under one root of the bridge [1].
    """
    ranks_a, stride_a = np.broadcast_arrays(np.asarray(ranks, dtype=float), np.asarray(stride, dtype=float))
    inner, outer = machine.tiers[0], machine.tiers[1:]
    members = np.clip(np.floor(inner.size / stride_a), 1, ranks_a)
    link = np.full(ranks_a.shape, inner.bytes_per_s)
    if inner.topology == "mesh":  # a link to each peer
        link = link * np.clip((members - 1) / max(inner.size - 1, 1), 0, 1)
    network, hop = np.full(ranks_a.shape, inner.bytes_per_s), np.zeros(ranks_a.shape)
    reached = float(inner.size)
    for tier, efficiency in zip(outer, machine.efficiency[1:], strict=True):
        crossed = ranks_a * stride_a > reached
        rate = tier.bytes_per_s * efficiency / tier.oversubscription
        network = np.where(crossed, np.minimum(network, rate) if tier is not outer[0] else rate, network)
        hop = np.where(crossed, np.maximum(hop, tier.latency_s), hop)
        reached = float(tier.size)
    return {
        "nodes": np.ceil(ranks_a / members),
        "link_bytes_per_s": np.maximum(link, 1.0),
        "switched": 0.0 if inner.topology == "bus" else 1.0,
        "in_network": float(inner.in_network_reduction),
        "root_ranks": max(_ROOT, machine.cluster.node_devices / 2) if inner.topology == "bus" else float(inner.size),
        "nic_bytes_per_s": network,
        "net_hop_s": hop,
    }
