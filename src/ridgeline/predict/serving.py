"""Serving, composed: a deployment on a cluster under traffic, replayed, measured and explained."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ridgeline.cost.engine_kernels import WIDE_EXPERT_RANKS
from ridgeline.cost.machine import Machine, assumed_facts, machine
from ridgeline.facts.engine_kernels import gathering
from ridgeline.facts.engines import engine_policy
from ridgeline.facts.records import Cluster
from ridgeline.graph.model import Model
from ridgeline.plan.checkpoint_formats import with_formats
from ridgeline.plan.deployment import EVEN_LOADS, Deployment
from ridgeline.predict.cold_start import fixed_fleet, with_cold_starts
from ridgeline.predict.fleet import bands_of, fleet_power_w, fleet_usd_per_h, group_uses
from ridgeline.predict.serving_known import Mean, held, mean_of
from ridgeline.report.evidence import lowest
from ridgeline.report.serving import ServingReport
from ridgeline.seams.serving import KVEviction, Placement, Queue, Urgency, of
from ridgeline.serving.ends import replay_ends
from ridgeline.serving.engine import Engine, Policies, cut_blocks, engine
from ridgeline.serving.fleet_events import FleetEvents
from ridgeline.serving.fronts import Fronts
from ridgeline.serving.metrics import Metrics, decode_band, decode_parts, measure, prefill_band, prefill_parts
from ridgeline.serving.objective import Objective
from ridgeline.serving.replay import Replay, replay_tables, tables_of
from ridgeline.serving.sampling import RequestShare, client_shares, priority_shares, sampling
from ridgeline.serving.sessions import session_use
from ridgeline.serving.step import StepTables
from ridgeline.serving.traffic.summary import summarize
from ridgeline.serving.traffic.traffic import Traffic

_SAME_ANSWERS = "answers are as long with a part of the cache as with all of it; how good they are is not asked"
_QUEUE_ROUNDS, _FEWEST_QUEUED, MOST_QUEUED = 5, 64, 20_000


@dataclass(frozen=True, kw_only=True)
class Operation:
    """How a fleet is run, and what its prices rest on.

    `router` is the text of a technique ('': that of the first deployment), `fleet_events` says how instances come and
    go, `fronts` through which front ends requests come in (None: one), `offline` that they are handed over within the
    engine's process and not sent to a server. `resolved` is the cluster with the rates to price by, those that others
    measured by default; `policies` gives the engines', those that ship by default. Without `changes` nobody
    asks what a tenth more of each resource would change.
    """

    router: str = ""
    fleet_events: FleetEvents | None = None
    fronts: Fronts | None = None
    offline: bool = False
    resolved: Machine | None = None
    policies: Policies = engine_policy
    changes: bool = True


def simulate_serving(
    model: Model,
    cluster: Cluster,
    deployments: Sequence[Deployment],
    traffic: Traffic,
    *,
    objective: Objective | None = None,
    operation: Operation = Operation(),
    parts: float = 1.0,
    assumed: Sequence[str] = (),
) -> ServingReport:
    """Replays traffic on deployments of one model and explains what came out.

    The report is that of `parts` such fleets beside each other, each with such traffic.
    Raises `NoPlanError` where an engine will not start, `PlanError` for degrees or a fleet that cannot be.
    """
    begun = time.perf_counter()
    where, goal = operation.resolved or machine(cluster), objective or Objective()
    deployments, why = _formed(model, cluster, deployments)

    def build(machine: Machine) -> list[Engine]:
        return [
            engine(model, machine, one, policies=operation.policies, offline=operation.offline) for one in deployments
        ]

    engines = build(where)
    tables = tables_of(engines, traffic)
    operation, starts = with_cold_starts(operation, engines)
    way: dict[str, Any] = {name: getattr(operation, name) for name in ("router", "fleet_events", "fronts")}
    found = replay_tables(engines, tables, traffic, **way)
    ends = [(one, measure(one, traffic, goal)) for one in replay_ends(engines, tables, traffic, **way)]
    alone, mean = measure(found, traffic, goal), mean_of(engines, found, traffic)
    drawn, groups = sampling(found, traffic, alone, goal), group_uses(cluster, deployments, found)
    part_w = fleet_power_w(cluster, deployments, found, bands_of(engines, tables, mean))
    found, metrics = _whole(found, alone, parts)
    deployments = [replace(one, instances=round(one.instances * parts)) for one in deployments]
    hangs = held(engines, build if operation.changes else None, where, mean)
    notes = (*assumed, *why, *starts, *_noted(deployments, engines), *assumed_facts(where, "bf16"))
    return ServingReport(
        model=model, cluster=cluster, deployments=tuple(deployments), objective=goal, metrics=metrics, sampled=drawn,
        ends=tuple(_whole(*each, parts)[1] for each in ends), replay=found, assumed=tuple(dict.fromkeys(notes)),
        evidence=min(lowest(known) for known in hangs.known), known=hangs.known, what_if=hangs.what_if,
        engines=tuple(f"{one.policy.name} {one.policy.version}".strip() for one in engines),
        capacities=tuple(one.capacity for one in engines), rungs=_rungs(engines), groups=groups,
        shares=_shares(deployments, found, traffic), sessions=session_use(found, traffic),
        **_asked(traffic), **_steps(engines, tables, mean, metrics),
        **_spent(cluster, deployments, found, None if part_w is None else part_w * parts),
        fixed=fixed_fleet(cluster, engines, tables, traffic, (found, metrics, goal), way),
        seconds=time.perf_counter() - begun,
    )  # fmt: skip


def _asked(traffic: Traffic) -> dict[str, Any]:
    """What a report says of its traffic."""
    dropped = (f"line {row.line}{', ' * bool(row.field)}{row.field}: {row.reason}" for row in traffic.dropped)
    return {"traffic": summarize(traffic), "traffic_name": traffic.name, "dropped": tuple(dropped)}


def _steps(engines: Sequence[Engine], tables: Sequence[StepTables], mean: Mean, metrics: Metrics) -> dict[str, Any]:
    """The mean prompt and the mean decode step of a report, with the share of the first token's time that waits."""
    prompt_parts = prefill_parts(engines[0], tables[0], mean.prompt)
    decode, ttft = (engines[-1], tables[-1], mean.batch, mean.context), metrics.ttft.mean
    waits = 1.0 - sum(prompt_parts.values()) / ttft if ttft and np.isfinite(ttft) else 0.0
    return {
        "prefill": prefill_band(engines[0], tables[0], mean.prompt), "decode": decode_band(*decode),
        "prefill_parts": prompt_parts, "decode_parts": decode_parts(*decode), "queue_share": max(0.0, waits),
    }  # fmt: skip


