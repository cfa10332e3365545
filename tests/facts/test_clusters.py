"""Clusters from text: forms, tiers, hosts, refusals."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.errors import ClusterError, RidgelineError, UnknownNameError
from ridgeline.facts import store
from ridgeline.facts.accelerators import accelerator_names
from ridgeline.facts.benchmarks import ran_on
from ridgeline.facts.clusters import MAX_DEVICES, cluster, clusters, reach
from ridgeline.facts.machines import link, link_names
from ridgeline.facts.records import Cluster, SecondaryPool, Tier

TOPOLOGIES = {"switch", "ring", "mesh", "torus", "bus"}


def holds_together(one: Cluster) -> None:
    """Invariants that every consumer of tiers relies on."""
    assert one.tiers
    assert one.tiers[-1].size >= one.count
    for inner, outer in pairwise(one.tiers):
        assert outer.size > inner.size
        assert outer.size % inner.size == 0
    for tier in one.tiers:
        assert tier.bytes_per_s > 0
        assert tier.latency_s > 0
        assert tier.oversubscription >= 1
        assert tier.topology in TOPOLOGIES
        assert tier.fact is not None
        assert tier.fact.unit == "byte/s"
        assert tier.fact.value == tier.bytes_per_s
    assert all(tier.size < one.count for tier in one.tiers[:-1])
    host = one.host
    assert host.devices == one.node_devices >= 1
    assert min(host.dram_bytes_per_s, host.device_bytes_per_s, host.idle_w) > 0
    assert host.dram_bytes >= 0
    assert one.pue is not None
    assert one.carbon_kg_per_j is not None


def sizes(text: str) -> list[tuple[str, int]]:
    return [(tier.name, tier.size) for tier in cluster(text).tiers]


def test_devices_in_their_default_machine() -> None:
    one = cluster("64xH100-SXM")
    assert (one.name, one.count, one.node_devices) == ("64xH100-SXM", 64, 8)
    assert sizes("64xH100-SXM") == [("nvlink4", 8), ("ib-ndr leaf", 64)]
    nvlink, fabric = one.tiers
    assert (nvlink.bytes_per_s, nvlink.in_network_reduction) == (450e9, True)
    assert fabric.bytes_per_s == pytest.approx(50e9)  # 400 Gb/s
    assert one.host.dram_bytes == pytest.approx(2048e9)


def test_forms_of_the_same_cluster() -> None:
    assert sizes("8x8xH100-SXM") == sizes("64 x h100") == sizes("64*H100") == sizes("8xdgx-h100")
    assert cluster("H100-SXM").count == 1
    assert cluster("1_024xH100").count == cluster("1,024xH100").count == 1024


def test_leaf_and_spine_beyond_one_unit() -> None:
    assert sizes("1000xH100") == [("nvlink4", 8), ("ib-ndr leaf", 256), ("ib-ndr spine", 1024)]


def test_counts_that_do_not_fill_a_node() -> None:
    assert sizes("13xH100") == [("nvlink4", 8), ("ib-ndr leaf", 16)]
    assert sizes("5xH100") == [("nvlink4", 8)]
    assert cluster("13xH100").count == 13


def test_racks_are_units_of_their_own() -> None:
    rack = cluster("gb200-nvl72")
    assert (rack.count, rack.node_devices) == (72, 4)
    assert sizes("2xgb200-nvl72") == [("nvlink5-rack", 72), ("ib-ndr leaf", 144)]
    assert sizes("16xGB200") == [("nvlink5-rack", 72)]


def test_a_torus_is_cut_to_the_slice_in_use() -> None:
    assert sizes("64xTPU-v5p") == [("ici-v5p", 64)]
    assert sizes("512xTPU-v5e") == [("ici-v5e", 256), ("dcn", 512)]


def test_smaller_nodes_on_request() -> None:
    one = cluster("16x4xH100")
    assert (one.count, one.node_devices) == (64, 4)
    assert sizes("16x4xH100") == [("nvlink4", 4), ("ib-ndr leaf", 64)]


def test_boxes_take_the_smallest_that_holds_all() -> None:
    assert (cluster("2xRTX-4090").node_devices, cluster("3xRTX-4090").node_devices) == (2, 4)
    box = cluster("16xRTX-3090")
    assert [(tier.topology, tier.size) for tier in box.tiers] == [("bus", 8), ("switch", 16)]
    assert box.tiers[1].bytes_per_s == pytest.approx(1.25e9 / 8)  # one 10 Gb/s port for eight boards


@pytest.mark.parametrize(
    ("text", "first_tier", "per_device"),
    [
        ("8xV100", "ring", 150e9),
        ("dgx-2", "switch", 150e9),
        ("8xA100-SXM-80GB", "switch", 300e9),
        ("8xH200", "switch", 450e9),
        ("8xB200", "switch", 900e9),
        ("4xMI250X", "mesh", 300e9),
        ("8xMI300X", "mesh", 448e9),
        ("p4d.24xlarge", "switch", 300e9),
        ("jean-zay-v100", "mesh", 150e9),
        ("trn2.48xlarge", "torus", 640e9),
    ],
)
def test_known_machines(text: str, first_tier: str, per_device: float) -> None:
    tier = cluster(text).tiers[0]
    assert tier.topology == first_tier
    assert tier.bytes_per_s == pytest.approx(per_device)


@pytest.mark.parametrize("name", clusters())
def test_every_machine_of_the_catalog(name: str) -> None:
    one = cluster(name)
    holds_together(one)
    holds_together(cluster(f"3x{name}"))
    assert one.name == name


@pytest.mark.parametrize("name", accelerator_names())
def test_every_accelerator_has_a_machine(name: str) -> None:
    for count in (1, 7, 64, 4097):
        one = cluster(f"{count}x{name}")
        assert (one.count, one.accelerator.name) == (count, name)
        holds_together(one)


@given(st.integers(1, MAX_DEVICES), st.sampled_from(["H100", "GB200", "V100", "TPU-v4", "RTX-4090", "MI250X", "WSE-2"]))
def test_any_count(count: int, name: str) -> None:
    holds_together(cluster(f"{count}x{name}"))


@pytest.mark.parametrize(
    ("text", "kind", "says"),
    [
        ("", ClusterError, "is no cluster"),
        ("0xH100", ClusterError, "has the count 0; needs 1 to 1,000,000"),
        ("1000001xH100", ClusterError, "has the count 1000001; needs 1 to 1,000,000"),
        ("2000x2000xH100", ClusterError, "has 4,000,000 devices"),
        ("900000xdgx-h100", ClusterError, "has 7,200,000 devices"),
        ("2x16xH100", ClusterError, "has 16 devices a node, dgx-h100 holds 8"),
        ("2x4xdgx-h100", ClusterError, "write 2xdgx-h100"),
        ("8xH10O", UnknownNameError, "unknown cluster 'H10O'; nearest: .*H100"),
        ("dgx-h10", UnknownNameError, "nearest: dgx-h100"),
        ("-1xH100", UnknownNameError, "write 64xH100-SXM"),
    ],
)
def test_refusals_say_what_to_write(text: str, kind: type[Exception], says: str) -> None:
    with pytest.raises(kind, match=says):
        cluster(text)


@given(st.text(max_size=40).filter(lambda text: not text.strip().casefold().endswith(".toml")))
def test_any_text_is_a_cluster_or_a_worded_refusal(text: str) -> None:
    try:
        one = cluster(text)
    except RidgelineError as error:
        said = str(error)
    else:
        holds_together(one)
        said = one.name
    assert said


tiers = st.lists(st.integers(1, 50), min_size=1, max_size=4)


@given(tiers, tiers, st.integers(1, 5000))
def test_reach_keeps_the_invariants_for_any_sizes(inside: list[int], outside: list[int], count: int) -> None:
    def tier(size: int) -> Tier:
        return Tier(name="t", size=size, bytes_per_s=1.0, latency_s=1.0, topology="switch")

    found = reach(tuple(map(tier, inside)), (*map(tier, outside), tier(10**9)), count)
    assert found[-1].size >= count
    assert all(b.size > a.size and b.size % a.size == 0 for a, b in pairwise(found))


@pytest.mark.parametrize("name", link_names())
def test_links(name: str) -> None:
    one = link(name)
    assert one.bandwidth.unit == "byte/s"
    assert one.latency.unit == "s"
    assert 0 < one.latency.value < 1e-3
    assert one.latency.conditions


def test_a_derived_latency_repeats_its_sum() -> None:
    assert link("nvlink4").latency.value == pytest.approx((18.68 - 7.29) / 12 * 1e-6, rel=5e-3)
    assert link("nvlink3").latency.value == pytest.approx((28.06 - 12.97) / 12 * 1e-6, rel=5e-3)
    assert link("pcie5").latency.value == pytest.approx((34.21 - 9.23) / 12 * 1e-6, rel=5e-3)


def test_the_catalog_path_imports_neither_pydantic_nor_numpy() -> None:
    code = (
        "import sys; from ridgeline.facts.clusters import cluster; cluster('64xH100-SXM');"
        "print([name for name in ('pydantic', 'numpy', 'statistics') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_devices_of_a_kind_that_is_not_there_are_the_cluster_itself() -> None:
    alone = cluster("8xH100-SXM")
    assert alone.of_kind("L40S") is alone
    assert alone.of_kind("H100-SXM") is alone
    mixed = replace(
        alone, secondary=SecondaryPool(cluster=cluster("4xL40S"), own_link=alone.tiers[-1], other_link=alone.tiers[0])
    )
    assert mixed.of_kind("H100-SXM") is mixed
    there = mixed.of_kind("L40S")
    assert (there.accelerator.name, there.count) == ("L40S", 4)
    assert there.secondary is not None
    assert (there.secondary.cluster.name, there.secondary.cluster.secondary) == (alone.name, None)
    assert (there.secondary.own_link, there.secondary.other_link) == (
        alone.tiers[0],
        alone.tiers[-1],
    )  # ends change places


def test_machines_of_tests_are_in_the_catalog_and_hold_their_device() -> None:
    rows = store.read_tsv("test_machines.tsv")
    assert len({row["test"] for row in rows}) == len(rows) == 34
    for row in rows:
        assert cluster(row["machine"]).accelerator.name == row["accelerator"]
        assert (
            ran_on(f"tests/functional_tests/test_cases/{row['test']}/golden.json", row["accelerator"]) == row["machine"]
        )
    assert ran_on(f"test_cases/{rows[0]['test']}_1node/golden.json", "H100-SXM") is None
    assert ran_on(f"test_cases/{rows[0]['test']}/golden.json", "A100-SXM-80GB") is None
