"""CapacityQuestion: the highest request rate, the fewest devices or the tightest objective of a deployment, by replay.

A question is halved on a grid that depends on nothing but the question's kind, so a tighter objective never finds a
higher rate. What the closed form of `serving/bounds.py` rules out is not replayed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from ridgeline.cost.machine import Machine
from ridgeline.errors import NoPlanError
from ridgeline.graph.model import Model
from ridgeline.plan.deployment import Deployment
from ridgeline.predict.serving import Operation
from ridgeline.seams.serving import all_devices
from ridgeline.serving.bounds import least_devices, least_work, most_requests_per_s
from ridgeline.serving.engine import Engine, engine
from ridgeline.serving.metrics import Metrics, at_percentile, latencies, measure
from ridgeline.serving.objective import NAMES, Objective
from ridgeline.serving.replay import Replay, replay_tables, tables_of
from ridgeline.serving.sampling import half_width_of, probability_kept
from ridgeline.serving.state import Array
from ridgeline.serving.step import StepTables
from ridgeline.serving.stopping import Stop
from ridgeline.serving.traffic.traffic import Traffic

STEPS_AN_OCTAVE = 64  # rates of the grid: neighbours are 1.1 % apart
_LOW, _HIGH = -10, 16  # octaves of the grid below and above 1 request/s
_LONGEST_S = 5e7  # of arrivals at the lowest rate
_BEYOND_S, _BEYOND = 600.0, 3.0  # a replay that takes longer than its traffic's span so many times is overloaded
STOPPED = "stopped when too many requests had missed a bound"


@dataclass(frozen=True, kw_only=True)
class CapacityTrial:
    """One replay: requests a second, the fleet, whether it kept the objective and why not.

    `kept_probability` [1] is that of endless traffic of this kind, by the draw of the requests alone.
    """

    rate_per_s: float
    deployments: tuple[Deployment, ...]
    kept: bool
    missed: str = ""
    metrics: Metrics | None = None  # None where the replay was stopped
    kept_probability: float | None = None

    @property
    def devices(self) -> int:
        """Devices of the fleet [1]."""
        return sum(all_devices(one) for one in self.deployments)


@dataclass(kw_only=True)
class CapacityQuestion:
    """Replays of one fleet's shapes under one objective; engines, tables and answers are kept."""

    model: Model
    machine: Machine
    objective: Objective
    traffic_at: Callable[[float], Traffic]  # of a rate [1/s]
    operation: Operation
    of: str = "requests"  # what comes at a rate; or sessions, of several requests each
    told: Callable[[str], None] = lambda _: None
    replays: int = 0
    _engines: dict[Deployment, Engine] = field(default_factory=dict)
    _tables: dict[tuple[Deployment, int, int], StepTables] = field(default_factory=dict)

    def made(self, fleet: Sequence[Deployment], traffic: Traffic) -> tuple[list[Engine], list[StepTables]]:
        """Engines and tables of a fleet; raises where one will not start."""
        longest = int(traffic.prompt_tokens.max()), int((traffic.prompt_tokens + traffic.output_tokens).max())
        engines, tables = [], []
        for one in fleet:
            shape = replace(one, instances=1)
            if shape not in self._engines:
                asked = self.operation
                self._engines[shape] = engine(
                    self.model, self.machine, shape, policies=asked.policies, offline=asked.offline
                )
            made = self._engines[shape]
            if (shape, *longest) not in self._tables:
                self._tables[shape, *longest] = tables_of([made], traffic)[0]
            engines.append(made.placed(one))
            tables.append(self._tables[shape, *longest])
        return engines, tables

    def bound_per_s(self, fleet: Sequence[Deployment], rate_per_s: float) -> float:
        """The closed form's highest rate for a fleet and the lengths that come at a rate [1/s]."""
        traffic = self.traffic_at(rate_per_s)
        each = traffic.requests / int((traffic.after < 0).sum()) if self.of == "sessions" else 1.0
        return most_requests_per_s(*self.made(fleet, traffic), traffic) / each

    def replayed(self, fleet: Sequence[Deployment], traffic: Traffic, stop: Stop | None = None) -> Replay:
        """A replay of a fleet, with `stop` to where its objective is certainly missed."""
        self.replays += 1
        asked = self.operation
        return replay_tables(
            *self.made(fleet, traffic), traffic, router=asked.router, fleet_events=asked.fleet_events,
            fronts=asked.fronts, stop=stop,
        )  # fmt: skip

    def tried(self, fleet: tuple[Deployment, ...], rate_per_s: float) -> CapacityTrial:
        """Whether a fleet keeps the objective at a rate; an overloaded one does not, however long its queue is yet."""
        traffic = self.traffic_at(rate_per_s)
        self.told(f"{rate_per_s:.4g} {self.of}/s on {sum(map(all_devices, fleet))} devices")
        stop = Stop.at(self.objective, traffic.requests)
        found = self.replayed(fleet, traffic, replace(stop, most_s=_BEYOND * float(traffic.arrival_s[-1]) + _BEYOND_S))
        if found.stopped:
            return CapacityTrial(rate_per_s=rate_per_s, deployments=fleet, kept=False, missed=STOPPED)
        metrics = measure(found, traffic, self.objective)
        missed = missed_bounds(self.objective, metrics)
        return CapacityTrial(
            rate_per_s=rate_per_s,
            deployments=fleet,
            kept=not missed,
            missed=missed,
            metrics=metrics,
            kept_probability=probability_kept(found, self.objective),
        )

    def why(self, one: CapacityTrial) -> str:
        """What a trial missed, replayed to its end where it was stopped."""
        if one.missed != STOPPED:
            return one.missed
        traffic = self.traffic_at(one.rate_per_s)
        return missed_bounds(self.objective, measure(self.replayed(one.deployments, traffic), traffic, self.objective))


