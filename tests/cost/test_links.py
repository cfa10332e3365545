"""No collective or send is insensitive to a link that it crosses; latencies count once for each hop that a piece takes.

The rival of the ring's latency is its dependency graph, walked step by step: in step t rank i hands on the piece that
it got in step t - 1, as soon as it has it and its link is free.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.cost.machine import Machine, machine
from ridgeline.cost.network import between, collective_seconds, group_sizes, groups_spanned, path, send_seconds
from ridgeline.facts.clusters import cluster
from ridgeline.facts.records import Tier
from ridgeline.lower.work import Collective, CollectiveKind, Phase

RINGS = (CollectiveKind.ALL_REDUCE, CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER)
KINDS = (*RINGS, CollectiveKind.ALL_TO_ALL)


def network(name: str, count: int, sizes: tuple[int, ...]) -> Machine:
    """Devices of a kind on tiers of these sizes, each slower and farther than the one inside."""
    tiers = tuple(
        Tier(name=f"{size}", size=size, bytes_per_s=4e11 / 8**place, latency_s=2e-6 * 4**place, topology="switch")
        for place, size in enumerate(sizes)
    )
    found = cluster(f"{count}x{name}")
    return machine(replace(found, tiers=tiers, host=replace(found.host, devices=sizes[0])))


def changed(found: Machine, place: int, **words: float) -> Machine:
    tiers = tuple(replace(tier, **words) if i == place else tier for i, tier in enumerate(found.tiers))  # type: ignore[arg-type]
    return replace(found, tiers=tiers, cluster=replace(found.cluster, tiers=tiers))


def seconds(kind: CollectiveKind, found: Machine, ranks: int, stride: int, size: float = 1e9) -> float:
    work = Collective(name="c", phase=Phase.FORWARD, kind=kind, bytes=size, ranks=ranks, stride=stride)
    return float(np.asarray(collective_seconds(work, found)))


def groups(count: int, ranks: int, stride: int) -> list[list[int]]:
    """The devices of every group of ranks: blocks of ranks * stride devices one after the other."""
    block = ranks * stride
    return [
        [start + offset + rank * stride for rank in range(ranks)]
        for start in range(0, count - block + 1, block)
        for offset in range(stride)
    ]


def ring_s(hops_s: list[float], steps: int, piece_s: list[float]) -> float:
    """End of a ring's last hand-over: `hops_s[i]` and `piece_s[i]` of the link from rank i to the next [s]."""
    ranks = len(hops_s)
    arrived, free = [0.0] * ranks, [0.0] * ranks
    for _ in range(steps):
        begun = [max(arrived[i], free[i]) for i in range(ranks)]
        free = [begun[i] + piece_s[i] for i in range(ranks)]
        arrived = [free[i - 1] + hops_s[i - 1] for i in range(ranks)]
    return max(arrived)


