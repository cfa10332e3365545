"""Collectives by hand: nodes of 4 at 80 GB/s and 1 us, 2.5 GB/s a device and 5 us between them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ridgeline.cost.machine import Machine
from ridgeline.cost.machine import machine as resolved
from ridgeline.cost.network import collective_seconds, send_seconds
from ridgeline.facts.clusters import cluster
from ridgeline.facts.mechanisms import constant
from ridgeline.lower.work import Collective, CollectiveKind, Phase
from ridgeline.seams.context import Attended, Exchange, Leaving, NodeExit, context_style, own_card
from ridgeline.techniques.contexts.routed_ring import relayed

SIZE = 1e9
START_S = constant("collective.start")
ALL_REDUCE, ALL_GATHER = CollectiveKind.ALL_REDUCE, CollectiveKind.ALL_GATHER


def seconds(machine: Machine, kind: CollectiveKind, ranks: float, stride: float = 1, size: float = SIZE) -> float:
    """Time of a collective without its start, which every one but a send pays once."""
    work = Collective(name="c", phase=Phase.FORWARD, kind=kind, bytes=size, ranks=ranks, stride=stride)
    start = START_S if ranks > 1 and kind is not CollectiveKind.SEND else 0.0
    return float(collective_seconds(work, machine)) - start


@pytest.mark.parametrize("kind", list(CollectiveKind))
@pytest.mark.parametrize("on", ["8xH100-SXM", "8xMI300X"])
def test_repeats_of_a_collective_follow_one_another(kind: CollectiveKind, on: str) -> None:
    once = Collective(name="c", phase=Phase.FORWARD, kind=kind, bytes=1e6, ranks=2, stride=1)
    found = resolved(cluster(on))
    five = collective_seconds(replace(once, repeats=5.0), found)
    assert float(five) == pytest.approx(5 * float(collective_seconds(once, found)))


def first_tier(machine: Machine, **changes: object) -> Machine:
    return replace(machine, tiers=(replace(machine.tiers[0], **changes), *machine.tiers[1:]))  # type: ignore[arg-type]


def test_a_collective_of_no_bytes_takes_its_start_and_its_hops(machine: Machine) -> None:
    work = Collective(name="c", phase=Phase.FORWARD, kind=ALL_GATHER, bytes=0.0, ranks=4, stride=1)
    assert float(collective_seconds(work, machine)) == pytest.approx(5.4e-6 + 2e-6)


@pytest.mark.parametrize("kind", [kind for kind in CollectiveKind if kind is not CollectiveKind.SEND])
def test_one_rank_has_nothing_to_exchange(machine: Machine, kind: CollectiveKind) -> None:
    assert seconds(machine, kind, 1) == 0.0


def test_all_reduce_moves_twice_three_quarters_over_four_ranks(machine: Machine) -> None:
    # 2 * 3/4 * 1 GB / 80 GB/s, and up and down a tree of two hops of 1 us
    assert seconds(machine, ALL_REDUCE, 4) == pytest.approx(18.75e-3 + 4e-6)


@pytest.mark.parametrize("kind", [ALL_GATHER, CollectiveKind.REDUCE_SCATTER])
def test_gather_and_scatter_are_half_of_it(machine: Machine, kind: CollectiveKind) -> None:
    assert seconds(machine, kind, 4) == pytest.approx(9.375e-3 + 2e-6)


def test_a_switch_that_reduces_sends_each_byte_once(reducing: Machine) -> None:
    # (1 + 1/4) * 1 GB / 70 GB/s + 2 us, less than the ring's 18.75 ms
    assert seconds(reducing, ALL_REDUCE, 4) == pytest.approx(1.25 / 70 + 2e-6)


def test_a_switch_that_reduces_helps_no_group_that_leaves_it(machine: Machine, reducing: Machine) -> None:
    assert seconds(reducing, ALL_REDUCE, 16) == seconds(machine, ALL_REDUCE, 16)


def test_two_tiers_leave_the_node_over_all_its_rails(machine: Machine) -> None:
    # four devices of a node leave it together: 4 * 2.5 = 10 GB/s, below the 80 inside.
    # 2 * 15/16 / 10 = 187.5 ms; hops: 2 of 1 us inside, 2 of 5 us between 4 nodes, up and down
    assert seconds(machine, ALL_REDUCE, 16) == pytest.approx(187.5e-3 + 2 * (2 * 1e-6 + 2 * 5e-6))


def test_fast_rails_leave_the_inner_link_as_the_limit(machine: Machine) -> None:
    tiers = (machine.tiers[0], replace(machine.tiers[1], bytes_per_s=200e9))  # 4 * 50 GB/s of rails
    assert seconds(replace(machine, tiers=tiers), ALL_GATHER, 16) == pytest.approx(15 / 16 / 80 + 12e-6)


def test_a_group_with_one_member_a_node_has_one_rail(machine: Machine) -> None:
    # stride 4: 2 * 3/4 / 2.5 = 600 ms, two hops up and down at 5 us
    assert seconds(machine, ALL_REDUCE, 4, stride=4) == pytest.approx(0.6 + 20e-6)


def test_a_stride_of_two_halves_the_members_of_a_node(machine: Machine) -> None:
    # 8 ranks two apart: 2 in each node, 2 * 2.5 = 5 GB/s; hops 1 inside, 2 between
    assert seconds(machine, ALL_GATHER, 8, stride=2) == pytest.approx(7 / 8 / 5 + 1e-6 + 2 * 5e-6)


def test_all_to_all_inside_a_node(machine: Machine) -> None:
    assert seconds(machine, CollectiveKind.ALL_TO_ALL, 4) == pytest.approx(3 / 4 / 80 + 2e-6)


def test_all_to_all_waits_for_the_part_that_leaves(machine: Machine) -> None:
    # 3/16 of the buffer stays inside at 80 GB/s = 2.3 ms, 12/16 leave at 2.5 GB/s = 300 ms
    assert seconds(machine, CollectiveKind.ALL_TO_ALL, 16) == pytest.approx(0.3 + 12e-6)


def test_all_to_all_waits_for_the_part_that_stays_where_that_is_slower(machine: Machine) -> None:
    slow = first_tier(machine, bytes_per_s=1e9)  # 0.8 GB/s inside: 3/16 / 0.8 = 234 ms; outside 2.5 * 1000
    slow = replace(slow, tiers=(slow.tiers[0], replace(slow.tiers[1], bytes_per_s=10e12)))
    assert seconds(slow, CollectiveKind.ALL_TO_ALL, 16) == pytest.approx(3 / 16 / 0.8 + 12e-6)


def test_a_message_takes_the_innermost_tier_that_holds_both_ends(machine: Machine) -> None:
    assert float(send_seconds(SIZE, 1, machine)) == pytest.approx(1 / 80 + 1e-6)
    assert float(send_seconds(SIZE, 4, machine)) == pytest.approx(1 / 2.5 + 5e-6)
    assert seconds(machine, CollectiveKind.SEND, 2, stride=4) == pytest.approx(1 / 2.5 + 5e-6)


@pytest.mark.parametrize(
    ("text", "stride", "size", "measured_s"),
    [  # send and receive of two ranks. Source: microsoft/vidur@7d47513, data/profiling/network
        ("8xA100-SXM-80GB", 1, 157696, 16e-6),
        ("8xA100-SXM-80GB", 1, 64487424, 283e-6),
        ("8xH100-SXM", 1, 157696, 9e-6),
        ("8xH100-SXM", 1, 4980736, 21e-6),
        ("8xH100-SXM", 1, 64487424, 186e-6),
        ("16xH100-SXM", 8, 157696, 24e-6),
        ("16xH100-SXM", 8, 64487424, 1797e-6),
    ],
)
def test_a_message_starts_as_the_measured_collectives_do(text: str, stride: int, size: int, measured_s: float) -> None:
    found = resolved(cluster(text))
    seconds_ = float(send_seconds(float(size), stride, found))
    assert seconds_ == pytest.approx(measured_s, rel=0.4)
    bare = float(send_seconds(float(size), stride, replace(found, collectives=None)))
    assert bare < seconds_  # a lower bound


def test_a_message_within_a_node_never_leaves_it() -> None:
    found = resolved(cluster("16xH100-SXM"))
    near, far, out = (float(send_seconds(1e8, apart, found)) for apart in (1, 7, 8))
    assert near == far < out
    assert send_seconds(np.array([1e4, 1e8]), np.array([1, 8]), found).tolist() == [
        float(send_seconds(1e4, 1, found)),
        out,
    ]


def test_a_mesh_shares_its_bandwidth_among_the_peers(machine: Machine) -> None:
    mesh = first_tier(machine, topology="mesh")
    # two of four: one of three links, 80 / 3 GB/s; all four use all three
    assert seconds(mesh, ALL_REDUCE, 2) == pytest.approx(1 / (80 / 3) + 2e-6)
    assert seconds(mesh, ALL_REDUCE, 4) == pytest.approx(18.75e-3 + 4e-6)
    assert float(send_seconds(SIZE, 1, mesh)) == pytest.approx(3 / 80 + 1e-6)


def test_a_host_bridge_is_crossed_twice(machine: Machine) -> None:
    bus = first_tier(machine, topology="bus")
    assert seconds(bus, ALL_GATHER, 4) == pytest.approx(2 * 9.375e-3 + 2e-6)
    assert float(send_seconds(SIZE, 1, bus)) == pytest.approx(2 / 80 + 1e-6)
    assert seconds(bus, CollectiveKind.ALL_TO_ALL, 4) == pytest.approx(2 * 3 / 4 / 80 + 2e-6)


def test_all_to_all_over_half_a_mesh_has_the_links_to_its_members_alone(machine: Machine) -> None:
    mesh = first_tier(machine, topology="mesh", size=4)
    assert seconds(mesh, CollectiveKind.ALL_TO_ALL, 2) == pytest.approx(1 / 2 / (80 / 3) + 1e-6)
    assert seconds(mesh, CollectiveKind.ALL_TO_ALL, 2, stride=4) == pytest.approx(
        seconds(machine, CollectiveKind.ALL_TO_ALL, 2, stride=4)
    )


def test_repeats_multiply(machine: Machine) -> None:
    work = Collective(name="c", phase=Phase.FORWARD, kind=ALL_GATHER, bytes=SIZE, ranks=4, stride=1)
    again = replace(work, repeats=3.0)
    assert float(collective_seconds(again, machine)) == 3 * float(collective_seconds(work, machine))


def test_a_grid_of_groups_prices_each_group(machine: Machine) -> None:
    ranks, stride = np.array([[1.0], [2.0], [4.0], [8.0]]), np.array([[1.0, 2.0]])
    for kind in CollectiveKind:
        work = Collective(name="c", phase=Phase.FORWARD, kind=kind, bytes=SIZE, ranks=ranks, stride=stride)
        together = np.broadcast_to(collective_seconds(work, machine), (4, 2))
        alone = [
            [float(collective_seconds(replace(work, ranks=r, stride=s), machine)) for s in stride[0]]
            for r in ranks[:, 0]
        ]
        assert together.tolist() == alone


def ring_seconds(on: str, leaving: Leaving | None, *, ranks: float = 16, stride: float = 1) -> float:
    work = Collective(
        name="ring", phase=Phase.FORWARD, kind=ALL_GATHER, bytes=SIZE, ranks=ranks, stride=stride, leaving=leaving
    )
    return float(collective_seconds(work, resolved(cluster(on))))


@pytest.mark.parametrize("on", ["16xA800-SXM-80GB", "16xMI300X"])
def test_a_ring_of_messages_leaves_a_node_over_one_card(on: str) -> None:
    every, own, routed = (ring_seconds(on, leaving) for leaving in (None, own_card, relayed))
    assert every < routed < own
    tier = cluster(on).tiers[-1]
    assert own > 15 / 16 * SIZE / tier.bytes_per_s  # no quicker than the datasheet of one card
    assert every < own / 3


@pytest.mark.parametrize("leaving", [own_card, relayed])
def test_cards_matter_only_where_a_ring_has_several_ranks_in_a_node(leaving: Leaving) -> None:
    for ranks, stride in ((8, 1), (2, 8), (4, 8)):
        on = "32xH100-SXM"
        assert ring_seconds(on, leaving, ranks=ranks, stride=stride) == pytest.approx(
            ring_seconds(on, None, ranks=ranks, stride=stride)
        )


def test_relays_by_hand() -> None:
    node = NodeExit(members=4.0, device_bytes_per_s=10.0, card_bytes_per_s=20.0, link_bytes_per_s=300.0)
    assert float(own_card(node)) == 20.0  # a lone sender has the card that two share
    assert float(relayed(node)) == pytest.approx(1 / (1 / 40 + 2 * 0.75 / 300))
    slow = replace(node, link_bytes_per_s=10.0)
    assert float(relayed(slow)) == 20.0  # its own card is quicker than relays
    assert float(own_card(replace(node, members=1.0))) == 10.0


def test_the_style_of_that_name_relays() -> None:
    attended = Attended(
        tokens=1024.0, heads=8, kv_heads=8, qk_dim=64, v_dim=64, element_bytes=2.0, tensor=1.0, ranks=16.0
    )
    for name, leaving in (("routed-ring", relayed), ("ring", own_card), ("allgather", None)):
        (one,) = context_style(name).exchanges(attended, backward=False)
        assert isinstance(one, Exchange)
        assert one.leaving is leaving
