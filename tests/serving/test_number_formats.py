"""Formats that devices do not multiply: read so and widened, refused, or told."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ridgeline.cost.machine import machine
from ridgeline.errors import PlanError
from ridgeline.facts.clusters import cluster
from ridgeline.graph.load import load
from ridgeline.lower.pieces import Product
from ridgeline.plan.checkpoint_formats import with_formats
from ridgeline.predict.serving import simulate_serving
from ridgeline.scenario.serving_words import deployed
from ridgeline.serving.engine import Engine, engine
from ridgeline.serving.traffic.asked import asked_traffic

LLAMA = load("llama-3.2-1b")


def made(on: str, weights: str, name: str = "vllm", version: str = "") -> Engine:
    asked = deployed(engine=name, version=version, weights=weights)
    return engine(LLAMA, machine(cluster(on)), asked)


@pytest.mark.parametrize("on", ["A100-SXM-80GB", "T4"])
@pytest.mark.parametrize(
    ("asked", "bits"), [("nvfp4", "w4.5a16"), ("fp8", "w8a16"), ("fp8_block", "w8a16"), ("w4afp8", "w4.25a16")]
)
def test_narrow_floats_are_widened_where_nothing_multiplies_them(on: str, asked: str, bits: str) -> None:
    found, same = made(on, asked), made(on, bits)
    assert found.formats == same.formats
    assert found.capacity == same.capacity
    (note,) = [text for text in found.format_notes if "matrix rate" in text]
    assert f"{on} has no" in note
    assert f"vLLM reads {asked} weights" in note
    assert "multiplies in 16 bits" in note
    assert not [text for text in same.format_notes if "matrix rate" in text]


@pytest.mark.parametrize(("on", "asked"), [("H100-SXM", "fp8"), ("B200-SXM", "nvfp4"), ("A100-SXM-80GB", "int4")])
def test_what_devices_multiply_is_left_alone(on: str, asked: str) -> None:
    assert made(on, asked).format_notes == []


@pytest.mark.parametrize(
    ("on", "asked", "name"),
    [("A100-SXM-80GB", "fp8", "trtllm"), ("H100-SXM", "nvfp4", "trtllm"), ("V100-SXM2-32GB", "fp8", "vllm")],
)
def test_engines_that_refuse_them_are_not_priced(on: str, asked: str, name: str) -> None:
    with pytest.raises(PlanError, match=f"weights = {asked}: {on} has no .* matrix rate; .*it has .*fp16"):
        made(on, asked, name)


@pytest.mark.parametrize("on", ["V100-SXM2-16GB", "T4"])
def test_tf32_is_refused_where_there_is_none(on: str) -> None:
    for words in ({"weights": "tf32"}, {"weights": "fp32", "tf32": True}):
        with pytest.raises(PlanError, match=f"tf32: {on} has no tf32 matrix rate; nearest: fp32|it has .*fp32"):
            engine(LLAMA, machine(cluster(on)), deployed(**words))


@pytest.mark.parametrize(("on", "half"), [("V100-SXM2-16GB", True), ("T4", True), ("A100-SXM-80GB", False)])
@pytest.mark.parametrize("asked", ["", "bf16", "fp16"])
def test_bf16_is_told_to_be_fp16_where_nothing_multiplies_it(on: str, half: bool, asked: str) -> None:
    traffic, _ = asked_traffic({"prompt": (64, 64), "output": (2, 2), "requests": 1, "arrivals": "burst"})
    report = simulate_serving(LLAMA, cluster(on), (deployed(engine="vllm", weights=asked),), traffic)
    told = [text for text in report.assumed if "fp16 (vLLM starts with --dtype half)" in text]
    assert bool(told) == (half and asked != "fp16")


@pytest.mark.parametrize(("on", "word"), [("V100-SXM2-16GB", "fp16"), ("P40", "fp32")])
def test_unfused_attention_runs_in_what_the_device_multiplies(on: str, word: str) -> None:
    """llama.cpp takes scores by products of its own; devices before Ampere have no bf16 for them."""
    traffic, _ = asked_traffic({"prompt": (64, 64), "output": (2, 2), "requests": 1, "arrivals": "burst"})
    asked = deployed(engine="llama.cpp", version="b1810", weights="q4_0")
    report = simulate_serving(LLAMA, cluster(on), (asked,), traffic)
    assert report.metrics.ttft.mean > 0.0
    assert any(f"{on} multiplies no bf16: what is 16 bits is multiplied in {word}" in text for text in report.assumed)


@pytest.mark.parametrize(("on", "early"), [("P40", "int8"), ("RTX-3090", "widened")])
def test_few_bits_are_multiplied_as_integers_where_there_are_no_tensor_cores(on: str, early: str) -> None:
    """llama.cpp of January 2024 widened weights for tensor cores; Pascal's dp4a always took 8-bit inputs."""
    before, after = (made(on, "q4_0", "llama.cpp", build) for build in ("b1810", "b4840"))
    assert (before.policy.wide_products, after.policy.wide_products) == (early, "int8")
    piece = Product(name="up", n=8192.0, k=2048.0)
    times = [float(one.steps.prices.product(piece, np.array([512.0])).mid[0]) for one in (before, after)]
    assert (times[0] == times[1]) == (on == "P40")


@pytest.mark.parametrize("name", ["vllm", "sglang"])
def test_a_checkpoint_of_narrow_floats_is_read_as_it_is(name: str) -> None:
    """An fp8 checkpoint without `--weights` on an A100: 8 bits a weight (Marlin), not 16."""
    config = {**LLAMA.config, "quantization_config": {"quant_method": "fp8"}}
    model, where = replace(LLAMA, config=config), cluster("A100-SXM-80GB")
    asked, why = with_formats(deployed(engine=name), model, where)
    found = engine(model, machine(where), asked)
    assert "weights are fp8, as in the checkpoint" in why
    assert found.formats == made("A100-SXM-80GB", "w8a16", name).formats
    assert any("has no fp8 matrix rate" in text for text in found.format_notes)
    refused, _ = with_formats(deployed(engine="trtllm"), model, where)
    with pytest.raises(PlanError, match="weights = fp8: A100-SXM-80GB has no fp8 matrix rate"):
        engine(model, machine(where), refused)
