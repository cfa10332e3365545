"""Traffic drawn from laws: arrivals and lengths put together; lengths drawn anew from a trace."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from ridgeline.serving.traffic.arrivals import SEED, burst
from ridgeline.serving.traffic.lengths import LengthLaw
from ridgeline.serving.traffic.traffic import Traffic, traffic


def synthetic(
    arrival_s: ArrayLike, prompt: LengthLaw, output: LengthLaw, *, seed: int = SEED, name: str = "synthetic"
) -> Traffic:
    """Requests at given times with prompt and answer lengths drawn apart from each other.

    Prompts and answers have streams of their own: another law of answers leaves the prompts as they are.
    """
    times = np.asarray(arrival_s, dtype=np.float64)
    prompts, outputs = _streams(seed, 2)
    return traffic(
        times, prompt.draw(prompts, len(times)), output.draw(outputs, len(times)), name=name, source=f"seed {seed}"
    )


def closed_loop(concurrency: int, requests: int, prompt: LengthLaw, output: LengthLaw, *, seed: int = SEED) -> Traffic:
    """Requests of which at most `concurrency` are in flight; the next starts when one ends."""
    name = f"closed loop of {concurrency}"
    return synthetic(burst(requests), prompt, output, seed=seed, name=name).closed(concurrency)


def resampled(seen: Traffic, arrival_s: ArrayLike, *, seed: int = SEED) -> Traffic:
    """Requests at given times whose lengths are pairs drawn with replacement from another traffic.

    A prompt keeps the answer that it had; prefixes and sessions are left out, since they belong to an order.
    """
    times = np.asarray(arrival_s, dtype=np.float64)
    (rng,) = _streams(seed, 1)
    chosen = rng.integers(0, seen.requests, len(times))
    return traffic(
        times,
        seen.prompt_tokens[chosen],
        seen.output_tokens[chosen],
        client=seen.client[chosen],
        client_names=seen.client_names,
        priority=seen.priority[chosen],
        name=f"lengths of {seen.name}",
        source=f"{seen.source}; seed {seed}",
    )


def _streams(seed: int, count: int) -> list[np.random.Generator]:
    # The root sequence of the seed drives the arrivals; its children are independent of it.
    return [np.random.default_rng(child) for child in np.random.SeedSequence(seed).spawn(count)]
