"""How fast service is where a benchmark's load is the highest that keeps to its limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ridgeline.facts.mechanisms import constant
from ridgeline.plan.deployment import Router
from ridgeline.serving.ends import replay_at
from ridgeline.serving.engine import Engine
from ridgeline.serving.metrics import Metrics, Objective, measure
from ridgeline.serving.replay import Replay
from ridgeline.serving.step import StepTables
from ridgeline.serving.stopping import Stop
from ridgeline.serving.traffic.traffic import Traffic

FARTHEST = 2.0  # place of a time's 99 % interval, where 1 is the end of the 80 % one
_HALVINGS, _END_HALVINGS = 7, 5
_LEAST = 0.96  # of all requests keep to every bound, or a replay has certainly missed one of three in 99 %


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """Replays at the service times that a load tells of: middle, ends, and the place in their interval [1]."""

    place: float
    replay: Replay
    ends: tuple[Replay, Replay]

    @property
    def said(self) -> str:
        """What was concluded, in words."""
        tokens, whole = (constant(f"load.{name}_limit_share") for name in ("token", "request"))
        return (
            "load taken as near the highest that keeps to the benchmark's limits as in results of another round (p99 at"
            f" {tokens:.0%} of limits on tokens, {whole:.0%} of one on whole requests): times at {self.place:+.2f} of"
            " their interval, whose ends are -1 and 1"
        )


def loaded(
    engines: Sequence[Engine], tables: Sequence[StepTables], traffic: Traffic, limits: Objective
) -> Loaded | None:
    """What the load of a benchmark tells of its service times; None where it tells nothing.

    The benchmark's result is the highest rate at which 99 % of requests keep to each limit, and submitters search for
    it by the p99 that they see (AMD's published tuner: `target_qps` in steps of 0.1, p99 as near to both limits as can
    be). Service times are put where the traffic's p99 comes as near to a limit as in results of another round
    (`load.token_limit_share`, `load.request_limit_share`): at the last place of their 99 % interval at which it does
    not exceed that. The ends are where it comes as near as in the farthest and the nearest of these results. None where
    such limits hold however slow service is.
    """

    def keeps(end: str) -> Callable[[float], bool]:
        bounds = nearer(limits, end)

        def kept(place: float) -> bool:
            stop = Stop(**vars(bounds), least=_LEAST)
            found = replay_at(engines, tables, traffic, [place] * len(engines), router=Router.LEAST_LOADED, stop=stop)
            return not found.stopped and within(measure(found, traffic), bounds)

        return kept

    place = last_place(keeps(""))
    if place is None:
        return None
    places = (
        halved(keeps(".low"), -FARTHEST, place, _END_HALVINGS),
        place,
        halved(keeps(".high"), place, FARTHEST, _END_HALVINGS),
    )
    low, middle, high = (
        replay_at(engines, tables, traffic, [one] * len(engines), router=Router.LEAST_LOADED) for one in places
    )
    return Loaded(place=place, replay=middle, ends=(low, high))


def nearer(limits: Objective, end: str = "") -> Objective:
    """The limits times the share that p99 reaches of them in submitted results: median, '.low' or '.high' end [s]."""
    tokens, whole = (constant(f"load.{name}_limit_share{end}") for name in ("token", "request"))
    shares = {"ttft_s": tokens, "tpot_s": tokens, "latency_s": whole}
    return Objective(**{name: None if bound is None else shares[name] * bound for name, bound in vars(limits).items()})


def last_place(kept: Callable[[float], bool]) -> float | None:
    """The last place at which something that ends once is so; the first place if nowhere, None if everywhere."""
    if kept(0.0):
        return None if kept(FARTHEST) else halved(kept, 0.0, FARTHEST, _HALVINGS)
    return halved(kept, -FARTHEST, 0.0, _HALVINGS) if kept(-FARTHEST) else -FARTHEST


def halved(kept: Callable[[float], bool], low: float, high: float, halvings: int) -> float:
    """The last place found between one at which something is so, or the least there is, and one at which it is not."""
    for _ in range(halvings):
        middle = (low + high) / 2
        low, high = (middle, high) if kept(middle) else (low, middle)
    return low


def within(metrics: Metrics, limits: Objective) -> bool:
    """Whether 99 % of requests keep to each limit."""
    found = {"ttft_s": metrics.ttft.p99, "tpot_s": metrics.tpot.p99, "latency_s": metrics.latency.p99}
    return not metrics.overloaded and all(
        np.isnan(found[name]) or found[name] <= bound for name, bound in vars(limits).items() if bound is not None
    )
