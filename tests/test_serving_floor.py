"""No latency of a served model begins below what the machine's datasheet allows, nor a rate ends above it."""

from __future__ import annotations

import numpy as np
import pytest

from ridgeline.cost.machine import machine
from ridgeline.errors import RidgelineError
from ridgeline.facts.accelerators import accelerators
from ridgeline.facts.clusters import cluster
from ridgeline.graph.load import load
from ridgeline.scenario.serving_words import deployed
from ridgeline.serving.engine import engine

MODEL = load("llama-3.1-8b")
WEIGHTS = {"": 2.0, "fp8": 1.0, "int4": 0.5}
DEVICES = sorted(accelerators())


@pytest.mark.parametrize("name", ["vLLM", "llama.cpp", "SGLang", "TensorRT-LLM"])
@pytest.mark.parametrize("weights", WEIGHTS)
def test_a_step_reads_its_weights_and_a_prompt_does_its_flop(name: str, weights: str) -> None:
    asked = 0
    for device in DEVICES:
        part = accelerators()[device]
        if not part.peak_flop_per_s:
            continue
        try:
            one = engine(MODEL, machine(cluster(f"1x{device}")), deployed(engine=name, weights=weights))
            tables = one.tables(longest_prompt=4096, longest=8192)
        except RidgelineError:
            continue
        asked += 1
        # Norms, embedding and head may stay as they are: seven of eight billion weights are read by every step.
        read_s = 6.9e9 * WEIGHTS[weights] / part.memory_bytes_per_s
        done_s = 2.0 * 6.9e9 * np.asarray(tables.tokens) / max(part.peak_flop_per_s.values())
        for time in (tables.lane.quickest, np.asarray(tables.lane.mid)):
            assert (time >= np.maximum(read_s, done_s)).all(), (device, name)
        assert (tables.lane.quickest <= tables.lane.mid).all()
    assert asked > 20