@st.composite
def lying(draw: st.DrawFn) -> tuple[str, int, tuple[int, ...], int, int]:
    """A device with fitted collectives or none, devices, sizes of tiers, ranks, stride."""
    sizes = tuple(np.cumprod(draw(st.lists(st.integers(2, 6), min_size=2, max_size=4))).tolist())
    count = sizes[-1]
    stride = draw(st.integers(1, max(1, count // 2)))
    ranks = draw(st.integers(2, max(2, min(count // stride, 24))))
    return draw(st.sampled_from(["H100-SXM", "Arc-A770"])), count, sizes, ranks, stride


@settings(deadline=None, max_examples=200)
@given(lying(), st.sampled_from(KINDS))
def test_a_collective_takes_longer_on_every_link_that_it_crosses_and_on_no_other(
    where: tuple[str, int, tuple[int, ...], int, int], kind: CollectiveKind
) -> None:
    name, count, sizes, ranks, stride = where
    found = network(name, count, sizes)
    usual = seconds(kind, found, ranks, stride)
    for place in range(1, len(sizes)):
        inside = sizes[place - 1]
        crossed = any(one[0] // inside != one[-1] // inside for one in groups(count, ranks, stride))
        if (
            crossed
            and ranks * stride < inside
            and (inside // (ranks * stride)) * (count // inside) >= count // (ranks * stride)
        ):
            continue  # all fit inside if some devices idle: how they are placed is told below
        slow = seconds(kind, changed(found, place, bytes_per_s=1e3), ranks, stride)
        late = seconds(kind, changed(found, place, latency_s=1.0), ranks, stride)
        if crossed:
            assert slow > 2 * usual
            assert late > max(1.0, usual)  # a stream may hide a part of it
            assert late <= usual + 2 * ranks
        else:
            assert (slow, late) == (usual, usual)


@settings(deadline=None, max_examples=100)
@given(lying(), st.sampled_from(KINDS), st.floats(1.0, 100.0), st.floats(0.0, 0.1), st.floats(1e2, 1e9))
def test_a_slower_link_is_never_free_and_a_later_one_never_quicker(
    where: tuple[str, int, tuple[int, ...], int, int], kind: CollectiveKind, slower: float, later_s: float, size: float
) -> None:
    name, count, sizes, ranks, stride = where
    found = network(name, count, sizes)
    usual = seconds(kind, found, ranks, stride, size)
    for place, tier in enumerate(found.tiers):
        slow = changed(found, place, bytes_per_s=tier.bytes_per_s / slower)
        late = changed(found, place, latency_s=tier.latency_s + later_s)
        assert seconds(kind, slow, ranks, stride, size) >= usual * (1 - 1e-12)
        assert seconds(kind, late, ranks, stride, size) >= usual * (1 - 1e-12)


@settings(deadline=None, max_examples=150)
@given(lying(), st.data())
def test_a_send_takes_every_link_between_its_ends_and_no_other(
    where: tuple[str, int, tuple[int, ...], int, int], data: st.DataObject
) -> None:
    name, count, sizes, _, _ = where
    found = network(name, count, sizes)
    one = data.draw(st.integers(0, count - 2))
    other = data.draw(st.integers(one + 1, count - 1))
    usual = float(send_seconds(1e9, between(one, other, found), found))
    for place in range(1, len(sizes)):
        crossed = one // sizes[place - 1] != other // sizes[place - 1]
        slow, late = changed(found, place, bytes_per_s=1e3), changed(found, place, latency_s=1.0)
        changes = [float(send_seconds(1e9, between(one, other, each), each)) - usual for each in (slow, late)]
        if crossed:
            assert changes[0] > usual
            assert 0.9 < changes[1] <= 1.0
        else:
            assert changes == [0.0, 0.0]


@settings(deadline=None, max_examples=150)
@given(
    st.lists(st.integers(1, 5), min_size=2, max_size=4).filter(lambda parts: 2 <= np.prod(parts) <= 64),
    st.floats(0.0, 10.0),
)
def test_the_latency_of_a_ring_is_that_of_its_dependency_graph(parts: list[int], piece_s: float) -> None:
    """Members of each tier's group; hops inside a node are of the fit, so that they cost nothing here."""
    sizes = tuple(int(size) for size in np.cumprod([max(part, 2) for part in parts]))
    stride = 1 if parts[0] > 1 else 2
    ranks = sizes[-1] // stride
    found = network("H100-SXM", sizes[-1], sizes)
    counted = float(np.asarray(group_sizes(found, ranks, stride)["ring_net_s"]))
    devices = [rank * stride for rank in range(ranks)]
    hops = []
    for one, other in zip(devices, devices[1:] + devices[:1], strict=True):
        place = next(i for i, size in enumerate(sizes) if one // size == other // size)
        hops.append(found.tiers[place].latency_s if place else 0.0)
    once = ring_s(hops, ranks - 1, [0.0] * ranks)
    twice = ring_s(hops, 2 * (ranks - 1), [0.0] * ranks)
    assert counted == pytest.approx(once)
    assert twice * (1 - 1e-9) <= 2 * counted <= twice * (1 + 1e-9) + max(hops)
    # with bytes on one slow link, the graph ends between the larger of both and their sum
    links = [piece_s if hop == max(hops) else piece_s / 7 for hop in hops]
    wire, whole = (ranks - 1) * max(links), ring_s(hops, ranks - 1, links)
    assert max(wire, counted) <= whole * (1 + 1e-9)
    assert whole <= (wire + counted) * (1 + 1e-9)


@pytest.mark.parametrize("name", ["H100-SXM", "Arc-A770"])
@pytest.mark.parametrize("kind", RINGS)
def test_a_thousand_ranks_on_two_sites_cross_between_them_once_or_twice_each_way(
    name: str, kind: CollectiveKind
) -> None:
    near, far = (
        seconds(kind, changed(network(name, 1024, (8, 512, 1024)), 2, latency_s=latency_s), 1024, 1, size=1e5)
        for latency_s in (10e-3, 20e-3)
    )
    ways = 2 if kind is CollectiveKind.ALL_REDUCE else 1
    assert ways * 10e-3 - 1e-9 <= far - near <= ways * 2 * 10e-3 + 1e-9


def test_a_ring_over_two_sites_shares_their_link_among_the_ranks_of_a_site() -> None:
    """Sixteen devices a site with 0.1 GB/s each: eight of a node's ring have 1.6 GB/s of it, not 0.8."""
    found = network("H100-SXM", 32, (8, 16, 32))
    found = changed(found, 2, bytes_per_s=1e8)
    assert float(group_sizes(found, 32, 1)["leaving_bytes_per_s"]) == pytest.approx(16 * 1e8 * found.efficiency[2])
    bare = replace(found, collectives=None)
    assert float(path(bare, 32, 1).bytes_per_s) == pytest.approx(16 * 1e8 * found.efficiency[2])
    assert float(group_sizes(found, 32, 1)["nic_bytes_per_s"]) == pytest.approx(1e8 * found.efficiency[2])


@pytest.mark.parametrize(
    ("size", "count", "ranks", "spanned"),
    [
        (4, 8, 3, 1),  # two groups of three in two nodes of four: one in each
        (4, 12, 3, 2),  # four groups in three nodes: some straddle
        (8, 16, 6, 1),
        (8, 24, 6, 2),
        (72, 1024, 64, 1),  # a job takes 64 devices of each rack of 72, in as many racks as it needs
        (8, 64, 4, 1),
        (8, 64, 16, 2),
        (8, 64, 12, 2),
    ],
)
def test_groups_that_fit_inside_are_placed_inside_if_there_is_room(
    size: int, count: int, ranks: int, spanned: int
) -> None:
    assert float(groups_spanned(size, ranks, 1, count)) == spanned
