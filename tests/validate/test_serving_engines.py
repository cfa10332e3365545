"""Releases of engines as strangers write them."""

from __future__ import annotations

import pytest

from ridgeline.validate.rows import Row
from ridgeline.validate.serving_words import engine_of, release_of, release_then


def stated(engine: str, version: str = "") -> tuple[str, str]:
    """The engine and the release that a row with these two cells names."""
    row = Row(line=2, id="x", cells={"engine": engine, "engine_version": version})
    name, _ = engine_of(row)
    return name, release_of(row, name)


@pytest.mark.parametrize(
    ("engine", "version", "name", "release"),
    [
        ("vllm==0.6.3", "", "vLLM", "0.6.3"),
        ("vLLM (0.6.3.post1)", "", "vLLM", "0.6.3.post1"),
        ("vllm/vllm-openai:v0.10.2", "", "vLLM", "0.10.2"),
        ("lmsysorg/sglang:v0.5.5-cu129-amd64", "", "SGLang", "0.5.5"),
        ("SGLang v0.4.1.post2", "", "SGLang", "0.4.1.post2"),
        ("TRT-LLM", "v1.2.0rc6.post3", "TensorRT-LLM", "1.2.0rc6.post3"),
        ("TRT-LLM", "release/0.17", "TensorRT-LLM", "0.17"),
        ("TensorRT-LLM", "0.5.1-rc0.pre3", "TensorRT-LLM", "0.5.1-rc0.pre3"),
        ("vLLM", "0.4.3+rocm614", "vLLM", "0.4.3+rocm614"),
        ("vllm 0.5.0", "0.6.1", "vLLM", "0.6.1"),  # its own cell goes first
        ("llama.cpp", "2f68ce7cf (6918)", "llama.cpp", "b6918"),  # llama-bench prints: build: 2f68ce7cf (6918)
        ("llama.cpp b4500", "", "llama.cpp", "b4500"),
        ("llama.cpp", "build: 3700", "llama.cpp", "b3700"),
        ("llama.cpp", "2f68ce7cf", "llama.cpp", ""),  # a commit alone tells no release
        ("llama.cpp", "May-2024", "llama.cpp", "May-2024"),
        ("SGLang", "nightly-dev-20260216-d3bae71e", "SGLang", "nightly-dev-20260216-d3bae71e"),
        ("vLLM", "", "vLLM", ""),
        ("gpt-fast", "", "gpt-fast", ""),
        ("ExLlamaV2", "", "ExLlamaV2", ""),
    ],
)
def test_a_release_is_read_wherever_it_is_written(engine: str, version: str, name: str, release: str) -> None:
    assert stated(engine, version) == (name, release)


@pytest.mark.parametrize(
    ("engine", "version", "note", "release"),
    [
        ("vLLM", "", "2025-10-29", "0.10.2"),  # newest of 2025-10-01
        ("vLLM", "Oct-2023 commit", "", "0.2.0"),
        ("vLLM", "2024-10", "", "0.6.2"),
        ("llama.cpp", "May-2024", "", "b2900"),
        ("SGLang", "", "P 1 x tp4; 2026-02-12", "0.5.7"),
        ("vLLM", "0.6.3", "2025-10-29", None),  # the row says which
        ("SGLang", "nightly-dev-20260216-d3bae71e", "2026-02-16", None),
        ("vLLM", "", "", None),
        ("vLLM", "2019-01-01", "", None),
        ("Transformers", "", "2025-10-29", None),
    ],
)
def test_a_day_tells_the_release_of_its_time(engine: str, version: str, note: str, release: str | None) -> None:
    assert release_then(engine, version, note) == release
