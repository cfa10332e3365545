"""All-reduce kernels of engines from fitted values, by hand: shots, symmetric memory, eager calls, rules and limits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.cost.all_reduce import all_reduce_seconds, engine_rules, kernel_sizes, kernels_of, most_bytes
from ridgeline.cost.answer import Question, Rung
from ridgeline.cost.families.collective import CUSTOM_ALL_REDUCE
from ridgeline.cost.ladder import price
from ridgeline.cost.machine import machine
from ridgeline.cost.mechanism import device_vector
from ridgeline.cost.network import collective_seconds
from ridgeline.facts.accelerators import accelerator
from ridgeline.facts.clusters import cluster
from ridgeline.facts.engine_kernels import NEVER_BYTES, all_reduce_rules
from ridgeline.facts.fits import own_fits
from ridgeline.lower.work import Collective, CollectiveKind, Number, Phase

KIB, MIB = 1024.0, 1024.0**2
(H100,) = own_fits("custom_all_reduce", "H100-SXM", engine="vllm", form="any")
V = H100.values
LINK = 450e9
BOX = machine(cluster("8xH100-SXM"))
MEMORY = accelerator("H100-SXM").memory_bytes_per_s


def kernel(size: float, ranks: float, **others: float) -> float:
    sizes = {"bytes": size, "ranks": ranks, "link_bytes_per_s": LINK, **others}
    device = device_vector(accelerator("H100-SXM"), "bf16")
    return float(CUSTOM_ALL_REDUCE.seconds(sizes, device, CUSTOM_ALL_REDUCE.vector(V)))


def library(size: Number, ranks: Number, where: str = "8xH100-SXM") -> Number:
    work = Collective(name="r", phase=Phase.FORWARD, kind=CollectiveKind.ALL_REDUCE, bytes=size, ranks=ranks, stride=1)
    return collective_seconds(work, machine(cluster(where)))


def together(a: float, b: float) -> float:
    return float((a ** V["overlap_"] + b ** V["overlap_"]) ** (1 / V["overlap_"]))


def test_one_shot_reads_every_other_buffer_whole() -> None:
    for size, ranks in ((16 * KIB, 2), (MIB, 2), (128 * KIB, 8)):
        stream = max((ranks - 1) * size / (LINK * V["link_share_"]), size / V["threads_bytes_per_s_"])
        start = V["start_s_"] + (ranks - 1) * V["peer_s_"]
        assert kernel(size, ranks) == pytest.approx(start + together(V["turn_s_"], stream))


def test_two_shot_moves_two_shares_of_the_buffer_after_one_more_synchronisation() -> None:
    size, from_bytes = 4 * MIB, 256 * KIB
    stream = max(2 * 7 / 8 * size / (LINK * V["link_share_"]), 9 / 8 * size / V["threads_bytes_per_s_"])
    wait = V["turn_s_"] + V["sync_s_"] + 7 * V["sync_peer_s_"]
    start = V["start_s_"] + 7 * V["peer_s_"]
    assert kernel(size, 8, two_shot_from_bytes=from_bytes) == pytest.approx(start + together(wait, stream))
    assert kernel(size, 8, two_shot_from_bytes=from_bytes) < 0.5 * kernel(size, 8)


def test_the_switch_moves_nine_eighths_of_the_buffer_and_two_ranks_move_one() -> None:
    for ranks, moved in ((8, 9 / 8), (4, 5 / 4), (2, 1.0)):
        start = V["start_s_"] + (ranks - 1) * V["peer_s_"] + V["symmetric_start_s_"]
        stream = moved * 32 * MIB / (LINK * V["symmetric_share_"])
        assert kernel(32 * MIB, ranks, symmetric_from_bytes=8 * MIB) == pytest.approx(start + stream)


def test_an_eager_call_waits_for_its_host_and_copies_its_buffer() -> None:
    assert kernel(4 * KIB, 2, issue_s=1e-4) == pytest.approx(1e-4 * V["issue_share_"])
    copied = V["copy_s_"] + 2 * 4 * MIB / (MEMORY * V["copy_memory_share_"])
    assert kernel(4 * MIB, 2, issue_s=1e-9) == pytest.approx(kernel(4 * MIB, 2) + copied)


@settings(deadline=None)  # the first example compiles the formula
@given(
    size=st.floats(16, 1e9),
    more=st.floats(1, 10),
    ranks=st.sampled_from([2, 3, 4, 8]),
    two=st.sampled_from([0.0, 2.6e5, 5.2e5, 4e6, NEVER_BYTES]),
    symmetric=st.sampled_from([1.0, NEVER_BYTES]),
    issue_s=st.sampled_from([0.0, 2e-5]),
)
def test_a_larger_buffer_never_gains_and_never_beats_the_links(
    size: float, more: float, ranks: int, two: float, symmetric: float, issue_s: float
) -> None:
    others = {"two_shot_from_bytes": two, "symmetric_from_bytes": symmetric, "issue_s": issue_s}
    found = kernel(size, ranks, **others)
    assert kernel(size * more, ranks, **others) >= found * (1 - 1e-12)
    least = 1 + 1 / ranks if symmetric == 1 else 2.0
    assert found > min(least, 2 * (ranks - 1) / ranks) * size / LINK


def test_rules_of_vllm_by_release_device_and_links() -> None:
    old = all_reduce_rules("vllm", "0.14.0", "linked NVIDIA hopper H100-SXM")
    assert {n: (rule.two_shot_from_bytes, rule.most_bytes) for n, rule in old.items()} == {
        2: (np.inf, 8 * MIB - 16),
        4: (512 * KIB, 8 * MIB - 16),
        6: (256 * KIB, 8 * MIB - 16),
        8: (256 * KIB, 8 * MIB - 16),
    }
    new = all_reduce_rules("vllm", "", "linked NVIDIA hopper H100-SXM")[8]
    assert (new.symmetric_from_bytes, new.most_bytes) == (256 * KIB, 64 * MIB - 16)
    assert set(all_reduce_rules("vllm", "", "bus NVIDIA ada L40S")) == {2}
    assert all_reduce_rules("vllm", "0.6.1", "linked AMD cdna3 MI300X") == {}  # the library's until 0.8.3
    assert all_reduce_rules("vllm", "0.8.3", "linked AMD cdna3 MI300X")[8].two_shot_from_bytes == 262144
    assert all_reduce_rules("vllm", "", "linked AMD cdna2 MI250") == {}
    assert all_reduce_rules("trtllm", "", "bus NVIDIA ada L40S") == {}
    assert all_reduce_rules("vllm", "", "linked Google tpu TPU-v5e") == {}
    assert all_reduce_rules("nccl", "", "linked NVIDIA hopper H100-SXM") == {}


def test_a_name_that_only_begins_alike_has_no_rule_of_its_own() -> None:
    racks = all_reduce_rules("vllm", "0.24.0", "linked NVIDIA blackwell GB200")
    assert set(racks) == {2, 4, 6, 8}
    assert racks[4].most_bytes == 8 * MIB - 16
    assert all_reduce_rules("vllm", "0.24.0", "linked NVIDIA blackwell GB300")[4].symmetric_from_bytes == 4 * MIB


def test_groups_leave_the_kernels_to_the_library_beyond_a_node_or_a_count() -> None:
    two = machine(cluster("16xH100-SXM"))
    assert most_bytes(two, np.array([1, 2, 3, 8, 16]), 1, "vllm", "0.14.0").tolist() == [
        0, 8 * MIB - 16, 0, 8 * MIB - 16, 0,
    ]  # fmt: skip
    assert most_bytes(two, 2, np.array([4, 7, 8]), "vllm").tolist() == [64 * MIB - 16, 64 * MIB - 16, 0]
    rack = machine(cluster("72xGB200"))
    assert most_bytes(rack, np.array([4, 8]), 1, "sglang").tolist() == [16 * MIB, 0]  # a host has four of its devices


def test_buffers_of_a_whole_domain_reach_beyond_a_host() -> None:
    rack = machine(cluster("72xGB200"))
    assert most_bytes(rack, np.array([4, 8, 16]), 1, "trtllm", "1.2.0").tolist() == [4 * MIB, 16 * MIB, 16 * MIB]
    assert most_bytes(rack, 8, 1, "trtllm", "0.20").tolist() == 0  # before those kernels
    assert most_bytes(rack, 8, 16, "trtllm", "1.2.0").tolist() == 0  # beyond the rack
    # lightseekorg/tokenspeed pull request #860: 8 GB200 of two trays, kernels of its own, with the norm of 2 us
    tokens, measured = np.array([1, 64, 128, 256, 512]), np.array([10.9, 19.1, 29.4, 55.8, 103.2])
    found = np.asarray(all_reduce_seconds(tokens * 7168 * 2.0, 8, rack, engine="trtllm")) * 1e6
    assert np.all((found < measured) & (found > 0.5 * measured))
    library_us = np.asarray(all_reduce_seconds(tokens * 7168 * 2.0, 8, rack, engine="trtllm", version="0.20")) * 1e6
    assert np.all(found[:3] < library_us[:3])


def test_an_engine_takes_its_kernels_to_their_limit_then_the_library() -> None:
    sizes = np.array([64 * KIB, 16 * MIB, 16 * MIB + 16])
    found = np.asarray(all_reduce_seconds(sizes, 8, BOX, engine="sglang"))
    model = kernels_of(BOX.cluster.accelerator, "sglang")
    assert model is not None
    assert found[:2] == pytest.approx(np.asarray(model.seconds(kernel_sizes(BOX, sizes[:2], 8, "sglang"))))
    assert found[2] == library(sizes[2], 8)
    assert found[0] < 0.5 * float(library(sizes[0], 8))
    assert np.asarray(all_reduce_seconds(sizes, 8, BOX, engine="oneccl")) == pytest.approx(library(sizes, 8))
    assert float(all_reduce_seconds(MIB, 1, BOX, engine="vllm")) == 0


def test_more_than_two_devices_on_a_bus_leave_it_to_the_library() -> None:
    bus = machine(cluster("4xRTX-4090"))
    found = np.asarray(all_reduce_seconds(32 * KIB, np.array([2, 4]), bus, engine="vllm"))
    assert found[1] == np.asarray(library(32 * KIB, 4, "4xRTX-4090"))
    assert found[0] < 0.7 * float(np.asarray(library(32 * KIB, 2, "4xRTX-4090")))


def test_arrays_are_priced_as_their_elements() -> None:
    sizes, ranks = np.array([[1e4], [3e6], [2e8]]), np.array([1, 2, 4, 5, 8, 16])
    two = machine(cluster("16xH100-SXM"))
    together_ = np.asarray(all_reduce_seconds(sizes, ranks, two, engine="vllm", eager=True))
    assert together_.shape == (3, 6)
    for i, j in np.ndindex(3, 6):
        alone = all_reduce_seconds(float(sizes[i, 0]), float(ranks[j]), two, engine="vllm", eager=True)
        assert together_[i, j] == pytest.approx(float(alone))


@pytest.mark.parametrize(
    ("device", "ranks", "engine", "rung"),
    [
        ("H100-SXM", 8, "vllm", Rung.FITTED),
        ("L40S", 2, "sglang", Rung.FITTED),
        ("H800-SXM", 8, "vllm", Rung.BORROWED),
        ("RTX-4090", 2, "vllm", Rung.BORROWED),
        ("MI300X", 8, "vllm", Rung.COMMON),
        ("V100-SXM2-32GB", 4, "vllm", Rung.COMMON),
    ],
)
def test_switches_meshes_and_bridges_have_an_answer(device: str, ranks: int, engine: str, rung: Rung) -> None:
    where = machine(cluster(f"{ranks}x{device}"))
    sizes = kernel_sizes(where, 100_000.0, float(ranks), engine, eager=0.0)
    asked = Question(family="custom_all_reduce", sizes=sizes, form="any", engine=engine)
    answer = price(asked, where.cluster.accelerator, rungs=(Rung.FITTED, Rung.BORROWED, Rung.COMMON))
    assert answer.rung is rung
    assert float(answer.low_s) < float(answer.seconds) < float(answer.high_s)
    assert float(all_reduce_seconds(100_000.0, ranks, where, engine=engine)) == pytest.approx(float(answer.seconds))


# The wheel's rows of these sizes, halfway between start and limit, to a fifth: aiconfigurator-core 0.12.0, captured.
@pytest.mark.parametrize(
    ("device", "engine", "version", "ranks", "size", "measured_us"),
    [
        ("H100-SXM", "vllm", "0.14.0", 8, 4 * MIB, 34.5),
        ("H100-SXM", "vllm", "0.24.0", 8, MIB, 15.0),
        ("A100-SXM-80GB", "vllm", "0.14.0", 4, 2 * MIB, 26.0),
        ("B200-SXM", "vllm", "0.24.0", 8, 512 * KIB, 26.1),
        ("B200-SXM", "sglang", "0.5.14", 4, 4 * MIB, 22.3),
        ("H100-SXM", "trtllm", "1.3.0rc20", 4, 512 * KIB, 7.9),
    ],
)
def test_measured_rows_are_met(
    device: str, engine: str, version: str, ranks: int, size: float, measured_us: float
) -> None:
    found = all_reduce_seconds(size, ranks, machine(cluster(f"8x{device}")), engine=engine, version=version)
    assert float(found) * 1e6 == pytest.approx(measured_us, rel=0.2)


def test_every_rule_is_in_order_and_says_where_it_comes_from() -> None:
    for engine in ("vllm", "sglang", "trtllm"):
        for version in ("", "0.5.9", "0.14.0", "1.2.0rc5"):
            for where in ("8xH100-SXM", "8xB200-SXM", "4xGB300", "8xMI300X", "2xL40S"):
                for rule in engine_rules(machine(cluster(where)), engine, version).values():
                    assert 0 < rule.most_bytes <= 128 * MIB
                    assert rule.symmetric_from_bytes <= rule.most_bytes or np.isinf(rule.symmetric_from_bytes)
                    assert "@" in rule.source
