"""Formats that a deployment leaves to its checkpoint are the same from Python and from a command's words."""

from __future__ import annotations

import pytest

from ridgeline.cost.machine import machine
from ridgeline.facts.clusters import cluster
from ridgeline.graph.load import load
from ridgeline.plan.checkpoint_formats import with_formats
from ridgeline.predict.serving import simulate_serving
from ridgeline.scenario.serving import serving_from_words
from ridgeline.scenario.serving_words import deployed
from ridgeline.serving.engine import engine
from ridgeline.serving.traffic.asked import asked_traffic

CASES = (
    ("deepseek-v3", "8xH200-SXM", None, "fp8_block"),
    ("deepseek-v3", "8xH200-SXM", "fp8", "fp8_block"),
    ("deepseek-v3", "32xA100-SXM-80GB", None, "fp8_block"),  # Marlin reads it where nothing multiplies 8-bit floats
    ("deepseek-v4-flash", "8xH200-SXM", None, "w4a16_mxfp4"),
    ("gpt-oss-20b", "1xH100-SXM", None, "w4a16_mxfp4"),
    ("gpt-oss-20b", "1xH100-SXM", "bf16", "bf16"),
    ("kimi-k2-thinking", "16xH100-SXM", None, "int4_wo"),
    ("llama-3.1-8b", "1xH100-SXM", None, ""),
    ("llama-3.1-8b", "1xH100-SXM", "fp8", "fp8"),
)


@pytest.mark.parametrize(("name", "on", "asked", "served"), CASES)
def test_python_and_the_command_serve_the_same_formats(name: str, on: str, asked: str | None, served: str) -> None:
    model, where = load(name), cluster(on)
    words = {} if asked is None else {"weights": asked}
    said = serving_from_words(
        {"model": {"name": name}, "cluster": {"name": on}, "plan": {**words, "tp": where.count}, "workload": {}}
    )
    found, why = with_formats(deployed(engine="vllm", tp=where.count, **words), model, where)
    assert found == said.deployments[0]
    assert found.weights == served
    assert said.assumed == ((why,) if why else ())
    assert with_formats(found, model, where)[0] == found  # and comes out again as it is
    made = [engine(model, machine(where), one) for one in (deployed(engine="vllm", tp=where.count, **words), found)]
    assert made[0].formats == made[1].formats
    assert made[0].capacity == made[1].capacity


def test_what_is_said_of_attention_is_kept() -> None:
    model, where = load("deepseek-v4-flash"), cluster("8xH200-SXM")
    assert with_formats(deployed(), model, where)[0].other_weights == "fp8_block"
    assert with_formats(deployed(other_weights="bf16"), model, where)[0].other_weights == "bf16"


def test_a_replay_from_python_serves_the_checkpoint_and_says_so() -> None:
    model, where = load("gpt-oss-20b"), cluster("1xH100-SXM")
    traffic, _ = asked_traffic({"prompt": (128, 128), "output": (4, 4), "requests": 2, "arrivals": "burst"})
    plain, stated = (
        simulate_serving(model, where, (deployed(engine="vllm", weights=name),), traffic)
        for name in ("", "w4a16_mxfp4")
    )
    assert plain.deployments == stated.deployments
    assert plain.metrics == stated.metrics
    assert any("as in the checkpoint" in text for text in plain.assumed)