def _spent(cluster: Cluster, deployments: Sequence[Deployment], found: Replay, power_w: float | None) -> dict[str, Any]:
    """Power, energy, carbon and price of a report's fleet, of which a part may be unknown."""
    intensity = cluster.carbon_kg_per_j
    return {
        "power_w": power_w, "energy_j": None if power_w is None else power_w * found.span_s,
        "carbon_kg": None if power_w is None or intensity is None else intensity.value * power_w * found.span_s,
        "usd_per_h": fleet_usd_per_h(cluster, deployments, found),
    }  # fmt: skip


def _formed(model: Model, cluster: Cluster, asked: Sequence[Deployment]) -> tuple[list[Deployment], list[str]]:
    """Deployments in the formats that they are served in, and why where nobody asked for one."""
    pairs = [with_formats(one, model, cluster) for one in asked]
    return [one for one, _ in pairs], [why for _, why in pairs if why]


def _noted(deployments: Sequence[Deployment], engines: Sequence[Engine]) -> tuple[str, ...]:
    """What a person should know of how the engines are deployed."""
    same = (_SAME_ANSWERS,) if any(of(one, KVEviction).applied for one in deployments) else ()
    formats = (why for one in engines for why in one.format_notes)
    cuts = (why for one in engines if (why := cut_blocks(one)))
    even = (EVEN_LOADS for one in deployments if (placed := of(one, Placement)).redundant and placed.imbalance is None)
    return (*same, *dict.fromkeys((*formats, *cuts, *even)), *_wide(deployments, engines))


