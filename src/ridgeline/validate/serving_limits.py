"""How fast service is where a benchmark's load is the highest that keeps to its limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ridgeline.plan.deployment import Router
from ridgeline.serving.ends import replay_at
from ridgeline.serving.engine import Engine
from ridgeline.serving.metrics import Metrics, Objective, measure
from ridgeline.serving.replay import Replay
from ridgeline.serving.step import StepTables
from ridgeline.serving.stopping import Stop
from ridgeline.serving.traffic.traffic import Traffic

FARTHEST = 2.0  # place of a time's 99 % interval, where 1 is the end of the 80 % one
RATE_WITHIN, RATE_BELOW = 0.1, 0.2
"""Shares of the highest load that a submitted one mostly and at most lies below it [1]; assumed. The loads that
submitters of MLPerf Inference v4.1 chose with one program for Llama 2 70B lie within 7 % on eight H100, 71.3 to 76.5
requests/s, and up to 20 % below NVIDIA's own target on H100 NVL, 40 to 50 for eight (mlperf-results-v41)."""
_HALVINGS = 7
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
        return (
            f"load taken as within {RATE_WITHIN:.0%} of the highest that keeps to the benchmark's limits: times at"
            f" {self.place:+.2f} of their interval, whose ends are -1 and 1 (assumed: the result is that highest load)"
        )


def loaded(
    engines: Sequence[Engine], tables: Sequence[StepTables], traffic: Traffic, limits: Objective
) -> Loaded | None:
    """What the load of a benchmark tells of its service times; None where it tells nothing.

    The benchmark's result is the highest rate at which 99 % of requests keep to each limit. Service times are put
    where the traffic's rate is just that: at the last place of their 99 % interval at which the limits hold. A load
    that is lower by a share is the highest at times shorter by as much, so times are divided by one and half of what it
    mostly is, at the low end by one and what it is at most. At the high end limits bind. None where limits hold however
    slow service is.
    """

    def kept(place: float) -> bool:
        stop = Stop(**vars(limits), least=_LEAST)
        found = replay_at(engines, tables, traffic, [place] * len(engines), router=Router.LEAST_LOADED, stop=stop)
        return not found.stopped and within(measure(found, traffic), limits)

    place = last_place(kept)
    if place is None:
        return None

    def at(factor: float) -> Replay:
        return replay_at(engines, tables, traffic, [place] * len(engines), router=Router.LEAST_LOADED, factor=factor)

    return Loaded(place=place, replay=at(1.0 / (1.0 + RATE_WITHIN / 2)), ends=(at(1.0 / (1.0 + RATE_BELOW)), at(1.0)))


def last_place(kept: Callable[[float], bool]) -> float | None:
    """The last place at which something that ends once is so; the first place if nowhere, None if everywhere."""
    if kept(0.0):
        low, high = 0.0, FARTHEST
        if kept(FARTHEST):
            return None
    else:
        low, high = -FARTHEST, 0.0
        if not kept(-FARTHEST):
            return -FARTHEST
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if kept(middle) else (low, middle)
    return low


def within(metrics: Metrics, limits: Objective) -> bool:
    """Whether 99 % of requests keep to each limit."""
    found = {"ttft_s": metrics.ttft.p99, "tpot_s": metrics.tpot.p99, "latency_s": metrics.latency.p99}
    return not metrics.overloaded and all(
        np.isnan(found[name]) or found[name] <= bound for name, bound in vars(limits).items() if bound is not None
    )
