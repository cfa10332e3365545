"""Which layers run on which stage: even, balanced with the two ends counted, or as the plan says."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ridgeline.errors import PlanError
from ridgeline.plan.rules import most_places


def even_split(layers: int, positions: int) -> tuple[int, ...]:
    """Layers of each place in the chain, as even as whole layers allow [1].

    When they do not divide, the places with fewer layers are the last (which also holds the head),
    then the first (which holds the embedding), then the rest from the end. These two may hold no layer, as where
    Llama 3 405B ran its 126 layers on 128 places (arXiv:2407.21783, section 3.3.2). Raises `PlanError` beyond that.
    """
    if layers < 1 or positions > most_places(layers):
        raise PlanError(
            f"plan: {layers} layers over {positions} pipeline places (pp x chunks) leaves some empty;"
            f" use at most {most_places(layers)}"
        )
    base, extra = divmod(layers, positions)
    order = [*range(1, positions - 1), 0, positions - 1] if positions > 1 else [0]
    counts = [base] * positions
    for place in order[:extra]:
        counts[place] += 1
    return tuple(counts)


def balanced_split(
    layer_seconds: Sequence[float], positions: int, *, first_seconds: float, last_seconds: float
) -> tuple[int, ...]:
    """Contiguous layers of each place such that the slowest place is as fast as possible [1].

    The embedding weighs `first_seconds` on the first place, the head `last_seconds` on the last.
    Exact: a bisection on the slowest place, each step a greedy fill, which is optimal for contiguous
    parts. Every place gets one layer at least; where there are fewer layers than places, `even_split` has the only way.
    """
    count = len(layer_seconds)
    if count < positions:
        return even_split(count, positions)
    total = np.concatenate(([0.0], np.cumsum(layer_seconds)))
    low = max(max(layer_seconds), total[-1] / positions)
    high = float(total[-1]) + first_seconds + last_seconds
    ends = total.tolist()  # plain numbers are quicker to look up one by one
    best = _fill(ends, positions, high, first_seconds, last_seconds)
    for _ in range(50):
        middle = (low + high) / 2
        found = _fill(ends, positions, middle, first_seconds, last_seconds)
        if found is None:
            low = middle
        else:
            best, high = found, middle
    if best is None:
        return even_split(count, positions)
    smooth = _by_share(total, positions, first_seconds, last_seconds)
    candidates = [found for found in (smooth, best) if min(found) > 0]
    return min(candidates, key=lambda found: _spread(found, total, first_seconds, last_seconds))


def _by_share(total: NDArray[np.float64], positions: int, first_seconds: float, last_seconds: float) -> tuple[int, ...]:
    """Cut where the running time passes equal shares of the whole, the ends' extra weight included."""
    whole = first_seconds + total[-1] + last_seconds
    wanted = whole * np.arange(1, positions) / positions - first_seconds
    cuts = np.searchsorted((total[1:] + total[:-1]) / 2, wanted, side="left")
    return tuple(int(n) for n in np.diff(np.concatenate(([0], cuts, [len(total) - 1]))))


def _spread(
    counts: tuple[int, ...], total: NDArray[np.float64], first_seconds: float, last_seconds: float
) -> tuple[float, float]:
    """Slowest place, to a millionth, then the sum of squares: of equally slow splits the smoother wins."""
    places = np.diff(total[np.concatenate(([0], np.cumsum(counts)))])
    places[0] += first_seconds
    places[-1] += last_seconds
    slowest = float(places.max())
    return float(f"{slowest:.6e}"), float((places**2).sum())


def _fill(
    total: list[float], positions: int, limit: float, first_seconds: float, last_seconds: float
) -> tuple[int, ...] | None:
    """Fill places from the end, each up to `limit`, so that the ends' extra weight is met; None if not enough."""
    counts: list[int] = []
    end = len(total) - 1
    for place in reversed(range(positions)):
        extra = (last_seconds if place == positions - 1 else 0.0) + (first_seconds if place == 0 else 0.0)
        start = bisect_left(total, total[end] - (limit - extra) - 1e-15)
        start = min(max(start, place), end - 1)  # one layer here, and one left for each earlier place
        if total[end] - total[start] + extra > limit * (1 + 1e-12):
            return None
        counts.append(end - start)
        end = start
    return tuple(reversed(counts)) if end == 0 else None
