"""Lengths of published data sets: means of geometric stretches worked by hand, and laws scaled to a run's mean."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ridgeline.facts.benchmarks import RequestLengths, quantile_mean, request_lengths
from ridgeline.facts.records import Evidence
from ridgeline.serving.traffic.lengths import LengthQuantiles


def test_mean_of_a_geometric_stretch() -> None:
    assert quantile_mean((0.0, 1.0), (100.0, 400.0)) == pytest.approx(300.0 / math.log(4.0))  # 216.4
    assert quantile_mean((0.0, 0.5, 1.0), (10.0, 10.0, 10.0)) == 10.0
    assert quantile_mean((0.0, 0.25, 1.0), (8.0, 8.0, 16.0)) == pytest.approx(2.0 + 0.75 * 8.0 / math.log(2.0))


def test_drawn_lengths_have_the_mean_that_a_run_states() -> None:
    found = request_lengths("Llama-2-70B")
    assert found is not None
    law = LengthQuantiles(levels=found["output"].levels, tokens=found["output"].at_mean(250.0))
    drawn = law.draw(np.random.default_rng(1), 200_000)
    assert float(drawn.mean()) == pytest.approx(250.0, rel=0.01)
    assert 0.55 < float(drawn.std() / drawn.mean()) < 0.75  # of the 200 answers seen: 0.64


def test_quantiles_and_mean_of_a_side_agree_where_one_source_gives_both() -> None:
    for model in ("Llama-2-70B", "Mixtral-8x7B", "GPT-J-6B", "Llama-3.1-405B", "DeepSeek-R1"):
        found = request_lengths(model)
        assert found is not None
        one = found["prompt"]
        assert quantile_mean(one.levels, one.tokens) == pytest.approx(one.mean, rel=0.03)
        assert one.evidence is (Evidence.DERIVED if model.startswith("GPT") else Evidence.MEASURED)


def test_a_model_without_a_data_set_has_none() -> None:
    assert request_lengths("Qwen3-8B") is None


def test_lengths_without_quantiles_are_all_alike() -> None:
    found = request_lengths("Llama-3.1-8B")
    assert found is not None
    assert isinstance(found["output"], RequestLengths)
    assert (found["output"].levels, found["output"].mean) == ((), 128.0)
