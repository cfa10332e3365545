"""Exchanges that send a token to a node once, and kernels of older instructions; worked out by hand."""

import numpy as np
import pytest

from ridgeline.cost.attention import _values, _with_older_instructions
from ridgeline.cost.machine import machine
from ridgeline.cost.network import _once_a_node
from ridgeline.facts.clusters import cluster
from ridgeline.lower.work import Collective, CollectiveKind, Phase


@pytest.mark.parametrize(
    ("ranks", "nodes_chosen", "share"),
    [
        (8, 1.0, 1.0),  # inside a node
        (64, 1.0, 8 * (1 - (7 / 8) ** 8) / 8),  # 5.25 of 8 nodes for 8 copies
        (64, 0.5, 4 * (1 - (3 / 4) ** 8) / 8),  # DeepSeek-V3: 4 of 8 groups, 3.6 nodes
        (16, 1.0, 2 * (1 - (1 / 2) ** 8) / 8),
    ],
)
def test_copies_go_to_a_node_once(ranks: int, nodes_chosen: float, share: float) -> None:
    """Eight experts a token on nodes of eight H100."""
    work = Collective(
        name="moe.dispatch", phase=Phase.FORWARD, kind=CollectiveKind.ALL_TO_ALL, bytes=1e9, ranks=ranks, stride=1,
        copies=8.0, nodes_chosen=nodes_chosen,
    )  # fmt: skip
    assert float(np.asarray(_once_a_node(work, machine(cluster("64xH100-SXM"))))) == pytest.approx(share)


@pytest.mark.parametrize(
    ("device", "share"),
    [
        # 2250e12 FLOP/s on 148 SMs at 1.965 GHz are 1.889 times Hopper's 4096 a cycle
        ("8xB200-SXM", 0.531 / (2250e12 / (148 * 1.965e9) / 4096)),
        ("1xRTX-5090", 0.943),  # no wider than Ampere
        ("8xH100-SXM", 0.531),
        ("8xA100-SXM-80GB", 0.943),
    ],
)
def test_flash_attention_2_is_as_fast_for_an_sm_and_cycle_as_on_hopper(device: str, share: float) -> None:
    """Its share of the matrix rate falls as the device's own instructions get wider."""
    found = machine(cluster(device)).device
    values, _ = _values("flash2", found.accelerator.architecture, True)
    assert _with_older_instructions(values, found, "bf16").forward_share_ == pytest.approx(share, rel=0.01)
