"""Convolutions of two dimensions on a device of 4 SMs: roofs, transforms, groups, and more of everything."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.cost.convolution import IMPLICIT, TRANSFORMED, Images
from ridgeline.cost.formats import form
from ridgeline.cost.machine import Device, machine
from ridgeline.facts.clusters import cluster

SMALL = Images(
    count=2, channels=64, height=28, width=28, filters=128, filter_height=3, filter_width=3, rows=28, columns=28
)
DEVICES = ("H100-SXM", "MI300X", "RTX-4090", "TPU-v5p")


def seconds(images: Images, device: Device, dtype: str = "bf16") -> float:
    return sum(float(np.asarray(cost.seconds)) for cost in images.costs(form(dtype), device)[0])


def test_flop_and_bytes_by_hand() -> None:
    """2 x 28 x 28 outputs of 128 filters over 64 x 9 points; each tensor moved once, 2 bytes an element."""
    (cost,), how = SMALL.costs(form("bf16"), machine(cluster("1xH100-SXM")).device)
    assert how == IMPLICIT
    assert float(np.asarray(cost.flop)) == SMALL.flop == 2 * 1568 * 128 * 576
    assert cost.bytes == 2 * (1568 * 64 + 576 * 128 + 1568 * 128)


def test_vector_units_multiply_transformed_tiles_where_that_is_less() -> None:
    """Of 16 outputs 36 products in place of 144; other strides and matrix units have no such kernels."""
    old = machine(cluster("1xV100-SXM2-16GB")).device
    wide = replace(SMALL, count=64, channels=256, filters=256)
    costs, how = wide.costs(form("fp32"), old)
    assert (how, len(costs)) == (TRANSFORMED, 4)
    assert costs[2].flop == pytest.approx(wide.flop / 4, rel=1e-9)  # 28 is a multiple of 4
    strided = replace(wide, rows=14, columns=14)
    assert [one.costs(form(dtype), old)[1] for one, dtype in ((wide, "fp16"), (strided, "fp32"))] == [IMPLICIT] * 2


@given(
    count=st.integers(1, 64), channels=st.sampled_from((16, 48, 256)), filters=st.sampled_from((16, 96, 512)),
    side=st.sampled_from((7, 28, 112)), size=st.sampled_from((1, 3, 7)), device=st.sampled_from(DEVICES),
)  # fmt: skip
def test_it_keeps_its_roofline_and_more_of_anything_is_never_faster(
    count: int, channels: int, filters: int, side: int, size: int, device: str
) -> None:
    found = machine(cluster(f"1x{device}"))
    images = Images(
        count=count, channels=channels, height=side, width=side, filters=filters, filter_height=size,
        filter_width=size, rows=side, columns=side,
    )  # fmt: skip
    part, taken = found.cluster.accelerator, seconds(images, found.device)
    assert np.isfinite(taken)
    assert taken >= images.flop / part.peak_flop_per_s["bf16"]
    for name in ("count", "filters", "channels"):
        assert seconds(replace(images, **{name: 2 * getattr(images, name)}), found.device) >= taken
    wider = replace(found.device, memory_bytes_per_s=2 * found.device.memory_bytes_per_s)
    quicker = replace(found.device, matrix={name: 2 * rate for name, rate in found.device.matrix.items()})
    assert max(seconds(images, wider), seconds(images, quicker)) <= taken


def test_a_group_for_each_channel_multiplies_no_product() -> None:
    device = machine(cluster("1xH100-SXM")).device
    whole, apart = replace(SMALL, filters=64), replace(SMALL, filters=64, groups=64.0)
    assert apart.flop == whole.flop / 64
    assert 0 < seconds(apart, device) < seconds(replace(apart, count=8), device)
