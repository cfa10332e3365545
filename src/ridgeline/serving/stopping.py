"""A replay that ends as soon as an objective cannot be met: requests that have certainly missed it, compiled.

A request has missed a bound once its first token, its mean time per token or its end is too late, or would be if it
came now: times only grow, so no later event takes a miss back.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ridgeline.serving.compiling import clocked
from ridgeline.serving.objective import Objective
from ridgeline.serving.state import ENDED, NOT_ARRIVED, REFUSED, Array, Records

TTFT_S, TPOT_S, LATENCY_S, LEAST = range(4)
FOREVER_S = 1e9
EVENTS, A_REQUEST = 64, 16  # between two looks: this many events, or one for so many requests if that is more


@dataclass(frozen=True, kw_only=True)
class Stop:
    """When a replay ends: at `most_s` [s], or once fewer than the share `least` [1] can keep to bounds [s]."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    latency_s: float | None = None
    least: float = 0.0
    most_s: float = FOREVER_S

    @classmethod
    def at(cls, objective: Objective, requests: int, least: float | None = None) -> Stop:
        """Ends where fewer than the share `least` of so many requests [1] can keep to the tightest bounds.

        By default where the objective is certainly missed.
        """
        share = objective.certain_share(requests) if least is None else least
        return cls(**objective.tightest(), least=share)

    def as_array(self) -> Array:
        """As the clock reads it; no bound is infinite."""
        bounds = (self.ttft_s, self.tpot_s, self.latency_s)
        return np.array([*(np.inf if bound is None else bound for bound in bounds), self.least])


@clocked
def certain_misses(requests: Records, stop: Array, now_s: float) -> int:
    """Requests that miss a bound whatever comes after `now_s` [1]."""
    missed = 0
    for index in range(requests.size):
        one = requests[index]
        if one.stage == NOT_ARRIVED:
            continue
        if one.stage == REFUSED:
            missed += 1
            continue
        last_s = one.end_s if one.stage == ENDED else now_s
        first_s = one.first_s if one.first_s >= 0.0 else last_s  # nan until there is one
        late = first_s - one.came_s > stop[TTFT_S] or last_s - one.came_s > stop[LATENCY_S]
        if not late and one.output > 1 and one.first_s >= 0.0:
            late = (last_s - one.first_s) / (one.output - 1) > stop[TPOT_S]
        missed += late
    return missed


@clocked
def hopeless(requests: Records, stop: Array, now_s: float) -> bool:
    """Whether fewer than the least share of all requests can still keep to the bounds."""
    return bool((requests.size - certain_misses(requests, stop, now_s)) / requests.size < stop[LEAST])
