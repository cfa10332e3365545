"""A service-level objective: bounds that each request keeps to, percentiles of latencies, and a least goodput."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ridgeline.units import time_text

ATTAINED = 0.99
"""Share of requests that must keep to an objective for a deployment to count as one that does [1] (a definition).

Source: MLPerf Inference's rules bound the 99th percentile of TTFT and TPOT in the Server scenario."""

NAMES = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "latency": "latency"}
MEAN = "mean"


@dataclass(frozen=True, kw_only=True)
class Percentile:
    """The most that a statistic ('p90', 'p99.9' or 'mean') of a latency may be [s]."""

    metric: str  # of NAMES
    statistic: str
    most_s: float

    @property
    def key(self) -> str:
        """How a person writes it: 'ttft.p99'."""
        return f"{self.metric}.{self.statistic}"

    @property
    def share(self) -> float | None:
        """The share of values at or below it [1]; None of a mean."""
        return None if self.statistic == MEAN else float(self.statistic[1:]) / 100.0

    @property
    def text(self) -> str:
        """In words: 'p99 of TTFT'."""
        return f"{self.statistic} of {NAMES[self.metric]}"


@dataclass(frozen=True, kw_only=True)
class Objective:
    """A service-level objective; None where there is no bound.

    `ttft_s`, `tpot_s` and `latency_s` bound every request [s], and the share `least_share` of requests must keep to
    all of them together [1]. `percentiles` bound statistics over all requests (of ITL over all tokens), and
    `least_goodput_rps` the rate of requests that keep to the bounds [1/s]. All must hold.
    """

    ttft_s: float | None = None
    tpot_s: float | None = None
    latency_s: float | None = None
    percentiles: tuple[Percentile, ...] = ()
    least_share: float = ATTAINED
    least_goodput_rps: float | None = None

    @classmethod
    def of(cls, words: Mapping[str, Any]) -> Objective:
        """The objective that a person said: the fields by name, percentiles as (metric, statistic, seconds)."""
        percentiles = tuple(
            Percentile(metric=metric, statistic=statistic, most_s=most)
            for metric, statistic, most in words.get("percentiles", ())
        )
        return cls(**{**words, "percentiles": percentiles})

    @property
    def bounds(self) -> dict[str, float]:
        """The bounds of every request that are asked for, by name [s]."""
        each = {"ttft_s": self.ttft_s, "tpot_s": self.tpot_s, "latency_s": self.latency_s}
        return {name: bound for name, bound in each.items() if bound is not None}

    @property
    def stated(self) -> bool:
        """Whether anything is asked for."""
        return bool(self.bounds or self.percentiles) or self.least_goodput_rps is not None

    def tightest(self) -> dict[str, float]:
        """The least that any bound or percentile allows a latency of one request, by name [s]; ITL has none."""
        found = self.bounds
        for one in self.percentiles:
            if one.share is not None and one.metric != "itl":
                name = f"{one.metric}_s"
                found[name] = min(found.get(name, one.most_s), one.most_s)
        return found

    def certain_share(self, requests: int) -> float:
        """Share of requests that keep to `tightest` wherever the objective is kept [1].

        A percentile q that is kept leaves fewer than (1 - q) N + 1 of N requests above its bound, the bounds of every
        request (1 - least_share) N; who misses any is at most their sum.
        """
        if not self.percentiles:
            return self.least_share if self.bounds else 0.0
        misses = (1.0 - self.least_share) * requests if self.bounds else 0.0
        for one in self.percentiles:
            if one.share is not None and one.metric != "itl":
                misses += (1.0 - one.share) * requests + 1.0
        return max(0.0, 1.0 - misses / requests) if self.tightest() else 0.0


def objective_text(objective: Objective) -> str:
    """An objective in words."""
    told = [f"{NAMES[name.removesuffix('_s')]} <= {time_text(bound)}" for name, bound in objective.bounds.items()]
    told += [f"{one.text} <= {time_text(one.most_s)}" for one in objective.percentiles]
    if objective.least_goodput_rps is not None:
        told.append(f"goodput >= {objective.least_goodput_rps:g}/s")
    return ", ".join(told)
