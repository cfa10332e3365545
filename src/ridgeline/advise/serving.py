"""Advice on serving: deployments replayed on a short piece of the traffic, or a static batch with weights elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import gcd, inf, isfinite
from typing import Any

import numpy as np

from ridgeline.advise.cases import DOLLARS, GOODPUT, JOULES, MEMORY, TIME, AdviceCase, Change, TrialOutcome
from ridgeline.advise.serving_levers import GivenHost, ServedChoice, levers, offload_levers
from ridgeline.advise.words import serving_techniques
from ridgeline.cost.machine import Machine, machine
from ridgeline.errors import NoPlanError
from ridgeline.facts.engines import engine_policy
from ridgeline.facts.records import Cluster
from ridgeline.graph.model import Model
from ridgeline.plan.deployment import Deployment
from ridgeline.predict.fleet import bands_of, fleet_power_w, fleet_usd_per_h
from ridgeline.predict.offloaded import offloaded
from ridgeline.predict.serving_known import mean_of
from ridgeline.report.offloaded import OffloadReport
from ridgeline.seams.setting import Setting
from ridgeline.serving.capacity import weights_bytes
from ridgeline.serving.ends import ENDS, engine_at, table_at
from ridgeline.serving.engine import Engine, Policies, engine
from ridgeline.serving.metrics import Metrics, decode_band, decode_parts, measure, prefill_band, prefill_parts
from ridgeline.serving.objective import Objective
from ridgeline.serving.replay import Replay, replay_tables, tables_of
from ridgeline.serving.step import StepTables
from ridgeline.serving.step_pieces import Shelf
from ridgeline.serving.stopping import Stop
from ridgeline.serving.traffic.summary import summarize
from ridgeline.serving.traffic.traffic import Traffic

UNITS = {
    TIME: "output tokens/s", MEMORY: "tokens of cache", GOODPUT: "requests/s", DOLLARS: "USD a million output tokens",
    JOULES: "J a token",
}  # fmt: skip
INVERSE = (TIME, MEMORY, GOODPUT)
"""Objectives of which people are told 1 / value."""
FEWEST_REQUESTS, MOST_REQUESTS = 300, 3_000  # of a replay
_WINDOWS = 3.0  # of the time that a request may take: what a replay of a steady load lasts
_TAKEN_S = 30.0
_DOUBLINGS, _STRIDE, _ROUNDS = 8, 1.5, 4  # of the rate that keeps to an objective, looked for by bisection


@dataclass
class ServingCase(AdviceCase[ServedChoice]):
    """A serving scenario: `traffic` is a piece short enough to replay often, `objective` one of `UNITS`.

    The goodput is the highest rate at which 99 % of the requests keep to the `bounds`, by bisection of the arrivals'
    pace. `host` is what weights beside the devices may use, where a static batch may have them there.
    """

    model: Model
    cluster: Cluster
    base: ServedChoice
    traffic: Traffic
    bounds: Objective
    objective: str
    policies: Policies = engine_policy
    bounds_nothing: bool = True
    offline: bool = False
    host: GivenHost | None = None
    lengths: tuple[float, float] = (0.0, 0.0)  # mean prompt and answer [token]
    pace: float = 1.0  # of the arrivals, at which the last one kept to the objective: where the next search begins
    _shelf: Shelf = field(default_factory=Shelf)
    _made: dict[Any, tuple[Engine, StepTables]] = field(default_factory=dict)
    _outcomes: dict[ServedChoice, TrialOutcome] = field(default_factory=dict)

    @cached_property
    def machine(self) -> Machine:
        """The machine with the rates that others measured."""
        return machine(self.cluster)

    def setting(self, on: ServedChoice) -> Setting:
        """What techniques are asked about: of pools, the first."""
        return Setting(
            model=self.model, cluster=self.cluster, workload=summarize(self.traffic), plan=on.deployments[0],
            objective=self.bounds.bounds,
        )  # fmt: skip

    def changes(self, on: ServedChoice) -> Iterator[Change[ServedChoice]]:
        """Levers of the deployment, places of weights, then every technique of the registry."""
        yield from offload_levers(self.model, on, self.host)
        if on.offload is not None:
            return
        yield from levers(self.model, self.cluster, on)
        yield from serving_techniques(self.setting(on))

    # engines ---------------------------------------------------------------------------------------

    def _engine(self, one: Deployment) -> tuple[Engine, StepTables]:
        key = replace(one, instances=1)
        if key not in self._made:
            made = engine(
                self.model, self.machine, key, policies=self.policies, shelf=self._shelf, offline=self.offline
            )
            self._made[key] = made, tables_of([made], self.traffic)[0]
        made, tables = self._made[key]
        return made.placed(one), tables

    def _engines(self, on: ServedChoice) -> tuple[list[Engine], list[StepTables]]:
        pairs = [self._engine(one) for one in on.deployments]
        return [one for one, _ in pairs], [tables for _, tables in pairs]

    def _too_large(self, on: ServedChoice) -> TrialOutcome:
        """What does not start: its weights, and what of them is beyond the memory that the engine fills."""
        one = replace(on.deployments[0], instances=1)
        made = engine(self.model, self.machine, one, policies=self.policies, shelf=self._shelf)
        held = weights_bytes(
            self.model, made.steps.served, made.deployment, made.formats, own_head=made.policy.own_head
        )
        room = self.cluster.accelerator.memory_bytes * made.policy.memory_fraction
        excess = max(held - room, 1e-3 * room)
        return TrialOutcome(value=inf, memory_bytes=held, excess_bytes=excess, held={"weights": held})

    def bound(self, on: ServedChoice) -> TrialOutcome:
        """Whether it starts, and what a device holds; a replay is no dearer than its bound would be."""
        if on.offload is not None:
            return TrialOutcome(value=0.0, memory_bytes=0.0, excess_bytes=0.0)
        try:
            return self._held(self._engines(on)[0], 0.0)
        except NoPlanError:
            return self._too_large(on)

    def _held(self, engines: Sequence[Engine], value: float) -> TrialOutcome:
        capacity = max((one.capacity for one in engines), key=lambda one: one.weights_bytes)
        held = {
            "weights": capacity.weights_bytes, "workspace": capacity.workspace_bytes + capacity.context_bytes,
            "cache": capacity.cache_bytes + capacity.state_bytes,
        }  # fmt: skip
        return TrialOutcome(value=value, memory_bytes=sum(held.values()), excess_bytes=0.0, held=held)

    # outcomes --------------------------------------------------------------------------------------

    def outcome(self, on: ServedChoice) -> TrialOutcome:
        """The value of the objective, replayed."""
        if on not in self._outcomes:
            self._outcomes[on] = self._outcome(on)
        return self._outcomes[on]

    def _outcome(self, on: ServedChoice) -> TrialOutcome:
        if on.offload is not None:
            report = self._offloaded(on)
            latency = report.latency
            scale = self._offload_value(report) / latency.total
            return TrialOutcome(
                value=scale * latency.total, memory_bytes=report.device_bytes, excess_bytes=0.0,
                held={"weights": report.device_bytes}, parts=latency.parts, kinds=_SIDES,
                ends=(scale * latency.low, scale * latency.high),
            )  # fmt: skip
        try:
            engines, tables = self._engines(on)
        except NoPlanError:
            return self._too_large(on)
        return self._held(engines, self._value(engines, tables, on))

    def _offloaded(self, on: ServedChoice) -> OffloadReport:
        assert on.offload is not None
        prompt, output = self.lengths
        return offloaded(
            self.model, self.cluster, on.deployments[0], on.offload, batch=self.traffic.requests,
            prompt_tokens=round(prompt), output_tokens=round(output),
        )  # fmt: skip

    def _offload_value(self, report: OffloadReport) -> float:
        if self.objective == DOLLARS:
            return report.usd_per_million_output_tokens or inf
        return 1.0 / report.output_tokens_per_s if self.objective in (TIME, GOODPUT) else inf

    def _replayed(
        self, engines: Sequence[Engine], tables: Sequence[StepTables], pace: float = 1.0, stop: Stop | None = None
    ) -> tuple[Replay, Traffic]:
        """A replay of one of the equal parts of a fleet, each of which takes its share of the requests."""
        parts = gcd(*(one.deployment.instances for one in engines)) if self.steady else 1
        share = pace / parts
        asked = self.traffic
        if self.steady:
            wanted = _WINDOWS * self.taken_s * self.rate * share
            asked = asked.first(int(min(max(wanted, FEWEST_REQUESTS), asked.requests)))
        asked = asked if share == 1.0 else asked.scaled(share)
        some = [one.placed(replace(one.deployment, instances=one.deployment.instances // parts)) for one in engines]
        last = float(asked.arrival_s[-1])
        stop = stop or Stop()
        stop = replace(stop, most_s=3.0 * last + 600.0) if last > 0 else stop
        return replay_tables(some, tables, asked, stop=stop), asked

    @cached_property
    def rate(self) -> float:
        """Requests that come in a second [1/s]; infinite where they come at once."""
        last = float(self.traffic.arrival_s[-1])
        return (self.traffic.requests - 1) / last if last > 0 else inf

    @property
    def steady(self) -> bool:
        """Whether requests come by themselves, at a rate."""
        return isfinite(self.rate) and self.traffic.concurrency is None

    @property
    def taken_s(self) -> float:
        """What a request that just keeps to the objective takes [s]; of one that bounds no answer, half a minute."""
        one = self.bounds
        if one.latency_s is not None:
            return one.latency_s
        return _TAKEN_S if one.tpot_s is None else (one.ttft_s or 0.0) + one.tpot_s * self.lengths[1]

    def _value(self, engines: Sequence[Engine], tables: Sequence[StepTables], on: ServedChoice) -> float:
        """The objective, less is better."""
        if self.objective == MEMORY:
            return 1.0 / sum(one.capacity.cache_tokens * one.deployment.instances for one in engines)
        if self.objective == GOODPUT:
            return 1.0 / max(self.best_rate(engines, tables), 1e-12)
        if self.objective == DOLLARS and self.bounds.stated:
            rate = self.best_rate(engines, tables)
            tokens = rate * float(np.mean(self.traffic.output_tokens))
            usd = fleet_usd_per_h(self.cluster, on.deployments)
            return inf if not rate or usd is None else usd / 3600.0 / tokens * 1e6
        found, asked = self._replayed(engines, tables)
        metrics = measure(found, asked, self.bounds)
        share = gcd(*(one.instances for one in on.deployments)) if self.steady else 1
        tokens_per_s = max(metrics.output_tokens_per_s * share, 1e-12)
        if self.objective == DOLLARS:
            usd = fleet_usd_per_h(self.cluster, on.deployments)
            return inf if usd is None else usd / 3600.0 / tokens_per_s * 1e6
        if self.objective == JOULES:
            return self._joules(engines, tables, on, found)
        return 1.0 / tokens_per_s if not self.steady else metrics.latency.mean

    def _joules(
        self, engines: Sequence[Engine], tables: Sequence[StepTables], on: ServedChoice, found: Replay
    ) -> float:
        mean = mean_of(engines, found, self.traffic)
        parts = gcd(*(one.deployment.instances for one in engines)) if self.steady else 1
        fleet = [replace(one.deployment, instances=one.deployment.instances // parts) for one in engines]
        power = fleet_power_w(self.cluster, fleet, found, bands_of(engines, tables, mean))
        return inf if power is None else power * found.span_s / max(1.0, float(found.output[found.done].sum()))

    def best_rate(self, engines: Sequence[Engine], tables: Sequence[StepTables]) -> float:
        """The highest rate at which the objective is kept [1/s]; 0 at none."""
        if not self.steady:
            return 0.0

        def keeps(pace: float) -> bool:
            found, asked = self._replayed(engines, tables, pace, Stop.at(self.bounds, FEWEST_REQUESTS))
            if found.stopped:
                return False
            metrics = measure(found, asked, self.bounds)
            return bool(metrics.kept) and not metrics.overloaded

        low = high = self.pace
        if keeps(low):
            while high < 2.0**_DOUBLINGS and keeps(high := low * _STRIDE):
                low = high
        else:
            while not keeps(low := high / _STRIDE):
                if low < 2.0**-_DOUBLINGS:
                    return 0.0
                high = low
        for _ in range(_ROUNDS):
            middle = (low * high) ** 0.5
            low, high = (middle, high) if keeps(middle) else (low, middle)
        self.pace = low
        return self.rate * low

    def explained(self, on: ServedChoice) -> TrialOutcome:
        """The value with the parts of the mean request's time, and its ends."""
        plain = self.outcome(on)
        if on.offload is not None or not plain.fits:
            return plain
        engines, tables = self._engines(on)
        found, asked = self._replayed(engines, tables)
        metrics = measure(found, asked, self.bounds)
        parts, kinds = self.parts(engines, tables, found, metrics)
        ends = tuple(
            self._value([engine_at(one, end) for one in engines], [table_at(one, end) for one in tables], on)
            for end in ENDS
        )
        return replace(plain, parts=parts, kinds=kinds, ends=(ends[0], ends[1]))

    def parts(
        self, engines: Sequence[Engine], tables: Sequence[StepTables], found: Replay, metrics: Metrics
    ) -> tuple[dict[str, float], dict[str, str]]:
        """Seconds of the mean request by part: waiting, its prompt, its steps; and what each keeps busy."""
        mean = mean_of(engines, found, self.traffic)
        prompts = prefill_parts(engines[0], tables[0], mean.prompt)
        steps = decode_parts(engines[-1], tables[-1], mean.batch, mean.context)
        answers = max(0.0, float(np.mean(self.traffic.output_tokens)) - 1.0)
        ttft, tpot = (value if isfinite(value) else 0.0 for value in (metrics.ttft.mean, metrics.tpot.mean))
        step_s = sum(steps.values())
        parts = {"waiting in queues": max(0.0, ttft - sum(prompts.values()))}
        parts |= {f"prompt: {name}": seconds for name, seconds in prompts.items()}
        parts |= {f"steps: {name}": answers * seconds for name, seconds in steps.items()}
        parts["steps: behind prompts"] = max(0.0, tpot - step_s) * answers
        first = prefill_band(engines[0], tables[0], mean.prompt)
        later = decode_band(engines[-1], tables[-1], mean.batch, mean.context)
        bound = {
            "prompt": "compute" if first.compute > first.memory else "hbm",
            "steps": "compute" if later.compute > later.memory else "hbm",
        }
        kinds = {name: _kind(name, bound) for name in parts}
        return {name: seconds for name, seconds in parts.items() if seconds > 0}, kinds

    def programs(self, on: ServedChoice) -> tuple[str, ...]:
        """The engine that is served with: its file prices all of its words."""
        if on.offload is not None:
            return (self._offloaded(on).engine,)
        return (on.deployments[0].engine,)


_SIDES: Mapping[str, str] = {"devices": "hbm", "host": "host", "links": "link"}


def _kind(name: str, bound: Mapping[str, str]) -> str:
    """What a part keeps busy."""
    for words, kind in (("waiting", "queue"), ("behind", "queue"), ("host", "host"), ("link", "link")):
        if words in name and "weights" not in name:
            return kind
    return bound.get(name.partition(":")[0], "")
