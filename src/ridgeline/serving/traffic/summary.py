"""A traffic in a few numbers: how many, how fast, how long, how bursty, how much is shared."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ridgeline.seams.setting import Lengths, Summary
from ridgeline.serving.traffic.traffic import Traffic


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
