"""Replays that are timed: a deployment under traffic, and what each part of its replay takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from serving_peers import Taken, taken

from ridgeline.cost.machine import machine
from ridgeline.facts.clusters import cluster
from ridgeline.graph.load import load
from ridgeline.plan.deployment import Deployment
from ridgeline.scenario.serving_words import deployed
from ridgeline.serving.engine import Engine, engine
from ridgeline.serving.metrics import Objective, measure
from ridgeline.serving.replay import Replay, replay_tables
from ridgeline.serving.step import StepTables
from ridgeline.serving.traffic.named import named_traffic
from ridgeline.serving.traffic.traffic import Traffic


@dataclass(frozen=True, kw_only=True)
class Job:
    """A deployment under traffic, and where it runs."""

    name: str
    model: str
    cluster: str
    deployment: Deployment
    traffic: Callable[[], Traffic]
    objective: Objective


@dataclass(frozen=True, kw_only=True)
class Timed:
    """What the parts of a replay took [s], and the replay."""

    traffic_s: float
    tables: Taken
    replay: Taken
    measure: Taken
    found: Replay
    requests: int

    @property
    def whole_s(self) -> float:
        """Tables and replay, by the clock [s]."""
        return self.tables.wall_s + self.replay.wall_s

    @property
    def iterations_per_s(self) -> float:
        """Simulated iterations a second of the loop [1/s]."""
        return self.found.iterations / self.replay.wall_s


def made(job: Job, asked: Traffic) -> tuple[Engine, StepTables]:
    """The engine of a job and the tables of its iterations."""
    one = engine(load(job.model), machine(cluster(job.cluster)), job.deployment)
    longest = int(np.max(asked.prompt_tokens + asked.output_tokens))
    return one, one.tables(longest_prompt=int(asked.prompt_tokens.max()), longest=longest)


def timed(job: Job) -> Timed:
    """Runs a job once, then a few times by the clock."""
    begun = time.perf_counter()
    asked = job.traffic()
    traffic_s = time.perf_counter() - begun
    held: list[Any] = []

    def make() -> None:
        held[:] = made(job, asked)

    def run() -> None:
        held[2:] = [replay_tables(held[:1], held[1:2], asked, router="least-loaded")]

    make()
    run()
    return Timed(
        traffic_s=traffic_s,
        tables=taken(make),
        replay=taken(run),
        measure=taken(lambda: measure(held[2], asked, job.objective)),
        found=held[2],
        requests=asked.requests,
    )


def azure() -> Job:
    """An hour of conversations."""
    return Job(
        name="Azure conversations, an hour",
        model="llama-3.1-70b",
        cluster="8xH100-SXM",
        deployment=deployed(tp=8),
        traffic=lambda: named_traffic("azure-conv"),
        objective=Objective(ttft_s=1.0, tpot_s=0.05),
    )


def day() -> Job:
    """A day of 73 clients on a hundred instances."""
    return Job(
        name="ServeGen's clients, a day",
        model="llama-3.1-70b",
        cluster="400xH200-SXM",
        deployment=deployed(tp=4, weights="fp8", instances=100),
        traffic=lambda: named_traffic("servegen"),
        objective=Objective(ttft_s=1.0, tpot_s=0.05),
    )