def missed_bounds(objective: Objective, metrics: Metrics) -> str:
    """The bounds that are missed with what came out, the farthest first; '' where all is kept."""
    found: list[tuple[float, str]] = []
    attained = metrics.attained
    if attained is not None and attained < objective.least_share:
        for name, most_s in objective.bounds.items():
            p99 = getattr(metrics, name.removesuffix("_s")).p99
            label = f"{NAMES[name.removesuffix('_s')]} {p99:.3g} s of the slowest 1 % (at most {most_s:g} s)"
            found += [(p99 / most_s, label)] if p99 > most_s else []
        found.append((0.0, f"{attained:.1%} of requests keep to all bounds ({objective.least_share:.0%} must)"))
    for value, bound in zip(metrics.at_percentiles, objective.percentiles, strict=True):
        if value > bound.most_s:
            found.append((value / bound.most_s, f"{bound.text} {value:.3g} s (at most {bound.most_s:g} s)"))
    good = metrics.requests_per_s if metrics.goodput_rps is None else metrics.goodput_rps
    if objective.least_goodput_rps is not None and good < objective.least_goodput_rps:
        found.append((1.0, f"goodput {good:.3g}/s (at least {objective.least_goodput_rps:g}/s)"))
    told = [text for _, text in sorted(found, key=lambda one: -one[0])]
    return "; ".join([*told, *([f"overloaded: {metrics.overloaded}"] if metrics.overloaded else [])])


@dataclass(frozen=True, kw_only=True)
class RateFound:
    """The highest rate that keeps an objective, the next of the grid, and the closed form's most [1/s]."""

    best: CapacityTrial
    beyond: CapacityTrial | None  # which does not keep it; None where the closed form rules it out
    beyond_per_s: float
    bound_per_s: float


def grid_rate(place: int) -> float:
    """A rate of the grid [1/s].

    >>> grid_rate(0), grid_rate(64)
    (1.0, 2.0)
    """
    return float(2.0 ** (place / STEPS_AN_OCTAVE))


