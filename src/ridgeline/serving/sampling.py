"""How far what a replay tells may be from endless traffic of its kind, as it has so many requests and no more.

Requests that follow each other share queues and batches, so they are no independent draws. They are cut in order into
K = 10 sections, and each says the same quantity by itself (sectioning: asmussen-glynn of data/sources.bib;
batch means where it is a mean; 8 to 10 are enough, more than 30 gain little: schmeiser-batches):

    half width = t sqrt(sum_k (v_k - v)^2 / (K (K - 1)))

with v of all requests and t = 1.383, the 90th percentile of Student's law of K - 1 degrees of freedom: 80 % two-sided.
A batch or a queue that is there from the start is asked for as it is: nothing of its order is drawn.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from ridgeline.serving.metrics import Metrics, Quantiles, kept_to, latencies, quantiles
from ridgeline.serving.objective import Objective
from ridgeline.serving.replay import Replay
from ridgeline.serving.state import Array, Whole
from ridgeline.serving.traffic.traffic import Traffic

SECTIONS = 10
_STUDENT = 1.383  # by definition P(T < t) = 0.9, 9 degrees of freedom
_BY_REQUEST = (
    "came_s",
    "first_s",
    "end_s",
    "prompt",
    "output",
    "done",
    "refused",
    "hit_tokens",
    "preempted",
    "served_by",
)
_FEWEST = 2 * SECTIONS  # requests; of fewer nothing is told


@dataclass(frozen=True, kw_only=True)
class SamplingBands:
    """Half widths of 80 % intervals, each in the unit of what it belongs to; 0 where a quantity is asked for itself."""

    ttft: Quantiles
    tpot: Quantiles
    latency: Quantiles
    requests_per_s: float
    output_tokens_per_s: float
    attained: float | None
    requests: int


def sampling(found: Replay, traffic: Traffic, metrics: Metrics, objective: Objective) -> SamplingBands | None:
    """The half widths of a replay's metrics; None where nothing is drawn, or too few requests ended."""
    done = np.flatnonzero(found.done)
    at_once = traffic.concurrency is None and traffic.arrival_s[-1] <= 0.0
    if at_once or len(done) < _FEWEST:
        return None
    order = done[np.argsort(found.came_s[done], kind="stable")]
    ttft, tpot, latency = (_of_quantiles(values[order]) for values in latencies(found))
    requests, tokens = _of_rates(found, metrics, order)
    return SamplingBands(
        ttft=ttft,
        tpot=tpot,
        latency=latency,
        requests_per_s=requests,
        output_tokens_per_s=tokens,
        attained=_mean(kept_to(found, objective).astype(np.float64)) if objective.bounds else None,
        requests=len(done),
    )


def half_width(parts: Array, whole: float) -> float:
    """Half the 80 % interval of what all requests say, from what each section says, in its unit."""
    return float(_STUDENT * np.sqrt(((parts - whole) ** 2).sum() / (SECTIONS * (SECTIONS - 1))))


def widened(value: float, ends: tuple[float, float], half: float) -> tuple[float, float]:
    """The ends of an interval of times that are uncertain and of so many requests, both independent.

    ln(high / v)^2 = ln(end / v)^2 + ln(1 + half / v)^2, and so downwards.

    >>> low, high = widened(10.0, (5.0, 20.0), 0.0)
    >>> round(low, 9), round(high, 9)
    (5.0, 20.0)
    >>> [round(end, 3) for end in widened(10.0, (10.0, 10.0), 10.0)]
    [5.0, 20.0]
    """
    low, high = ends
    if not half > 0.0:
        return ends
    if min(value, low) <= 0.0:
        return max(0.0, low - half), high + half
    own = math.log1p(half / value)
    up, down = math.hypot(math.log(high / value), own), math.hypot(math.log(value / low), own)
    return value * math.exp(-down), value * math.exp(up)


def widened_share(value: float, ends: tuple[float, float], half: float) -> tuple[float, float]:
    """The same for a share between 0 and 1, by squares of distances [1]."""
    low, high = ends
    return max(0.0, value - math.hypot(value - low, half)), min(1.0, value + math.hypot(high - value, half))


def _mean(values: Array) -> float:
    """Half width of a mean of values in order, in its unit."""
    return half_width(np.array([part.mean() for part in np.array_split(values, SECTIONS)]), float(values.mean()))


def _of_quantiles(values: Array) -> Quantiles:
    """Half widths of the mean and the quantiles of a latency [s]."""
    parts, whole = [quantiles(part) for part in np.array_split(values, SECTIONS)], quantiles(values)
    names = [field.name for field in fields(Quantiles)]
    each = {name: np.array([getattr(part, name) for part in parts]) for name in names}
    return Quantiles(**{name: half_width(said, getattr(whole, name)) for name, said in each.items()})


