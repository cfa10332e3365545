"""Deployments on their way to be ranked: their engines, the prices they share, and what a replay says of each."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from ridgeline.cost.machine import Machine
from ridgeline.errors import NoPlanError, PlanError, RidgelineError
from ridgeline.facts.engines import engine_policy
from ridgeline.facts.records import Cluster
from ridgeline.graph.model import Model
from ridgeline.plan.deployment import Deployment, Role
from ridgeline.predict.fleet import bands_of, fleet_power_w, fleet_usd_per_h
from ridgeline.predict.serving_known import held, mean_of
from ridgeline.report.serving_search import Candidate
from ridgeline.scenario.serving_words import replaced
from ridgeline.serving.engine import Engine, Policies, cut_blocks, engine
from ridgeline.serving.metrics import measure
from ridgeline.serving.objective import Objective
from ridgeline.serving.replay import Replay, replay_tables, tables_of
from ridgeline.serving.step import StepTables
from ridgeline.serving.step_pieces import Shelf
from ridgeline.serving.stopping import Stop
from ridgeline.serving.traffic.traffic import Traffic

_BEYOND = 3.0  # of the traffic's span: a replay that takes longer is far overloaded and is cut


@dataclass(frozen=True, kw_only=True)
class Stopped:
    """A deployment whose replay ended at `after_s` [s]: it could not reach the share of requests that was asked for."""

    deployments: tuple[Deployment, ...]
    after_s: float


Tried = Candidate | Stopped | str  # or why it cannot be


@dataclass
class Bench:
    """Where candidates are tried: what they share, and every answer so far.

    Deployments whose engines come out equal (a stated budget that is the engine's own) share tables and replays.
    """

    model: Model
    machine: Machine
    cluster: Cluster
    traffic: Traffic
    objective: Objective
    router: str
    policies: Policies = engine_policy
    energy: bool = False  # whether candidates tell joules
    _shelf: Shelf = field(default_factory=Shelf)
    _engines: dict[Deployment, tuple[Engine, StepTables, int]] = field(default_factory=dict)
    _tables: dict[Hashable, tuple[StepTables, int]] = field(default_factory=dict)

    def get(self, one: Deployment) -> tuple[Engine, StepTables]:
        """The engine and tables of a deployment; raises where it will not start."""
        made, tables, _ = self._known(one)
        return made.placed(one), tables

    def _known(self, one: Deployment) -> tuple[Engine, StepTables, int]:
        """The engine, tables and number of a shape, whatever its role and count of instances."""
        key = replace(one, instances=1, role=Role.WHOLE)
        if key not in self._engines:
            made = engine(self.model, self.machine, key, policies=self.policies, shelf=self._shelf)
            _ = made.capacity
            if why := cut_blocks(made):
                raise PlanError(why)
            same = (made.policy, replaced(key, token_budget=None, max_seqs=None))
            if same not in self._tables:
                self._tables[same] = tables_of([made], self.traffic)[0], len(self._tables)
            self._engines[key] = made, *self._tables[same]
        return self._engines[key]

    def number(self, fleet: Sequence[Deployment]) -> Hashable:
        """What two fleets have in common when they must replay alike."""
        return tuple((self._known(one)[2], one.role, one.instances) for one in fleet)

    def tried(self, fleet: tuple[Deployment, ...], least: float = 0.0) -> Tried:
        """A fleet replayed, unless fewer than the share `least` of requests can keep to the objective."""
        try:
            engines, found = self._replayed(fleet, self._stop(least))
        except (NoPlanError, PlanError) as error:
            return reason(error)
        if found.stopped:
            return Stopped(deployments=fleet, after_s=found.span_s)
        energy, grid = self._energy(engines, found) if self.energy else None, self.cluster.carbon_kg_per_j
        return Candidate(
            deployments=fleet,
            metrics=measure(found, self.traffic, self.objective),
            usd_per_h=fleet_usd_per_h(self.cluster, fleet),
            cut=not (found.done | found.refused).all(),
            energy_j_per_token=energy,
            carbon_kg_per_token=None if energy is None or grid is None else energy * grid.value,
        )

    def _stop(self, least: float) -> Stop:
        """Of bounds of every request where fewer than the share `least` can keep to them; of percentiles, which no
        share ranks, where they are certainly missed, or never with 0."""
        share = None if least and self.objective.percentiles else least
        return Stop.at(self.objective, self.traffic.requests, share)

    def _energy(self, engines: Sequence[Engine], found: Replay) -> float | None:
        """Energy at the wall for an output token, idle time counted [J/token]; None without a rated power."""
        fleet, mean = [one.deployment for one in engines], mean_of(list(engines), found, self.traffic)
        tables = [self.get(one)[1] for one in fleet]
        power = fleet_power_w(self.cluster, fleet, found, bands_of(engines, tables, mean))
        tokens = float(self.traffic.output_tokens[found.done].sum())
        return None if power is None or not tokens else power * found.span_s / tokens

    def _replayed(self, fleet: tuple[Deployment, ...], stop: Stop | None) -> tuple[list[Engine], Replay]:
        pairs = [self.get(one) for one in fleet]
        last = float(self.traffic.arrival_s[-1])
        engines = [one for one, _ in pairs]
        stop = stop or Stop()
        stop = replace(stop, most_s=last * _BEYOND + 600.0) if last > 0 else stop
        tables = [tables for _, tables in pairs]
        return engines, replay_tables(engines, tables, self.traffic, router=self.router, stop=stop)

    def explained(self, one: Candidate) -> Candidate:
        """A candidate with what its mean decode step and its mean prompt hang on, as of any replay."""
        engines, found = self._replayed(one.deployments, None)

        def build(machine: Machine) -> list[Engine]:
            return [engine(self.model, machine, each, policies=self.policies) for each in one.deployments]

        hangs = held(engines, build, self.machine, mean_of(engines, found, self.traffic))
        return replace(one, known=hangs.known, what_if=hangs.what_if)

    def all_tried(
        self, fleets: Sequence[tuple[Deployment, ...]], least: float, told: Callable[[int], None]
    ) -> list[Tried]:
        """Every fleet tried once, those that must replay alike together; the compiled clock runs on all cores."""
        groups: dict[Hashable, list[int]] = {}
        for place, fleet in enumerate(fleets):
            groups.setdefault(self.number(fleet), []).append(place)
        found: list[Tried] = [""] * len(fleets)
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            results = pool.map(lambda places: self.tried(fleets[places[0]], least), groups.values())
            for places, result in zip(groups.values(), results, strict=True):
                for place in places:
                    alike = result if isinstance(result, str) else replace(result, deployments=fleets[place])
                    found[place] = alike
                told(len(places))
        return found


def reason(error: RidgelineError) -> str:
    """The reason of a refusal, the same for deployments that differ in degrees only."""
    text = str(error)
    return "weights and workspace leave no room for the cache" if "will not start" in text else text
