"""Closed loops of which a part is replayed."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from ridgeline.serving.replay import Replay
from ridgeline.validate.serving_traffic import asked_requests, lengthened, replayed_requests

ARRAYS = ("came_s", "first_s", "end_s", "prompt", "output", "done", "refused", "hit_tokens", "preempted")


def replay_of(waits: list[float]) -> Replay:
    """A replay of which only the first tokens matter."""
    values: dict[str, Any] = {field.name: 0.0 for field in fields(Replay)}
    values |= {name: np.zeros(len(waits)) for name in ARRAYS} | {"first_s": np.array(waits)}
    return Replay(**values)


def test_the_crowd_of_the_start_counts_once() -> None:
    """Two users: a crowded first round of 10 s, one of 1 s, a last of 2 s; ten rounds are 20 + 8 x 2 + 4 seconds."""
    found = lengthened(replay_of([10.0, 10.0, 1.0, 1.0, 2.0, 2.0]), users=2, requests=20)
    assert len(found.first_s) == 20
    assert found.first_s.sum() == pytest.approx(40.0)
    assert list(found.first_s[:2]) == [10.0, 10.0]
    assert list(found.first_s[-2:]) == [2.0, 2.0]


@pytest.mark.parametrize("waits", [[1.0, 2.0, 3.0], [1.0, 2.0]])
def test_what_was_replayed_whole_stays(waits: list[float]) -> None:
    found = replay_of(waits)
    assert lengthened(found, users=1, requests=len(waits)) is found
    assert lengthened(found, users=len(waits), requests=10 * len(waits)) is found  # nothing lies between


@pytest.mark.parametrize(
    ("users", "rounds", "asked", "replayed"),
    [(1, None, 32, 32), (64, None, 640, 640), (800, None, 8000, 8000), (4096, 10.0, 40_960, 12_288)],
)
def test_large_loops_are_replayed_in_part(users: int, rounds: float | None, asked: int, replayed: int) -> None:
    assert asked_requests(users, rounds) == asked
    assert replayed_requests(users, rounds) == replayed