def _of_rates(found: Replay, metrics: Metrics, order: Whole) -> tuple[float, float]:
    """Half widths of requests and output tokens a second [1/s].

    A steady load has the rate that was asked, and tokens as its answers are long; else sections of ends in order, each
    over its own time.
    """
    if metrics.steady:
        return 0.0, _mean(found.output[order].astype(np.float64)) * metrics.requests_per_s
    last = order[np.argsort(found.end_s[order], kind="stable")]
    cuts = np.linspace(0, len(last), SECTIONS + 1).astype(int)
    begun = float(np.min(found.came_s[order]))
    took = np.maximum(np.diff(found.end_s[last][cuts[1:] - 1], prepend=begun), 1e-12)
    tokens = np.add.reduceat(found.output[last], cuts[:-1])
    return (
        half_width(np.diff(cuts) / took, metrics.requests_per_s),
        half_width(tokens / took, metrics.output_tokens_per_s),
    )


@dataclass(frozen=True, kw_only=True)
class RequestShare:
    """One group of requests: how many, how many of them ended, tokens of those, and what they waited [s]."""

    name: str
    requests: int
    done: int
    prompt_tokens: int
    output_tokens: int
    ttft: Quantiles
    tpot: Quantiles


def client_shares(found: Replay, traffic: Traffic) -> tuple[RequestShare, ...]:
    """What each client got, the most requests first."""
    names = traffic.client_names if (traffic.client >= 0).any() else ()
    owner = traffic.client if names else traffic.session
    return _shares(found, owner, dict(enumerate(names)), "nobody's")


def priority_shares(found: Replay, traffic: Traffic) -> tuple[RequestShare, ...]:
    """What the requests of each priority got, the most urgent first."""
    return tuple(sorted(_shares(found, traffic.priority, {}, ""), key=lambda one: int(one.name)))


def _shares(found: Replay, groups: Whole, names: dict[int, str], none: str) -> tuple[RequestShare, ...]:
    shares = []
    for group in np.unique(groups):
        mine = groups == group
        done = mine & found.done
        gaps = np.where(done & (found.output > 1), found.output - 1, np.nan)
        shares.append(
            RequestShare(
                name=none if none and group < 0 else names.get(int(group), str(group)),
                requests=int(mine.sum()),
                done=int(done.sum()),
                prompt_tokens=int(found.prompt[done].sum()),
                output_tokens=int(found.output[done].sum()),
                ttft=quantiles((found.first_s - found.came_s)[done]),
                tpot=quantiles((found.end_s - found.first_s) / gaps),
            )
        )
    return tuple(sorted(shares, key=lambda one: -one.requests))


def probability_kept(found: Replay, objective: Objective) -> float | None:
    """The probability that endless traffic of this kind keeps each bound of an objective, of the least likely one [1].

    A bound is kept where the share s of requests within it is at least what it asks, q. With k of N requests within it,

        P = T_9((s' - q) / max(half / 1.383, sqrt(s' (1 - s') / (N + 3)))),   s' = (k + 1) / (N + 2)

    T_9 the law of Student of 9 degrees of freedom, half the half width of the share by sections, and Laplace's rule of
    succession, which stays uncertain where no request misses. Means, ITL and goodput are left out. None of fewer than
    20 requests, or where no bound is left.
    """
    order = np.flatnonzero(found.done | found.refused)
    order = order[np.argsort(found.came_s[order], kind="stable")]
    if len(order) < _FEWEST:
        return None
    asked = [(kept_to(found, objective), objective.least_share)] if objective.bounds else []
    for one in objective.percentiles:
        if one.share is not None and one.metric != "itl":
            asked.append((kept_to(found, Objective.of({f"{one.metric}_s": one.most_s})), one.share))
    return min((_probability(kept[order].astype(np.float64), least) for kept, least in asked), default=None)


def half_width_of(found: Replay, value: Callable[[Replay], float]) -> float | None:
    """Half the 80 % interval of what a replay's requests say, by sections in order of arrival, in the value's unit.

    None of fewer than 20 requests, or where a section says nothing finite.
    """
    order = np.flatnonzero(found.done | found.refused)
    if len(order) < _FEWEST:
        return None
    order = order[np.argsort(found.came_s[order], kind="stable")]
    parts = np.array([value(_of_requests(found, part)) for part in np.array_split(order, SECTIONS)])
    whole = value(found)
    return half_width(parts, whole) if np.isfinite([whole, *parts]).all() else None


def _of_requests(found: Replay, chosen: Whole) -> Replay:
    """Some requests of a replay; what is of the whole of it stays."""
    some: dict[str, Any] = {name: getattr(found, name)[chosen] for name in _BY_REQUEST}
    return replace(found, **some)


def _probability(kept: Array, least: float) -> float:
    share = (float(kept.sum()) + 1.0) / (len(kept) + 2.0)
    error = max(_mean(kept) / _STUDENT, math.sqrt(share * (1.0 - share) / (len(kept) + 3.0)))
    return student_9((share - least) / error)


def student_9(value: float) -> float:
    """The law of Student of 9 degrees of freedom [1], its finite series (Abramowitz and Stegun 26.7.3).

    >>> round(student_9(1.383), 3), round(student_9(0.0), 3)
    (0.9, 0.5)
    """
    angle = math.atan(value / 3.0)
    cosine = math.cos(angle) ** 2
    series = 1.0 + cosine * (2.0 / 3.0 + cosine * (8.0 / 15.0 + cosine * 16.0 / 35.0))
    return 0.5 + (angle + math.sin(angle) * math.cos(angle) * series) / math.pi
