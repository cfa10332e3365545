"""Collectives from fitted values, by hand: protocols of a ring of two, the switch, messages, nodes and pieces kept."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ridgeline.cost import questions
from ridgeline.cost.families.collective import COLLECTIVE
from ridgeline.cost.host_times import host_slowness
from ridgeline.cost.machine import machine
from ridgeline.cost.mechanism import device_vector
from ridgeline.cost.network import OPERATIONS, group_sizes
from ridgeline.facts.accelerators import accelerator
from ridgeline.facts.clusters import cluster
from ridgeline.facts.fits import Fit, fits, own_fits
from ridgeline.facts.mechanisms import constant
from ridgeline.lower.work import CollectiveKind

(H100,) = own_fits("collective", "H100-SXM", form="any")
V = H100.values
LINK, MEMORY = 450e9, accelerator("H100-SXM").memory_bytes_per_s
SIZES = (512.0, 1e5, 3e6, 1e8, 2e9)


def seconds(operation: str, size: float, ranks: float, fit: Fit = H100, **others: float) -> float:
    base = {"link_bytes_per_s": LINK, "nic_bytes_per_s": 50e9, "in_network": 1.0}
    sizes = base | {"operation": OPERATIONS.index(operation), "bytes": size, "ranks": ranks} | others
    return float(
        COLLECTIVE.seconds(sizes, device_vector(accelerator(fit.device), "bf16"), COLLECTIVE.vector(fit.values))
    )


def ring_of_two(passes: int, size: float) -> float:
    """The quickest of LL, LL128 and Simple: one step of half the buffer, twice to reduce and gather."""
    rate, piece, hops = LINK * V["link_share_"], size / 2, passes * V["hop_s_"]
    own = piece / (MEMORY * V["own_copy_memory_share_"])
    wire, p = passes * piece / rate, V["overlap_"]
    waits = ((passes * V["hop_simple_s_"]) ** p + wire**p) ** (1 / p)
    simple = V["simple_start_s_"] + waits + own
    if piece >= V["simple_from_bytes_"]:
        return V["start_s_"] + simple
    ll = hops + passes * piece / min(V["ll_bytes_per_s_"], rate)
    ll128 = V["mid_start_s_"] + hops + wire / V["ll128_share_"] + own
    return V["start_s_"] + min(simple, ll, ll128)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_one_rank_has_nobody_to_talk_to(operation: str) -> None:
    assert seconds(operation, 1e9, 1) == 0


@pytest.mark.parametrize("size", SIZES)
def test_a_ring_of_two_by_hand(size: float) -> None:
    for operation, passes in (("all_reduce", 2), ("all_gather", 1), ("reduce_scatter", 1)):
        assert seconds(operation, size, 2) == pytest.approx(ring_of_two(passes, size), rel=1e-9)


def test_long_rings_and_the_switch_move_what_they_must() -> None:
    """Eight ranks: a ring 14/8 of the buffer to reduce and gather, 7/8 to gather; a switch that adds 9/8."""
    ring, gather = LINK * V["link_share_"], 1e10 / 8 / (MEMORY * V["own_copy_memory_share_"])
    assert seconds("all_reduce", 1e10, 8, in_network=0.0) == pytest.approx(14 / 8 * 1e10 / ring + gather, rel=0.01)
    assert seconds("all_gather", 1e10, 8) == pytest.approx(7 / 8 * 1e10 / ring + gather, rel=0.01)
    switch = 9 / 8 * 1e10 / (LINK * V["in_network_share_"])
    assert seconds("all_reduce", 1e10, 8) == pytest.approx(switch, rel=0.01)


def test_a_large_message_takes_the_link_s_share_and_a_small_one_a_start() -> None:
    assert seconds("send", 1e10, 2) == pytest.approx(1e10 / (LINK * V["link_share_"]), rel=0.01)
    small = V["start_s_"] + V["hop_s_"] + V["peer_s_"] + 64 / V["ll_bytes_per_s_"]
    assert seconds("send", 64, 2) == pytest.approx(small)
    assert seconds("send", 64, 2, nodes=2.0, net_hop_s=1e-5) == pytest.approx(small + 1e-5)


def test_all_to_all_starts_each_peer_and_leaves_a_node_over_its_own_interface() -> None:
    starts = seconds("all_to_all", 64 * 8, 8) - seconds("all_to_all", 64 * 4, 4)
    assert starts == pytest.approx(4 * V["peer_s_"])
    leaving = 8 / 16 * 1e10 / (50e9 * V["peer_share_"])
    assert seconds("all_to_all", 1e10, 16, nodes=2.0) == pytest.approx(leaving, rel=0.05)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_piece_that_stays_in_place_is_never_slower(operation: str) -> None:
    for fit in fits("collective"):
        link = {"link_bytes_per_s": fit.span["link_bytes_per_s"][0], "switched": fit.span["switched"][0]}
        for size in SIZES:
            kept, copied = (seconds(operation, size, 8, fit, in_place=one, **link) for one in (1.0, 0.0))
            assert kept <= copied


@pytest.mark.parametrize("operation", OPERATIONS)
def test_more_nodes_are_never_faster_where_a_switch_joins_each(operation: str) -> None:
    """Host bridges are left out: eight devices on one bridge are slower than two on each of four."""
    switched = [fit for fit in fits("collective") if fit.span["switched"] == (1.0, 1.0)]
    assert len({fit.device for fit in switched}) >= 6
    for fit in switched:
        link = {"link_bytes_per_s": fit.span["link_bytes_per_s"][0], "in_network": fit.span["in_network"][0]}
        for size in SIZES:
            spread = [
                seconds(operation, size, 8, fit, nodes=nodes, net_hop_s=1.2e-5, **link)
                for nodes in (1.0, 2.0, 4.0, 8.0)
            ]
            assert spread == sorted(spread), f"{fit.device} {fit.version}: {size:g} B"


def test_a_host_bridge_slows_rings_of_more_than_two() -> None:
    bus = {"link_bytes_per_s": 63e9, "switched": 0.0, "root_ranks": 4.0, "in_network": 0.0}
    two, four, eight = (seconds("all_gather", 1e10, ranks, **bus) for ranks in (2, 4, 8))
    assert two < four < eight
    bridge = 63e9 * V["bridge_share_"]
    own = 1e10 / 4 / (MEMORY * V["own_copy_memory_share_"])
    assert four == pytest.approx(3 / 4 * 1e10 / bridge + own, rel=0.01)
    across = 7 / 8 * 1e10 / (bridge * V["cross_share_"]) + own / 2
    assert eight == pytest.approx(across, rel=0.01)


def test_a_group_is_asked_for_as_it_lies_on_the_machine() -> None:
    m = machine(cluster("16xH100-SXM"))
    found = questions.collective(CollectiveKind.ALL_REDUCE, 1e6, np.array([8, 16]), m, eager=True).question
    assert np.asarray(found.sizes["nodes"]).tolist() == [1, 2]
    assert np.asarray(found.sizes["link_bytes_per_s"]).tolist() == [450e9, 450e9]
    assert found.sizes["operation"] == 0
    assert found.issue_s == constant("collective.issue.hopper")
    assert questions.issue_seconds(accelerator("MI300X")) == constant("collective.issue.other")
    assert questions.issue_seconds(accelerator("GB200")) == constant("collective.issue.grace")
    assert np.asarray(group_sizes(m, 2, 8)["nodes"]).tolist() == 2  # one of each node


@pytest.mark.parametrize(
    ("name", "ratios"),
    [
        ("H100-SXM", (1.0,)),
        ("B200-SXM", (0.88, 0.80, 0.93, 0.96, 0.93)),  # five tables of modules that were issued eagerly
        ("GB300", (1.43, 1.41, 1.37, 1.65, 1.95)),
        ("A100-SXM-80GB", (42 / 21, 75 / 34, 1215 / 995 * 1257 / 1249)),  # a call, a launch of a step, a thread
        ("MI300X", (1.0,)),
    ],
)
def test_hosts_take_the_geometric_mean_of_what_was_measured(name: str, ratios: tuple[float, ...]) -> None:
    assert host_slowness(accelerator(name)) == pytest.approx(math.prod(ratios) ** (1 / len(ratios)), rel=5e-3)


def test_a_host_of_milan_takes_what_one_of_rome_takes_over_what_a_thread_does_more() -> None:
    usual, milan, part = cluster("8xH100-SXM"), cluster("p5.48xlarge"), accelerator("H100-SXM")
    more = 1215 / 995
    ratios = (42 / 21 / more, 75 / 34 / more, 1257 / 1249)
    assert host_slowness(part, milan.host) == pytest.approx(math.prod(ratios) ** (1 / 3), rel=5e-3)
    assert questions.issue_seconds(part, milan.host) == pytest.approx(42e-6 / more, rel=2e-2)
    assert host_slowness(part, usual.host) == host_slowness(part) == 1.0
    assert host_slowness(accelerator("A100-SXM-80GB"), milan.host) < host_slowness(accelerator("A100-SXM-80GB"))


def test_two_roots_of_a_large_host_are_half_a_node_apart() -> None:
    sizes = group_sizes(machine(cluster("8xL40S")), 8, 1)
    assert (sizes["switched"], sizes["root_ranks"]) == (0.0, 4.0)
