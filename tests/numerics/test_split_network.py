"""A network in two parts: bytes and costs by hand, every cut of a small network, what rates change."""

from __future__ import annotations

import numpy as np
import pytest

from ridgeline.errors import PlanError
from ridgeline.graph.load import load
from ridgeline.numerics.algorithm import Arrays
from ridgeline.numerics.split_network import SplitNetwork, Way, _leaves, _part, _seconds

ARRAYS = Arrays(weight=np.zeros((2, 2)), inputs=np.zeros((2, 2)))


def test_the_bottleneck_by_hand() -> None:
    encoder, decoder, sent = SplitNetwork(channels=12)._bottleneck()
    assert sent == 12 * 29 * 29  # 224 pixels to 112, 56, and (56 + 2 - 2) // 2 + 1 = 29; 8 bits each
    assert encoder.graph.params == 3 * 64 * 49 + 2 * 64 + 2 * 64 + 64 * 12 * 4 + 2 * 12
    assert decoder.graph.params == 12 * 512 * 4 + 3 * 512 * 512 * 4 + 4 * 2 * 512
    assert SplitNetwork(channels=3, bits=32)._bottleneck()[2] == 4 * 3 * 29 * 29


def test_costs_by_hand() -> None:
    one = SplitNetwork(uplink_bytes_per_s=1e6, busy_w=8.0, send_w=4.0, idle_w=2.0)
    found = one._cost(Way(device_s=0.1, sent_bytes=2e5, server_s=0.1))
    assert found == pytest.approx({"s": 0.4, "j": 0.8 + 0.8 + 0.2, "w": 1.8 / 0.4})


def test_the_quickest_of_all_cuts() -> None:
    one = SplitNetwork(model="resnet-50", device="1xJetson-Nano-4GB", uplink_bytes_per_s=2e7)
    whole = load("resnet-50")
    order = whole.graph.layers
    every = [
        _seconds(_part(whole, 0, place), one.device)
        + 4.0 * _leaves(whole.graph.blocks[order[place - 1]].ops) / one.uplink_bytes_per_s
        + _seconds(_part(whole, place, len(order)), one.server)
        for place in range(1, len(order))
    ]
    assert one._cost(one.ways()["cut"])["s"] == pytest.approx(min(every))
    assert _leaves(whole.graph.blocks["stage-2"].ops) == 512 * 28 * 28


def test_parts_add_up_to_the_whole() -> None:
    whole = load("resnet-50")
    for place in (3, 9):
        head, tail = _part(whole, 0, place), _part(whole, place, 16)
        assert head.graph.params + tail.graph.params == whole.graph.params
        both = _seconds(head, "1xBCM2711-4gb") + _seconds(tail, "1xBCM2711-4gb")
        assert both == pytest.approx(_seconds(whole, "1xBCM2711-4gb"), rel=0.02)


def test_a_faster_uplink_helps_the_whole_image_most() -> None:
    slow, fast = (SplitNetwork(model="resnet-50", uplink_bytes_per_s=rate).run(ARRAYS) for rate in (1e5, 1e8))
    assert slow["less_s_than_edge"] > fast["less_s_than_edge"]
    assert slow["bottleneck_s"] > fast["bottleneck_s"]
    assert slow["local_s"] == fast["local_s"]
    assert slow["bottleneck_is_quickest"] == 1.0


def test_other_networks_are_refused() -> None:
    with pytest.raises(PlanError, match="no residual network"):
        SplitNetwork(model="vgg-16").run(ARRAYS)
