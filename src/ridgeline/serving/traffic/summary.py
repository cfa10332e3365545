"""A traffic in a few numbers: how many, how fast, how long, how bursty, how much is shared."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ridgeline.serving.traffic.traffic import Traffic


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """Lengths of the prompts or answers of a traffic [token]."""

    total: int
    mean: float
    p50: float
    p90: float
    p99: float
    most: int


@dataclass(frozen=True, kw_only=True)
class Summary:
    """A traffic in a few numbers.

    `rate_per_s` is (N - 1) / span, None where all requests arrive at once. `burstiness` [1] is the coefficient of
    variation of the gaps between arrivals: 1 for Poisson, 0 for even spacing. `repeated_share` [1] is the share of
    prefix blocks that an earlier request named: the hit rate of a cache without limit. `waiting` counts requests
    that wait for another one's end.
    """

    requests: int
    span_s: float
    rate_per_s: float | None
    burstiness: float | None
    prompt: Lengths
    output: Lengths
    repeated_share: float | None
    sessions: int
    clients: int
    waiting: int
    dropped: int


def summarize(traffic: Traffic) -> Summary:
    """The summary of a traffic."""
    span = float(traffic.arrival_s[-1] - traffic.arrival_s[0])
    gaps = np.diff(traffic.arrival_s)
    blocks = len(traffic.prefix_blocks)
    return Summary(
        requests=traffic.requests,
        span_s=span,
        rate_per_s=(traffic.requests - 1) / span if span > 0 else None,
        burstiness=float(np.std(gaps) / np.mean(gaps)) if span > 0 else None,
        prompt=_lengths(traffic.prompt_tokens),
        output=_lengths(traffic.output_tokens),
        repeated_share=1 - len(np.unique(traffic.prefix_blocks)) / blocks if blocks else None,
        sessions=_different(traffic.session),
        clients=_different(traffic.client),
        waiting=int(np.count_nonzero(traffic.after >= 0)),
        dropped=len(traffic.dropped),
    )


def _lengths(tokens: NDArray[np.int64]) -> Lengths:
    p50, p90, p99 = (float(value) for value in np.percentile(tokens, (50, 90, 99)))

    total, most = int(tokens.sum()), int(tokens.max())
    return Lengths(total=total, mean=total / len(tokens), p50=p50, p90=p90, p99=p99, most=most)


def _different(ids: NDArray[np.int64]) -> int:
    return len(np.unique(ids[ids >= 0]))
