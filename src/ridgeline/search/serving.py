"""The best way to serve a model on devices: every deployment of the grid replayed on the same traffic.

Nothing is ranked by means alone: each candidate is replayed with its own queues, and its quantiles are compared.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ridgeline.cost.machine import Machine, machine
from ridgeline.errors import NoPlanError, PlanError, RidgelineError
from ridgeline.facts.records import Cluster
from ridgeline.graph.ops import Model
from ridgeline.plan.deployment import Deployment, Role, Router
from ridgeline.search.serving_space import Space, deployments, fleets
from ridgeline.serving.engine import Engine, Policies, engine
from ridgeline.serving.metrics import Metrics, Objective, measure
from ridgeline.serving.replay import replay_tables
from ridgeline.serving.step import StepTables
from ridgeline.serving.traffic.traffic import Traffic

ATTAINED = 0.99  # share of requests that must keep to the objective for a deployment to count as one that does
_REFUSALS = 6  # reasons kept, most frequent first
_BEYOND = 3.0  # of the traffic's span: a replay that takes longer is far overloaded and is cut


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One deployment, replayed."""

    deployments: tuple[Deployment, ...]
    metrics: Metrics
    usd_per_h: float | None
    cut: bool = False

    @property
    def devices(self) -> int:
        """Devices that it takes [1]."""
        return sum(one.devices for one in self.deployments)

    @property
    def good_rps(self) -> float:
        """Requests per second that keep to the objective, or all of them without one [1/s]."""
        return self.metrics.goodput_rps if self.metrics.goodput_rps is not None else self.metrics.requests_per_s

    @property
    def good_per_device(self) -> float:
        """Goodput of one device [1/s]."""
        return self.good_rps / self.devices

    @property
    def good_per_usd(self) -> float | None:
        """Requests that keep to the objective for a dollar [1/USD]."""
        return None if not self.usd_per_h else self.good_rps * 3600.0 / self.usd_per_h


@dataclass(frozen=True, kw_only=True)
class ServingSearch:
    """What a search found: the best candidates first, how many were replayed, and why others were not."""

    ranked: tuple[Candidate, ...]
    considered: int
    refused: Mapping[str, int]
    fewest: Candidate | None
    seconds: float
    notes: tuple[str, ...] = ()


@dataclass
class _Ready:
    """Engines and tables that candidates share."""

    model: Model
    machine: Machine
    traffic: Traffic
    policies: Policies | None
    made: dict[Deployment, tuple[Engine, StepTables]] = field(default_factory=dict)

    def get(self, one: Deployment) -> tuple[Engine, StepTables]:
        """The engine and tables of a deployment; roles and counts of instances share them."""
        key = replace(one, instances=1, role=Role.WHOLE, router=Router.ROUND_ROBIN)
        if key not in self.made:
            options = {} if self.policies is None else {"policies": self.policies}
            made = engine(self.model, self.machine, key, **options)  # type: ignore[arg-type]
            _ = made.capacity
            prompts = self.traffic.prompt_tokens
            longest = int(np.max(prompts + self.traffic.output_tokens))
            self.made[key] = made, made.tables(longest_prompt=int(np.max(prompts)), longest=longest)
        made, tables = self.made[key]
        return replace(made, deployment=one), tables


