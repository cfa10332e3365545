"""Releases of engines by day."""

from __future__ import annotations

from datetime import date
from itertools import pairwise

import pytest

from ridgeline.facts import store
from ridgeline.facts.benchmarks import first_release, model_day, release_at
from ridgeline.facts.engines import engine_known
from ridgeline.facts.policies import version_key


@pytest.mark.parametrize(
    ("engine", "day", "release"),
    [
        ("vLLM", "2024-09-01", "0.5.5"),
        ("vLLM", "2024-09-30", "0.5.5"),
        ("vLLM", "2024-10-01", "0.6.2"),
        ("TensorRT-LLM", "2023-10-01", None),  # its first release is of later that month
        ("vLLM", "2030-01-01", "0.30.0"),
        ("no engine", "2025-01-01", None),
    ],
)
def test_the_newest_of_a_day(engine: str, day: str, release: str | None) -> None:
    assert release_at(engine, day) == release


def test_releases_only_grow() -> None:
    rows = sorted(store.read_tsv("engine_releases.tsv"), key=lambda row: (row["engine"], row["day"]))
    assert all(engine_known(row["engine"]) for row in rows)
    for before, after in pairwise(rows):
        if before["engine"] == after["engine"]:
            assert before["day"] < after["day"]
            assert version_key(before["release"]) <= version_key(after["release"])


@pytest.mark.parametrize(
    ("name", "day"),
    [
        ("Llama-3.1-70B", "2024-07-23"),  # not that of Llama 3 or of the first LLaMA
        ("LLaMA-13B", "2023-02-24"),
        ("CodeLlama-34B", "2023-08-24"),
        ("DeepSeek-R1-Distill-Qwen-7B", "2025-01-20"),
        ("Qwen2.5-Coder-7B", "2024-09-19"),
        ("Kimi-K2.5", "2026-01-30"),
        ("devstral-small-2505", "2025-05-21"),  # not Devstral Small 2
        ("Yi-1.5-34B", "2024-05-13"),
        ("OLMoE-1B-7B", None),
        ("my-own-model", None),
    ],
)
def test_the_day_of_a_model_is_that_of_its_own_family(name: str, day: str | None) -> None:
    assert model_day(name) == day


def test_days_of_models_are_days() -> None:
    for row in store.read_tsv("model_days.tsv"):
        assert date.fromisoformat(row["day"]) >= date(2021, 1, 1)


def test_the_first_release_is_the_oldest_known() -> None:
    assert first_release("vLLM") == "0.2.0"
    assert first_release("Transformers") is None