def highest_rate(on: CapacityQuestion, fleet: tuple[Deployment, ...]) -> RateFound:
    """The highest rate of the grid at which a fleet keeps the objective, by halving; raises `NoPlanError` at none."""
    longest = math.log2(max(float(on.traffic_at(1.0).arrival_s[-1]), 1.0) / _LONGEST_S)
    low, high = math.ceil(max(_LOW, longest)) * STEPS_AN_OCTAVE, _HIGH * STEPS_AN_OCTAVE
    bound = on.bound_per_s(fleet, 1.0)
    best, beyond = on.tried(fleet, grid_rate(low)), None
    if not best.kept:
        raise NoPlanError(f"no rate keeps the objective, however few requests come: {on.why(best)}")
    while high - low > 1:
        middle = (low + high) // 2
        trial = on.tried(fleet, grid_rate(middle)) if grid_rate(middle) <= bound else None
        if trial is not None and trial.kept:
            low, best = middle, trial
        else:
            high, beyond = middle, trial
    if beyond is not None:
        beyond = replace(beyond, missed=on.why(beyond))
    return RateFound(best=best, beyond=beyond, beyond_per_s=grid_rate(high), bound_per_s=bound)


@dataclass(frozen=True, kw_only=True)
class DevicesFound:
    """The fewest devices that keep an objective, fleets of one instance less, and the least by closed form."""

    best: CapacityTrial
    less: tuple[CapacityTrial, ...]
    least_devices: int