def _wide(deployments: Sequence[Deployment], engines: Sequence[Engine]) -> tuple[str, ...]:
    """The backend that experts on many ranks were taken to run by, where no deployment names one."""
    said = []
    for one, made in zip(deployments, engines, strict=True):
        if not one.options.expert_backend and one.ep >= WIDE_EXPERT_RANKS and made.policy.wide_backend:
            name, own = made.policy.name, gathering(made.policy.name) or made.policy.expert_backend
            backend = made.deployment.options.expert_backend
            said.append(
                f"experts on {one.ep} ranks run by {backend}, which {name}'s documentation"
                f" advises for so many; {name}'s own default is '{own}': --expert-backend {own} prices that"
            )
    return tuple(dict.fromkeys(said))


def _shares(deployments: Sequence[Deployment], found: Replay, traffic: Traffic) -> tuple[RequestShare, ...]:
    """What each client got of a queue that is fair among them, or else each priority where it displaces."""
    if any(of(one, Queue).by_client for one in deployments):
        return client_shares(found, traffic)
    stated = any(
        of(one, Urgency).applied and not of(one, Urgency).drawn for one in deployments
    )  # not drawn while it runs
    return priority_shares(found, traffic) if stated else ()


def queue_of(
    model: Model, cluster: Cluster, deployments: Sequence[Deployment], words: Mapping[str, Any]
) -> tuple[int, tuple[Deployment, ...], float]:
    """Requests of a queue that shows the steady state [1], the part of a fleet to replay it on, and the parts of it.

    Some rounds of all sequences that can run. Of a fleet that would need more requests than are replayed, as many of
    its equal parts as they keep full, at least one: instances take from the queue each for itself.
    """
    where = machine(cluster)
    prompt, output = (float(np.mean(words.get(name, (usual,)))) for name, usual in (("prompt", 1024), ("output", 256)))
    parts = math.gcd(*(one.instances for one in deployments))
    slots = 0.0
    for one in deployments:
        made = engine(model, where, one, offline=True)
        ranks = one.dp * one.pp * one.instances // parts
        held = of(one, KVEviction).held_tokens(made, prompt)
        slots += min(made.policy.max_seqs * ranks, made.capacity.cache_tokens * ranks / (held + output))
    replayed = min(parts, max(1, int(MOST_QUEUED / (_QUEUE_ROUNDS * slots))))
    part = tuple(replace(one, instances=one.instances // parts * replayed) for one in deployments)
    count = int(min(max(_QUEUE_ROUNDS * slots * replayed, _FEWEST_QUEUED), MOST_QUEUED))
    return count, part, parts / replayed


def _whole(found: Replay, metrics: Metrics, parts: float) -> tuple[Replay, Metrics]:
    """What many equal parts of a fleet do of which one was replayed: their rates and counts, and its times."""
    if parts == 1.0:
        return found, metrics
    rates = ("requests_per_s", "output_tokens_per_s", "total_tokens_per_s", "goodput_rps")
    counts = ("iterations", "runs", "preemptions", "moves", "loads", "loans", "merges", "capacity_blocks")
    more: dict[str, Any] = {name: None if (rate := getattr(metrics, name)) is None else rate * parts for name in rates}
    size = round(len(found.up_s) * parts)
    whole = replace(
        found,
        **{name: round(getattr(found, name) * parts) for name in counts},
        series=found.series * parts,
        up_s=np.resize(found.up_s, size),
        paid_s=np.resize(found.paid_s, size),
        busy_s=np.resize(found.busy_s, size),
    )
    return whole, replace(metrics, **more, output_tokens=round(metrics.output_tokens * parts))


def _rungs(engines: Sequence[Engine]) -> Mapping[str, str]:
    prices = [side for one in engines for side in one.steps.all_prices]
    return {family: rung.value for side in prices for family, rung in side.rungs_used.items()}