def search_serving(
    model: Model,
    cluster: Cluster,
    traffic: Traffic,
    objective: Objective,
    *,
    stated: Mapping[str, Any] | None = None,
    space: Space | None = None,
    router: Router = Router.LEAST_LOADED,
    top: int = 5,
    policies: Policies | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> ServingSearch:
    """The best deployments of a model on a cluster for traffic under an objective.

    Ranked by goodput, among those that keep to the objective by devices, then by TPOT. `fewest` is the one with the
    fewest devices that still keeps to it. Raises `NoPlanError` when none starts.
    """
    begun = time.perf_counter()
    chosen = space or Space()
    ready = _Ready(model=model, machine=machine(cluster), traffic=traffic, policies=policies)
    refused: Counter[str] = Counter()
    shapes = list(_started(deployments(model, cluster, stated or {}, chosen), ready, refused))
    candidates = list(fleets(shapes, cluster, chosen, ready.get, traffic, stated or {}))
    found = _replayed(candidates, ready, cluster, objective, router, refused, progress)
    if not found:
        reason = refused.most_common(1)[0][0] if refused else "no degrees divide the model"
        raise NoPlanError(f"no deployment of {model.name} can serve on {cluster.name}: {reason}")
    ranked = sorted(found, key=_order)
    least = _fewest(ranked, ready, cluster, objective, router)
    if least is not None and least not in ranked:
        ranked = sorted([*ranked, least], key=_order)
    return ServingSearch(
        ranked=tuple(ranked[:top]),
        considered=len(found),
        refused=dict(refused.most_common(_REFUSALS)),
        fewest=least,
        seconds=time.perf_counter() - begun,
    )


def _started(grid: Iterator[Deployment], ready: _Ready, refused: Counter[str]) -> Iterator[Deployment]:
    """Deployments whose engine starts; the others are counted by reason."""
    for one in grid:
        try:
            ready.get(one)
        except (NoPlanError, PlanError) as error:
            refused[_reason(error)] += 1
            continue
        yield one


def _reason(error: RidgelineError) -> str:
    """The reason of a refusal, the same for deployments that differ in degrees only."""
    text = str(error)
    return "weights and workspace leave no room for the cache" if "will not start" in text else text


def _replayed(
    candidates: Sequence[tuple[Deployment, ...]],
    ready: _Ready,
    cluster: Cluster,
    objective: Objective,
    router: Router,
    refused: Counter[str],
    progress: Callable[[int, int], None] | None,
) -> list[Candidate]:
    """Every candidate replayed, as many at a time as there are cores; the compiled clock runs outside the lock."""
    found: list[Candidate] = []
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        results = pool.map(lambda each: _tried(each, ready, cluster, objective, router), candidates)
        for index, result in enumerate(results):
            if isinstance(result, str):
                refused[result] += 1
            else:
                found.append(result)
            if progress is not None:
                progress(index + 1, len(candidates))
    return found


def _tried(
    fleet: tuple[Deployment, ...], ready: _Ready, cluster: Cluster, objective: Objective, router: Router
) -> Candidate | str:
    try:
        return replay_candidate(fleet, ready, cluster, objective, router)
    except (NoPlanError, PlanError) as error:
        return _reason(error)


def replay_candidate(
    fleet: tuple[Deployment, ...], ready: _Ready, cluster: Cluster, objective: Objective, router: Router
) -> Candidate:
    """One candidate's metrics on the search's traffic."""
    pairs = [ready.get(one) for one in fleet]
    traffic = ready.traffic
    last = float(traffic.arrival_s[-1])
    most_s = last * _BEYOND + 600.0 if last > 0 else 1e9
    found = replay_tables(
        [one for one, _ in pairs], [tables for _, tables in pairs], traffic, router=router, most_s=most_s
    )
    price = cluster.price_usd_per_device_h
    return Candidate(
        deployments=fleet,
        metrics=measure(found, traffic, objective),
        usd_per_h=None if price is None else price.value * sum(one.devices for one in fleet),
        cut=not (found.done | found.refused).all(),
    )


def _order(one: Candidate) -> tuple[float, float, float]:
    """Better first: goodput to within a percent, then fewer devices, then a shorter TPOT."""
    kept = one.metrics.attained
    rounded = 1.0 if kept is not None and kept >= ATTAINED else (kept if kept is not None else 0.0)
    if kept is None:
        return (-one.metrics.output_tokens_per_s, float(one.devices), one.metrics.tpot.p50)
    tpot = one.metrics.tpot.p99 if np.isfinite(one.metrics.tpot.p99) else np.inf
    return (-rounded, float(one.devices), tpot)


def _fewest(
    ranked: Sequence[Candidate], ready: _Ready, cluster: Cluster, objective: Objective, router: Router
) -> Candidate | None:
    """The fewest devices that keep to the objective, by bisection over instances of the shapes that do with all."""
    best: Candidate | None = None
    for one in ranked:
        if len(one.deployments) > 1 or one.metrics.attained is None or one.metrics.attained < ATTAINED:
            continue
        (shape,) = one.deployments
        if best is not None and shape.instance_devices >= best.devices:
            continue
        low, high, kept = 1, shape.instances, one
        while low < high:
            middle = (low + high) // 2
            if best is not None and middle * shape.instance_devices >= best.devices:
                high = middle
                continue
            tried = replay_candidate((replace(shape, instances=middle),), ready, cluster, objective, router)
            if (tried.metrics.attained or 0.0) >= ATTAINED:
                high, kept = middle, tried
            else:
                low = middle + 1
        if kept.devices == low * shape.instance_devices and (best is None or kept.devices < best.devices):
            best = kept
    return best