def fewest_devices(on: CapacityQuestion, fleet: tuple[Deployment, ...], rate_per_s: float) -> DevicesFound:
    """The fewest devices of a fleet's shapes that keep the objective at a rate; raises `NoPlanError` where none does.

    `fleet` has as many instances of each shape as may be had. One shape is halved over; of two every least number of
    the second for a number of the first is walked along, which takes no more replays than instances of both.
    """
    whole = on.tried(fleet, rate_per_s)
    if not whole.kept:
        raise NoPlanError(
            f"all {whole.devices} devices do not keep the objective at {rate_per_s:.3g} requests/s: {on.why(whole)}"
        )
    tried: dict[tuple[int, ...], CapacityTrial] = {tuple(one.instances for one in fleet): whole}

    def kept(counts: tuple[int, ...]) -> bool:
        some = tuple(replace(one, instances=count) for one, count in zip(fleet, counts, strict=True) if count)
        if counts not in tried and on.bound_per_s(some, rate_per_s) < rate_per_s:
            return False
        if counts not in tried:
            tried[counts] = on.tried(some, rate_per_s)
        return tried[counts].kept

    reached = list(_halved(fleet, kept) if len(fleet) == 1 else least_of_two(fleet, kept))
    best = min((tried[counts] for counts in reached), key=lambda one: one.devices)
    counts = next(counts for counts in reached if tried[counts] is best)
    less = [replace(one, missed=on.why(one)) for one in _neighbours(counts, tried)]
    sizes = [all_devices(replace(one, instances=1)) for one in fleet]
    traffic = on.traffic_at(rate_per_s)
    made = zip(*on.made(fleet, traffic), strict=True)
    least = least_devices([(one, least_work(one, tables, traffic)) for one, tables in made], rate_per_s) or min(sizes)
    whole_instances = -(-least // sizes[0]) * sizes[0] if len(fleet) == 1 else least
    return DevicesFound(best=best, less=tuple(less), least_devices=whole_instances)


def _halved(fleet: Sequence[Deployment], kept: Callable[[tuple[int, ...]], bool]) -> Iterator[tuple[int, ...]]:
    low, high = 0, fleet[0].instances
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if kept((middle,)) else (middle, high)
    yield (high,)


def least_of_two(fleet: Sequence[Deployment], kept: Callable[[tuple[int, ...]], bool]) -> Iterator[tuple[int, ...]]:
    """Fleets of two shapes that keep the objective and would not with one instance less of the second."""
    first, second = (one.instances for one in fleet)
    pools = fleet[0].role is not fleet[1].role
    count = second
    for many in range(first, 0 if pools else -1, -1):
        if many < first and not kept((many, count)):
            while count < second and not kept((many, count)):
                count += 1
            if not kept((many, count)):
                return
        while count > (1 if pools else 0) and many + count > 1 and kept((many, count - 1)):
            count -= 1
        yield many, count


def _neighbours(counts: tuple[int, ...], tried: dict[tuple[int, ...], CapacityTrial]) -> Iterator[CapacityTrial]:
    """Replays of one instance less of a shape."""
    for place in range(len(counts)):
        less = tuple(count - (place == other) for other, count in enumerate(counts))
        if less in tried:
            yield tried[less]


@dataclass(frozen=True, kw_only=True)
class Tightest:
    """The least that one bound may be, the others as they are [s], and half its 80 % interval by the draw.

    `alone_s` is infinite where the other bounds are missed whatever this one is.
    """

    name: str  # as a person writes it
    text: str
    asked_s: float
    alone_s: float
    half_s: float | None


@dataclass(frozen=True, kw_only=True)
class ObjectiveFound:
    """The tightest objective that a fleet keeps: the factor that all bounds may be scaled by together [1], and each."""

    factor: float
    bounds: tuple[Tightest, ...]
    trial: CapacityTrial

    def scaled(self, objective: Objective) -> Objective:
        """The objective with every latency's bound times the factor."""
        return scaled(objective, self.factor)


def scaled(objective: Objective, factor: float) -> Objective:
    """An objective with every bound of a latency times a factor."""
    bounds = {name: bound * factor for name, bound in objective.bounds.items()}
    percentiles = tuple(replace(one, most_s=one.most_s * factor) for one in objective.percentiles)
    return replace(objective, percentiles=percentiles, **bounds)


def tightest_objective(on: CapacityQuestion, fleet: tuple[Deployment, ...], rate_per_s: float) -> ObjectiveFound:
    """The tightest bounds that a fleet keeps under its traffic, by one replay: order statistics of its latencies.

    Raises `NoPlanError` where too many requests never end for any bound to be kept, or the fleet is overloaded.
    """
    traffic, goal = on.traffic_at(rate_per_s), on.objective
    on.told(f"{traffic.requests:,} requests")
    found = on.replayed(fleet, traffic)
    metrics = measure(found, traffic, goal)
    ratio = np.zeros(len(found.done))
    for name, most in goal.bounds.items():
        ratio = np.maximum(ratio, _of_each(found, name) / most)
    at = [value / one.most_s for value, one in zip(metrics.at_percentiles, goal.percentiles, strict=True)]
    factor = max([_least_kept(ratio, goal.least_share), *at])
    if metrics.overloaded or not math.isfinite(factor):
        why = f"overloaded: {metrics.overloaded}" if metrics.overloaded else "too many requests are refused"
        raise NoPlanError(f"no objective is kept at this traffic: {why}")
    each = [_alone(found, goal, name) for name in goal.bounds]
    for value, one in zip(metrics.at_percentiles, goal.percentiles, strict=True):
        half = None if one.metric == "itl" else half_width_of(found, partial(at_percentile, one=one))
        each.append(Tightest(name=one.key, text=one.text, asked_s=one.most_s, alone_s=value, half_s=half))
    looser = scaled(goal, factor)
    trial = CapacityTrial(
        rate_per_s=rate_per_s, deployments=fleet, kept=True, metrics=measure(found, traffic, looser),
        kept_probability=probability_kept(found, looser),
    )  # fmt: skip
    return ObjectiveFound(factor=factor, bounds=tuple(each), trial=trial)


def _of_each(found: Replay, name: str) -> Array:
    """A latency of each request [s]: infinite of one that did not end, 0 where there is none."""
    values = latencies(found)[("ttft_s", "tpot_s", "latency_s").index(name)]
    return np.where(found.done, np.nan_to_num(values, nan=0.0), np.inf)


def _least_kept(values: Array, share: float) -> float:
    """The least value that the share of all are at or below."""
    needed = max(1, math.ceil(share * len(values) - 1e-9))
    return float(np.sort(values)[needed - 1])


def _alone(found: Replay, goal: Objective, name: str) -> Tightest:
    """The least bound of one latency of every request, the others as they are."""

    def least(part: Replay) -> float:
        others = np.ones(len(part.done), dtype=bool)
        for other, most in goal.bounds.items():
            others &= (_of_each(part, other) <= most) | (other == name)
        return _least_kept(np.where(others, _of_each(part, name), np.inf), goal.least_share)

    metric = name.removesuffix("_s")
    text = f"{NAMES[metric]} of {goal.least_share:.4g} of requests"
    return Tightest(
        name=metric, text=text, asked_s=goal.bounds[name], alone_s=least(found), half_s=half_width_of(found, least)
    )
