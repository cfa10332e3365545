"""A job of a row of measured serving replayed on its deployment, and what a prompt takes behind a cache."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from ridgeline.cost.machine import Machine, machine
from ridgeline.errors import InputError
from ridgeline.facts.records import Cluster, Evidence
from ridgeline.plan.deployment import Deployment
from ridgeline.predict.recipes import ACCEPTANCE
from ridgeline.scenario.serving_words import replaced
from ridgeline.serving.ends import replay_ends
from ridgeline.serving.engine import Engine, engine
from ridgeline.serving.fronts import Fronts
from ridgeline.serving.metrics import Band, Metrics, decode_band
from ridgeline.serving.replay import Replay, replay_tables, tables_of
from ridgeline.serving.step import StepTables
from ridgeline.serving.traffic.traffic import Traffic
from ridgeline.validate.serving_rows import PHASES, ServedJob
from ridgeline.validate.serving_traffic import gained_tokens, looped, traffic_of

_KEPT = 64  # machines kept ready; rows of one run follow each other


@dataclass(frozen=True, kw_only=True)
class ReplayedJob:
    """A job replayed: what it ran on, what users saw, and the same at the low and the high end of every time."""

    engines: tuple[Engine, ...]
    traffic: Traffic
    replay: Replay
    metrics: Metrics
    ends: tuple[tuple[Replay, Metrics], ...]
    decode: Band
    evidence: Evidence
    said: tuple[str, ...]


def serve(job: ServedJob, *, ends: bool = True) -> ReplayedJob:
    """Replays a job, without its ends where they are not asked for.

    Of prompts behind a cache it is what they take beyond that of the cache's own tokens.
    """
    if job.ahead_tokens:
        whole, before = (
            serve(replace(job, prompt_tokens=tokens, ahead_tokens=0.0), ends=ends)
            for tokens in (job.ahead_tokens + (job.prompt_tokens or 0.0), job.ahead_tokens)
        )
        return _beyond(whole, before)
    if job.arrivals == "cold":
        raise InputError("loading a model is not predicted", field="scenario")
    drafted = {}
    if job.speculative:
        drafted = {"draft_tokens": round(job.speculative), "acceptance": ACCEPTANCE}
    pools = [replaced(pool, **drafted) for pool in (job.prefill, job.deployment) if pool is not None]
    offline = job.arrivals in ("static", "queue")
    engines = tuple(_engine(job, pool, offline) for pool in pools)
    traffic = traffic_of(job, engines)
    tables = tables_of(engines, traffic)
    way: dict[str, Any] = {"router": "least-loaded"}
    if job.fronts is not None:
        way = {"router": "round-robin", "fronts": Fronts(count=job.fronts)}
    found = replay_tables(engines, tables, traffic, **way)
    if found.refused.all():
        longest = int(np.max(traffic.prompt_tokens + traffic.output_tokens))
        raise InputError(f"a request of {longest} tokens exceeds the cache of {found.capacity_blocks} blocks")
    moved = replay_ends(engines, tables, traffic, **way) if ends else ()
    return ReplayedJob(
        engines=engines,
        traffic=traffic,
        replay=found,
        metrics=looped(job, found, traffic),
        ends=tuple((end, looped(job, end, traffic)) for end in moved),
        decode=_decoding(engines[-1], tables[-1], found, traffic),
        evidence=Evidence.DERIVED,
        said=_ended(job, engines[-1]),
    )


def _beyond(whole: ReplayedJob, before: ReplayedJob) -> ReplayedJob:
    """A replay of prompts whose first `before` are in the cache: first tokens that much earlier."""

    def less(long: Replay, short: Replay) -> Replay:
        return replace(long, first_s=long.first_s - short.first_s)

    ends = zip(whole.ends, before.ends, strict=True)
    return replace(
        whole,
        traffic=replace(whole.traffic, prompt_tokens=whole.traffic.prompt_tokens - before.traffic.prompt_tokens),
        replay=less(whole.replay, before.replay),
        ends=tuple((less(long, short), metrics) for (long, metrics), (short, _) in ends),
    )


def _ended(job: ServedJob, one: Engine) -> tuple[str, ...]:
    """Words for sequences that the model's context length ends."""
    gained = gained_tokens(job, one)
    if gained == job.output_tokens:
        return ()
    return (f"each sequence gains {gained:.0f} tokens, then the model's context ends it",)


def _engine(job: ServedJob, deployment: Deployment, offline: bool) -> Engine:
    made = engine(job.model, _machine(job.cluster), deployment, offline=offline)
    if job.arrivals == "static" and job.batch is not None and made.policy.max_seqs < job.batch:
        made = replace(made, policy=replace(made.policy, max_seqs=job.batch))
    if job.arrivals == "static":
        made = replace(made, batch=job.batch)
    if job.arrivals == "static" and job.metric in PHASES and made.policy.scheduler == "mixed":
        made = replace(made, policy=replace(made.policy, scheduler="prefill-first"))
    return made


@lru_cache(maxsize=_KEPT)
def _resolved(name: str, count: int, cluster: _Hashed) -> Machine:
    return machine(cluster.value)


@dataclass(frozen=True, eq=False)
class _Hashed:
    """A cluster as a key: equal when name and size are."""

    value: Cluster

    def __hash__(self) -> int:
        return hash((self.value.name, self.value.count))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Hashed) and self.value == other.value


def _machine(cluster: Cluster) -> Machine:
    return _resolved(cluster.name, cluster.count, _Hashed(cluster))


def _decoding(one: Engine, tables: StepTables, found: Replay, traffic: Traffic) -> Band:
    ranks = one.deployment.dp * one.deployment.pp
    mean = float(np.mean(traffic.prompt_tokens + traffic.output_tokens / 2))
    busy = max(1.0, found.mean_sequences / ranks)
    return decode_band(one, tables, busy, found.mean_context or mean)
