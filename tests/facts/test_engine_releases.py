"""Releases of engines by day."""

from __future__ import annotations

from itertools import pairwise

import pytest

from ridgeline.facts import store
from ridgeline.facts.benchmarks import release_at
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
