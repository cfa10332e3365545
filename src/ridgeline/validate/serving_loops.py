"""Rounds of a closed loop: how many requests each user sends, how many are replayed, and what all of them see."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ridgeline.serving.metrics import Metrics, measure
from ridgeline.serving.replay import Replay
from ridgeline.serving.traffic.traffic import Traffic
from ridgeline.validate.serving_rows import ServedJob

ROUNDS = 10  # requests of a closed loop for each user, as InferenceMAX and vLLM's benchmark send them
FEWEST, MOST = 32, 8_000  # requests of a closed loop; of more than these, some rounds stand for others
LEAST_ROUNDS = 3  # that are replayed: a first, one that stands for those between, and a last


def asked_requests(users: int, rounds: float | None) -> int:
    """Requests of a closed loop of so many users, ten each where `rounds` are not said [1]."""
    return round(max((rounds or ROUNDS) * users, FEWEST))


def replayed_requests(users: int, rounds: float | None) -> int:
    """Requests of a closed loop that are replayed [1]."""
    return min(asked_requests(users, rounds), max(MOST, LEAST_ROUNDS * users))


def lengthened(found: Replay, users: int, requests: int) -> Replay:
    """A replay of a closed loop as if it had gone on: rounds between the first and the last come again.

    Everyone begins at once, and that crowd counts once however long the loop is. Totals and times stay those of what
    was replayed.
    """
    known = len(found.came_s)
    between = np.arange(users, known - users)
    if requests <= known or not between.size:
        return found
    again = np.resize(between, requests - 2 * users)
    order = np.concatenate([np.arange(users), again, np.arange(known - users, known)])
    names = ("came_s", "first_s", "end_s", "prompt", "output", "done", "refused", "hit_tokens", "preempted")
    return replace(found, **{name: getattr(found, name)[order] for name in names})


def looped(job: ServedJob, found: Replay, traffic: Traffic) -> Metrics:
    """The metrics of a job's replay, of a closed loop those of all its rounds."""
    if job.arrivals != "closed":
        return measure(found, traffic)
    users = max(job.batch or 1, 1)
    return measure(lengthened(found, users, asked_requests(users, job.rounds)), traffic)
