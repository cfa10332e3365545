"""Prompts of a batch that are padded to its longest: the iteration is that of prompts which are all as long."""

from __future__ import annotations

import numpy as np
import pytest

from ridgeline.cost.machine import machine
from ridgeline.facts.clusters import cluster
from ridgeline.graph.load import load
from ridgeline.scenario.serving_words import deployed
from ridgeline.serving.engine import engine
from ridgeline.serving.replay import replay
from ridgeline.serving.traffic.traffic import traffic


def first_s(
    words: str, prompts: list[int], *, on: str = "1xA100-80GB-SXM", program: str = "FasterTransformer"
) -> float:
    """When the first tokens of a batch come [s]."""
    one = engine(load("gpt3-6.7b"), machine(cluster(on)), deployed(engine=program, version=words))
    count = len(prompts)
    asked = traffic(np.zeros(count), np.array(prompts), np.full(count, 2))
    return float(np.nanmax(replay([one], asked).first_s))


def test_padded_prompts_take_as_long_as_the_longest_each() -> None:
    unlike, alike = [8, 16, 500, 512], [512] * 4
    assert first_s("5.0", unlike) == pytest.approx(first_s("5.0", alike))
    assert first_s("5.1", unlike) < 0.65 * first_s("5.1", alike)
    assert first_s("5.1", alike) == pytest.approx(first_s("5.0", alike))


def test_a_compiled_prompt_takes_as_long_as_its_graph_whatever_its_length() -> None:
    neuron = {"on": "1xTrainium2", "program": "Optimum-Neuron"}
    one = first_s("", [8], **neuron)
    assert first_s("", [2000], **neuron) == pytest.approx(one, rel=0.02)  # but for tokenizing 2 us each
    assert 1.7 * one < first_s("", [8, 8], **neuron) < 2.3 * one  # each runs the whole graph
