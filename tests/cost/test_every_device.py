"""What must hold on every device, listed or not: no answer above a roof, none far below."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ridgeline.cost.mechanism import device_vector
from ridgeline.errors import DomainError
from ridgeline.facts.accelerators import accelerator, accelerator_names, accelerators
from ridgeline.facts.clusters import cluster
from ridgeline.facts.records import Accelerator, Cluster
from ridgeline.predict.operator import operator_cost

LEAST = 0.2  # of the matrix rate, for a product of 8192 rows, columns and depth
TILED = [name for name, part in accelerators().items() if part.vendor in ("NVIDIA", "AMD") and part.sm_count]


def alone(part: Accelerator) -> Cluster:
    return replace(cluster(part.name), accelerator=part)


@pytest.mark.parametrize("name", accelerator_names())
def test_a_large_product_runs_at_most_of_the_peak_and_at_no_more(name: str) -> None:
    part = accelerator(name)
    form = next((one for one in ("bf16", "fp16", "fp32") if one in part.peak_flop_per_s), None)
    if form is None:
        pytest.skip("no matrix rate is published")
    cost = operator_cost("gemm", "8192x8192x8192", form, cluster(name), evidence="borrowed")
    assert LEAST * part.peak_flop_per_s[form] < cost.flop_per_s <= 1.001 * part.peak_flop_per_s[form]


@pytest.mark.parametrize("form", ["fp32", "fp16", "bf16", "fp8", "int8", "nvfp4", "int4_wo"])
def test_the_roof_is_that_of_the_format_that_is_multiplied(form: str) -> None:
    """A format without a rate of its own is multiplied as 16 bits: its roof is theirs, and no answer is above it."""
    answered = 0
    for name in accelerator_names():
        try:
            cost = operator_cost("gemm", "8192x8192x8192", form, cluster(name))
        except DomainError:
            continue
        answered += 1
        assert cost.compute_s <= 1.001 * cost.seconds, name
    assert answered > 20


@pytest.mark.parametrize("name", TILED)
def test_a_device_whose_multiprocessors_are_not_counted_is_like_one_whose_are(name: str) -> None:
    part = accelerator(name)
    known, guessed = (device_vector(one, "fp16")[0] for one in (part, replace(part, sm_count=None)))
    assert known == part.sm_count
    assert known / 3 < guessed < 3 * known


@pytest.mark.parametrize("name", ["H100-SXM", "MI350X", "RTX-5060-Ti", "Arc-B580", "R200", "Ascend-910C", "A2", "GB10"])
@pytest.mark.parametrize("shape", ["1x4096x4096", "64x8192x1024", "4096x4096x4096"])
def test_more_memory_rate_and_more_peak_are_never_slower(name: str, shape: str) -> None:
    part = accelerator(name)
    form = "bf16" if "bf16" in part.peak_flop_per_s else "fp16"
    peaks = {one: rate * (2.0 if one == form else 1.0) for one, rate in part.peak_flop_per_s.items()}
    plain = operator_cost("gemm", shape, form, alone(part), evidence="borrowed").seconds
    wider = replace(part, memory_bytes_per_s=2 * part.memory_bytes_per_s)
    faster = replace(part, peak_flop_per_s=peaks)
    for better in (wider, faster):
        assert operator_cost("gemm", shape, form, alone(better), evidence="borrowed").seconds <= 1.001 * plain
