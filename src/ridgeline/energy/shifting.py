"""When a job of known length runs with the least carbon, on a grid whose hours differ.

Letters: T slots of the window, N slots of work, R slots that a resumed job takes before it works again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class Shifted:
    """Runs as (first slot, slots) in order, and the sum of intensities over all their slots; `at_once` of a job that
    starts in the first slot and is not paused."""

    runs: tuple[tuple[int, int], ...]
    spent: float
    at_once: float


def shifted(intensity: Sequence[float], work: int, *, restart: int = 0, pauses: bool = True) -> Shifted:
    """The slots in which a job of `work` slots is run with the least sum of intensities, all within the window.

    Dynamic programming over (slot, work done, running or paused): no choice of slots has less. A paused job takes
    `restart` slots more, as dear as others, whenever it is resumed.
    Domain: work at least 1 and no longer than the window.
    """
    costs = np.asarray(intensity, dtype=float)
    window = len(costs)
    at_once = float(costs[:work].sum())
    if not pauses:
        sums = np.convolve(costs, np.ones(work), mode="valid")
        first = int(np.argmin(sums))
        return Shifted(runs=((first, work),), spent=float(sums[first]), at_once=at_once)
    total = np.concatenate(([0.0], np.cumsum(costs)))
    running, paused = np.full((window + 1, work + 1), np.inf), np.full((window + 1, work + 1), np.inf)
    resumed, ended = np.zeros(running.shape, bool), np.zeros(running.shape, bool)
    paused[0, 0] = 0.0
    for slot in range(window + 1):
        if slot:
            running[slot, 1:] = running[slot - 1, :-1] + costs[slot - 1]
            paused[slot] = paused[slot - 1]
        resume = np.full(work + 1, np.inf)
        if slot >= restart:
            resume = paused[slot - restart] + (total[slot] - total[slot - restart])
        resume[0] = paused[slot, 0]  # a job that has not begun is not resumed
        resumed[slot] = resume < running[slot]
        running[slot] = np.minimum(running[slot], resume)
        ended[slot] = running[slot] < paused[slot]
        ended[slot, 0] = False
        paused[slot] = np.where(ended[slot], running[slot], paused[slot])
    return Shifted(
        runs=_runs(resumed, ended, window, work, restart), spent=float(paused[window, work]), at_once=at_once
    )


def _runs(
    resumed: NDArray[np.bool_], ended: NDArray[np.bool_], window: int, work: int, restart: int
) -> tuple[tuple[int, int], ...]:
    """The runs of the best choice, read backwards."""
    found: list[tuple[int, int]] = []
    slot, left, stop = window, work, -1
    while left or stop >= 0:
        if stop < 0:  # paused, or done
            if ended[slot, left]:
                stop = slot
            else:
                slot -= 1
        elif resumed[slot, left]:
            first = slot - (restart if left else 0)
            found.append((first, stop - first))
            slot, stop = first, -1
        else:
            slot, left = slot - 1, left - 1
    return tuple(reversed(found))
