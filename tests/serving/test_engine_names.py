"""An engine answers alike under every name that it is called by: the same policy, and the same measured kernels."""

from __future__ import annotations

import pytest

from ridgeline.cost.machine import machine
from ridgeline.facts.clusters import cluster
from ridgeline.facts.engines import engine_named
from ridgeline.graph.load import load
from ridgeline.scenario.serving_words import deployed
from ridgeline.serving.engine import engine
from ridgeline.serving.metrics import decode_parts


def test_names_of_the_catalog_are_found_and_others_stay() -> None:
    assert [engine_named(word) for word in ("vllm", "trtllm", "tensorrt-llm", "SGLANG", "llama.cpp")] == [
        "vLLM", "TensorRT-LLM", "TensorRT-LLM", "SGLang", "llama.cpp",
    ]  # fmt: skip
    assert engine_named("an engine of my own") == "an engine of my own"


@pytest.mark.parametrize(("typed", "name"), [("vllm", "vLLM"), ("trtllm", "TensorRT-LLM"), ("sglang", "SGLang")])
def test_an_engine_that_is_typed_in_small_letters_runs_its_own_kernels(typed: str, name: str) -> None:
    """The kernels of experts are asked for by the engine's name; under another they were those of any engine."""
    host = machine(cluster("2xH200-SXM"))
    model = load("mixtral-8x7b")

    def parts(word: str) -> dict[str, float]:
        one = engine(model, host, deployed(engine=word, tp=2, weights="fp8"))
        return decode_parts(one, one.tables(longest_prompt=64, longest=128), 4.0, 128.0)

    assert parts(typed) == parts(name)
